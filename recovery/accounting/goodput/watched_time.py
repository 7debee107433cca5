"""Where the time of watched jobs went, by the journal that the controller keeps of them. Pure: entries in, spans out.

What a job did is told by its agents, so a stretch in which no controller listened is `unaccounted`, but for what the steps
that were made meanwhile prove. docs/reference/goodput.md has the rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from recovery.accounting.goodput.job_time import JobTime, SlowTime, StallTime, StepsTime, WorkTime
from recovery.accounting.goodput.timeline import TRAINING, Timeline, TimePart, TimeSpan
from recovery.accounting.goodput.told_work import condense_steps, condense_work, steps_of, work_of
from recovery.accounting.goodput.totals import HUNG, RESTARTED
from recovery.controller.watched.verdict import WatchedState
from recovery.journal.ledger import Moment
from recovery.journal.records import Entry
from recovery.journal.watched_records import (
    WatchedResumed,
    WatchedSeen,
    WatchedStood,
    WatchedTimeRecord,
    WatchedWorked,
)

JOBS_MAX: Final = 10_000
WORK_MAX: Final = (
    400  # records of one job's work, and of its steps; of more the oldest are added up
)
SPANS_MAX: Final = 4_000  # of one job; of more the oldest are told as one stretch for each part
_TRAINS: Final = frozenset({WatchedState.TRAINING, WatchedState.SLOW})
_PARTS: Final = {
    WatchedState.STARTING: TimePart.STARTUP,
    WatchedState.HUNG: TimePart.STALLED,
    WatchedState.SUSPENDED: TimePart.SUSPENDED,
    WatchedState.UNKNOWN: TimePart.UNACCOUNTED,
}
_PROVED_RATIO: Final = 0.9  # steps that fill so much of a gap leave no room for a stand-still


@dataclass(frozen=True, slots=True)
class _Gap:
    """A stretch in which nobody told of the job, and what it did before."""

    begin_s: float
    before: WatchedStood
    told_s: float  # when that was
    part: TimePart


@dataclass(slots=True)
class _Job:
    """One job. Seconds are those of the whole journal until `time_of` makes them the job's own."""

    began_s: float  # until its first look: when it was written of first
    began_unix_s: float
    seen: WatchedSeen
    line: Timeline = field(default_factory=Timeline)
    now: WatchedStood | None = None
    told_s: float = 0.0  # when that was, of the job's own time
    state: WatchedState = WatchedState.UNKNOWN
    ended_s: float | None = None
    highest_before: int | None = None  # steps that processes before these had made
    highest: int | None = None
    is_later_run: bool = False
    gap: _Gap | None = None
    stall: StallTime | None = None
    stall_step: int | None = None  # its processes' highest step then; None: any step is a newer one
    newest_stall_id: str = ""
    stalls: list[StallTime] = field(default_factory=list)
    slow: SlowTime | None = None
    was_slow: list[SlowTime] = field(default_factory=list)
    work: list[WorkTime] = field(default_factory=list)
    steps: list[StepsTime] = field(default_factory=list)


class WatchedBook:
    def __init__(self) -> None:
        self._at: Moment | None = None
        self._now_s = 0.0
        self._jobs: dict[str, _Job] = {}

    def take(self, entry: Entry) -> None:
        """Take in the next entry of the journal."""
        moment = Moment(entry.unix_s, entry.monotonic_s, entry.boot_id)
        if self._at is not None:
            self._now_s += self._at.until_s(moment)
        self._at = moment
        record = entry.record
        if isinstance(record, WatchedSeen):
            self._see(record, entry.unix_s)
        elif isinstance(record, WatchedStood):
            if (job := self._jobs.get(record.job_id)) is not None:
                _stand(job, record, self._now_s - record.look_age_s)
        elif isinstance(record, WatchedWorked):
            if (job := self._jobs.get(record.job_id)) is not None:
                _take_work(job, record, self._now_s - record.look_age_s)
        elif isinstance(record, WatchedResumed):
            self._resume(record.alive_age_s)

    def _see(self, record: WatchedSeen, unix_s: float) -> None:
        known = self._jobs.get(record.job_id)
        if known is not None:
            known.seen = record
            return
        self._jobs[record.job_id] = _Job(self._now_s, unix_s, record)
        if len(self._jobs) > JOBS_MAX:
            ended = (key for key, job in self._jobs.items() if job.ended_s is not None)
            del self._jobs[next(ended, next(iter(self._jobs)))]

    def _resume(self, alive_age_s: float | None) -> None:
        """Begin a gap in every job that had not ended: from the last sign of life of the controller before."""
        for job in self._jobs.values():
            if job.now is None or job.ended_s is not None:
                continue
            alive_s = job.began_s + job.line.end_s
            if alive_age_s is not None:
                alive_s = max(alive_s, self._now_s - alive_age_s)
            _append(job, alive_s)
            _end_slow(job, alive_s)
            if job.gap is None:
                job.gap = _Gap(alive_s - job.began_s, job.now, job.told_s, _part_of(job))
            job.state = WatchedState.UNKNOWN

    def restated(self) -> list[WatchedTimeRecord]:
        """Return what a new file begins with: what is known of the jobs that have not ended."""
        found: list[WatchedTimeRecord] = []
        for job in self._jobs.values():
            if job.ended_s is None and job.now is not None:
                stood = replace(job.now, look_age_s=0.0, age_s=0.0, youngest_age_s=None)
                found += [job.seen, stood]
        return found

    def times(self, now: Moment | None = None) -> Iterator[JobTime]:
        """Return where the time of each job went until the newest entry, or until ``now``."""
        for job_id in self._jobs:
            if (time := self.time_of(job_id, now)) is not None:
                yield time

    def time_of(self, job_id: str, now: Moment | None = None) -> JobTime | None:
        """Return where the time of one job went; None where nothing is known of it."""
        job = self._jobs.get(job_id)
        if job is None or job.now is None or self._at is None:
            return None
        now_s = self._now_s if now is None else self._now_s + self._at.until_s(now)
        line = job.line.copy()
        if job.ended_s is None:
            line.append(now_s - job.began_s, _span(job))
        slow = [] if job.slow is None else [replace(job.slow, end_s=line.end_s)]
        stalls = [*job.stalls, *([] if job.stall is None else [job.stall])]
        if not line.spans:
            return None
        return JobTime(
            job.seen.job_id,
            job.seen.name,
            job.began_unix_s,
            line.spans,
            attempts=(),
            incidents=(),
            slow=(*job.was_slow, *slow),
            work=tuple(job.work),
            steps=tuple(job.steps),
            is_watched=True,
            stalls=tuple(stalls),
            has_ended=job.ended_s is not None,
        )


def _stand(job: _Job, record: WatchedStood, now_s: float) -> None:
    """Take in a look at a job; ``now_s``: when that was."""
    state = WatchedState(record.state)
    if job.now is None:
        began_s = now_s - record.age_s
        job.began_unix_s += began_s - job.began_s
        job.began_s = began_s
    if state is WatchedState.ENDED and job.state is WatchedState.UNKNOWN:
        job.line.cut(max(0.0, now_s - record.age_s - job.began_s))  # nobody has heard of it since
    begin_s = max(job.began_s + job.line.end_s, now_s - record.age_s)
    is_new_run = _is_new_run(job, record, begin_s)
    if job.ended_s is not None:
        if state is WatchedState.ENDED:
            return
        _start_again(job, begin_s)
    elif job.now is not None:
        _append(job, begin_s)
    if is_new_run:
        _begin_run(job, record, begin_s)
    if state is not WatchedState.SLOW or job.state is not WatchedState.SLOW:
        _end_slow(job, begin_s)
    _close_gap(job, record, state, begin_s, is_new_run=is_new_run)
    if state is WatchedState.UNKNOWN and job.gap is None and job.now is not None:
        job.gap = _Gap(begin_s - job.began_s, job.now, job.told_s, _part_of(job))
    if state is WatchedState.ENDED:
        job.ended_s = begin_s - job.began_s
    _follow_trouble(job, record, state, begin_s - job.began_s, now_s - job.began_s)
    job.now, job.state, job.told_s = record, state, now_s - job.began_s
    if record.step is not None and not record.is_relative:
        job.highest = record.step if job.highest is None else max(job.highest, record.step)
    if state is not WatchedState.ENDED:
        _append(job, now_s)
    if len(job.line.spans) > SPANS_MAX:
        job.line.condense(SPANS_MAX // 2)


def _take_work(job: _Job, record: WatchedWorked, now_s: float) -> None:
    """Take in what its ranks told of their work until a look; ``now_s``: when that was."""
    if record.work is not None:
        job.work.append(work_of(record.work, now_s - job.began_s))
        if len(job.work) > WORK_MAX:
            job.work = condense_work(job.work, WORK_MAX // 2)
    if record.steps is not None:
        job.steps.append(steps_of(record.steps, now_s - job.began_s))
        if len(job.steps) > WORK_MAX:
            job.steps = condense_steps(job.steps, WORK_MAX // 2)


def _is_new_run(job: _Job, record: WatchedStood, begin_s: float) -> bool:
    """Return whether other processes train now than before."""
    before = job.now
    if before is None:
        return False
    if job.gap is not None and record.youngest_age_s is not None:
        # Another controller counts the runs anew: the age of the processes tells.
        return begin_s - job.began_s - record.youngest_age_s > job.gap.begin_s
    return record.run > before.run


def _begin_run(job: _Job, record: WatchedStood, begin_s: float) -> None:
    job.is_later_run, job.stall_step = True, None
    known = [item for item in (job.highest, record.highest_before) if item is not None]
    job.highest_before = max(known, default=None)
    if job.stall is None and job.state is not WatchedState.STARTING:
        _open_stall(job, RESTARTED, begin_s - job.began_s, (), "")


def _start_again(job: _Job, begin_s: float) -> None:
    """Account the time between the end of the ranks and their next start: nobody gave their devices back."""
    assert job.ended_s is not None, "it had ended"
    ended_s, job.ended_s = job.ended_s, None
    if job.stall is None:
        _open_stall(job, RESTARTED, ended_s, (), "")
    job.stall_step = None
    devices = 0 if job.now is None else job.now.devices
    span = TimeSpan(0.0, 0.0, TimePart.INTERRUPTED, 0, devices, job.newest_stall_id)
    job.line.append(begin_s - job.began_s, span)


def _open_stall(job: _Job, kind: str, begin_s: float, ranks: tuple[int, ...], node: str) -> None:
    job.newest_stall_id = f"{job.seen.job_id[:8]}-stall-{len(job.stalls) + 1}"
    job.stall = StallTime(job.newest_stall_id, kind, ranks, node, begin_s)


def _close_gap(
    job: _Job, record: WatchedStood, state: WatchedState, begin_s: float, *, is_new_run: bool
) -> None:
    """Book a gap as training as far as the steps that were made in it fill it."""
    if state is WatchedState.UNKNOWN:
        return
    gap, job.gap = job.gap, None
    if gap is None or is_new_run or gap.part not in TRAINING:
        return
    step_s, before, after = gap.before.step_s, gap.before.step, record.step
    if step_s is None or before is None or after is None or after <= before:
        return
    end_s = begin_s - job.began_s
    trained_s = (after - before) * step_s - max(0.0, gap.begin_s - gap.told_s)
    trained_s = max(0.0, min(end_s - gap.begin_s, trained_s))
    if trained_s >= _PROVED_RATIO * (end_s - gap.begin_s):
        trained_s = end_s - gap.begin_s
    job.line.paint(
        gap.begin_s,
        gap.begin_s + trained_s,
        gap.part,
        only={TimePart.UNACCOUNTED},
        is_estimated=True,
    )


def _follow_trouble(
    job: _Job, record: WatchedStood, state: WatchedState, begin_s: float, now_s: float
) -> None:
    if state is WatchedState.HUNG:
        job.stall_step = record.step
    if state is WatchedState.HUNG and job.stall is None:
        fault_s = max(0.0, min(begin_s, now_s - record.fault_age_s))
        _open_stall(job, HUNG, fault_s, record.ranks, record.node)
        job.line.paint(
            fault_s, begin_s, TimePart.STALLED, only=TRAINING, incident_id=job.newest_stall_id
        )
    elif state is WatchedState.HUNG and job.stall is not None:
        job.stall = replace(
            job.stall, kind=HUNG, ranks=record.ranks, node=record.node or job.stall.node
        )
    elif job.stall is not None and (state in _TRAINS or _ended_in_training(job, record, state)):
        job.stalls.append(replace(job.stall, recovered_s=begin_s))
        job.stall = None
    if state is WatchedState.SLOW and job.slow is None and record.ranks:
        factor = max(1.0, record.step_factor)
        slow = SlowTime(0, record.ranks[0], record.node, record.section, factor, begin_s, begin_s)
        job.slow = slow


def _ended_in_training(job: _Job, record: WatchedStood, state: WatchedState) -> bool:
    """Return whether a job that has ended had made a step after its failure.

    Nobody saw it train: it ended before the next report. Its last step proves it.
    """
    if state is not WatchedState.ENDED or record.step is None:
        return False
    return job.stall_step is None or record.step > job.stall_step


def _end_slow(job: _Job, at_s: float) -> None:
    if job.slow is not None:
        job.was_slow.append(replace(job.slow, end_s=at_s - job.began_s))
        job.slow = None


def _append(job: _Job, until_s: float) -> None:
    job.line.append(until_s - job.began_s, _span(job))


def _span(job: _Job) -> TimeSpan:
    part = _part_of(job)
    devices = 0 if job.now is None else job.now.devices
    is_cost = job.stall is not None or part is TimePart.RECOMPUTED
    return TimeSpan(0.0, 0.0, part, 0, devices, job.newest_stall_id if is_cost else "")


def _part_of(job: _Job) -> TimePart:
    if job.state not in _TRAINS or job.now is None:
        return _PARTS.get(job.state, TimePart.UNACCOUNTED)
    if not job.is_later_run:
        return TimePart.PRODUCTIVE
    if job.now.is_relative or job.highest_before is None or job.now.step is None:
        return TimePart.UNDIVIDED
    return TimePart.RECOMPUTED if job.now.step <= job.highest_before else TimePart.PRODUCTIVE
