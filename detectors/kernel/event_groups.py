"""Many kernel messages as few groups: 800,000 equal lines are one group and a count.

Memory is bounded whatever the log says: at the limit of groups, events are counted without their
sub-code, then without their device, so that no event goes uncounted.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from detectors.kernel.event import EventKind, KernelEvent
from detectors.kernel.left_out import LogGap, find_left_out
from detectors.kernel.log import LogWriter, Record
from detectors.kernel.rules.matcher import Matcher

GROUPS_MAX: Final = 512  # 8 GPUs with 60 kinds of trouble each; 1 KB a group
BURST_GAP_S: Final = 180.0  # NVSentinel health-events-analyzer: a burst is within 3 minutes
BURSTS_MAX: Final = 16  # the newest of a group; no rule counts beyond 5

_MOMENT_S: Final = 5.0  # own choice: a guest's CPUs that its host paused report at once
_CODED: Final = frozenset({EventKind.XID, EventKind.SXID})
_COUNTING: Final = frozenset({EventKind.MEMORY_CORRECTED, EventKind.MEMORY_UNCORRECTED})
_WEIGHT_MAX: Final = 1_000_000  # errors that one EDAC message may count

Key = tuple[EventKind, int | None, str, str]

_SEEN_MAX: Final = 1_024  # messages by which a log that prints the kernel's buffer again is known

_SECONDS: Final = re.compile(r"\d{1,12}\.\d{1,9}")
_MARK: Final = "NVRM: Xid ("
_YEAR_S: Final = 366 * 86_400.0  # log.py counts in 2000, a leap year, where a log has no year


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events with the same kind, code, sub-code and device."""

    kind: EventKind
    code: int | None  # XID or SXID
    sub_code: str
    device: str
    count: int
    first: KernelEvent
    last: KernelEvent
    last_number: int  # the newest event's place among all events: order without times
    bursts: tuple[tuple[float, float], ...]  # start and end of each, oldest first


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The state as a file holds it."""

    groups: tuple[EventGroup, ...] = ()
    records: int = 0
    events: int = 0
    untrusted: int = 0
    overflowed: int = 0
    suppressed: int = 0


class _Tally:
    """One group in the making."""

    __slots__ = ("bursts", "count", "first", "last", "last_number")

    def __init__(self, event: KernelEvent) -> None:
        self.count = 0
        self.first = self.last = event
        self.last_number = 0
        self.bursts: list[tuple[float, float]] = []

    def add(self, event: KernelEvent, weight: int, number: int) -> None:
        self.count += weight
        self.last, self.last_number = event, number
        if event.at_s is None:
            return
        if self.bursts and abs(event.at_s - self.bursts[-1][1]) < BURST_GAP_S:
            self.bursts[-1] = (self.bursts[-1][0], event.at_s)
            return
        self.bursts.append((event.at_s, event.at_s))
        del self.bursts[:-BURSTS_MAX]


class KernelLogState:
    """Takes records and keeps groups of events."""

    def __init__(
        self,
        *,
        trusts_user: bool = False,
        groups_max: int = GROUPS_MAX,
        old: StateSnapshot | None = None,
    ) -> None:
        """``trusts_user``: believe what processes wrote to /dev/kmsg, for tests."""
        old = old or StateSnapshot()
        self.records, self.events = old.records, old.events
        self.untrusted = old.untrusted  # written by a process; otherwise they would be events
        self.overflowed = old.overflowed  # events counted without sub-code or device
        self.suppressed = old.suppressed  # left out by the kernel's own limits, as it says
        self.lost = 0  # missing from the log by the words of what wrote it
        self.suppressed_services = 0  # so many of services, of which none says what is judged
        self.kind: LogWriter | None = None  # of the log, by its first record with a form of its own
        self.missed = 0  # records that name an XID in no known form
        self.quoted = 0  # a container printed them: whether the kernel said so is not known
        self._year_s, self._newest_yearless_s = 0.0, 0.0
        self._seen: dict[tuple[str, str], None] = {}
        self._stalled_at_s: dict[str, float] = {}  # by sub-code, the newest soft lockup
        self._trusts_user = trusts_user
        self._groups_max = groups_max
        self._matcher = Matcher()
        self._tallies: dict[Key, _Tally] = {}
        for group in old.groups:
            tally = _Tally(group.first)
            tally.count, tally.last, tally.last_number = group.count, group.last, group.last_number
            tally.bursts = list(group.bursts)
            self._tallies[group.kind, group.code, group.sub_code, group.device] = tally

    @property
    def is_no_log(self) -> bool:
        """Return whether nothing that was taken has the form of a kernel log."""
        is_judged = self.events or self.untrusted or self.missed
        return self.records > 0 and self.kind is None and not is_judged

    def feed(self, record: Record) -> KernelEvent | None:
        """Count the record and return its event, if it can be believed."""
        self.records += 1
        self.note_kind(record)
        if record.source is LogWriter.CONTAINER and not self._trusts_user:
            self.quoted += Matcher().match(record) is not None or _MARK in record.text
            return None
        self._note_left_out(record)
        if record.is_from_user and not self._trusts_user:
            # its own matcher, so that a process's lines don't pair with the kernel's
            if Matcher().match(record) is not None:
                self.untrusted += 1
            return None
        event = self._matcher.match(record)
        if event is not None and self._is_replayed(record):
            return None
        if event is not None:
            count = self._count_of(event, record)
            self._add(event if record.has_year else self._in_its_year(event), count)
        elif _MARK in record.text:
            self.missed += 1
        return event

    def _is_replayed(self, record: Record) -> bool:
        """Return whether the message was there before: a program prints what the kernel holds more than once.

        The time that the kernel gave it says so; the line's own time is the program's.
        """
        if not record.boot_stamp:
            return False
        key = (record.boot_stamp, record.text)
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        return False

    def _note_left_out(self, record: Record) -> None:
        found = find_left_out(record)
        if found is None:
            return
        why, count = found
        if why is LogGap.LOST:
            self.lost += count
        elif why is LogGap.SERVICE:
            self.suppressed_services += count
        else:
            self.suppressed += count

    def note_kind(self, record: Record) -> None:
        """Learn which program's log this is, which its first records show."""
        if self.kind is not None or record.source is LogWriter.CONTAINER:
            return
        if record.has_form:
            self.kind = record.source

    def skip(self, records: int) -> None:
        """Count records that hold nothing which a rule looks for."""
        self.records += records

    def _in_its_year(self, event: KernelEvent) -> KernelEvent:
        """Return the event on an axis that goes on at new year, which a log without years starts again.

        The time from one event to the next is the shortest that the dates allow.
        """
        if event.at_s is None:
            return event
        at_s = event.at_s + self._year_s
        if self._newest_yearless_s and at_s < self._newest_yearless_s - _YEAR_S / 2:
            self._year_s += _YEAR_S
        elif self._newest_yearless_s and at_s > self._newest_yearless_s + _YEAR_S / 2:
            self._year_s -= _YEAR_S
        self._newest_yearless_s = event.at_s + self._year_s
        return replace(event, at_s=self._newest_yearless_s)

    def feed_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.feed(record)

    def groups(self) -> tuple[EventGroup, ...]:
        return tuple(
            EventGroup(
                kind,
                code,
                sub_code,
                device,
                tally.count,
                tally.first,
                tally.last,
                tally.last_number,
                tuple(tally.bursts),
            )
            for (kind, code, sub_code, device), tally in self._tallies.items()
        )

    def snapshot(self) -> StateSnapshot:
        return StateSnapshot(
            self.groups(),
            self.records,
            self.events,
            self.untrusted,
            self.overflowed,
            self.suppressed,
        )

    def _count_of(self, event: KernelEvent, record: Record) -> int:
        """Return how many faults one message reports: several CPUs that stand still at once are one.

        The kernel's own time says so: what wrote the line may have stood still as well.
        """
        if event.kind in _COUNTING and event.code:
            return min(event.code, _WEIGHT_MAX)
        if event.kind is not EventKind.SOFT_LOCKUP:
            return 1
        boot = _SECONDS.search(record.boot_stamp)
        at_s = float(boot[0]) if boot else event.at_s
        if at_s is None:
            return 1
        before_s = self._stalled_at_s.get(event.sub_code)
        self._stalled_at_s[event.sub_code] = at_s
        return 1 if before_s is None or abs(at_s - before_s) >= _MOMENT_S else 0

    def _add(self, event: KernelEvent, count: int) -> None:
        self.events += 1
        code = event.code if event.kind in _CODED else None
        self._tally(event, code).add(event, count, self.events)

    def _tally(self, event: KernelEvent, code: int | None) -> _Tally:
        key = (event.kind, code, event.sub_code, event.device)
        tally = self._tallies.get(key)
        if tally is not None:
            return tally
        if len(self._tallies) < self._groups_max:
            tally = self._tallies[key] = _Tally(event)
            return tally
        self.overflowed += 1
        for folded in ((event.kind, code, "", event.device), (event.kind, code, "", "")):
            if folded in self._tallies:
                return self._tallies[folded]
        # above the limit, one group per kind: nothing goes uncounted
        return self._tallies.setdefault((event.kind, None, "", ""), _Tally(event))
