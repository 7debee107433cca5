"""A job's time, cut into spans without gap or overlap. Pure.

`Timeline.append` adds time at the end, `Timeline.paint` gives a stretch of it another part: each second
has one part at any moment, so the parts sum to the whole whatever the records say.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class TimePart(Enum):
    """What a stretch of a job's time was spent on. docs/reference/goodput.md defines each."""

    PRODUCTIVE = "productive"  # steps that no earlier attempt had made
    RECOMPUTED = "recomputed"  # steps that an earlier attempt had made
    UNDIVIDED = "undivided"  # ranks ran; which of the two is not known
    CHECKPOINT = "checkpoint"  # training stood still for a save
    UNFINISHED = "unfinished"  # the step that a fault cut off
    STARTUP = "startup"  # from the order of an attempt without an incident to its first step
    DETECT = "detect"  # this and the next eight: the phases of MTTR
    DECIDE = "decide"
    FENCE = "fence"
    RETRIES = "retries"
    PREPARE = "prepare"
    START = "start"
    RENDEZVOUS = "rendezvous"
    RESTORE = "restore"
    FIRST_STEP = "first_step"
    WAIT_NODES = "wait_nodes"  # for nodes to begin or to go on with
    WAIT_PERSON = "wait_person"  # for an approval, the end of a pause, a checkpoint put back
    WAIT_STORAGE = "wait_storage"  # for a checkpoint folder that can be written
    STOPPING = "stopping"  # from a planned stop, or from the end of the ranks, to the job's end
    STALLED = "stalled"  # of a watched job: no rank made a step
    SUSPENDED = "suspended"  # of a watched job: all its ranks were stopped by a signal
    INTERRUPTED = "interrupted"  # rankmend itself had ended, and the ranks with it
    UNACCOUNTED = "unaccounted"  # the journal doesn't tell
    ENDED = "ended"  # the job had ended and was not started again yet: it held no devices


TRAINING: Final = frozenset({TimePart.PRODUCTIVE, TimePart.RECOMPUTED, TimePart.UNDIVIDED})
MTTR: Final = (
    TimePart.DETECT,
    TimePart.DECIDE,
    TimePart.FENCE,
    TimePart.RETRIES,
    TimePart.PREPARE,
    TimePart.START,
    TimePart.RENDEZVOUS,
    TimePart.RESTORE,
    TimePart.FIRST_STEP,
)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stretch of a job's time. Seconds since the job's first record."""

    begin_s: float
    end_s: float
    part: TimePart
    attempt: int = 0  # the newest at that time; 0 before the first
    devices: int = 0  # that the job held
    incident_id: str = ""  # that this time is the cost of; empty: none
    is_estimated: bool = False

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def device_s(self) -> float:
        return self.length_s * self.devices

    def _is_like(self, other: "TimeSpan") -> bool:
        # Field by field: it is asked for each record, and a `replace` takes ten times as long.
        return (
            self.part is other.part
            and self.attempt == other.attempt
            and self.devices == other.devices
            and self.incident_id == other.incident_id
            and self.is_estimated == other.is_estimated
        )

    def between(self, begin_s: float, end_s: float) -> "TimeSpan":
        """Return the same with other bounds."""
        return TimeSpan(
            begin_s,
            end_s,
            self.part,
            self.attempt,
            self.devices,
            self.incident_id,
            self.is_estimated,
        )


class Timeline:
    def __init__(self) -> None:
        self._spans: list[TimeSpan] = []

    def copy(self) -> "Timeline":
        """Return a timeline of its own with the same spans."""
        other = Timeline()
        other._spans = list(self._spans)
        return other

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def end_s(self) -> float:
        return self._spans[-1].end_s if self._spans else 0.0

    @property
    def spans(self) -> tuple[TimeSpan, ...]:
        """Return the spans in order; each begins where the one before ends."""
        return tuple(_joined(self._spans))

    def spans_after(self, since_s: float) -> tuple[TimeSpan, ...]:
        """Return the spans that end after a moment; the first may begin before it."""
        return tuple(_joined(self._spans[self._first_after(since_s) :]))

    def _first_after(self, since_s: float) -> int:
        return bisect_right(self._spans, since_s, key=lambda span: span.end_s)

    def append(self, end_s: float, like: TimeSpan) -> None:
        """Add the time until ``end_s``, which is ``like`` in all but its bounds."""
        begin_s = self.end_s
        if end_s <= begin_s:
            return
        last = self._spans[-1] if self._spans else None
        if last is not None and last._is_like(like):
            self._spans[-1] = last.between(last.begin_s, end_s)
        else:
            self._spans.append(like.between(begin_s, end_s))

    def cut(self, end_s: float) -> None:
        """Take away the time after ``end_s``."""
        retained = [span for span in self._spans if span.begin_s < end_s]
        if retained:
            retained[-1] = replace(retained[-1], end_s=min(retained[-1].end_s, end_s))
        self._spans = retained

    def forget_before(self, begin_s: float) -> None:
        """Take away the time before ``begin_s``, and join what is alike."""
        retained = self.spans_after(begin_s)
        self._spans = [span.between(max(span.begin_s, begin_s), span.end_s) for span in retained]

    def condense(self, count: int) -> None:
        """Keep the newest ``count`` spans as they are; of those before, each part becomes one stretch."""
        old, retained = self._spans[:-count], self._spans[-count:]
        grouped: dict[TimeSpan, float] = {}
        for span in old:
            key = replace(span, begin_s=0.0, end_s=0.0, attempt=0, incident_id="")
            grouped[key] = grouped.get(key, 0.0) + span.length_s
        at_s, self._spans = (old[0].begin_s if old else 0.0), []
        for key, length_s in grouped.items():
            self._spans.append(replace(key, begin_s=at_s, end_s=at_s + length_s))
            at_s += length_s
        if retained and self._spans:  # sums of floats differ in their last bits
            self._spans[-1] = replace(self._spans[-1], end_s=retained[0].begin_s)
        self._spans += retained

    def paint(
        self,
        begin_s: float,
        end_s: float,
        part: TimePart,
        *,
        only: Collection[TimePart] | None = None,
        incident_id: str | None = None,
        is_estimated: bool = False,
    ) -> None:
        """Give the time between two moments another part; ``only`` where it has one of these now."""
        if not self._spans or end_s <= begin_s:
            return
        first = place = self._first_after(begin_s)
        changed: list[TimeSpan] = []
        while place < len(self._spans) and self._spans[place].begin_s < end_s:
            span = self._spans[place]
            place += 1
            if only is not None and span.part not in only:
                changed.append(span)
                continue
            inner = replace(
                span,
                begin_s=max(span.begin_s, begin_s),
                end_s=min(span.end_s, end_s),
                part=part,
                incident_id=span.incident_id if incident_id is None else incident_id,
                is_estimated=is_estimated,
            )
            before = span.between(span.begin_s, inner.begin_s)
            after = span.between(inner.end_s, span.end_s)
            changed += [item for item in (before, inner, after) if item.length_s > 0]
        self._spans[first:place] = changed


def _joined(spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    joined: list[TimeSpan] = []
    for span in spans:
        if joined and joined[-1]._is_like(span):
            joined[-1] = joined[-1].between(joined[-1].begin_s, span.end_s)
        else:
            joined.append(span)
    return joined
