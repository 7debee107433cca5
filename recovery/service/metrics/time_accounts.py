"""Follows where the time of all jobs goes, entry by entry, in a thread of its own.

The deciding thread only puts durable entries into a queue. The thread reads the earlier part of a
journal from its file, once, and only what the account needs: 500 journals do not stay in memory
until their turn comes. It takes a twentieth of a core: the longer a turn takes, the longer is the
pause after it. Only while it reads the journals of the controller's start it takes a third.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from recovery.accounting.goodput.anatomy import StepAnatomy, newest_anatomy
from recovery.accounting.goodput.held_sums import (
    HeldSums,
    Key,
    amounts_of,
    managed_keys,
    watched_keys,
)
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.throughput import (
    JobRates,
    Setting,
    Sizes,
    add_sizes,
    linearity_of,
    rates_of,
    size_of,
    sizes_of,
)
from recovery.accounting.goodput.time_spent import TimeReading, read_time
from recovery.accounting.goodput.time_window import CatchUp
from recovery.accounting.goodput.totals import TimeTotals, totals_of
from recovery.journal.ledger import Moment
from recovery.journal.records import Entry
from recovery.journal.stored_journal import StoredJournal
from recovery.service.metrics.watched_accounts import WatchedAccounts

log = logging.getLogger(__name__)

NAMES_MAX: Final = 1_000  # of more the oldest are forgotten
JOBS_MAX: Final = 50  # of one name, the newest

_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 60.0
_SHARE: Final = 1 / 20  # of a core
_READING_SHARE: Final = 1 / 2  # while the journals of the start are read
_READ_S_MAX: Final = 0.5  # of one turn
_STOP_S: Final = 5.0
_NEW_S: Final = 60.0  # a watched job whose first report arrived so lately is new


class PastSizes:
    """The sizes on which ended jobs ran, by name: linearity compares with them.

    Jobs that ended while this controller ran are stored as they were followed. Those from before
    are read from their journals, one at a time, once a running job of their name reports work.
    """

    def __init__(self, kept: Callable[[], Mapping[tuple[str, str], StoredJournal]] = dict) -> None:
        """``kept``: the journals of the jobs that have ended and are kept, by name and job id, the newest last."""
        self._kept = kept
        self._by_name: dict[str, dict[str, Sizes]] = {}
        # jobs whose journals were read, or that ended since the start
        self._read_jobs: set[str] = set()

    def keep(self, name: str, job_id: str, sizes: Sizes) -> None:
        """Keep the sizes of a job that has ended."""
        self._read_jobs.add(job_id)
        if not sizes:
            return
        jobs = self._by_name.setdefault(name, {})
        jobs.pop(job_id, None)
        jobs[job_id] = sizes
        while len(jobs) > JOBS_MAX:
            del jobs[next(iter(jobs))]
        while len(self._by_name) > NAMES_MAX:
            del self._by_name[next(iter(self._by_name))]

    def of(self, name: str, without: Collection[str]) -> Iterator[Sizes]:
        """Return the sizes of each job of a name, without those that run."""
        for job_id, sizes in self._by_name.get(name, {}).items():
            if job_id not in without:
                yield sizes

    def read_one(self, names: Collection[str], running: Collection[str]) -> None:
        """Read the journal of one job of these names that has ended and was not read yet."""
        if not names:
            return
        retained = self._kept()
        for name in names:
            ids = [job_id for item, job_id in retained if item == name][-JOBS_MAX:]
            for job_id in reversed(ids):
                if job_id not in self._read_jobs and job_id not in running:
                    self._read(name, job_id, retained[name, job_id])
                    return

    def _read(self, name: str, job_id: str, journal: StoredJournal) -> None:
        self._read_jobs.add(job_id)
        try:
            time = read_time(journal.read())
        except (RankmendError, OSError) as error:
            fields = {"job_id": job_id, "error": str(error)}
            log.warning("sizes of an ended job are not known", extra=fields)
            return
        if time is not None:
            self.keep(name, job_id, sizes_of(time.work))


@dataclass(frozen=True, slots=True)
class JobStanding:
    """Where the time of one running job went, until a moment ago."""

    job_id: str
    name: str
    totals: TimeTotals
    rates: JobRates
    anatomy: StepAnatomy | None = None
    is_watched: bool = False
    linearity_ratio: float | None = None  # None: its ranks report no work now


@dataclass(frozen=True, slots=True)
class _Opened:
    """A journal, and how what it held when the job's controller began to follow it is read."""

    job_id: str
    name: str
    catch_up: CatchUp


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
    time_of: Callable[[Moment], JobTime | None]
    sizes_of: Callable[[JobTime], Sizes]
    totals_of: Callable[[JobTime], TimeTotals] = totals_of  # of all its time
    at: Moment = field(default_factory=Moment)  # of `totals`
    length_s: float = 0.0  # of the job until then
    totals: TimeTotals = field(default_factory=TimeTotals)
    rates: JobRates = field(default_factory=JobRates)
    anatomy: StepAnatomy | None = None
    sizes: Sizes = field(default_factory=dict)
    size: tuple[Setting, int] | None = (
        None  # on which it runs now; None: its ranks report no work now
    )
    is_known: bool = False
    is_dirty: bool = True
    counted: Mapping[Key, float] | None = None  # is in the sums already; None: nothing is yet


@dataclass(slots=True)
class _Journaled:
    """The journal of one managed job, as far as it is read."""

    reading: TimeReading | None = None

    def take(self, entry: Entry) -> None:
        self.reading = self.reading or TimeReading(entry, told_max=1, is_settled=True)
        self.reading.take(entry)

    def sizes_of(self, _time: JobTime) -> Sizes:
        return {} if self.reading is None else self.reading.sizes

    def time_of(self, now: Moment) -> JobTime | None:
        return None if self.reading is None else self.reading.so_far(now)

    def totals_of(self, time: JobTime) -> TimeTotals:
        assert self.reading is not None, "it gave this time"
        return self.reading.totals(time)


class TimeAccounts:
    def __init__(
        self,
        clock: Clock,
        boot_id: str,
        watched: WatchedAccounts | None = None,
        past: PastSizes | None = None,
    ) -> None:
        self._clock = clock
        self._boot_id = boot_id
        self.watched = watched
        self._news: deque[_News] = deque()
        self._journals: dict[str, _Journaled] = {}
        self._jobs: dict[str, _Followed] = {}
        self._watched_jobs: dict[str, _Followed] = {}
        self._sums, self._watched_sums = HeldSums(managed_keys()), HeldSums(watched_keys())
        self._past = PastSizes() if past is None else past
        self.standings: tuple[JobStanding, ...] = ()  # replaced as a whole
        # of managed jobs, since this process began
        self.sums: Mapping[Key, float] = self._sums.held()
        # of jobs of other launchers
        self.watched_sums: Mapping[Key, float] = self._watched_sums.held()
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="time accounts", daemon=True)

    # For the deciding thread.

    def opened(self, job_id: str, name: str, catch_up: CatchUp) -> None:
        """Follow a job from what its journal holds, which ``catch_up`` reads."""
        self._news.append(_Opened(job_id, name, catch_up))

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
        """Make durable what is noted, and end."""
        self._should_stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    # The thread.

    def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        is_last = False
        while not is_last:
            is_last = self._should_stop.wait(pause_s)
            began_s = self._clock.now_s()
            try:
                self.turn()
            except Exception:
                log.exception("time of jobs not accounted")
            took_s = self._clock.now_s() - began_s
            share = _READING_SHARE if self._news else _SHARE
            pause_s = min(_PAUSE_S_MAX, max(_PAUSE_S_MIN, took_s / share))
        if self.watched is not None:
            self.watched.close()

    def turn(self) -> None:
        """Read what has come, as far as there is time for it, and bring all jobs up to now."""
        until_s = self._clock.now_s() + _READ_S_MAX
        while self._news and self._clock.now_s() <= until_s:
            news = self._news.popleft()
            try:
                self._take(news, until_s)
            except Exception:  # of one job: the others are followed all the same
                log.exception("time of a job not accounted", extra={"job_id": news.job_id})
                self._journals.pop(news.job_id, None)
                self._jobs.pop(news.job_id, None)
        now = Moment(self._clock.unix_s(), self._clock.now_s(), self._boot_id)
        for job in self._jobs.values():
            _bring_up(job, now, self._sums)
        if self.watched is not None:
            self._follow_watched(self.watched, now)
        linearity = self._linearity()
        self.standings = (
            *_standings(self._jobs, linearity, is_watched=False),
            *_standings(self._watched_jobs, linearity, is_watched=True),
        )
        self.sums, self.watched_sums = self._sums.held(), self._watched_sums.held()

    def _linearity(self) -> dict[str, float | None]:
        """Return the linearity of the jobs that report work now, against all sizes of their names that are known."""
        jobs = {**self._jobs, **self._watched_jobs}
        names = {job.name for job in jobs.values() if job.size is not None}
        self._past.read_one(names, jobs)
        running: dict[str, list[Sizes]] = {name: [] for name in names}
        for job in jobs.values():
            if job.name in running:
                running[job.name].append(job.sizes)
        known = {name: add_sizes([*running[name], *self._past.of(name, jobs)]) for name in names}
        return {
            job_id: linearity_of(job.size, job.sizes, known[job.name])
            for job_id, job in jobs.items()
            if job.size is not None
        }

    def _take(self, news: _News, until_s: float) -> None:
        if isinstance(news, _Opened):
            self._open(news, until_s)
        elif isinstance(news, _Added):
            if (job := self._jobs.get(news.job_id)) is not None:
                self._journals[news.job_id].take(news.entry)
                job.is_dirty = True
        elif (job := self._jobs.pop(news.job_id, None)) is not None:
            reading = self._journals.pop(news.job_id).reading
            if reading is not None:
                job.totals = reading.totals(reading.so_far())
                _count(job, self._sums)
                self._past.keep(job.name, news.job_id, reading.sizes)

    def _open(self, news: _Opened, until_s: float) -> None:
        before = self._jobs.get(news.job_id)
        journaled = self._journals[news.job_id] = _Journaled()
        while self._clock.now_s() <= until_s:
            try:
                next(news.catch_up)
            except StopIteration as end:
                journaled.reading = end.value
                break
        else:
            self._news.appendleft(news)
            return
        job = self._jobs[news.job_id] = _Followed(
            news.name, journaled.time_of, journaled.sizes_of, journaled.totals_of
        )
        if before is not None:  # its controller was made anew
            job.counted = before.counted
        elif journaled.reading is None:
            job.counted = {}

    def _follow_watched(self, watched: WatchedAccounts, now: Moment) -> None:
        changed, forgotten = watched.turn()
        for job_id in changed:
            job = self._watched_jobs.get(job_id)
            if job is None:
                job = _Followed(
                    "", partial(watched.time_of, job_id), lambda time: sizes_of(time.work)
                )
                self._watched_jobs[job_id] = job
                if (
                    time := job.time_of(now)
                ) is not None and now.unix_s - time.began_unix_s < _NEW_S:
                    job.counted = {}  # it was not there before this process
            job.is_dirty = True
        for job in self._watched_jobs.values():
            _bring_up(job, now, self._watched_sums)
        for job_id in forgotten:
            if (gone := self._watched_jobs.pop(job_id, None)) is not None:
                self._past.keep(gone.name, job_id, gone.sizes)


def _bring_up(job: _Followed, now: Moment, sums: HeldSums) -> None:
    if job.is_dirty:
        time = job.time_of(now)
        if time is None:
            return
        job.is_known, job.is_dirty, job.name = True, False, time.name or job.name
        job.totals, job.rates = job.totals_of(time), rates_of(time)
        job.anatomy = newest_anatomy(time)
        job.sizes = job.sizes_of(time)
        job.size = None if job.rates == JobRates() else size_of(time.work[-1])
        job.length_s = time.spans[-1].end_s if time.spans else 0.0
        if time.has_ended:
            job.totals = replace(job.totals, last=None)
    elif job.totals.last is not None:
        job.length_s += job.at.until_s(now)
        job.totals = job.totals.until(job.length_s)
    job.at = now
    _count(job, sums)


def _count(job: _Followed, sums: HeldSums) -> None:
    """Add to the sums what the job's time has grown by.

    Time before this process is no part of them: a counter counts from its process's start.
    """
    amounts = amounts_of(job.totals)
    if job.counted is not None:
        sums.add(job.counted, amounts)
    job.counted = amounts


def _standings(
    jobs: Mapping[str, _Followed], linearity: Mapping[str, float | None], *, is_watched: bool
) -> Iterator[JobStanding]:
    for job_id, job in jobs.items():
        if job.is_known and job.totals.last is not None:
            yield JobStanding(
                job_id,
                job.name,
                job.totals,
                job.rates,
                job.anatomy,
                is_watched,
                linearity.get(job_id),
            )
