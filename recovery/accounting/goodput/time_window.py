"""Reads of a journal what the account of its time asks, all of it or from a moment on.

Left out are records of progress, but for those that tell most between two records by which a job does something else,
and those of work and steps from before the moment. What comes of it is equal to the account of the whole journal,
to the last bit. Of the records that are left out nothing is checked but that they are there; all others are.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator
from math import inf
from typing import Final, TypeAlias, cast

from rankmend.errors import JournalError
from recovery.accounting.goodput.figures import clip
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_spent import TimeReading
from recovery.journal.attempt_records import CheckpointSeen, SavesStalled, StepsSeen, WorkSeen
from recovery.journal.journal_reader import PROGRESS, JournalReader, ProgressBetween
from recovery.journal.journal_rows import entry_of
from recovery.journal.ledger import Moment
from recovery.journal.records import NAMES, Entry
from recovery.journal.stored_journal import StoredJournal

_WORK_KINDS: Final = (NAMES[WorkSeen], NAMES[StepsSeen])
_SAVES: Final = (NAMES[CheckpointSeen], NAMES[SavesStalled])
_OTHERS: Final = f"r.kind NOT IN ({', '.join('?' * 6)})"
CatchUp: TypeAlias = Generator[None, None, TimeReading | None]
# A job whose newest record is so much older than the window has no time in it, however its clock was set meanwhile.
CLOCK_SET_S_MAX: Final = 86_400.0
_FEW: Final = (
    16  # records between two others: to ask which of them matter takes longer than to read them
)


def read_job_time(
    journal: StoredJournal, now: Moment | None = None, since_unix_s: float | None = None
) -> JobTime | None:
    """Return where a job's time went, from a moment on if one is given; None where it has none.

    ``now``: until when it went on as at its last record; None: it ended there. Raises JournalError.
    """
    with journal.reading() as reader:
        if since_unix_s is not None and _is_over(reader, now, since_unix_s):
            return None
        read = _exhaust(_WindowReading(reader, since_unix_s).read())
    if read is None or since_unix_s is None:
        return None if read is None else read.so_far(now)
    return clip(read.so_far(now), since_unix_s)


def read_window(journal: StoredJournal, since_unix_s: float) -> list[Entry]:
    """Return the entries by which `read_time`, cut, gives the account from a moment on. Raises JournalError."""
    taken: list[Entry] = []
    with journal.reading() as reader:
        _exhaust(_WindowReading(reader, since_unix_s, pass_on=taken.append).read())
    return taken


def _is_over(reader: JournalReader, now: Moment | None, since_unix_s: float) -> bool:
    """Return whether the job ended before the window began."""
    newest = next(reader.ask("SELECT unix_s FROM record ORDER BY number DESC LIMIT 1"), None)
    if newest is None:
        return False
    ended_unix_s = newest[0] if now is None else max(newest[0], now.unix_s)
    return bool(ended_unix_s + CLOCK_SET_S_MAX < since_unix_s)


def catch_up(journal: StoredJournal, through: int) -> CatchUp:
    """Read a journal through a record, for the account of a job that goes on: yields before each next few records.

    Of work and steps the account has only what comes afterwards, and keeps the newest. Of the oldest time it keeps the totals.
    Raises JournalError where the record is not there any more: a database was set back.
    """
    with journal.reading() as reader:
        return (yield from _WindowReading(reader, inf, told_max=1, is_settled=True).read(through))


def _exhaust(read: CatchUp) -> TimeReading | None:
    while True:
        try:
            next(read)
        except StopIteration as end:
            return cast("TimeReading | None", end.value)


class _WindowReading:
    def __init__(
        self,
        reader: JournalReader,
        since_unix_s: float | None,
        told_max: int | None = None,
        *,
        is_settled: bool = False,
        pass_on: Callable[[Entry], None] = lambda _entry: None,
    ) -> None:
        """``pass_on`` receives each entry that the account was given."""
        self._reader = reader
        self._pass_on = pass_on
        self._is_settled = is_settled
        self._told_max = told_max
        self._since_unix_s = since_unix_s
        self._time: TimeReading | None = None
        self._newest: Entry | None = None  # that the account was given

    def read(self, through: int | None = None) -> CatchUp:
        """Give the account each record that changes what the job does, and of those between what it asks."""
        last, after = self._reader.last_number(), 0
        if through is not None:
            if last < through:  # what comes next would follow a gap
                raise JournalError(
                    f"{self._reader.name} ends with record {last}, and record {through} was there: it was set back"
                )
            last = through
        where = f"r.number <= ? AND {_OTHERS}"
        for row in self._reader.rows(where, (last, *PROGRESS, *_WORK_KINDS, *_SAVES)):
            entry = entry_of(row, self._reader.name)
            yield
            self._read_between(after, entry.number, entry)
            self._take(entry)
            after = entry.number
        self._read_between(after, last + 1, None)
        return self._time

    def _take(self, entry: Entry) -> None:
        self._time = self._time or TimeReading(entry, self._told_max, is_settled=self._is_settled)
        self._time.take(entry)
        self._pass_on(entry)
        self._newest = entry

    def _read_between(self, after: int, before: int, following: Entry | None) -> None:
        if before - after <= 1:
            return
        if before - after <= _FEW or self._time is None or self._newest is None:
            where = "r.number > ? AND r.number < ?"
            values: list[object] = [after, before]
        else:
            where, values = self._wanted(self._time, self._newest, after, before, following)
        for row in self._reader.rows(where, values):
            self._take(entry_of(row, self._reader.name))

    def _wanted(
        self, time: TimeReading, newest: Entry, after: int, before: int, following: Entry | None
    ) -> tuple[str, list[object]]:
        """Return the condition of the records between two others that the account asks."""
        if time.is_set_aside:
            return "r.number > ? AND r.number < ?", [after, before]
        progress = ProgressBetween(self._reader, after, before)
        numbers = progress.farthest() | progress.first_beyond(*time.highest_before)
        if following is None:
            numbers.add(before - 1)  # the end, from which on the job goes on
        if (
            self._told_max is not None
        ):  # one record of work tells how fast the job ran on so many devices
            numbers |= self._newest_work(after, before)
        begin = self._window_begin(time, newest, after, before, following)
        marks = ", ".join("?" * len(numbers))
        where = (
            "r.number > ? AND r.number < ? AND (r.kind IN (?, ?)"
            f" OR (r.kind IN (?, ?) AND r.number >= ?) OR r.number IN ({marks}))"
        )
        return where, [after, before, *_SAVES, *_WORK_KINDS, begin, *sorted(numbers)]

    def _newest_work(self, after: int, before: int) -> set[int]:
        question = "SELECT max(number) FROM record WHERE kind = ? AND number > ? AND number < ?"
        (number,) = self._reader.ask_one(question, (NAMES[WorkSeen], after, before))
        return set() if number is None else {number}

    def _window_begin(
        self, time: TimeReading, newest: Entry, after: int, before: int, following: Entry | None
    ) -> int:
        """Return from which record on work and steps are asked: the first in the window."""
        if self._since_unix_s is None:
            return after
        from_s = self._since_unix_s - time.began_unix_s
        if following is not None and following.boot_id != newest.boot_id:
            return after  # the last of them tells how long it was to the next boot
        if self._second_of(time, before - 1) < from_s:
            return before
        return bisect_left(
            range(before), from_s, after + 1, key=lambda number: self._second_of(time, number)
        )

    def _second_of(self, time: TimeReading, number: int) -> float:
        """Return when a record was written that follows the newest in the same boot."""
        stamps = "SELECT unix_s, monotonic_s, boot_id FROM record WHERE number = ?"
        return time.second_of(*self._reader.ask_one(stamps, (number,)))
