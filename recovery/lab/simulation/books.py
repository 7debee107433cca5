"""The journals of a simulated job and cluster, in memory, under the simulated clock."""

from collections.abc import Sequence
from typing import Final

from recovery.journal.cluster_records import ClusterRecord
from recovery.journal.fold.entry_fold import fold
from recovery.journal.ledger import Ledger
from recovery.journal.records import Entry, Record

_BOOT: Final = "simulated"
_UNIX_S: Final = 1.7e9  # of the start; no decision depends on it


class SimulatedClock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return _UNIX_S + self.time_s


class JobBook:
    """The job's journal, of which only the ledger is kept."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self.ledger = Ledger()

    def record(self, *records: Record) -> None:
        clock = self._clock
        for record in records:
            number = self.ledger.number + 1
            entry = Entry(number, clock.unix_s(), clock.now_s(), _BOOT, record)
            self.ledger = fold(self.ledger, entry)


class ClusterBook:
    """The cluster's journal; the controller keeps what it says."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._written = 0

    @property
    def opened(self) -> tuple[Entry, ...]:
        return ()

    def append_many(self, records: Sequence[ClusterRecord], /) -> tuple[Entry, ...]:
        entries = []
        for record in records:
            self._written += 1
            unix_s, now_s = self._clock.unix_s(), self._clock.now_s()
            entries.append(Entry(self._written, unix_s, now_s, _BOOT, record))
        return tuple(entries)

    def read_newer(self) -> tuple[Entry, ...]:
        """Return nothing: no other controller writes."""
        return ()
