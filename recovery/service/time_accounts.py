"""Follows where the time of all jobs goes, entry by entry, in a thread of its own.

The deciding thread only puts durable entries into a queue. Journals are never read again: what a job's controller has
read at its start comes with the job. The thread takes a twentieth of a core at most: the longer a turn takes, the
longer is the pause after it.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rankmend.clock import Clock
from recovery.goodput.held_sums import HeldSums, Key, amounts_of
from recovery.goodput.job_rates import JobRates, rates_of
from recovery.goodput.time_spent import TimeReading
from recovery.goodput.totals import TimeTotals, totals_of
from recovery.journal.ledger import Moment
from recovery.journal.records import Entry

_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 60.0
_SHARE: Final = 1 / 20  # of a core
_STOP_S: Final = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobStanding:
    """Where the time of one running job went, until a moment ago."""

    job_id: str
    name: str
    totals: TimeTotals
    rates: JobRates
    is_watched: bool = False


@dataclass(frozen=True, slots=True)
class _Opened:
    """A journal with what it held when the job's controller began to follow it."""

    job_id: str
    name: str
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class _Added:
    job_id: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class _Closed:
    job_id: str


_News: TypeAlias = _Opened | _Added | _Closed


@dataclass(slots=True)
class _Followed:
    """One job of which the entries are read as they come."""

    name: str
    reading: TimeReading | None = None
    at: Moment = field(default_factory=Moment)  # of `totals`
    length_s: float = 0.0  # of the job until then
    totals: TimeTotals = field(default_factory=TimeTotals)
    rates: JobRates = field(default_factory=JobRates)
    is_dirty: bool = False
    counted: Mapping[Key, float] | None = None  # is in the sums already; None: nothing is yet


class TimeAccounts:
    def __init__(self, clock: Clock, boot_id: str) -> None:
        self._clock = clock
        self._boot_id = boot_id
        self._news: deque[_News] = deque()
        self._jobs: dict[str, _Followed] = {}
        self._sums = HeldSums()
        self.standings: tuple[JobStanding, ...] = ()  # replaced as a whole
        self.sums: Mapping[Key, float] = {}  # of managed jobs, since this process began
        self.watched_sums: Mapping[Key, float] = {}  # of jobs of other launchers
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="time accounts", daemon=True)

    # For the deciding thread.

    def opened(self, job_id: str, name: str, entries: Sequence[Entry]) -> None:
        """Follow a job from what its journal holds."""
        self._news.append(_Opened(job_id, name, entries))

    def entry(self, job_id: str, entry: Entry) -> None:
        """Follow one durable entry."""
        self._news.append(_Added(job_id, entry))

    def closed(self, job_id: str) -> None:
        """Forget a job that has ended; the sums keep it."""
        self._news.append(_Closed(job_id))

    # Any thread.

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    # The thread.

    def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        while not self._should_stop.wait(pause_s):
            began_s = self._clock.now_s()
            self.turn()
            took_s = self._clock.now_s() - began_s
            pause_s = min(_PAUSE_S_MAX, max(_PAUSE_S_MIN, took_s / _SHARE))

    def turn(self) -> None:
        """Read what has come, and bring all jobs up to now."""
        while self._news:
            news = self._news.popleft()
            try:
                self._take(news)
            except Exception:  # of one job: the others are followed all the same
                log.exception("time of a job not accounted", extra={"job_id": news.job_id})
                self._jobs.pop(news.job_id, None)
        now = Moment(self._clock.unix_s(), self._clock.now_s(), self._boot_id)
        for job in self._jobs.values():
            self._bring_up(job, now)
        self.standings = tuple(
            JobStanding(job_id, job.name, job.totals, job.rates)
            for job_id, job in self._jobs.items()
            if job.reading is not None
        )
        self.sums = self._sums.held()

    def _take(self, news: _News) -> None:
        if isinstance(news, _Opened):
            self._open(news)
        elif isinstance(news, _Added):
            if (job := self._jobs.get(news.job_id)) is not None:
                job.reading = _read(job.reading, news.entry)
                job.is_dirty = True
        elif (job := self._jobs.pop(news.job_id, None)) is not None and job.reading is not None:
            job.totals = totals_of(job.reading.so_far())
            self._count(job)

    def _open(self, news: _Opened) -> None:
        before = self._jobs.get(news.job_id)
        job = self._jobs[news.job_id] = _Followed(news.name)
        for entry in news.entries:
            job.reading = _read(job.reading, entry)
        job.is_dirty = True
        if before is not None:  # its controller was made anew
            job.counted = before.counted
        elif job.reading is None:
            job.counted = {}

    def _bring_up(self, job: _Followed, now: Moment) -> None:
        if job.reading is None:
            return
        if job.is_dirty:
            time = job.reading.so_far(now)
            job.totals, job.rates, job.is_dirty = totals_of(time), rates_of(time), False
            job.length_s = time.spans[-1].end_s if time.spans else 0.0
        else:
            job.length_s += job.at.until_s(now)
            job.totals = job.totals.until(job.length_s)
        job.at = now
        self._count(job)

    def _count(self, job: _Followed) -> None:
        """Add to the sums what the job's time has grown by.

        Time before this process is no part of them: a counter counts from its process's start.
        """
        amounts = amounts_of(job.totals)
        if job.counted is not None:
            self._sums.add(job.counted, amounts)
        job.counted = amounts


def _read(reading: TimeReading | None, entry: Entry) -> TimeReading:
    reading = reading or TimeReading(entry)
    reading.take(entry)
    return reading
