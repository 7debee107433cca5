"""Sums of the time of many jobs that only grow, as counters must. Pure.

Time can be booked anew: what counted as training turns out to be the time in which a fault was not yet found. The sum
that has shrunk then stands still until it has grown past what it was, so no rate of it is ever negative or huge.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from detectors.finding import SymptomKind
from recovery.accounting.goodput.timeline import MTTR, TimePart
from recovery.accounting.goodput.totals import HUNG, NOTHING_LOST, RESTARTED, SLOW, TimeTotals

# What only a watched job's time is spent on.
WATCHED_PARTS: Final = frozenset({TimePart.STALLED, TimePart.SUSPENDED})
_NO_FAILURES: Final = frozenset({SymptomKind.UNKNOWN, SymptomKind.PERSON, SymptomKind.GROWTH})
INTERRUPTED = "interrupted"  # the class of failures in which rankmend itself had ended


class Counted(Enum):
    """What is summed up; each with a label of its own."""

    SECONDS = "seconds"  # by part
    DEVICE_S = "device_s"  # by part
    LOST_DEVICE_S = "lost_device_s"  # by cause
    FAILURES = "failures"  # by class
    RECOVERED = "recovered"  # by class
    RECOVERY_S = "recovery_s"  # by class
    RESTARTS = "restarts"
    HARDWARE_FAILURES = "hardware_failures"  # by kind and name of the hardware: "gpu NVIDIA H200"
    HARDWARE_RECOVERED = "hardware_recovered"
    HARDWARE_RECOVERY_S = "hardware_recovery_s"
    HARDWARE_DEVICE_S = "hardware_device_s"


Key = tuple[Counted, str]


def amounts_of(totals: TimeTotals) -> dict[Key, float]:
    """Return the totals as amounts that add up."""
    found: dict[Key, float] = {}
    for part, time in totals.parts.items():
        found[Counted.SECONDS, part.value] = time.seconds
        found[Counted.DEVICE_S, part.value] = time.device_s
    for cause, device_s in totals.lost_device_s.items():
        found[Counted.LOST_DEVICE_S, cause] = device_s
    for name, group in totals.by_class.items():
        found[Counted.FAILURES, name] = group.failures
        found[Counted.RECOVERED, name] = group.recovered
        found[Counted.RECOVERY_S, name] = group.recovery_s
    for (hardware, name), item in totals.by_hardware.items():
        label = f"{hardware} {name}"
        found[Counted.HARDWARE_FAILURES, label] = item.failures
        found[Counted.HARDWARE_RECOVERED, label] = item.recovered
        found[Counted.HARDWARE_RECOVERY_S, label] = item.recovery_s
        found[Counted.HARDWARE_DEVICE_S, label] = item.device_s
    if totals.interruptions:
        found[Counted.FAILURES, INTERRUPTED] = totals.interruptions
    found[Counted.RESTARTS, ""] = totals.restarts
    return found


def managed_keys() -> Iterator[Key]:
    """Give what jobs of rankmend can come to: so a counter stands at zero before it counts for the first time.

    Which hardware there is nobody knows beforehand.
    """
    classes = (kind.value.replace(" ", "_") for kind in SymptomKind if kind not in _NO_FAILURES)
    yield from _keys((part for part in TimePart if part not in WATCHED_PARTS), classes)
    yield Counted.FAILURES, INTERRUPTED


def watched_keys() -> Iterator[Key]:
    """Give what jobs of other launchers can come to."""
    yield from _keys((part for part in TimePart if part not in MTTR), (HUNG, RESTARTED))


def _keys(parts: Iterable[TimePart], classes: Iterable[str]) -> Iterator[Key]:
    yield Counted.RESTARTS, ""
    yield Counted.LOST_DEVICE_S, SLOW
    for part in parts:
        yield Counted.SECONDS, part.value
        yield Counted.DEVICE_S, part.value
        if part not in NOTHING_LOST:
            yield Counted.LOST_DEVICE_S, part.value
    for name in classes:
        yield Counted.LOST_DEVICE_S, name
        for counted in (Counted.FAILURES, Counted.RECOVERED, Counted.RECOVERY_S):
            yield counted, name


class HeldSums:
    def __init__(self, known: Iterable[Key] = ()) -> None:
        """``known``: what is zero until something is added."""
        self._sums = dict.fromkeys(known, 0.0)
        self._held: dict[Key, float] = {}

    def add(self, before: Mapping[Key, float], after: Mapping[Key, float]) -> None:
        """Add what one job has grown by."""
        for key in before.keys() | after.keys():
            self._sums[key] = self._sums.get(key, 0.0) + after.get(key, 0.0) - before.get(key, 0.0)

    def held(self) -> dict[Key, float]:
        """Return the sums; none is less than it was."""
        for key, amount in self._sums.items():
            self._held[key] = max(self._held.get(key, 0.0), amount)
        return dict(self._held)
