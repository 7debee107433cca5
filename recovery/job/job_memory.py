"""The controller's memory: the journal, the ledger folded from it, and the copy of the budgets.

A record that does not fit the ledger is refused before it is written. A decision that can't be
written is not carried out, and is tried again after a growing pause.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Final, Protocol

from rankmend.backoff import Backoff
from rankmend.errors import JournalError, RankmendError
from recovery.journal.fold.entry_fold import fold, fold_all
from recovery.journal.job_records import RecordsLost
from recovery.journal.ledger import Ledger
from recovery.journal.records import Entry, Record
from recovery.journal.saved_budgets import decode_budgets, encode_budgets

log = logging.getLogger(__name__)

BACKOFF: Final = Backoff(first_s=0.5, cap_s=5.0)  # between two tries to write a failed journal
_WARNINGS_MAX: Final = 100


class JournalWriter(Protocol):
    @property
    def opened(self) -> tuple[Entry, ...]:
        """Return the journal's entries from when it was opened, oldest first."""
        ...

    def append_many(self, records: Sequence[Record]) -> tuple[Entry, ...]:
        """Write all records to stable storage, or none of them and raise."""
        ...


class BudgetStore(Protocol):
    def save(self, body: bytes, /) -> None: ...

    def load(self) -> bytes | None: ...


class JobMemory:
    def __init__(self, journal: JournalWriter, copy: BudgetStore | None) -> None:
        self._journal = journal
        self._copy = copy
        self.ledger: Ledger = fold_all(journal.opened)
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

    def write(self, records: Sequence[Record], act: Callable[[Ledger], None]) -> tuple[Entry, ...]:
        """Journal the records, then call ``act`` with the ledger from before; raise if a record does not fit."""
        after = self.foresee(records)
        entries = self._journal.append_many(records)
        if entries[-1].number != after.number:
            raise JournalError(
                f"record {entries[-1].number} was written where {after.number} was expected: "
                f"another process writes this journal"
            )
        if self.error is not None:
            log.warning("journal can be written again")
        self.error = None
        self._retry_at_s, self._failures = 0.0, 0
        before = self.ledger
        self.ledger = after = reduce(fold, entries, before)  # this time with the entries' times
        act(before)
        if _budgets(after) != _budgets(before):
            self._save_copy()
        return entries

    def is_writable(self, now_s: float) -> bool:
        """Return whether it is time to try (again) to write."""
        return now_s >= self._retry_at_s

    def note_failure(self, error: JournalError, now_s: float) -> None:
        """Note a failed write; the next one is tried after a pause."""
        if self.error is None:
            log.error("journal can't be written", extra={"error": str(error)})
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
