"""Keeps on disk what watched jobs did, and tells where their time went.

The deciding thread notes changes; the thread of `time_accounts` makes them durable and reads them. Where the disk fails
they wait, and are written with their ages later.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.watched_time import WatchedBook
from recovery.controller.watched.job_watch import JobWatch
from recovery.controller.watched.time_notes import TimeNote, TimeNotes
from recovery.journal.folder.heartbeat import Heartbeat
from recovery.journal.journal_rows import GROUP_ROWS_MAX
from recovery.journal.ledger import Moment
from recovery.journal.watched_journal import FOLDER, WatchedJournal
from recovery.journal.watched_records import (
    WatchedResumed,
    WatchedStood,
    WatchedTimeRecord,
    WatchedWorked,
)

log = logging.getLogger(__name__)

NOTES_MAX: Final = 100_000  # that wait for a disk; of more the oldest are lost
_RETRY_S: Final = 10.0


class WatchedAccounts:
    def __init__(self, state: Path, clock: Clock, boot_id: str) -> None:
        self._state = state
        self._clock = clock
        self._boot_id = boot_id
        self._notes = TimeNotes()
        self._waiting: deque[TimeNote | str] = deque(
            maxlen=NOTES_MAX
        )  # a text: a job that is forgotten
        self._journal: WatchedJournal | None = None
        self._heartbeat: Heartbeat | None = None
        self._book = WatchedBook()
        self._lock = threading.Lock()  # of the book
        self._retry_at_s = 0.0
        self.problem: str | None = None

    # The deciding thread (`recovery.controller.watched.watched_jobs.WatchListener`).

    def judged(self, job: JobWatch, now_s: float) -> None:
        self._waiting.extend(self._notes.note(job, now_s, self._clock.now_s()))

    def forgotten(self, job: JobWatch, now_s: float) -> None:
        self._waiting.extend(self._notes.forget(job, now_s, self._clock.now_s()))
        self._waiting.append(job.job_id)

    # The thread of the accounts.

    def turn(self) -> tuple[set[str], set[str]]:
        """Make durable what was noted; return the jobs of which something changed, and those to forget."""
        now_s = self._clock.now_s()
        if now_s < self._retry_at_s:
            return set(), set()
        try:
            changed, forgotten = self._write(self._opened())
        except (RankmendError, OSError) as error:
            if self.problem is None:
                log.warning("time of watched jobs is not kept", extra={"error": str(error)})
            self.problem, self._retry_at_s = str(error), now_s + _RETRY_S
            return set(), set()
        self.problem = None
        if self._heartbeat is not None:
            self._heartbeat.beat()
        return changed, forgotten

    def time_of(self, job_id: str, now: Moment) -> JobTime | None:
        return self._book.time_of(job_id, now)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        if self._heartbeat is not None:
            self._heartbeat.close()

    def _opened(self) -> WatchedJournal:
        if self._journal is None:
            journal = WatchedJournal(self._state, self._clock, self._boot_id)
            book = WatchedBook()
            for entry in journal.read():
                book.take(entry)
            heartbeat = Heartbeat(self._state / FOLDER, self._clock, self._boot_id)
            for entry in journal.append([WatchedResumed(heartbeat.age_s())]):
                book.take(entry)
            with self._lock:
                self._book = book
            self._journal, self._heartbeat = journal, heartbeat
        return self._journal

    def _write(self, journal: WatchedJournal) -> tuple[set[str], set[str]]:
        changed: set[str] = set()
        forgotten: set[str] = set()
        if journal.is_full:
            journal.begin_file()
            self._append(journal, self._book.restated())
        while self._waiting:
            notes = [
                self._waiting[place] for place in range(min(len(self._waiting), GROUP_ROWS_MAX))
            ]
            now_s = self._clock.now_s()
            records = [_aged(note, now_s) for note in notes if isinstance(note, TimeNote)]
            self._append(journal, records)
            for _one in notes:
                self._waiting.popleft()
            forgotten.update(note for note in notes if isinstance(note, str))
            changed.update(
                record.job_id
                for record in records
                if isinstance(record, WatchedStood | WatchedWorked)
            )
        return changed, forgotten

    def _append(self, journal: WatchedJournal, records: Sequence[WatchedTimeRecord]) -> None:
        for first in range(0, len(records), GROUP_ROWS_MAX):
            entries = journal.append(records[first : first + GROUP_ROWS_MAX])
            with self._lock:
                for entry in entries:
                    self._book.take(entry)

    # Any thread.

    def times(self) -> list[JobTime]:
        """Return where the time of all jobs that are known went, until now."""
        now = Moment(self._clock.unix_s(), self._clock.now_s(), self._boot_id)
        with self._lock:
            return list(self._book.times(now))


def _aged(note: TimeNote, now_s: float) -> WatchedTimeRecord:
    """Return a note's record with the age that it has now."""
    if not isinstance(note.record, WatchedStood | WatchedWorked):
        return note.record
    return replace(note.record, look_age_s=max(0.0, now_s - note.at_s))
