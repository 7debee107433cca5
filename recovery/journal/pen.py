"""How the controller of a job writes its journal: at once, or ahead of the disk.

`DirectPen` waits for each record. `AheadPen` hands records to a committer and goes on: the deciding thread, which decides for all jobs,
never waits for the disk of one of them. What was handed in is numbered and dated then, is written in that order and is never left out:
where a commit fails, the same entries are tried again, and nothing is written before them. So the journal on the disk is at each moment the
beginning of the journal that the controller has in mind. The controller sends no order, answers nobody and does nothing outside the job
before `durable_number` has reached its newest decision (`recovery.controller.job.situation`).
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import JournalError, RankmendError
from recovery.journal.fold_snapshot import Foundation
from recovery.journal.journal_rows import GROUP_ROWS_MAX
from recovery.journal.ledger import Ledger
from recovery.journal.record_weights import has_decision
from recovery.journal.records import Entry, Record, encode_record

log = logging.getLogger(__name__)

CLOSE_S: Final = 10.0
# One commit. A disk that takes longer counts as broken (`recovery.journal.store`).
WAIT_S: Final = 30.0
# Of bookkeeping that waits for the disk, per job: 4 minutes of a job that writes 4 a second. Progress that follows is noted later, as a sum.
PENDING_MAX: Final = 1_000


class DirectJournal(Protocol):
    @property
    def opened(self) -> tuple[Entry, ...]: ...

    def append_many(self, records: Sequence[Record], /) -> tuple[Entry, ...]:
        """Write all records to stable storage, or none of them and raise."""
        ...


class EntryJournal(DirectJournal, Protocol):
    @property
    def last_number(self) -> int: ...

    def close(self) -> None: ...

    def append_entries(self, entries: Sequence[Entry], /) -> None:
        """Write entries that are numbered and dated already behind the newest; else as `append_many`."""
        ...


class FoldKeeper(Protocol):
    """A journal that keeps snapshots of its fold (`recovery.journal.fold_snapshot`)."""

    foundation: Foundation | None

    def hold_fold(self, ledger: Ledger, /) -> None:
        """Hold the ledger, if it is that of all that is durable, for `save_fold`. Returns at once."""
        ...

    @property
    def owes_fold(self) -> bool:
        """Return whether `save_fold` has something to write."""
        ...

    def save_fold(self) -> None:
        """Write what is held. For any thread; what keeps it from that is only logged."""
        ...


class Pen(Protocol):
    @property
    def foundation(self) -> Foundation | None:
        """Return what comes before the entries in `opened`; None: nothing does."""
        ...

    @property
    def opened(self) -> tuple[Entry, ...]: ...

    @property
    def is_ahead(self) -> bool:
        """Return whether `write` returns before the disk has the records."""
        ...

    @property
    def is_full(self) -> bool:
        """Return whether so much waits for the disk that bookkeeping must wait, too."""
        ...

    def write(self, records: Sequence[Record], /) -> tuple[Entry, ...]:
        """Hand the records in; return them in their places. Raises where none was."""
        ...

    def push(self) -> None:
        """Have what was handed in written, all of it by one commit."""
        ...

    def durable_number(self) -> int:
        """Return the newest record that is durable; raise JournalError while the disk refuses the next one.

        What else is raised means that the journal must be opened anew.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Return once all is durable, or raise."""
        ...

    def offer_fold(self, ledger: Ledger, /) -> None:
        """Have the ledger of all that is durable kept for the next start, off this thread."""
        ...

    def wait_briefly(self) -> bool:
        """Wait for what was pushed where commits are quick; return whether all is durable."""
        ...


class DirectPen:
    """Each write is one commit, as in `rankmend run` without a service, in the simulation and in unit tests."""

    foundation = None
    is_ahead = False
    is_full = False

    def __init__(self, journal: DirectJournal) -> None:
        self._journal = journal
        opened = journal.opened
        self._number = opened[-1].number if opened else 0

    @property
    def opened(self) -> tuple[Entry, ...]:
        return self._journal.opened

    def write(self, records: Sequence[Record], /) -> tuple[Entry, ...]:
        entries = self._journal.append_many(records)
        self._number = entries[-1].number
        return entries

    def push(self) -> None:
        """Do nothing: all is durable."""

    def durable_number(self) -> int:
        return self._number

    def wait(self, timeout_s: float) -> None:
        """Do nothing: all is durable."""

    def offer_fold(self, ledger: Ledger, /) -> None:
        """Do nothing."""

    def wait_briefly(self) -> bool:
        return True


class Committer(Protocol):
    """Writes what pens have handed in. For any thread."""

    @property
    def quick_s(self) -> float:
        """Return for how long to wait for a commit, since the last ones took no longer; 0: they take too long to wait."""
        ...

    def take(self, pen: "AheadPen", /, *, is_urgent: bool) -> None:
        """Have `pen.commit()` called soon; urgent: before those that are not."""
        ...


class AheadPen:
    """Direct until `go_ahead`. ``write`` is for one thread, the rest for any; `commit` runs once at a time."""

    def __init__(
        self,
        journal: EntryJournal,
        committer: Committer,
        clock: Clock,
        boot_id: str,
        keeper: FoldKeeper | None = None,
    ) -> None:
        """``keeper`` keeps snapshots of the journal's fold; None: nobody does."""
        self.journal = journal
        self._keeper = keeper
        self._offered: Ledger | None = None
        self._committer = committer
        self._clock = clock
        self._boot_id = boot_id
        self._changed = threading.Condition()
        self._pending: deque[tuple[Entry, ...]] = deque()  # each is written as a whole
        self._number = self._durable = journal.last_number  # handed in, and on the disk
        self._decided = 0  # the newest decision that was handed in
        self._error: JournalError | None = None  # why the newest commit failed
        self._fatal: Exception | None = None
        self._is_closed = False
        self.is_ahead = False

    @property
    def opened(self) -> tuple[Entry, ...]:
        return self.journal.opened

    @property
    def foundation(self) -> Foundation | None:
        return None if self._keeper is None else self._keeper.foundation

    @property
    def is_full(self) -> bool:
        return self._number - self._durable >= PENDING_MAX

    @property
    def owes_decision(self) -> bool:
        """Return whether somebody waits for the disk."""
        return self._decided > self._durable and self._error is None

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def go_ahead(self) -> None:
        """Wait for the disk no longer from now on."""
        self._number = self._durable = self._decided = self.journal.last_number
        self.is_ahead = True

    def write(self, records: Sequence[Record], /) -> tuple[Entry, ...]:
        if not self.is_ahead:
            entries = self.journal.append_many(records)
            self._number = self._durable = self._decided = entries[-1].number
            return entries
        if not 0 < len(records) <= GROUP_ROWS_MAX:
            raise JournalError(
                f"{len(records)} records in one write; 1 to {GROUP_ROWS_MAX} are allowed"
            )
        for record in records:
            encode_record(record)  # raises where one is too large
        with self._changed:
            if self._fatal is not None:
                raise self._fatal
            if self._is_closed:
                raise JournalError("the journal is closed")
            made = []
            for record in records:
                self._number += 1
                stamps = (self._clock.unix_s(), self._clock.now_s(), self._boot_id)
                made.append(Entry(self._number, *stamps, record))
            self._pending.append(tuple(made))
            if has_decision(records):
                self._decided = self._number
            return tuple(made)

    def push(self) -> None:
        if self._pending:
            self._committer.take(self, is_urgent=self._decided > self._durable)

    def durable_number(self) -> int:
        with self._changed:
            if self._fatal is not None:
                raise self._fatal
            if self._error is not None:
                raise self._error
            return self._durable

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            wanted, self._error = self._number, None
        if self._durable >= wanted:
            return
        self._committer.take(self, is_urgent=True)
        with self._changed:
            self._changed.wait_for(
                lambda: self._durable >= wanted or self._error or self._fatal, timeout_s
            )
            failure = self._fatal or self._error
            if self._durable >= wanted:
                return
        raise failure or JournalError(f"record {wanted} is not durable after {timeout_s:.0f} s")

    def wait_briefly(self) -> bool:
        with self._changed:
            wanted, quick_s = self._number, self._committer.quick_s
            if quick_s:
                self._changed.wait_for(
                    lambda: self._durable >= wanted or self._error or self._fatal, quick_s
                )
            return self._durable >= wanted

    def offer_fold(self, ledger: Ledger, /) -> None:
        self._offered = ledger

    # The committer.

    def pending(self) -> tuple[Entry, ...]:
        """Return what the next commit is to write, oldest first: as much as fits into one."""
        entries: list[Entry] = []
        with self._changed:
            if self._is_closed or self._fatal is not None:
                return ()
            for batch in self._pending:
                if len(entries) + len(batch) > GROUP_ROWS_MAX:
                    break
                entries += batch
        return tuple(entries)

    def commit(self, write: Callable[[Sequence[Entry]], None] | None = None) -> bool:
        """Write what was handed in, by one commit; return whether it is durable. ``write``: in place of the journal's way."""
        entries = self.pending()
        if not entries:
            return True
        self.hold_fold()
        try:
            (write or self.journal.append_entries)(entries)
        except Exception as error:  # noqa: BLE001 - who decides raises it
            self.note_failed(error)
            return False
        self.note_durable(entries[-1].number)
        return True

    def hold_fold(self) -> None:
        """Have the journal hold the ledger that was offered, before anything is written behind it."""
        offered, self._offered = self._offered, None
        if offered is not None and self._keeper is not None:
            self._keeper.hold_fold(offered)

    @property
    def owes_fold(self) -> bool:
        return self._keeper is not None and self._keeper.owes_fold

    def save_fold(self) -> None:
        """Write the snapshot that is held: once no decision waits for this thread."""
        if self._keeper is not None:
            self._keeper.save_fold()

    def note_durable(self, through: int) -> None:
        with self._changed:
            while self._pending and self._pending[0][-1].number <= through:
                self._pending.popleft()
            self._durable, self._error = through, None
            self._changed.notify_all()

    def note_failed(self, error: Exception) -> None:
        with self._changed:
            if isinstance(error, JournalError):
                self._error = error
            else:
                self._fatal = error
            self._changed.notify_all()

    def close(self) -> None:
        """Have all written that was handed in, and write nothing more."""
        try:
            if self._fatal is None:
                self.wait(CLOSE_S)
        except RankmendError as error:
            left = self._number - self._durable
            log.warning("records not written", extra={"records": left, "error": str(error)})
        with self._changed:
            self._is_closed = True
        self.journal.close()
