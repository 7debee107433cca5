"""Adds up what the ranks of one attempt spend their steps on, by the sections that they tell. Pure.

The first step that is heard of a rank is no part of it: it may have begun with the start.
"""

from collections.abc import Callable
from dataclasses import dataclass

from recovery.journal.attempt_records import StepsSeen
from recovery.messages.exchange import RankReport, Report, StepTiming


@dataclass(frozen=True, slots=True)
class _Mark:
    """A step of a rank: when it ended, and the totals until then."""

    end_s: float
    timing: StepTiming


class StepMeter:
    def __init__(self) -> None:
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget all: another attempt begins."""
        self._attempt = attempt
        self._base: dict[int, _Mark] = {}  # by rank: at the newest `take`, or as first heard
        self._newest: dict[int, _Mark] = {}

    def note_report(self, report: Report, now_s: float) -> None:
        """Take in the steps that a report tells of."""
        if report.attempt != self._attempt:
            return
        for rank in report.ranks:
            if rank.timings and rank.sections_entered:
                self._note(rank, now_s)

    def _note(self, rank: RankReport, now_s: float) -> None:
        timing = rank.timings[-1]
        mark = self._newest[rank.rank] = _Mark(now_s - timing.age_s, timing)
        base = self._base.setdefault(rank.rank, mark)
        if timing.number < base.timing.number:  # another process
            self._base[rank.rank] = mark

    def take(self) -> StepsSeen | None:
        """Return what was spent since the last call; None where no rank with sections has made a step."""
        pairs = [
            (self._base[rank], newest)
            for rank, newest in self._newest.items()
            if newest.timing.number > self._base[rank].timing.number
        ]
        if not pairs:
            return None
        self._base = dict(self._newest)

        def spent(total_of: Callable[[StepTiming], float]) -> float:
            return sum(
                max(0.0, total_of(after.timing) - total_of(before.timing))
                for before, after in pairs
            )

        return StepsSeen(
            attempt=self._attempt,
            ranks=len(pairs),
            steps=sum(after.timing.number - before.timing.number for before, after in pairs),
            step_s=sum(max(0.0, after.end_s - before.end_s) for before, after in pairs),
            compute_s=spent(lambda one: one.compute_s),
            communication_s=spent(lambda one: one.communication_s),
            waited_s=spent(lambda one: one.waited_s),
            io_s=spent(lambda one: one.io_s),
            checkpoint_s=spent(lambda one: one.checkpoint_s),
        )
