"""The first records of many jobs that are taken over, written to all of their journals by one commit."""

from dataclasses import dataclass, field
from typing import Final

from rankmend.errors import JournalError, RankmendError
from recovery.journal.journal_rows import JournalRow
from recovery.postgres.database import Database
from recovery.postgres.database_errors import CommitUnknownError, StatementRefusedError
from recovery.postgres.leases import JournalLease, Leases
from recovery.postgres.postgres_journal import APPEND_CALL, append_rows, append_values

_JOURNALS_MAX: Final = 100  # in one statement: each has 13 values


@dataclass(slots=True)
class _Held:
    """Rows of one journal behind number ``after``, which has the checksum ``head``."""

    lease: JournalLease
    after: int
    head: bytes
    rows: list[JournalRow] = field(default_factory=list)


class AppendGroup:
    """For the deciding thread. Nothing may follow from a record before `write` has returned."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases
        self._held: dict[str, _Held] = {}

    def add(self, lease: JournalLease, after: int, head: bytes, rows: list[JournalRow]) -> None:
        """Hold rows back that follow the last ones of this journal."""
        held = self._held.setdefault(lease.journal, _Held(lease, after, head))
        held.rows += rows

    def write(self) -> dict[str, RankmendError]:
        """Write what is held; return the journals that must be opened again, as it may not be durable there, and why."""
        held = [self._held[name] for name in sorted(self._held)]  # in one order: see `take_free`
        self._held = {}
        failed: dict[str, RankmendError] = {}
        for first in range(0, len(held), _JOURNALS_MAX):
            failed |= self._write(held[first : first + _JOURNALS_MAX])
        return failed

    def _write(self, held: list[_Held]) -> dict[str, RankmendError]:
        values: list[object] = []
        for one in held:
            values += append_values(
                self._leases.controller_id, one.lease, one.rows, one.after, one.head
            )
        try:
            self._database.write(f"SELECT {', '.join([APPEND_CALL] * len(held))}", values)
        except StatementRefusedError:  # for one of them: the others are not to suffer for it
            return self._write_each(held)
        except (JournalError, CommitUnknownError) as error:
            return {one.lease.journal: error for one in held}
        return {}

    def _write_each(self, held: list[_Held]) -> dict[str, RankmendError]:
        failed = {}
        for one in held:
            try:
                append_rows(
                    self._database,
                    self._leases.controller_id,
                    one.lease,
                    one.rows,
                    one.after,
                    one.head,
                )
            except RankmendError as error:
                failed[one.lease.journal] = error
        return failed
