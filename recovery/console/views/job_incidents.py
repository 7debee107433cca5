"""The incidents of one job's journal, read once and then as far as the journal has grown."""

from typing import Final

from detectors.finding import Finding
from recovery.api import wire
from recovery.console.views.incident_view import view_accounts
from recovery.journal.accounting import Account, Accounting
from recovery.journal.attempt_records import AttemptEnded, AttemptStarted, AttemptVerified
from recovery.journal.incident_records import (
    BlameCorrected,
    CaughtUp,
    Decided,
    EvidenceCollected,
    IncidentEvent,
    IncidentOpened,
    NodesCharged,
    PlanWaits,
)
from recovery.journal.journal_reader import JournalReader
from recovery.journal.journal_rows import GENESIS, entry_of
from recovery.journal.records import NAMES
from recovery.journal.stored_journal import StoredJournal

_INCIDENT_KINDS: Final = tuple(
    NAMES[kind]
    for kind in (
        IncidentOpened,
        Decided,
        AttemptStarted,
        IncidentEvent,
        AttemptVerified,
        AttemptEnded,
        CaughtUp,
        EvidenceCollected,
        NodesCharged,
        BlameCorrected,
        PlanWaits,
    )
)
_WHERE: Final = (
    f"r.number > ? AND r.number <= ? AND r.kind IN ({', '.join('?' * len(_INCIDENT_KINDS))})"
)


class JobIncidents:
    def __init__(self, journal: StoredJournal, job: str) -> None:
        """``job``: the job's name."""
        self._journal = journal
        self._job = job
        self._begin()

    def _begin(self) -> None:
        self._number, self._checksum = 0, GENESIS  # of the newest record that is read
        self._accounting = Accounting()
        self._judged: dict[str, Finding | None] = {}
        self._views: list[wire.IncidentView] = []

    def read(self) -> list[wire.IncidentView]:
        """Return the newest incidents, oldest first; raise JournalError if the journal can't be read."""
        with self._journal.reading() as reader:
            if reader.checksum_of(self._number) != self._checksum:
                self._begin()  # another journal lies there now
            last = reader.last_number(self._number)
            if self._take(reader, last):
                accounts = self._forget_old(self._accounting.accounts())
                self._views = view_accounts(accounts, self._judged, self._job)
            self._number, self._checksum = last, reader.checksum_of(last)
        return self._views

    def _forget_old(self, accounts: tuple[Account, ...]) -> tuple[Account, ...]:
        """Return the newest accounts, as many as an answer has, and keep no other."""
        old = [account.incident_id for account in accounts[: -wire.INCIDENTS_MAX]]
        self._accounting.forget(old)
        for incident_id in old:
            self._judged.pop(incident_id, None)
        return accounts[-wire.INCIDENTS_MAX :]

    def _take(self, reader: JournalReader, last: int) -> bool:
        """Take what has come; return whether there was any."""
        has_news = False
        for row in reader.rows(_WHERE, (self._number, last, *_INCIDENT_KINDS)):
            entry, has_news = entry_of(row, reader.name), True
            self._accounting.take(entry)
            if isinstance(entry.record, EvidenceCollected):
                self._judged[entry.record.incident_id] = entry.record.finding
        return has_news
