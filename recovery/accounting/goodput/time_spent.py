"""Where a job's time went, by its journal. Pure: entries in, spans out.

Each entry adds the time since the entry before, as what the job was then doing. Records also date
back what happened before them (a fault, the first step, a save): we then classify that stretch
anew. Times are the journal's: monotonic within one boot, else unix. docs/reference/goodput.md has
the rules.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from recovery.accounting.goodput.incident_time import IncidentTimes
from recovery.accounting.goodput.job_standing import devices_of, going_on
from recovery.accounting.goodput.job_time import (
    AttemptTime,
    IncidentTime,
    JobTime,
    SlowTime,
    StepsTime,
    WorkTime,
)
from recovery.accounting.goodput.throughput import Sizes, add_sizes, sizes_of
from recovery.accounting.goodput.time_ledger import TimeLedger
from recovery.accounting.goodput.timeline import TRAINING, Timeline, TimePart, TimeSpan
from recovery.accounting.goodput.told_work import steps_of, work_of
from recovery.accounting.goodput.totals import TimeTotals, add_up, classes_of, totals_of
from recovery.accounting.goodput.training_modes import KnownBefore, TrainingModes
from recovery.journal.attempt_records import (
    Adopted,
    AttemptAbandoned,
    AttemptEnded,
    AttemptStarted,
    AttemptVerified,
    CheckpointSeen,
    Milestone,
    RelativeMilestone,
    SavesSeen,
    SavesStalled,
    StepsSeen,
    WorkSeen,
)
from recovery.journal.incident_records import CaughtUp, IncidentEvent, IncidentOpened, TryFailed
from recovery.journal.job_records import JobEnded, JobOpened, LauncherStarted
from recovery.journal.ledger import Ledger, Moment
from recovery.journal.node_records import NodesJoined
from recovery.journal.observation_records import SlowEnded, SlowExplained, SlowFound
from recovery.journal.records import Entry, Record
from recovery.messages.exchange import NodeKinds

# Of stretches of time, of incidents, and of spells of slow ranks. A failure makes some 12 stretches and a save two.
KEPT_MAX: Final = 1_000
_KEPT: Final = KEPT_MAX // 2  # once there are more

_SHOWS_LIFE: Final = (AttemptVerified, CheckpointSeen, CaughtUp)
_PROGRESS: Final = (Milestone, RelativeMilestone)
ProgressRecord: TypeAlias = Milestone | RelativeMilestone


@dataclass(frozen=True, slots=True)
class _Gap:
    begin_s: float  # the record before
    alive_s: float | None  # when the launcher or controller before was last alive
    end_s: float
    ranks_ended: bool  # it was a launcher: its ranks ended with it


class UnwrittenTime:
    """The newest time in which no launcher or controller wrote, until the next records show what it was."""

    def __init__(self) -> None:
        self._gap: _Gap | None = None

    def open(self, record: LauncherStarted, since_s: float, now_s: float) -> None:
        """Note that a launcher or a controller began to write at ``now_s``; ``since_s``: the record before."""
        alive_s = None
        if record.alive_age_s is not None:
            alive_s = min(max(since_s, now_s - record.alive_age_s), now_s)
        self._gap = _Gap(since_s, alive_s, now_s, ranks_ended=bool(record.nodes))

    def forget(self) -> None:
        """Note that ranks ran on while nobody wrote."""
        self._gap = None

    def close(self, line: Timeline, until_s: float) -> None:
        """Account it: no rank has outlived it.

        They ended with a launcher. Without a controller they may have trained on: when they ended nobody knows.
        """
        gap, self._gap = self._gap, None
        if gap is None:
            return
        if gap.alive_s is None or not gap.ranks_ended:
            begin_s = gap.begin_s if gap.alive_s is None else gap.alive_s
            line.paint(begin_s, gap.end_s, TimePart.UNACCOUNTED, only=TRAINING)
            line.paint(gap.end_s, until_s, TimePart.INTERRUPTED, only=TRAINING)
        else:
            line.paint(gap.alive_s, until_s, TimePart.INTERRUPTED)


class SlowSpells:
    """For how long which ranks made every step of the job longer."""

    def __init__(self) -> None:
        self._now: dict[int, SlowTime] = {}
        self._past: list[SlowTime] = []

    def __len__(self) -> int:
        return len(self._past) + len(self._now)

    def forget_before(self, begin_s: float) -> None:
        """Forget those that had ended by a moment."""
        self._past = [item for item in self._past if item.end_s > begin_s]

    def take(self, record: SlowFound | SlowExplained | SlowEnded, now_s: float) -> None:
        """Add what a record contains about a rank."""
        known = self._now.get(record.rank)
        match record:
            case SlowFound() if known is None:
                self._now[record.rank] = SlowTime(
                    record.attempt,
                    record.rank,
                    record.finding.node,
                    record.section,
                    record.step_factor,
                    now_s,
                    now_s,
                )
            case SlowExplained(cause=cause) if known is not None:
                self._now[record.rank] = replace(known, cause=cause)
            case SlowEnded() if known is not None:
                self._past.append(replace(known, end_s=now_s))
                del self._now[record.rank]
            case _:
                pass

    def end_all(self, now_s: float) -> None:
        """Note that the ranks do not train any more."""
        self._past += [replace(item, end_s=now_s) for item in self._now.values()]
        self._now.clear()

    def until(self, end_s: float) -> tuple[SlowTime, ...]:
        """Return those that have ended, and then those that go on until a moment."""
        return (*self._past, *(replace(item, end_s=end_s) for item in self._now.values()))


@dataclass(frozen=True, slots=True)
class SettledTime:
    """The oldest time of a running job, in totals, so that the job's account stays small.

    Records date a fault, a save or an attempt back by seconds or minutes, and the time that is not
    yet settled is longer than that. A record that dates back further changes only the time that is
    not yet settled.
    """

    until_s: float = 0.0
    totals: TimeTotals = field(default_factory=TimeTotals)

    def trained_since(self, since_s: float) -> float:
        """Return for how long ranks trained in the time after a moment, as if they had trained evenly."""
        length_s = self.until_s - max(0.0, since_s)
        return 0.0 if length_s <= 0 else length_s / self.until_s * self.totals.seconds(*TRAINING)

    def with_rest(self, rest: TimeTotals) -> TimeTotals:
        """Return the totals of the whole job; ``rest``: of the time that is not settled."""
        whole = add_up((self.totals, rest))
        return replace(whole, last=rest.last, last_cause=rest.last_cause)


def settle(before: SettledTime, time: JobTime) -> tuple[SettledTime, frozenset[str]]:
    """Return the settled time with the oldest of ``time``, and which incidents are in it with all that they cost.

    Keeps the newest stretches, incidents and spells apart, half of what there may be of each.
    """
    cut_s = max(
        time.begin_s,
        _kept_from([span.begin_s for span in time.spans]),
        _kept_from([incident.opened_s for incident in time.incidents]),
        _kept_from([item.end_s for item in time.slow]),
    )
    old = _spans_until(time.spans, cut_s)
    cost_now = {span.incident_id for span in time.spans if span.end_s > cut_s}
    over = tuple(
        incident for incident in time.incidents[:-1] if _is_over(incident, cut_s, cost_now)
    )
    part = replace(
        time,
        spans=old,
        attempts=tuple(attempt for attempt in time.attempts if attempt.ordered_s < cut_s),
        incidents=over,
    )
    totals = add_up((before.totals, totals_of(part, classes_of(time))))
    return SettledTime(cut_s, totals), frozenset(incident.account.incident_id for incident in over)


def _kept_from(moments_s: Sequence[float]) -> float:
    """Return from which moment on few enough are left, of moments in order; 0 where there are."""
    return moments_s[-_KEPT] if len(moments_s) > KEPT_MAX else 0.0


def _spans_until(spans: Sequence[TimeSpan], end_s: float) -> tuple[TimeSpan, ...]:
    return tuple(
        span.between(span.begin_s, min(span.end_s, end_s)) for span in spans if span.begin_s < end_s
    )


def _is_over(incident: IncidentTime, cut_s: float, cost_now: set[str]) -> bool:
    """Return whether all that an older incident has cost lies before a moment."""
    return incident.opened_s < cut_s and incident.account.incident_id not in cost_now


def read_time(entries: Iterable[Entry], now: Moment | None = None) -> JobTime | None:
    """Return where the job's time went; None for an empty journal.

    ``now``: until when it went on as at its last record; None: it ended there.
    """
    reading = None
    for entry in entries:
        reading = reading or TimeReading(entry)
        reading.take(entry)
    return None if reading is None else reading.so_far(now)


class TimeReading:
    """Reads one journal, entry by entry: to follow a running job, nothing is read twice."""

    def __init__(
        self, first: Entry, told_max: int | None = None, *, is_settled: bool = False
    ) -> None:
        """``told_max``: how many of the newest records of work and steps are kept; None: all.

        ``is_settled``: of the oldest time only the totals are kept, once there is too much of it.
        """
        self.began_unix_s = first.unix_s
        self._is_settled = is_settled
        self._settled = SettledTime()
        self._ledger = TimeLedger()
        self._going_on = going_on(Ledger())
        self._line = Timeline()  # until the newest entry but for records of progress and work
        self._newest = first
        self._now_s = 0.0
        self._boot_began_s = -first.monotonic_s  # in the job's time, by the boot of `_newest`
        self._ordered: Entry | None = None  # the newest attempt's start
        self._attempts: list[AttemptTime] = []
        self._highest_step: int | None = None  # of the newest attempt
        self._modes = TrainingModes()
        self._unwritten = UnwrittenTime()
        self._incidents = IncidentTimes()
        self._slow = SlowSpells()
        self._saves_noted_s = 0.0
        self._has_stalls = False  # of the newest attempt the moments of the saves are on record
        self._work: deque[WorkTime] = deque(maxlen=told_max)
        self.sizes: Sizes = {}  # of all work that was read, also of what is not kept
        self._steps: deque[StepsTime] = deque(maxlen=told_max)
        self._name, self._job_id = "", ""
        self._kinds: dict[str, NodeKinds] = {}

    # Read.

    def second_of(self, unix_s: float, monotonic_s: float, boot_id: str) -> float:
        """Return at which second of the job an entry that follows the newest was written."""
        newest = self._newest
        if boot_id == newest.boot_id:
            return max(self._now_s, self._boot_began_s + monotonic_s)
        return self._now_s + max(0.0, unix_s - newest.unix_s)

    def take(self, entry: Entry) -> None:
        """Add the time until an entry, and the entry's own contents."""
        record, since_s = entry.record, self._now_s
        self._now_s = self.second_of(entry.unix_s, entry.monotonic_s, entry.boot_id)
        if entry.boot_id != self._newest.boot_id:
            self._boot_began_s = self._now_s - entry.monotonic_s
        self._newest = entry
        # Nearly all records: they change nothing of what the job does, and time is added with the next other one.
        if isinstance(record, WorkSeen):
            work = work_of(record, self._now_s)
            self._work.append(work)
            self.sizes = add_sizes([self.sizes, sizes_of([work])])
        elif isinstance(record, StepsSeen):
            self._steps.append(steps_of(record, self._now_s))
        elif isinstance(record, _PROGRESS) and not self._ledger.standing.set_aside:
            self._ledger.hold(entry, record)
            self._note_progress(record)
        else:
            self._take_other(entry, since_s)

    def _take_other(self, entry: Entry, since_s: float) -> None:
        self._line.append(self._now_s, self._going_on)
        before, after = self._ledger.take(entry)
        if after is not before:
            self._going_on = going_on(after)
            self._incidents.account(entry)
        record = entry.record
        if isinstance(record, _SHOWS_LIFE):
            self._unwritten.forget()  # ranks ran on while nobody wrote
        self._note_job(record, since_s, before)
        self._note_attempt(entry, record, after)
        self._note_incident(entry, record, before, after)
        if self._is_settled and self._kept > KEPT_MAX:
            self._settle()

    @property
    def _kept(self) -> int:
        return max(len(self._line), len(self._incidents), len(self._slow))

    def _settle(self) -> None:
        """Keep of the oldest time its totals alone."""
        self._settled, over = settle(self._settled, self.so_far())
        from_s = self._settled.until_s
        self._line.forget_before(from_s)
        self._modes.forget_before(from_s)
        self._slow.forget_before(from_s)
        self._incidents.forget(over)
        old = sum(attempt.ordered_s < from_s for attempt in self._attempts)
        del self._attempts[: max(0, old - 1)]  # the last of them may go on

    def _note_job(self, record: Record, since_s: float, before: Ledger) -> None:
        match record:
            case JobOpened(job_id=job_id, name=name):
                self._job_id, self._name = job_id, name
            case NodesJoined(nodes=nodes) | Adopted(nodes=nodes):
                self._kinds.update({node.node: node.kinds for node in nodes})
            case LauncherStarted():
                if before.ended is None and before.number > 0 and self._now_s > 0:
                    self._unwritten.open(record, since_s, self._now_s)
            case AttemptAbandoned() | TryFailed():
                self._unwritten.close(self._line, self._now_s)
            case SlowFound() | SlowExplained() | SlowEnded():
                self._slow.take(record, self._now_s)
            case _:
                pass

    def _note_attempt(self, entry: Entry, record: Record, after: Ledger) -> None:
        match record:
            case AttemptStarted():
                self._begin(entry, record, after)
            case AttemptVerified():
                self._verify(entry, record, after)
            case Milestone() | RelativeMilestone():
                self._note_progress(record)
            case CheckpointSeen(saves=saves):
                self._note_saves(saves)
            case SavesStalled():
                self._note_stalls(record)
            case AttemptEnded() | JobEnded():
                self._end(record)
            case _:
                pass

    def _note_incident(self, entry: Entry, record: Record, before: Ledger, after: Ledger) -> None:
        match record:
            case IncidentOpened():
                self._unwritten.close(self._line, self._now_s)
                ordered_s = self._attempts[-1].ordered_s if self._attempts else None
                if self._incidents.open(record, self._line, self._now_s, ordered_s):
                    self._slow.end_all(self._now_s)
            case IncidentEvent():
                self._incidents.follow(entry, before, after, self._line, self._now_s)
            case CaughtUp(age_s=age_s):
                self._modes.pass_before(self._now_s - age_s)
            case _:
                pass

    # Attempts.

    def _begin(self, entry: Entry, record: AttemptStarted, after: Ledger) -> None:
        self._unwritten.close(self._line, self._now_s)
        is_first = not self._attempts and after.adopted is None
        highest = None if is_first else after.highest_step
        begins_at = record.choice.begins_at
        is_known = self._ordered is not None and not record.choice.is_new_run
        before = KnownBefore(
            highest=None if highest == begins_at else highest,
            reach=after.reach.highest if after.is_base_known else None,
            trained_s=self._trained_since(record.choice.modified_unix_s, entry),
            has_trained=self._modes.has_trained if is_known else after.adopted is not None,
        )
        self._modes.begin(self._now_s, record.incident_id or "", before)
        self._ordered = entry
        self._saves_noted_s, self._has_stalls = self._now_s, False
        self._slow.end_all(self._now_s)
        self._note_highest()
        self._attempts.append(
            AttemptTime(
                record.attempt,
                record.cause,
                self._now_s,
                devices_of(after),
                tuple(place.node for place in record.placement) or after.nodes,
                begins_at,
            )
        )

    def _trained_since(self, modified_unix_s: float | None, entry: Entry) -> float:
        """Return for how long ranks had trained since a checkpoint was written.

        Compares the storage's clock with that of the journal.
        """
        if modified_unix_s is None:
            return 0.0
        since_s = modified_unix_s - (entry.unix_s - self._now_s)
        return self._settled.trained_since(since_s) + sum(
            max(0.0, span.end_s - max(span.begin_s, since_s))
            for span in self._line.spans_after(since_s)
            if span.part in TRAINING
        )

    def _verify(self, entry: Entry, record: AttemptVerified, after: Ledger) -> None:
        if self._ordered is None or not self._modes.waits_for_verified:
            return
        if after.incident is not None:
            self._incidents.divide(
                self._ordered, entry, record, after.incident, self._line, self._now_s
            )
        first_s = self._modes.verify(self._now_s, record)
        self._line.paint(first_s, self._now_s, TimePart.UNDIVIDED, incident_id="")
        self._attempts[-1] = replace(self._attempts[-1], first_step_s=first_s)

    @property
    def is_set_aside(self) -> bool:
        """Return whether the first new step changes what the job does."""
        return self._ledger.standing.set_aside > 0

    @property
    def highest_before(self) -> tuple[int | None, int | None]:
        """Return the step, and the relative one, beyond which the newest attempt repeats no more; None: none is awaited."""
        return self._modes.highest_before

    def _note_progress(self, record: ProgressRecord) -> None:
        self._unwritten.forget()  # ranks ran on while nobody wrote
        if self._modes.shows_pass(record):
            self._modes.pass_before(self._now_s)
        if isinstance(record, Milestone):
            highest = self._highest_step
            self._highest_step = record.step if highest is None else max(record.step, highest)

    def _note_highest(self) -> None:
        """Add to the newest attempt how far it came."""
        if self._attempts:
            self._attempts[-1] = replace(self._attempts[-1], highest_step=self._highest_step)
        self._highest_step = None

    def _end(self, record: AttemptEnded | JobEnded) -> None:
        self._unwritten.close(self._line, self._now_s)
        self._slow.end_all(self._now_s)
        if self._attempts and self._attempts[-1].ended_s is None:
            result = record.result if isinstance(record, AttemptEnded) else None
            self._attempts[-1] = replace(self._attempts[-1], ended_s=self._now_s, result=result)

    # Saves.

    def _note_saves(self, saves: SavesSeen | None) -> None:
        since_s, self._saves_noted_s = self._saves_noted_s, self._now_s
        if self._has_stalls or saves is None or saves.stall_s is None:
            return
        self._paint_last(since_s, saves.count * saves.stall_s)

    def _note_stalls(self, record: SavesStalled) -> None:
        self._has_stalls = True
        for stall in record.stalls:
            end_s = self._now_s - stall.age_s
            begin_s = end_s - stall.stall_s
            self._line.paint(begin_s, end_s, TimePart.CHECKPOINT, only=TRAINING)

    def _paint_last(self, since_s: float, stalls_s: float) -> None:
        """Take the length of stalls whose moments are not known from the newest training."""
        for span in reversed(self._line.spans_after(since_s)):
            if stalls_s <= 0:
                return
            if span.part in TRAINING:
                begin_s = max(span.begin_s, since_s, span.end_s - stalls_s)
                stalls_s -= span.end_s - begin_s
                self._line.paint(begin_s, span.end_s, TimePart.CHECKPOINT, is_estimated=True)

    # What it comes to.

    def totals(self, rest: JobTime) -> TimeTotals:
        """Return the totals of all time; ``rest``: what `so_far` gives."""
        return self._settled.with_rest(totals_of(rest))

    def so_far(self, now: Moment | None = None) -> JobTime:
        """Return where the time went until the newest entry, or until ``now``, but for what is settled. Changes nothing."""
        line, ledger = self._line.copy(), self._ledger.standing
        line.append(self._now_s, self._going_on)
        end_s = self._now_s
        if now is not None and ledger.ended is None:
            line.append(end_s + _moment(self._newest).until_s(now), self._going_on)
            end_s = line.end_s
        self._modes.paint(line)
        attempts = list(self._attempts)
        if attempts:
            attempts[-1] = replace(attempts[-1], highest_step=self._highest_step)
        return JobTime(
            self._job_id or ledger.job_id or "",
            self._name,
            self.began_unix_s,
            line.spans,
            tuple(attempts),
            self._incidents.times(),
            self._slow.until(end_s),
            tuple(self._work),
            tuple(self._steps),
            dict(self._kinds),
        )


def _moment(entry: Entry) -> Moment:
    return Moment(entry.unix_s, entry.monotonic_s, entry.boot_id)
