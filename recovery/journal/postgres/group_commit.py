"""Two threads that write what all jobs have handed in, each time by one commit: one for decisions, one for bookkeeping.

The one for bookkeeping also writes snapshots of folds, one job's at a time.

While a commit is under way, more is handed in, for the next one: a job waits for two commits at most, however many jobs there are. No decision
waits for other jobs' bookkeeping, and bookkeeping rests between two commits for as long as it loads a slow disk. Each journal's
lease is requested in the transaction that appends to it. Where the statement fails, each job is tried by itself, so that
none suffers for another.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from rankmend.backoff import Backoff
from rankmend.clock import Clock
from rankmend.errors import JournalError
from recovery.journal.pen import AheadPen
from recovery.journal.postgres.database import CommitUnknownError, Database, StatementRefusedError
from recovery.journal.postgres.postgres_journal import APPEND_CALL, PostgresJournal
from recovery.journal.records import Entry

JOURNALS_MAX: Final = 100  # in one statement: each has 13 values
ROWS_MAX: Final = 16_384  # likewise
QUICK_S: Final = 0.02  # a commit that takes no longer is waited for
RETRY: Final = Backoff(first_s=0.5, cap_s=5.0)
# Between two commits of bookkeeping, as a multiple of what the last one took: four fifths of the time a job's decision finds none of its own under way.
REST: Final = 4.0
REST_S_MAX: Final = 30.0


class GroupCommit:
    """`recovery.journal.pen.Committer`."""

    def __init__(
        self, database: Database, clock: Clock, note_commit: Callable[[float], None]
    ) -> None:
        """``note_commit`` receives how long each commit took."""
        self._database = database
        self._clock = clock
        self._note_commit = note_commit
        self._changed = threading.Condition()
        self._urgent: dict[AheadPen, None] = {}  # in the order in which they came
        self._later: dict[AheadPen, None] = {}
        self._folds: dict[AheadPen, None] = {}  # hold a snapshot of their fold
        self._under_way: set[AheadPen] = set()  # written by one thread: the other leaves them alone
        self._is_deciding = False  # a commit with decisions is under way
        self._is_closed = False
        self._threads: dict[bool, threading.Thread] = {}  # for bookkeeping, or not
        self.quick_s = QUICK_S

    def take(self, pen: AheadPen, /, *, is_urgent: bool) -> None:
        with self._changed:
            if is_urgent:
                self._later.pop(pen, None)
                self._urgent[pen] = None
            elif pen not in self._urgent:
                self._later[pen] = None
            self._wake(is_bookkeeping=pen not in self._urgent)

    def _wake(self, *, is_bookkeeping: bool) -> None:
        if is_bookkeeping not in self._threads:
            self._threads[is_bookkeeping] = threading.Thread(
                target=self._run,
                args=(is_bookkeeping,),
                name="bookkeeping" if is_bookkeeping else "commit",
                daemon=True,
            )
            self._threads[is_bookkeeping].start()
        self._changed.notify_all()

    def has_decisions(self) -> bool:
        """Return whether a decision is being committed, or waits for that."""
        return self._is_deciding or bool(self._urgent)

    def close(self) -> None:
        """Let the threads end; what pens have handed in they have had written before."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self, is_bookkeeping: bool) -> None:
        failures = 0  # in a row
        queue = self._later if is_bookkeeping else self._urgent

        def is_due() -> bool:
            has_fold = is_bookkeeping and bool(self._folds)
            return self._is_closed or has_fold or bool(queue.keys() - self._under_way)

        while True:
            with self._changed:
                self._changed.wait_for(is_due)
                if self._is_closed:
                    return
            began_s = self._clock.now_s()
            failed = self.commit_next(is_bookkeeping=is_bookkeeping)
            if is_bookkeeping:
                self.save_next_fold()
            rest_s = (
                min(REST_S_MAX, REST * (self._clock.now_s() - began_s)) if is_bookkeeping else 0.0
            )
            failures = failures + 1 if failed else 0
            if failed:
                rest_s = RETRY.wait_s(failures)
            with self._changed:
                if rest_s:  # a caller that closes or waits for an answer does not wait for it
                    self._changed.wait_for(
                        (lambda: self._is_closed) if is_bookkeeping else is_due, rest_s
                    )
                queue.update(dict.fromkeys(failed))

    def commit_next(self, *, is_bookkeeping: bool) -> list[AheadPen]:
        """Write what the next jobs have handed in; return those to be tried again."""
        group = self._next(is_bookkeeping=is_bookkeeping)
        if not group:
            return []
        began_s = self._clock.now_s()
        try:
            self._write(group)
        finally:
            with self._changed:
                self._under_way -= group.keys()
                self._is_deciding &= is_bookkeeping
                if owing := [pen for pen in group if pen.owes_fold]:
                    self._folds |= dict.fromkeys(owing)
                    self._wake(is_bookkeeping=True)
                self._changed.notify_all()
        took_s = self._clock.now_s() - began_s
        self._note_commit(took_s)
        self.quick_s = QUICK_S if took_s < QUICK_S else 0.0
        failed = []
        for pen, entries in group.items():
            left = pen.pending()
            if left and left[0].number <= entries[-1].number:
                failed.append(pen)
            elif left:
                self.take(pen, is_urgent=pen.owes_decision)
        return failed

    def save_next_fold(self) -> None:
        """Write one job's snapshot of its fold: a large one must not keep other jobs' bookkeeping for long."""
        with self._changed:
            pen = next(iter(self._folds), None)
            if pen is None:
                return
            del self._folds[pen]
        pen.save_fold()

    def _next(self, *, is_bookkeeping: bool) -> dict[AheadPen, tuple[Entry, ...]]:
        found: dict[AheadPen, tuple[Entry, ...]] = {}
        rows = 0
        with self._changed:
            queue = self._later if is_bookkeeping else self._urgent
            for pen in [pen for pen in queue if pen not in self._under_way]:
                entries = pen.pending()
                if found and (len(found) == JOURNALS_MAX or rows + len(entries) > ROWS_MAX):
                    break
                del queue[pen]
                if entries:
                    found[pen], rows = entries, rows + len(entries)
            self._under_way |= found.keys()
            self._is_deciding |= bool(found) and not is_bookkeeping
        return found

    def _write(self, group: dict[AheadPen, tuple[Entry, ...]]) -> None:
        if len(group) == 1:
            for pen in group:
                pen.commit()
            return
        calls: dict[AheadPen, tuple[object, ...]] = {}
        for pen, entries in group.items():
            pen.hold_fold()
            try:
                calls[pen] = _journal_of(pen).append_call(entries)
            except Exception as error:  # noqa: BLE001 - of this job: it raises it
                pen.note_failed(error)
        values = [value for call in calls.values() for value in call]
        doubt: CommitUnknownError | None = None
        try:
            self._database.write(f"SELECT {', '.join([APPEND_CALL] * len(calls))}", values)
        except StatementRefusedError:
            pass  # for one of them
        except CommitUnknownError as error:
            doubt = error
        except JournalError as error:  # the server is away: it would answer none of them
            for pen in calls:
                pen.note_failed(error)
            return
        else:
            for pen in calls:
                _journal_of(pen).note_appended(group[pen])
                pen.note_durable(group[pen][-1].number)
            return
        for pen in calls:
            self._write_alone(pen, group[pen], doubt)

    @staticmethod
    def _write_alone(
        pen: AheadPen, entries: Sequence[Entry], doubt: CommitUnknownError | None
    ) -> None:
        try:
            _journal_of(pen).append_entries(entries, doubt)
        except Exception as error:  # noqa: BLE001 - who decides raises it
            pen.note_failed(error)
        else:
            pen.note_durable(entries[-1].number)


def _journal_of(pen: AheadPen) -> PostgresJournal:
    assert isinstance(pen.journal, PostgresJournal), "of this database"
    return pen.journal
