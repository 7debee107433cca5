"""The cost of an incident: MTTR in its phases, and recomputed steps. Pure.

    fault -detect-> opened -decide-> accepted -fence-> ranks gone [-retries->]
          -prepare-> attempt ordered -start-> ranks begin to meet -rendezvous-> they have met
          -restore-> first section -first step-> first step done

Marks of ranks are those of the slowest, as journaled when the new attempt was verified. A mark
that the ranks do not tell makes its phase part of the next one, and the account says so.
An incident about ranks that keep training (a slow rank, a person's request) costs nothing until it
is accepted: its detection and decision take 0 s.
Durations use the monotonic clock within one boot, else unix time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from detectors.finding import Blame
from detectors.node.charges import ChargeKind
from recovery.journal.attempt_records import (
    AttemptEnded,
    AttemptStarted,
    AttemptVerified,
    Choice,
)
from recovery.journal.incident_machine import IncidentState, Phase, step
from recovery.journal.incident_records import (
    BlameCorrected,
    CaughtUp,
    ChargedNode,
    Decided,
    IncidentEvent,
    IncidentOpened,
    NodesCharged,
    Plan,
    PlanWaits,
    WaitsFor,
)
from recovery.journal.records import Entry
from recovery.messages.outside import trains


class RecoveryPhase(Enum):
    """A part of the time from a fault to the first new step. In the order in which they come."""

    DETECT = "detect"
    DECIDE = "decide"
    FENCE = "fence"
    RETRIES = "retries"  # tries that failed, with their fences; 0.0 s for one try
    PREPARE = "prepare"  # evidence, the pause before another try, missing nodes, the checkpoint
    START = "start"  # a fork, a standby or Python with its imports
    RENDEZVOUS = "rendezvous"  # the ranks meet and form their process group
    RESTORE = "restore"
    FIRST_STEP = "first_step"


_OF_START: Final = frozenset(
    {
        RecoveryPhase.PREPARE,
        RecoveryPhase.START,
        RecoveryPhase.RENDEZVOUS,
        RecoveryPhase.RESTORE,
        RecoveryPhase.FIRST_STEP,
    }
)


class Tier(Enum):
    """Where an attempt begins."""

    MEMORY = "memory"  # the ranks' snapshots
    PEER = "peer"  # some of them came from other nodes
    CHECKPOINT = "checkpoint"
    START = "start"  # nothing was restored


@dataclass(frozen=True, slots=True)
class Account:
    incident_id: str
    opened: IncidentOpened
    opened_unix_s: float
    state: IncidentState
    plans: tuple[Plan, ...]  # one per try, oldest first
    # Seconds. Absent: not reached, or part of a later phase (see `notes`).
    phases: Mapping[RecoveryPhase, float]
    notes: tuple[str, ...] = ()
    total_s: float | None = None  # fault to the slowest rank's first step: the sum of the phases
    recovered_s: float | None = None  # fault to verified, or to another end
    steps_recomputed: int | None = None  # None: steps can't be compared, or not yet known
    caught_up_s: float | None = None  # fault to passing the highest step from before
    caught_up_step: int | None = None
    reason: str = ""  # the last event's reason
    # Of the last attempt that was started for it. Not the record: that names every rank of the job.
    choice: Choice | None = None  # None: none was started
    ranks: int = 0
    charges: tuple[ChargedNode, ...] = ()
    corrected: Blame | None = None  # whom a later verdict blames
    waits_for: WaitsFor | None = None  # what its plan waits for now; None: it does not wait
    ranks_before: int = 0  # ranks of the attempt that failed; 0: not known
    left_s: float | None = None  # fault to the end of the attempt that never caught up
    trained_s: float | None = 0.0  # for which ranks trained on after it opened; None: they do now

    @property
    def lost_s(self) -> float | None:
        """Return the time from the fault until what was lost is made again; None: not over yet.

        Where the job ended with the incident, until that end.
        """
        if self.state.phase is not Phase.RECOVERED:
            return self.recovered_s
        if self.caught_up_s is not None:
            return self.caught_up_s
        if not self.steps_recomputed:
            return self.total_s
        # Nobody sees when steps that count from the start of the process have been made again.
        return self.total_s if self.opened.failure.is_relative else self.left_s

    @property
    def is_lost_least(self) -> bool:
        """Return whether it may have lost more than `lost_s`: nobody saw all its steps made again, or it was left as it was."""
        if self.state.phase is Phase.CANCELLED:
            return not trains(self.opened.failure.finding)
        is_over = self.state.phase is Phase.RECOVERED and self.caught_up_s is None
        return is_over and self.lost_s is not None and self.steps_recomputed != 0

    @property
    def tier(self) -> Tier | None:
        """Return what the last try restored; None before an attempt was started."""
        choice = self.choice
        if choice is None:
            return None
        if choice.snapshot is not None:
            return Tier.PEER if choice.fetched else Tier.MEMORY
        return Tier.START if choice.restore is None else Tier.CHECKPOINT


@dataclass(slots=True)
class _Run:
    """Collects one incident's entries while reading the journal."""

    opened_at: Entry
    account: Account
    stopped_at: Entry  # the ranks made no step from then on: its opening, or its acceptance where they trained on
    fenced_first: Entry | None = None
    fenced_last: Entry | None = None
    ordered: Entry | None = None  # the attempt that followed the last fence
    began_from: str | None = None  # what the attempt that failed restored; None: not known


def account_all(entries: Iterable[Entry]) -> tuple[Account, ...]:
    """Return the cost of each incident in the journal, oldest first."""
    accounting = Accounting()
    for entry in entries:
        accounting.take(entry)
    return accounting.accounts()


class Accounting:
    """Accounts incidents entry by entry."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._newest: _Run | None = None
        self._ranks = 0  # of the newest attempt
        self._began_from: str | None = None  # likewise

    def accounts(self) -> tuple[Account, ...]:
        """Return the cost of each incident so far, oldest first."""
        return tuple(run.account for run in self._runs.values())

    def forget(self, incident_ids: Collection[str]) -> None:
        """Forget incidents that are over; the newest is not."""
        for incident_id in incident_ids:
            self._runs.pop(incident_id, None)

    def take(self, entry: Entry) -> None:
        """Add the next entry of the journal."""
        record, newest = entry.record, self._newest
        if isinstance(record, IncidentOpened):
            if newest is not None:
                _leave_behind(newest, entry)
            self._newest = self._runs[record.incident_id] = _open(entry, record, self._ranks)
            self._newest.began_from = self._began_from
        elif isinstance(record, NodesCharged):
            if (run := self._runs.get(record.incident_id)) is not None:
                run.account = replace(run.account, charges=record.nodes)
        elif isinstance(record, BlameCorrected):
            for incident_id in record.incident_ids:
                if (run := self._runs.get(incident_id)) is not None:
                    run.account = _corrected(run.account, record)
        elif isinstance(record, AttemptStarted):
            self._order(entry, record)
        elif newest is not None:
            _advance(newest, entry)

    def _order(self, entry: Entry, record: AttemptStarted) -> None:
        ranks, newest = sum(len(place.ranks) for place in record.placement), self._newest
        self._ranks = ranks or self._ranks
        self._began_from = record.choice.identity
        if newest is not None and record.incident_id is not None:
            newest.account = replace(newest.account, choice=record.choice, ranks=ranks)
            newest.ordered = entry


def _advance(run: _Run, entry: Entry) -> None:
    """Bring the newest incident forward by the next entry."""
    match entry.record:
        case Decided(plan=plan):
            plans = (*run.account.plans, plan)
            run.account = replace(run.account, plans=plans, waits_for=None)
        case PlanWaits(waits_for=waits_for):
            run.account = replace(run.account, waits_for=waits_for)
        case IncidentEvent() as record:
            _follow(run, entry, record)
        case AttemptVerified() as record:
            _finish(run, entry, record)
        case CaughtUp() as record:
            _catch_up(run, entry, record)
        case AttemptEnded():
            _leave_behind(run, entry)


def _open(entry: Entry, record: IncidentOpened, ranks: int) -> _Run:
    state = IncidentState(record.incident_id, record.policy.tries_max)
    trains_on = trains(record.failure.finding)
    phases = {RecoveryPhase.DETECT: 0.0 if trains_on else record.fault_age_s}
    account = Account(
        record.incident_id,
        record,
        entry.unix_s,
        state,
        (),
        phases,
        ranks_before=ranks,
        trained_s=None if trains_on else 0.0,
    )
    return _Run(entry, account, entry)


def _corrected(account: Account, record: BlameCorrected) -> Account:
    """Return the account of an incident for which the program is to blame: it counts against no node any more."""
    reason = f"taken back: {record.reason}"
    charges = tuple(
        ChargedNode(charge.node, ChargeKind.PROGRAM, counts=False, reason=reason)
        for charge in account.charges
    )
    return replace(account, charges=charges, corrected=record.blame)


def _between(earlier: Entry, later: Entry) -> float:
    if earlier.boot_id == later.boot_id:
        return max(0.0, later.monotonic_s - earlier.monotonic_s)
    return max(0.0, later.unix_s - earlier.unix_s)


def _follow(run: _Run, entry: Entry, record: IncidentEvent) -> None:
    before = run.account
    state = step(before.state, record.event)
    if before.state.phase is Phase.VERIFYING and state.phase is not Phase.RECOVERED:
        before = _without_start(before)
    phases, trained_s = dict(before.phases), before.trained_s
    if trained_s is None:
        run.stopped_at, trained_s = entry, _between(run.opened_at, entry)
    since_stopped_s = _between(run.stopped_at, entry)
    if before.state.phase is Phase.OPENED:
        phases[RecoveryPhase.DECIDE] = since_stopped_s
    elif state.phase is Phase.RESTORING:
        run.fenced_last, run.ordered = entry, None
        if run.fenced_first is None:
            run.fenced_first = entry
            fence_s = since_stopped_s - phases.get(RecoveryPhase.DECIDE, 0.0)
            phases[RecoveryPhase.FENCE] = max(0.0, fence_s)
            phases[RecoveryPhase.RETRIES] = 0.0
        else:
            phases[RecoveryPhase.RETRIES] = _between(run.fenced_first, entry)
    recovered_s = before.recovered_s
    if state.phase in (Phase.RECOVERED, Phase.ESCALATED, Phase.CANCELLED):
        recovered_s = phases[RecoveryPhase.DETECT] + since_stopped_s
        run.ordered = None
    run.account = replace(
        before,
        state=state,
        phases=phases,
        recovered_s=recovered_s,
        reason=record.event.reason,
        waits_for=None,
        trained_s=trained_s,
    )


def _without_start(account: Account) -> Account:
    """Return the account without what is known of an attempt's start: its ranks had made steps, and the try failed all the same."""
    phases = {phase: took_s for phase, took_s in account.phases.items() if phase not in _OF_START}
    return replace(account, phases=phases, notes=(), total_s=None, steps_recomputed=None)


def _finish(run: _Run, entry: Entry, verified: AttemptVerified) -> None:
    """Divide the time from the last fence to the first step by the order and the marks of the ranks."""
    before = run.account
    if run.fenced_last is None or before.state.phase is not Phase.VERIFYING:
        return
    phases, notes = divide_start(run.fenced_last, run.ordered, entry, verified)
    recomputed = None
    highest, failure = before.opened.highest_step, before.opened.failure
    if not verified.is_comparable and failure.is_relative:
        # Steps that count from the start of the process compare between attempts that began from the same.
        is_same = before.choice is not None and before.choice.identity == run.began_from
        highest = failure.step if is_same else None
    elif not verified.is_comparable:
        highest = None
    if verified.first_step is not None and highest is not None:
        recomputed = max(0, highest - verified.first_step + 1)
    phases = {**before.phases, **phases}
    run.account = replace(
        before,
        phases=phases,
        notes=notes,
        total_s=sum(phases.values()),
        steps_recomputed=recomputed,
    )


def _catch_up(run: _Run, entry: Entry, record: CaughtUp) -> None:
    since_stopped_s = _between(run.stopped_at, entry) - record.age_s
    caught_up_s = run.account.phases[RecoveryPhase.DETECT] + max(0.0, since_stopped_s)
    # The foremost rank's new step can come before the slowest rank's first one.
    caught_up_s = max(caught_up_s, run.account.total_s or 0.0)
    run.account = replace(run.account, caught_up_s=caught_up_s, caught_up_step=record.step)


def _leave_behind(run: _Run, entry: Entry) -> None:
    """Close the loss of an incident whose next attempt ends before it has passed the highest step again."""
    account = run.account
    is_behind = account.steps_recomputed and account.caught_up_s is None and account.left_s is None
    if account.state.phase is Phase.RECOVERED and is_behind:
        left_s = account.phases[RecoveryPhase.DETECT] + _between(run.stopped_at, entry)
        run.account = replace(account, left_s=left_s)


def divide_start(
    fenced: Entry, ordered: Entry | None, entry: Entry, verified: AttemptVerified
) -> tuple[dict[RecoveryPhase, float], tuple[str, ...]]:
    """Return the phases from the last fence to the first step, and what they leave out.

    ``entry`` is that of ``verified``.
    """
    length_s = _between(fenced, entry)

    def since_fence(age_s: float | None) -> float | None:
        return None if age_s is None else min(max(0.0, length_s - age_s), length_s)

    requested = since_fence(verified.resumed_age_s)
    met_from, met = verified.rendezvous_began_age_s, verified.rendezvous_ended_age_s
    has_met = met_from is not None and met is not None
    started = requested if requested is not None else since_fence(verified.attached_age_s)
    if has_met:
        started = since_fence(met_from)
    stepped = since_fence(verified.first_step_age_s)
    notes: list[str] = []
    if started is None:
        notes.append("restore includes start: the ranks do not report when they begin to restore")
    if verified.first_section_age_s is None:
        notes.append("the first step includes restore: the ranks report no section")
    if stepped is None:
        notes.append("the first step is unknown: the total ends at the verification")
        stepped = length_s
    ends = {
        RecoveryPhase.PREPARE: None if ordered is None else _between(fenced, ordered),
        RecoveryPhase.START: started,
        RecoveryPhase.RENDEZVOUS: since_fence(met) if has_met else None,
        RecoveryPhase.RESTORE: since_fence(verified.first_section_age_s),
        RecoveryPhase.FIRST_STEP: stepped,
    }
    phases, at_s = {}, 0.0
    for phase, end_s in ends.items():
        if end_s is not None:
            phases[phase] = max(0.0, end_s - at_s)
            at_s = max(at_s, end_s)
    return phases, tuple(notes)
