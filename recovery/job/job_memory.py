"""The controller's memory: the journal, the ledger folded from it, and the copy of the budgets.

A record that does not fit the ledger is refused before it is written. A decision that can't be
written is not carried out, and is tried again after a growing pause. The pen may write ahead of the disk
(`recovery.journal.pen`): the ledger is then what the journal will say, and `settle` tells whether it says so.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Final, Protocol

from rankmend.backoff import Backoff
from rankmend.errors import JournalError, RankmendError
from recovery.journal.fold.entry_fold import fold, fold_all
from recovery.journal.fold_snapshot import EVERY
from recovery.journal.job_records import RecordsLost
from recovery.journal.ledger import Ledger
from recovery.journal.pen import WAIT_S, AheadPen, DirectJournal, DirectPen, Pen
from recovery.journal.record_weights import has_decision
from recovery.journal.records import Entry, Record
from recovery.journal.saved_budgets import decode_budgets, encode_budgets

log = logging.getLogger(__name__)

BACKOFF: Final = Backoff(first_s=0.5, cap_s=5.0)  # between two tries to write a failed journal
_WARNINGS_MAX: Final = 100


class BudgetStore(Protocol):
    def save(self, body: bytes, /) -> None: ...

    def load(self) -> bytes | None: ...


class JobMemory:
    def __init__(self, journal: DirectJournal | AheadPen, copy: BudgetStore | None) -> None:
        self._pen: Pen = journal if isinstance(journal, AheadPen) else DirectPen(journal)
        self._copy = copy
        known = self._pen.foundation
        self.ledger: Ledger = fold_all(self._pen.opened, None if known is None else known.ledger)
        self._kept = (
            0 if known is None else known.number
        )  # the newest record in a snapshot of the fold
        self._decided = self.ledger.number  # the newest record that something may follow from
        self._untold: deque[Entry] = deque()  # not known to be durable, or not yet told
        self._is_copy_due = False
        self._durable = self.ledger.number
        self.warnings: tuple[str, ...] = ()
        self.error: str | None = None  # why the journal can't be written at the moment
        self._retry_at_s = 0.0
        self._failures = 0  # in a row

    def foresee(self, records: Iterable[Record]) -> Ledger:
        """Return the ledger as it will be after these records, or raise."""
        ledger = self.ledger
        for record in records:
            ledger = fold(ledger, Entry(ledger.number + 1, 0.0, 0.0, "", record))
        return ledger

    def write(self, records: Sequence[Record], act: Callable[[Ledger], None]) -> bool:
        """Journal the records, then call ``act`` with the ledger from before; raise if a record does not fit.

        Return whether what follows from them must wait for `settle`.
        """
        after = self.foresee(records)
        entries = self._pen.write(records)
        if entries[-1].number != after.number:
            raise JournalError(
                f"record {entries[-1].number} was written where {after.number} was expected: "
                f"another process writes this journal"
            )
        if not self._pen.is_ahead:
            self._note_success()
        before = self.ledger
        self.ledger = after = reduce(fold, entries, before)  # this time with the entries' times
        is_decision = has_decision(records)
        if is_decision:
            self._decided = after.number
        self._untold.extend(entries)
        self._is_copy_due |= _budgets(after) != _budgets(before)
        act(before)
        return is_decision and self._pen.is_ahead

    # What is durable.

    @property
    def is_ahead(self) -> bool:
        """Return whether records are written ahead of the disk."""
        return self._pen.is_ahead

    @property
    def may_note(self) -> bool:
        """Return whether there is room for bookkeeping."""
        return not self._pen.is_full

    def push(self) -> None:
        """Have all that was written until now become durable, by one commit."""
        self._pen.push()

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Return once all is durable, or raise."""
        self._pen.wait(timeout_s)

    def wait_briefly(self) -> bool:
        """Wait until all is durable where commits are quick; return whether it is."""
        return self._pen.wait_briefly()

    def settle(self) -> tuple[bool, list[Entry]]:
        """Return whether every decision is durable, and the entries that have become so since.

        Raises JournalError where the disk refuses them, and what else `AheadPen.durable_number` raises.
        """
        number = self._pen.durable_number()
        if self._pen.is_ahead:
            self._note_success()
        told = []
        while self._untold and self._untold[0].number <= number:
            told.append(self._untold.popleft())
        self._durable = number
        if (
            number - self._kept >= EVERY
            and number == self.ledger.number
            and self.ledger.incident is None
        ):
            self._kept = number
            self._pen.offer_fold(self.ledger)
        return number >= self._decided, told

    def save_copy_if_due(self) -> None:
        """Copy the budgets, if they have changed and the journal has all that the copy would say."""
        if self._is_copy_due and self._durable >= self.ledger.number:
            self._is_copy_due = False
            self._save_copy()

    def _note_success(self) -> None:
        if self.error is not None:
            log.warning("journal can be written again")
        self.error = None
        self._retry_at_s, self._failures = 0.0, 0

    def is_writable(self, now_s: float) -> bool:
        """Return whether it is time to try (again) to write."""
        return now_s >= self._retry_at_s

    def note_failure(self, error: JournalError, now_s: float) -> None:
        """Note a failed write; the next one is tried after a pause."""
        if self.error is None:
            log.error(
                "journal can't be written: nothing is restarted until it can",
                extra={"error": str(error)},
            )
        self.error = str(error)
        self._failures += 1
        self._retry_at_s = now_s + BACKOFF.wait_s(self._failures)

    def warn(self, text: str) -> None:
        """Warn the user of something, once."""
        if text not in self.warnings and len(self.warnings) < _WARNINGS_MAX:
            self.warnings += (text,)
            log.warning("job warning", extra={"warning": text})

    def lost_records(self, job_id: str) -> list[Record]:
        """Return a record of the loss if the copy of the budgets knows more than the journal."""
        if self._copy is None:
            return []
        try:
            body = self._copy.load()
            copy = decode_budgets(body) if body is not None else None
        except (OSError, RankmendError) as error:
            self.warn(f"the copy of the budgets can't be used: {error}")
            return []
        number = self.ledger.number
        if copy is None or copy.record_number <= number:
            return []
        if copy.job_id != job_id:
            self.warn(f"the budgets beside the checkpoints are another job's, {copy.job_id}")
            return []
        self.warn(
            f"records were lost: the journal ends at {number}, the copy of the budgets beside "
            f"the checkpoints knows record {copy.record_number}; the stricter of the two applies"
        )
        return [
            RecordsLost(
                number,
                copy.record_number,
                copy.attempt,
                copy.restarts,
                copy.restarts_without_progress,
                copy.highest_step,
                copy.nodes,
                copy.has_lease,
            )
        ]

    def _save_copy(self) -> None:
        if self._copy is None:
            return
        try:
            self._copy.save(encode_budgets(self.ledger))
        except (OSError, RankmendError) as error:
            self.warn(f"the copy of the budgets can't be written: {error}")


def _budgets(ledger: Ledger) -> tuple[object, ...]:
    return (ledger.attempt, ledger.spent, ledger.highest_step)
