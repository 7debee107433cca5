"""Where a job's time went, by its journal. Pure: entries in, spans out.

Each entry adds the time since the entry before, as what the job was then doing. Records also tell how
long before them something happened (a fault, the first step, a save): that stretch is painted anew.
Times are the journal's: monotonic within one boot, else unix. docs/reference/goodput.md has the rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from recovery.goodput.job_standing import devices_of, going_on, runs_on
from recovery.goodput.job_time import (
    AttemptTime,
    IncidentTime,
    JobTime,
    StepsTime,
    WorkTime,
)
from recovery.goodput.slow_spells import SlowSpells
from recovery.goodput.time_ledger import TimeLedger
from recovery.goodput.timeline import TRAINING, Timeline, TimePart
from recovery.goodput.told_work import steps_of, work_of
from recovery.journal.accounting import Accounting, divide_start
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
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import (
    CaughtUp,
    IncidentEvent,
    IncidentOpened,
    TryFailed,
)
from recovery.journal.job_records import JobEnded, JobOpened, LauncherStarted
from recovery.journal.ledger import Ledger, Moment, OpenIncident
from recovery.journal.node_records import NodesJoined
from recovery.journal.records import Entry, Record
from recovery.journal.slow_rank_records import SlowEnded, SlowExplained, SlowFound
from recovery.messages.exchange import NodeKinds

_WAITS: Final = frozenset({TimePart.WAIT_NODES, TimePart.WAIT_PERSON})
_NO_WAITS: Final = frozenset(TimePart) - _WAITS
_SHOWS_LIFE: Final = (Milestone, RelativeMilestone, AttemptVerified, CheckpointSeen, CaughtUp)


@dataclass(frozen=True, slots=True)
class _Gap:
    """The time without a launcher or controller, at its end."""

    begin_s: float  # the record before
    alive_s: float | None  # when the launcher or controller before was last alive
    end_s: float
    ranks_ended: bool  # it was a launcher: its ranks ended with it


@dataclass(frozen=True, slots=True)
class _Mode:
    """What training is from a moment on, until the next mode."""

    from_s: float
    part: TimePart
    incident_id: str = ""
    is_estimated: bool = False


@dataclass(slots=True)
class _Attempt:
    """What is known of the newest attempt while its records are read."""

    started: Entry
    begin_s: float
    highest_before: int | None = None  # steps that an attempt before had made
    reach_before: int | None = None  # the same of relative steps from this checkpoint
    trained_before_s: float = 0.0  # since the checkpoint that it begins from
    has_trained_before: bool = False
    is_verified: bool = False
    passed_s: float | None = None  # it passed the highest step from before


def read_time(entries: Sequence[Entry], now: Moment | None = None) -> JobTime | None:
    """Return where the job's time went; None for an empty journal.

    ``now``: until when it went on as at its last record; None: it ended there.
    """
    if not entries:
        return None
    reading = TimeReading(entries[0])
    for entry in entries:
        reading.take(entry)
    return reading.so_far(now)


class TimeReading:
    """Reads one journal, entry by entry: whoever follows a running job never reads it again."""

    def __init__(self, first: Entry) -> None:
        self._ledger = TimeLedger()
        self._going_on = going_on(Ledger())
        self._line = Timeline()
        self._at = _moment(first)
        self._now_s = 0.0
        self._began_unix_s = first.unix_s
        self._unix_offset_s = first.unix_s  # unix time of second 0, by the newest record
        self._name, self._job_id = "", ""
        self._attempt: _Attempt | None = None
        self._attempts: list[AttemptTime] = []
        self._modes: list[_Mode] = []
        self._fenced_first_s: float | None = None
        self._fenced: Entry | None = None
        self._gap: _Gap | None = None
        self._gap_attempt_s = 0.0
        self._faults: dict[str, tuple[float, float]] = {}
        self._slow = SlowSpells()
        self._saves_noted_s = 0.0
        self._has_stalls = False  # of the newest attempt the moments of the saves are on record
        self._work: list[WorkTime] = []
        self._steps: list[StepsTime] = []
        self._kinds: dict[str, NodeKinds] = {}
        self._accounting = Accounting()

    # Read.

    def take(self, entry: Entry) -> None:
        """Add the time until an entry, and what the entry tells."""
        at = _moment(entry)
        passed_s = self._at.until_s(at)
        self._line.append(self._now_s + passed_s, self._going_on)
        since_s, self._now_s = self._now_s, self._now_s + passed_s
        self._at = at
        self._unix_offset_s = entry.unix_s - self._now_s
        before, after = self._ledger.take(entry)
        if after is not before:
            self._going_on = going_on(after)
            self._accounting.take(entry)
        self._note(entry, since_s, before, after)

    def _note(self, entry: Entry, since_s: float, before: Ledger, after: Ledger) -> None:
        record = entry.record
        if isinstance(record, _SHOWS_LIFE):
            self._gap = None  # ranks ran on while nobody wrote
        self._note_job(record, since_s, before)
        self._note_attempt(entry, record, after)
        self._note_incident(entry, record, before, after)

    def _note_job(self, record: Record, since_s: float, before: Ledger) -> None:
        match record:
            case JobOpened(job_id=job_id, name=name):
                self._job_id, self._name = job_id, name
            case NodesJoined(nodes=nodes) | Adopted(nodes=nodes):
                self._kinds.update({one.node: one.kinds for one in nodes})
            case LauncherStarted():
                self._note_launcher(record, since_s, before)
            case AttemptAbandoned() | TryFailed():
                self._close_gap(until_s=self._now_s)
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
            case Milestone(step=step):
                self._note_step(step)
            case RelativeMilestone(steps=steps):
                self._note_relative(steps)
            case CheckpointSeen(saves=saves):
                self._note_saves(saves)
            case SavesStalled():
                self._note_stalls(record)
            case WorkSeen():
                self._work.append(work_of(record, self._now_s))
            case StepsSeen():
                self._steps.append(steps_of(record, self._now_s))
            case AttemptEnded() | JobEnded():
                self._end(record)
            case _:
                pass

    def _note_incident(self, entry: Entry, record: Record, before: Ledger, after: Ledger) -> None:
        match record:
            case IncidentOpened():
                self._open(record)
            case IncidentEvent():
                self._follow(entry, before, after)
            case CaughtUp(age_s=age_s):
                self._pass(self._now_s - age_s)
            case _:
                pass

    # Launchers.

    def _note_launcher(self, record: LauncherStarted, since_s: float, before: Ledger) -> None:
        """Note the time in which no launcher or controller wrote; what it was shows in what follows."""
        if before.ended is not None or before.number == 0 or self._now_s == 0:
            return
        alive_s = None
        if record.alive_age_s is not None:
            alive_s = min(max(since_s, self._now_s - record.alive_age_s), self._now_s)
        self._gap = _Gap(since_s, alive_s, self._now_s, ranks_ended=bool(record.nodes))

    def _close_gap(self, until_s: float) -> None:
        """Account the time without a launcher or controller: no rank has outlived it.

        They ended with a launcher. Without a controller they may have trained on: when they ended nobody knows.
        """
        gap, self._gap = self._gap, None
        if gap is None:
            return
        if gap.alive_s is None or not gap.ranks_ended:
            begin_s = gap.begin_s if gap.alive_s is None else gap.alive_s
            self._line.paint(begin_s, gap.end_s, TimePart.UNACCOUNTED, only=TRAINING)
            self._line.paint(gap.end_s, until_s, TimePart.INTERRUPTED, only=TRAINING)
        else:
            self._line.paint(gap.alive_s, until_s, TimePart.INTERRUPTED)

    # Attempts.

    def _begin(self, entry: Entry, record: AttemptStarted, after: Ledger) -> None:
        self._close_gap(until_s=self._now_s)
        is_first = not self._attempts and after.adopted is None
        highest = None if is_first else after.highest_step
        begins_at = record.choice.begins_at
        known = None if record.choice.is_new_run else self._attempt
        has_trained = known is not None and (known.is_verified or known.has_trained_before)
        self._attempt = _Attempt(
            entry,
            self._now_s,
            highest_before=None if highest == begins_at else highest,
            reach_before=after.reach.highest if after.is_base_known else None,
            trained_before_s=self._trained_since(record.choice.modified_unix_s),
            has_trained_before=has_trained or (known is None and after.adopted is not None),
        )
        self._modes.append(_Mode(self._now_s, TimePart.UNDIVIDED))
        self._saves_noted_s, self._has_stalls = self._now_s, False
        self._slow.end_all(self._now_s)
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

    def _trained_since(self, modified_unix_s: float | None) -> float:
        """Return for how long ranks had trained since a checkpoint was written.

        Compares the storage's clock with that of the journal.
        """
        if modified_unix_s is None:
            return 0.0
        since_s = modified_unix_s - self._unix_offset_s
        return sum(
            max(0.0, span.end_s - max(span.begin_s, since_s))
            for span in self._line.spans_after(since_s)
            if span.part in TRAINING
        )

    def _verify(self, entry: Entry, record: AttemptVerified, after: Ledger) -> None:
        attempt = self._attempt
        if attempt is None or attempt.is_verified:
            return
        attempt.is_verified = True
        incident = after.incident
        if incident is not None and self._fenced is not None:
            self._divide(self._fenced, attempt.started, entry, record, incident)
        first_s = max(attempt.begin_s, self._now_s - (record.first_step_age_s or 0.0))
        self._line.paint(first_s, self._now_s, TimePart.UNDIVIDED, incident_id="")
        self._attempts[-1] = replace(self._attempts[-1], first_step_s=first_s)
        self._modes += self._modes_from(first_s, attempt, record)

    def _divide(
        self,
        fenced: Entry,
        ordered: Entry,
        entry: Entry,
        record: AttemptVerified,
        incident: OpenIncident,
    ) -> None:
        """Give the time from the last fence to the first step the phases of MTTR."""
        phases, _notes = divide_start(fenced, ordered, entry, record)
        at_s = self._now_s - _moment(fenced).until_s(_moment(entry))
        incident_id = incident.state.incident_id
        for phase, length_s in phases.items():
            part = TimePart(phase.value)
            end_s = at_s + length_s
            self._line.paint(at_s, end_s, part, only=_NO_WAITS, incident_id=incident_id)
            at_s = end_s

    def _modes_from(
        self, first_s: float, attempt: _Attempt, record: AttemptVerified
    ) -> list[_Mode]:
        """Return what training is from the first step on, as far as is known now."""
        incident_id = _incident_of(attempt.started)
        new = _Mode(first_s, TimePart.PRODUCTIVE)
        again = _Mode(first_s, TimePart.RECOMPUTED, incident_id)
        highest, first_step = attempt.highest_before, record.first_step
        modes: list[_Mode] = []  # nothing tells whether its steps are new
        if attempt.passed_s is not None:
            modes = [again, _Mode(max(first_s, attempt.passed_s), TimePart.PRODUCTIVE)]
        elif record.telling_ranks and not attempt.has_trained_before:
            modes = [new]
        elif record.telling_ranks and record.is_comparable:
            is_new = highest is None or (first_step is not None and first_step > highest)
            modes = [new if is_new else again]
        elif record.telling_ranks and attempt.reach_before is not None:
            modes = [again]
        elif record.telling_ranks and attempt.trained_before_s > 0:
            passed_s = first_s + attempt.trained_before_s
            modes = [
                replace(again, is_estimated=True),
                _Mode(passed_s, TimePart.PRODUCTIVE, is_estimated=True),
            ]
        return modes

    def _note_step(self, step: int) -> None:
        if self._attempts:
            highest = self._attempts[-1].highest_step
            highest = step if highest is None else max(step, highest)
            self._attempts[-1] = replace(self._attempts[-1], highest_step=highest)
        attempt = self._attempt
        if attempt is None or attempt.highest_before is None or attempt.passed_s is not None:
            return
        if step > attempt.highest_before:
            self._pass(self._now_s)

    def _note_relative(self, steps: int) -> None:
        attempt = self._attempt
        if attempt is None or attempt.reach_before is None or attempt.passed_s is not None:
            return
        if steps > attempt.reach_before:
            self._pass(self._now_s)

    def _pass(self, at_s: float) -> None:
        """Note that the attempt made its first step beyond those of earlier attempts."""
        attempt = self._attempt
        if attempt is None:
            return
        attempt.passed_s = at_s = max(at_s, attempt.begin_s)
        if attempt.is_verified:
            self._modes = [mode for mode in self._modes if mode.from_s <= at_s]
            self._modes.append(_Mode(at_s, TimePart.PRODUCTIVE))

    def _end(self, record: AttemptEnded | JobEnded) -> None:
        self._close_gap(until_s=self._now_s)
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

    # Incidents.

    def _open(self, record: IncidentOpened) -> None:
        self._close_gap(until_s=self._now_s)
        self._fenced, self._fenced_first_s = None, None
        fault_s = self._now_s - record.fault_age_s
        if self._attempts:
            fault_s = max(fault_s, self._attempts[-1].ordered_s)
        fault_s = max(0.0, fault_s)
        incident_id = record.incident_id
        self._faults[incident_id] = (fault_s, self._now_s)
        if runs_on(record.failure.finding):
            return
        if record.step_age_s is not None:
            stepped_s = self._now_s - record.step_age_s
            self._line.paint(
                stepped_s, fault_s, TimePart.UNFINISHED, only=TRAINING, incident_id=incident_id
            )
        self._line.paint(fault_s, self._now_s, TimePart.DETECT, incident_id=incident_id)
        self._slow.end_all(self._now_s)

    def _follow(self, entry: Entry, before: Ledger, after: Ledger) -> None:
        incident = after.incident
        if incident is None or incident.state.phase is not Phase.RESTORING:
            return
        was = before.incident
        if was is not None and was.state.phase is Phase.RESTORING:
            return
        self._fenced = entry
        if self._fenced_first_s is None:
            self._fenced_first_s = self._now_s
            return
        self._line.paint(
            self._fenced_first_s,
            self._now_s,
            TimePart.RETRIES,
            only=_NO_WAITS,
            incident_id=incident.state.incident_id,
        )

    # What it comes to.

    def so_far(self, now: Moment | None = None) -> JobTime:
        """Return where the time went until the newest entry, or until ``now``. Changes nothing."""
        line, end_s, ledger = self._line.copy(), self._now_s, self._ledger.standing
        if now is not None and ledger.ended is None:
            line.append(end_s + self._at.until_s(now), self._going_on)
            end_s = line.end_s
        ends = [mode.from_s for mode in self._modes[1:]] + [line.end_s]
        for mode, until_s in zip(self._modes, ends, strict=False):
            if mode.part is not TimePart.UNDIVIDED:
                line.paint(
                    mode.from_s,
                    until_s,
                    mode.part,
                    only={TimePart.UNDIVIDED},
                    incident_id=mode.incident_id,
                    is_estimated=mode.is_estimated,
                )
        incidents = tuple(
            IncidentTime(account, *self._faults[account.incident_id])
            for account in self._accounting.accounts()
            if account.incident_id in self._faults
        )
        return JobTime(
            self._job_id or ledger.job_id or "",
            self._name,
            self._began_unix_s,
            line.spans,
            tuple(self._attempts),
            incidents,
            self._slow.until(end_s),
            tuple(self._work),
            tuple(self._steps),
            dict(self._kinds),
        )


def _moment(entry: Entry) -> Moment:
    return Moment(entry.unix_s, entry.monotonic_s, entry.boot_id)


def _incident_of(started: Entry) -> str:
    record = started.record
    return (record.incident_id or "") if isinstance(record, AttemptStarted) else ""
