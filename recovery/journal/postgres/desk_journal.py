"""The journal of a desk (Slurm's, Kubernetes') in PostgreSQL: every controller hands requests in, and one works on them.

The one that works has the journal's lease, and only it can write what it does: the database refuses anything else of another, and all
of one whose lease is over. What others hand in is read behind it, as in the cluster's journal.
"""

import logging
from collections.abc import Sequence
from typing import Final

from rankmend.clock import Clock
from recovery.journal.journal_rows import JournalRow
from recovery.journal.postgres.database import Database, LeaseLostError
from recovery.journal.postgres.leases import HeldByOtherError, JournalLease, Leases
from recovery.journal.postgres.postgres_journal import PostgresJournal, hand_in_rows
from recovery.journal.records import Entry, Record

log = logging.getLogger(__name__)

_OTHER: Final = (
    "SELECT 1 FROM rankmend.journal WHERE name = %s AND holder <> %s AND rankmend.is_alive(holder)"
)


class DeskJournal(PostgresJournal):
    """``hold`` is for one thread, the rest for any."""

    def __init__(
        self, database: Database, leases: Leases, name: str, clock: Clock, boot_id: str
    ) -> None:
        self._held: JournalLease | None = None
        self._held_generation = leases.generation
        super().__init__(database, leases, JournalLease(name, 0), clock, boot_id)

    def hold(self) -> int | None:
        is_sure = self._held_generation == self._leases.generation and self._doubt is None
        if self._held is not None and is_sure:
            return self._held.epoch if self.left_s() > 0.0 else None
        self._held = None
        # What nobody knows of is read with what is newer: it is there, or refused under a new lease. A request that was handed in
        # and comes late does no harm: it has its key.
        self._doubt = None
        name, ours = self._lease.journal, self._leases.controller_id
        if self._database.read(_OTHER, (name, ours)):
            return None
        generation = self._leases.generation
        try:
            lease = self._leases.take(name)
        except (
            HeldByOtherError,
            LeaseLostError,
        ):  # another one was quicker, or ours have just expired
            return None
        self._held, self._held_generation = lease, generation
        log.info("works on a desk from now on", extra={"desk": name, "epoch": lease.epoch})
        return lease.epoch

    def left_s(self) -> float:
        return 0.0 if self._held is None else self._leases.left_s()

    def append_many(self, records: Sequence[Record]) -> tuple[Entry, ...]:
        try:
            return super().append_many(records)
        except LeaseLostError:
            self._held = None
            raise

    def close(self) -> None:
        super().close()
        held, self._held = self._held, None
        if held is not None:
            self._leases.release(held)

    def _send(self, rows: list[JournalRow]) -> None:
        held = self._held
        if held is not None:
            self._lease = held
            super()._send(rows)
        else:
            hand_in_rows(
                self._database,
                self._leases.controller_id,
                self._lease.journal,
                rows,
                self._number,
                self._head,
            )
