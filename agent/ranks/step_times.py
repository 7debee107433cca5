"""The pace of a rank, from the records of its newest steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from rankmend.errors import SourceError
from rankmend.progress import Section, StepRecord

STEPS_MAX: Final = 32  # in the median and the shares; docs/reference/metrics.md says so
_IN_STEPS: Final = (Section.COMPUTE, Section.COMMUNICATION, Section.IO, Section.CHECKPOINT)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the newest step records of a rank say about its pace."""

    last_s: float
    median_s: float
    share_by_section: dict[Section, float]  # ratios; IDLE is the time outside of all sections


def measure_steps(records: tuple[StepRecord, ...]) -> StepTimes | None:
    """Return the pace over ``records``, or None while there is no finished interval.

    Raises SourceError where time runs backwards, which no rank can have written.
    """
    durations_s = [
        after.ended_at_s - before.ended_at_s
        for before, after in pairwise(records)
        if after.count == before.count + 1  # none was overtaken by the writer between them
    ]
    if not durations_s:
        return None
    window_s = sum(durations_s)
    used_s = dict.fromkeys(_IN_STEPS, 0.0)
    for first, last in _runs(records):  # the times of a record are totals
        used_s[Section.COMPUTE] += last.compute_s - first.compute_s
        used_s[Section.COMMUNICATION] += last.communication_s - first.communication_s
        used_s[Section.IO] += last.io_s - first.io_s
        used_s[Section.CHECKPOINT] += last.checkpoint_s - first.checkpoint_s
    if min(durations_s) < 0 or min(used_s.values()) < 0:
        raise SourceError(
            f"the times of steps {records[0].step} to {records[-1].step} run backwards"
        )
    used_s[Section.IDLE] = max(0.0, window_s - sum(used_s.values()))
    shares = {section: part_s / window_s if window_s else 0.0 for section, part_s in used_s.items()}
    return StepTimes(durations_s[-1], median(durations_s), shares)


def _runs(records: Sequence[StepRecord]) -> Iterator[tuple[StepRecord, StepRecord]]:
    """Return the first and the last of records that follow each other without a gap."""
    first = records[0]
    for before, after in pairwise(records):
        if after.count != before.count + 1:
            yield first, before
            first = after
    yield first, records[-1]
