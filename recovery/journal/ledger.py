"""What the journal says about a job: a pure fold of its entries.

Nothing here reads a clock or a file, so that the same journal gives the same ledger after a
crash, in `rankmend status` and in the simulation. A revision is the number of the record that
an order follows from: it grows with every change of the desired state, and a change is durable
before its revision exists.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce, singledispatch
from typing import Final

import msgspec

from detectors.finding import Blame, Finding, Symptom
from rankmend.errors import JournalError
from recovery.journal import records
from recovery.journal.faults import UNSEEN, Fault, count_in_a_row, count_most_alike, fault_of
from recovery.journal.incident_machine import IncidentState, Phase, step
from recovery.journal.leaving import LeaveCause, LeaveReason
from recovery.journal.limits import BudgetsSpent, Policy
from recovery.journal.records import (
    AttemptStarted,
    Cause,
    Entry,
    Failure,
    JobOutcome,
    OutcomeKind,
    PersonActed,
    Placement,
    Plan,
    Record,
    WaitCause,
    WaitReason,
    WaitsFor,
)
from recovery.messages.exchange import Endpoint, Stop, StopReason
from recovery.messages.outside import NodeEvidence, PersonAct, PersonCommand, trains

COPY_BYTES_MAX: Final = 1024 * 1024  # with the names of 10,000 nodes, 64 bytes each
_COMMANDS_MAX: Final = 1000  # keys of a person's commands; a client repeats within minutes
_EVIDENCE_MAX: Final = 4096  # alerts that are remembered; a dead switch makes 1,000
_DAY_S: Final = 86400.0
_BARREN_MAX: Final = 1000  # restarts that are remembered; limits are far below
_BASES_MAX: Final = 16  # checkpoints whose farthest relative step is remembered


class Wish(Enum):
    """What the nodes ought to be running."""

    NOTHING_YET = "nothing_yet"  # before the first attempt of this start: not touched
    RANKS = "ranks"  # those of the newest attempt
    NOTHING = "nothing"  # no process of any attempt


@dataclass(frozen=True, slots=True)
class ErrorRun:
    """The same failure, in attempts that followed each other."""

    symptom: Symptom
    step: int | None
    base: str | None  # checkpoint the attempt began from, where steps count from there
    count: int


@dataclass(frozen=True, slots=True)
class Reach:
    """How far attempts have come."""

    highest: int | None = None  # step of the foremost rank
    floor: int | None = None  # that every rank has made


@dataclass(frozen=True, slots=True)
class Moment:
    """When a record was written; monotonic times compare within one boot."""

    unix_s: float = 0.0
    monotonic_s: float = 0.0
    boot_id: str = ""

    def until_s(self, later: "Moment") -> float:
        if self.boot_id == later.boot_id:
            return max(0.0, later.monotonic_s - self.monotonic_s)
        return max(0.0, later.unix_s - self.unix_s)


@dataclass(frozen=True, slots=True)
class OpenIncident:
    state: IncidentState
    failure: Failure
    highest_before: int | None
    last_failure: Failure  # of the newest try
    policy: Policy  # the limits in force when it was opened
    plan: Plan | None = None  # the newest that was decided
    waits: tuple[Plan, str] | None = None  # a plan that must not be carried out yet, and why
    waits_for: WaitsFor = WaitsFor.LEAVE  # where one waits
    waits_cause: WaitCause = WaitCause.UNKNOWN
    waits_about: str = ""
    approved_by: str | None = None  # who approved the plan of this try
    opened_at: Moment = Moment()
    fault_age_s: float = 0.0

    def is_known_to_wait(self, plan: Plan, why: WaitReason, waits_for: WaitsFor) -> bool:
        """Return whether it is on record that such a plan waits for this, in whatever words."""
        if self.waits is None or self.waits_for is not waits_for:
            return False
        shown = self.waits[0]
        is_same_plan = (shown.step, shown.without) == (plan.step, plan.without)
        return is_same_plan and (self.waits_cause, self.waits_about) == (why.cause, why.about)


@dataclass(frozen=True, slots=True)
class Member:
    """A node that has joined."""

    node: str
    launcher_id: str
    boot_id: str
    slots: int
    peer_endpoint: Endpoint | None
    launcher_started_s: float
    joined: int  # number of the record by which it first joined
    launcher_since: int  # of the record by which this launcher came
    boot_since: int  # of the record by which its boot changed; 0: it never did
    replaced: frozenset[str] = frozenset()  # older launchers: refused for ever
    left: str | None = None  # why it gets no ranks, in words
    left_cause: LeaveCause | None = None  # the same, for decisions
    cut_off_from: tuple[str, ...] = ()  # nodes it did not reach when it left
    is_lost: bool = False  # it left because it was silent or cut off, or its launcher ended
    ended_through: int | None = (
        None  # its launcher has ended, with nothing left through this attempt
    )


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    evidence: NodeEvidence
    attempt: int  # in which it was taken
    incident_id: str | None
    at: Moment = Moment()
    overruled_by: str | None = None  # who took the node back: it counts no more until it has ended


@dataclass(frozen=True, slots=True)
class Closing:
    """The job is on its way out: nothing is to run, and then it has ended so."""

    outcome: JobOutcome
    stop: Stop
    grace_s: float


@dataclass(frozen=True, slots=True)
class SlowNow:
    """A rank that is called slow, and why once that is known."""

    found: records.SlowFound
    number: int  # of its record
    why: records.SlowExplained | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    number: int = 0  # of the newest entry
    job_id: str | None = None
    name: str = ""
    nodes: tuple[str, ...] = ()
    world_size: int = 0
    wish: Wish = Wish.NOTHING_YET
    revision: int = 0  # number of the record that last changed the wish
    attempt: int = 0  # the newest; 0 before the first
    attempt_max: int = 0  # an older one can have been adopted: the next is above this
    started: AttemptStarted | None = None  # the newest attempt's record
    is_attempt_open: bool = False  # started, and not proved gone
    is_verified: bool = False  # the newest attempt
    adopted_attempt: int = 0  # the newest that was adopted while it ran; 0: none
    is_comparable: bool = True  # false once the job's steps count from the process's start
    telling_ranks: frozenset[int] = frozenset()  # ranks that have ever told a step
    highest_step: int | None = None
    floor_step: int | None = None  # the highest step that every rank has made
    # The same of relative steps, by the checkpoint that they count from: its identity.
    reaches: tuple[tuple[str, Reach], ...] = ()
    is_base_known: bool = False  # the newest attempt's checkpoint: an earlier one began from it
    restarts: int = 0
    barren: tuple[Fault, ...] = ()  # what the restarts since the last progress were for
    # Restarts of the last day that no new step followed: attempt, unix seconds.
    stepless: tuple[tuple[int, float], ...] = ()
    has_advanced: bool = False  # the newest attempt has made progress
    last_fault: Fault | None = UNSEEN  # of the newest failure; None: it is nothing to count
    # Identity of a checkpoint, and what its restores without progress ended with.
    restores: tuple[tuple[str, tuple[Fault, ...]], ...] = ()
    last_restore_path: str | None = None  # of any attempt of this run
    base_step: int | None = None  # highest step that an attempt of this run was restored from
    base_modified_unix_s: float | None = None  # newest checkpoint that one was restored from
    has_ordered: bool = False  # an attempt was started since this launcher or controller was
    errors: ErrorRun | None = None
    incidents: int = 0
    incident: OpenIncident | None = None  # not ended
    behind: OpenIncident | None = None  # recovered, and not caught up
    closing: Closing | None = None
    ended: JobOutcome | None = None
    is_resumed: bool = False  # the job had ended, or was ending by a stop, before this start
    was_given_up: bool = False  # so it had ended
    epoch: int = 0  # starts of a controller on this journal
    controller_id: str = ""
    members: Mapping[str, Member] = field(default_factory=dict)
    placement: tuple[Placement, ...] = ()  # of the newest attempt; (): that of the settings
    started_number: int = 0  # of the newest attempt's record
    has_lost_lease: bool = False  # the newest attempt is one of a lost journal, and keeps a lease
    replaced_number: int = 0  # of the record by which a node's launcher was last replaced, or ended
    rendezvous_used: frozenset[tuple[str, int]] = frozenset()
    finder: str | None = None  # the node that looks for checkpoints, by the record `finder_number`
    finder_number: int = 0
    finders: tuple[str, ...] = ()  # asked since the newest attempt
    confirmed: Mapping[str, int] = field(default_factory=dict)  # node, attempt: a person's word
    fence_waits: tuple[str, ...] = ()  # nodes of the newest attempt that people were told of
    paused_by: str | None = None  # who wants nothing to be decided
    set_aside: int = 0  # the attempt whose failure a person cancelled: it is left as it is
    taken_back: frozenset[str] = frozenset()  # nodes, by a person, since they were last accused
    commands: Mapping[str, PersonActed] = field(default_factory=dict)  # by the key of the command
    evidence: Mapping[str, KeptEvidence] = field(default_factory=dict)  # by identity
    node_run: tuple[str, int] = ("", 0)  # the node blamed last, and how often in a row
    run_before: tuple[str, int] = ("", 0)  # the same before the newest failure, which was
    failed_attempt: int = 0  # this attempt's
    slow: Mapping[int, SlowNow] = field(default_factory=dict)  # ranks of the newest attempt
    adopted: records.Adopted | None = None  # and no person has confirmed the budgets since
    incident_base: int = 0  # numbers of incidents begin above: those of a lost journal are taken
    fault: tuple[str, Finding] | None = None  # newest incident since the start, what it is about
    restart_cost_s: float | None = None  # fault to caught up, of the newest incident that got there

    @property
    def has_run(self) -> bool:
        """Whether the ranks of the newest attempt had started, by what is on record."""
        return self.is_verified or 0 < self.adopted_attempt == self.attempt

    @property
    def has_lease(self) -> bool:
        """Whether every launcher of the newest attempt can be asked by the others."""
        members = [self.members.get(place.node) for place in self.placement]
        is_known = all(one is not None and one.peer_endpoint is not None for one in members)
        return self.has_lost_lease or (bool(members) and is_known)

    @property
    def unconfirmed(self) -> str | None:
        """Return why budgets count as spent until a person confirms, or None."""
        adopted = self.adopted
        if adopted is None or not adopted.is_history_lost:
            return None
        return (
            f"the journal was lost, and attempt {adopted.attempt} was adopted: how often the job was "
            f"restarted and which nodes were held back is not known"
        )

    @property
    def spent(self) -> BudgetsSpent:
        """What is used up: of one cause, that of the open incident, else that of the last restart."""
        if self.incident is not None and self.last_fault is not None:
            return self.spent_on(self.last_fault)
        return self.spent_on(self.barren[-1] if self.barren else UNSEEN)

    def spent_on(self, fault: Fault) -> BudgetsSpent:
        """Return what is used up where this is what the next restart is for."""
        alike = count_in_a_row(self.barren, fault)
        return BudgetsSpent(self.restarts, len(self.barren), alike, len(self.stepless))

    @property
    def restarts_without_progress(self) -> int:
        return len(self.barren)

    @property
    def base(self) -> str:
        """Identity of the checkpoint that the newest attempt began from."""
        return "" if self.started is None else self.started.choice.identity

    @property
    def reach(self) -> Reach:
        """How far attempts have come whose relative steps count from the same checkpoint."""
        return dict(self.reaches).get(self.base, Reach())

    def restores_of(self, identity: str) -> int:
        """Return how often the checkpoint was restored without progress, with one cause."""
        return count_most_alike(dict(self.restores).get(identity, ()))


def fold_all(entries: Iterable[Entry]) -> Ledger:
    """Return the ledger of a whole journal."""
    return reduce(fold, entries, Ledger())


def fold(ledger: Ledger, entry: Entry) -> Ledger:
    """Return the ledger after ``entry``."""
    if entry.number != ledger.number + 1:
        raise JournalError(f"record {entry.number} follows record {ledger.number}")
    after = _fold(entry.record, replace(ledger, number=entry.number))
    if after.attempt > after.attempt_max:
        after = replace(after, attempt_max=after.attempt)
    return _with_time(entry, ledger, after)


def _with_time(entry: Entry, before: Ledger, after: Ledger) -> Ledger:
    """Note when incidents open, when evidence came, and what catching up took."""
    record = entry.record
    at = Moment(entry.unix_s, entry.monotonic_s, entry.boot_id)
    if isinstance(record, AttemptStarted | records.IncidentOpened | records.TryFailed):
        after = _with_restart_times(record, entry.unix_s, after)
    if isinstance(record, records.IncidentOpened) and after.incident is not None:
        incident = replace(after.incident, opened_at=at, fault_age_s=record.fault_age_s)
        return replace(after, incident=incident)
    if isinstance(record, records.CaughtUp) and before.behind is not None:
        behind = before.behind
        cost_s = behind.fault_age_s + behind.opened_at.until_s(at)
        return replace(after, restart_cost_s=cost_s)
    if isinstance(record, records.EvidenceTaken):
        kept = dict(after.evidence)
        for one in record.evidence:
            kept.pop(one.identity, None)
            if one.is_active:
                kept[one.identity] = KeptEvidence(one, record.attempt, record.incident_id, at)
        for identity in list(kept)[:-_EVIDENCE_MAX]:
            del kept[identity]
        accused = {one.node for one in record.evidence if one.is_active}
        return replace(after, evidence=kept, taken_back=after.taken_back - accused)
    return after


def _with_restart_times(record: Record, unix_s: float, ledger: Ledger) -> Ledger:
    """Date a restart that no new step has followed yet, and forget those of yesterday."""
    recent = [one for one in ledger.stepless if unix_s - one[1] < _DAY_S]
    if isinstance(record, AttemptStarted) and _fault_behind(record, ledger) is not None:
        recent.append((record.attempt, unix_s))
    return replace(ledger, stepless=tuple(recent[-_BARREN_MAX:]))


@singledispatch
def _fold(_record: Record, ledger: Ledger) -> Ledger:
    """Fold a record that changes no decision (unknown, Decided, TailCut)."""
    return ledger


@_fold.register
def _(record: records.JobOpened, ledger: Ledger) -> Ledger:
    return replace(ledger, job_id=record.job_id, name=record.name)


@_fold.register
def _(record: records.LauncherStarted, ledger: Ledger) -> Ledger:
    after = replace(
        ledger,
        nodes=record.nodes or ledger.nodes,
        world_size=record.world_size or ledger.world_size,
        epoch=max(ledger.epoch + 1, record.epoch),
        controller_id=record.controller_id,
        fault=None,  # it would be told anew as if it had just come
        slow={},  # the detector starts anew, too
        has_ordered=False,
    )
    if ledger.ended is not None and ledger.ended.kind is OutcomeKind.DONE:
        after = _without_spent(after)  # it came to its end: what it took is nobody's fault now
    closing = ledger.closing
    # A stop can outlive its launcher (a scheduler's SIGKILL behind its SIGTERM): whoever starts
    # the job again wants it to run.
    was_stopping = closing is not None and closing.outcome.kind in _PLANNED
    if ledger.ended is None and not was_stopping:
        return after
    wish = Wish.NOTHING if ledger.is_attempt_open else Wish.NOTHING_YET
    return replace(
        after,
        ended=None,
        closing=None,
        is_resumed=True,
        was_given_up=ledger.ended is not None and ledger.ended.kind is OutcomeKind.ESCALATED,
        wish=wish,
        revision=ledger.number,
        paused_by=None,
        set_aside=0,
        adopted=None,
        finder=None,
        finders=(),
        # Who starts the job again has chosen its nodes; what holds a node back for all jobs is
        # the cluster's affair.
        members={
            node: replace(member, left=None, left_cause=None, is_lost=False)
            for node, member in ledger.members.items()
        },
    )


_PLANNED: Final = (OutcomeKind.STOPPED, OutcomeKind.TIME_LIMIT)


_RESTARTS: Final = (Cause.TAKEOVER, Cause.INCIDENT)


@_fold.register
def _(record: records.AttemptStarted, ledger: Ledger) -> Ledger:
    before = _begin_run(ledger, record) if record.choice.is_new_run else ledger
    after = _with_restart(_with_newer_base(before, record), record)
    restore = record.choice.restore
    highest = after.highest_step
    if restore is not None and restore.step is not None and ledger.is_comparable:
        highest = max(restore.step, -1 if highest is None else highest)
    base, reaches = record.choice.identity, dict(after.reaches)
    after = replace(
        after,
        attempt=record.attempt,
        started=record,
        is_attempt_open=True,
        has_lost_lease=False,
        is_verified=False,
        is_resumed=False,
        has_ordered=True,
        has_advanced=False,
        highest_step=highest,
        is_base_known=base in reaches,
        reaches=_kept({**reaches, base: reaches.get(base, Reach())}),
        wish=Wish.RANKS,
        revision=ledger.number,
        placement=record.placement,
        world_size=sum(len(place.ranks) for place in record.placement) or ledger.world_size,
        nodes=tuple(place.node for place in record.placement) or ledger.nodes,
        started_number=ledger.number,
        finder=None,
        finders=(),
        fence_waits=(),
        slow={},
    )
    if record.rendezvous is not None:
        met = (record.rendezvous.address, record.rendezvous.port)
        after = replace(after, rendezvous_used=ledger.rendezvous_used | {met})
    return after if restore is None else replace(after, last_restore_path=restore.path)


def _begin_run(ledger: Ledger, record: AttemptStarted) -> Ledger:
    """Forget the run before: nothing of it is left to go on from."""
    after = replace(
        ledger,
        is_comparable=True,
        telling_ranks=frozenset(),
        highest_step=None,
        floor_step=None,
        reaches=(),
        restores=(),
        last_restore_path=None,
        base_step=None,
        base_modified_unix_s=None,
        errors=None,
        behind=None,
    )
    # What rankmend itself does counts against the budgets; a person's start does not.
    return after if record.cause in _RESTARTS else _without_spent(after)


def _without_spent(ledger: Ledger) -> Ledger:
    return replace(ledger, restarts=0, barren=(), stepless=(), errors=None, last_fault=UNSEEN)


def _with_newer_base(ledger: Ledger, record: AttemptStarted) -> Ledger:
    """Note the checkpoint that is restored; one newer than all before is progress."""
    after, restore = ledger, record.choice.restore
    if record.is_progress:
        # Steps that compare tell the same error at the same step from whatever checkpoint.
        errors = ledger.errors if ledger.is_comparable else None
        after = replace(ledger, barren=(), errors=errors)
    if restore is None:
        return after
    if restore.step is not None and (ledger.base_step is None or restore.step > ledger.base_step):
        made = after.stepless if not record.is_progress else _without_last(after)
        after = replace(after, base_step=restore.step, stepless=made)
    times = [at for at in (ledger.base_modified_unix_s, record.choice.modified_unix_s) if at]
    return replace(after, base_modified_unix_s=max(times, default=None))


def _without_last(ledger: Ledger) -> tuple[tuple[int, float], ...]:
    """Return the restarts that no new step followed, without that of the newest attempt."""
    return tuple(one for one in ledger.stepless if one[0] != ledger.attempt)


def _with_restart(ledger: Ledger, record: AttemptStarted) -> Ledger:
    """Count a restart, and what it was for until there is progress."""
    after = replace(ledger, restarts=ledger.restarts + (record.cause in _RESTARTS))
    fault = _fault_behind(record, ledger)
    if fault is None:
        return after
    return replace(after, barren=(*ledger.barren, fault)[-_BARREN_MAX:])


def _fault_behind(record: AttemptStarted, ledger: Ledger) -> Fault | None:
    """Return why the attempt had to be started; None where nothing had failed."""
    if record.cause is Cause.TAKEOVER:
        return UNSEEN
    return ledger.last_fault if record.cause is Cause.INCIDENT else None


@_fold.register
def _(record: records.AttemptVerified, ledger: Ledger) -> Ledger:
    after = replace(
        ledger,
        is_verified=True,
        is_comparable=record.is_comparable,
        telling_ranks=ledger.telling_ranks | frozenset(record.telling_ranks),
    )
    is_blind = not after.telling_ranks and ledger.last_restore_path is None
    # Where neither steps nor checkpoints are seen, that it lives is all that can be.
    return _with_progress(after) if is_blind and not record.is_comparable else after


@_fold.register
def _(record: records.Milestone, ledger: Ledger) -> Ledger:
    known = Reach(ledger.highest_step, ledger.floor_step)
    reached = farther(known, record.step, record.floor_step)
    after = replace(ledger, highest_step=reached.highest, floor_step=reached.floor)
    return _with_step(after) if is_farther(known, reached) else after


@_fold.register
def _(record: records.RelativeMilestone, ledger: Ledger) -> Ledger:
    known = ledger.reach
    reached = farther(known, record.steps, record.floor_steps)
    after = replace(ledger, reaches=_kept({**dict(ledger.reaches), ledger.base: reached}))
    # Of the first attempt from a checkpoint the choice of it has told whether that is progress.
    return _with_step(after) if ledger.is_base_known and is_farther(known, reached) else after


def _kept(reaches: Mapping[str, Reach]) -> tuple[tuple[str, Reach], ...]:
    return tuple(reaches.items())[-_BASES_MAX:]


def farther(known: Reach, highest: int, floor: int | None) -> Reach:
    """Return how far attempts have come with one that is at ``highest`` and ``floor``."""
    return Reach(_greater(known.highest, highest), _greater(known.floor, floor))


def is_farther(known: Reach, reached: Reach) -> bool:
    """Return whether the foremost rank or the hindmost one has made a step that is new."""
    is_highest = known.highest is None or known.highest != reached.highest
    return is_highest or (known.floor is not None and known.floor != reached.floor)


def _greater(one: int | None, other: int | None) -> int | None:
    return max((step for step in (one, other) if step is not None), default=None)


def _with_step(ledger: Ledger) -> Ledger:
    """Return the ledger with progress that a new step shows."""
    # What makes steps has not failed, whatever a person was told of it.
    return replace(_with_progress(ledger), stepless=_without_last(ledger), set_aside=0)


def _with_progress(ledger: Ledger) -> Ledger:
    return _without_restore(replace(ledger, barren=(), has_advanced=True))


def _without_restore(ledger: Ledger) -> Ledger:
    """Forget what is held against the checkpoint that the newest attempt began from."""
    if ledger.started is None or ledger.started.choice.restore is None:
        return ledger
    identity = ledger.started.choice.identity
    return replace(ledger, restores=tuple(pair for pair in ledger.restores if pair[0] != identity))


@_fold.register
def _(_record: records.RanksDone, ledger: Ledger) -> Ledger:
    outcome = JobOutcome(OutcomeKind.DONE, 0, "every rank ended with exit code 0")
    # The wish stays: the launcher itself gives children that outlive their ranks a moment.
    return replace(ledger, closing=Closing(outcome, Stop.KILL, 0.0))


@_fold.register
def _(_record: records.AttemptAbandoned, ledger: Ledger) -> Ledger:
    return replace(ledger, wish=Wish.NOTHING, revision=ledger.number)


@_fold.register
def _(record: records.AttemptEnded, ledger: Ledger) -> Ledger:
    after = replace(ledger, is_attempt_open=False)
    if record.result in (records.AttemptResult.DONE, records.AttemptResult.STOPPED):
        return _without_restore(after)
    return after


@_fold.register
def _(record: records.IncidentOpened, ledger: Ledger) -> Ledger:
    state = IncidentState(record.incident_id, record.policy.tries_max)
    opened = OpenIncident(state, record.failure, record.highest_step, record.failure, record.policy)
    after = replace(
        ledger,
        incidents=ledger.incidents + 1,
        incident=opened,
        behind=None,
        fault=(record.incident_id, record.failure.finding),
        taken_back=frozenset(),
    )
    return _with_failure(_with_highest(after, record.highest_step), record.failure)


@_fold.register
def _(record: records.TryFailed, ledger: Ledger) -> Ledger:
    if record.failure is None or ledger.incident is None:
        return ledger
    incident = replace(ledger.incident, last_failure=record.failure)
    accused = {record.failure.finding.node} - {""}
    fault = (f"{record.incident_id}/{record.try_number}", record.failure.finding)
    after = replace(ledger, incident=incident, fault=fault, taken_back=ledger.taken_back - accused)
    return _with_failure(after, record.failure)


def _with_highest(ledger: Ledger, highest: int | None) -> Ledger:
    if highest is None or (ledger.highest_step is not None and highest <= ledger.highest_step):
        return ledger
    return replace(_with_step(ledger), highest_step=highest)


def _with_failure(ledger: Ledger, failure: Failure) -> Ledger:
    base = None
    if failure.is_relative and ledger.started and ledger.started.choice.restore:
        base = ledger.started.choice.restore.path
    key = (failure.finding.symptom, failure.step, base)
    before = ledger.errors
    is_same = before is not None and (before.symptom, before.step, before.base) == key
    count = before.count + 1 if before is not None and is_same else 1
    fault = fault_of(failure, has_nodes=len(ledger.nodes) > 1)
    return replace(
        _with_restore_failed(ledger, fault),
        last_fault=fault,
        node_run=_blamed(ledger.node_run, failure.finding),
        run_before=ledger.node_run,
        failed_attempt=failure.attempt,
        errors=ErrorRun(*key, count),
        telling_ranks=ledger.telling_ranks | frozenset(failure.telling_ranks),
        is_comparable=ledger.is_comparable and not failure.is_relative,
    )


def _with_restore_failed(ledger: Ledger, fault: Fault | None) -> Ledger:
    """Hold a failure without progress against the checkpoint that the attempt began from."""
    if fault is None or ledger.has_advanced or not ledger.base:
        return ledger
    faults = {identity: known for identity, known in ledger.restores if identity != ledger.base}
    faults[ledger.base] = (*dict(ledger.restores).get(ledger.base, ()), fault)[-_BARREN_MAX:]
    return replace(ledger, restores=tuple(faults.items()))


def _blamed(run: tuple[str, int], finding: Finding) -> tuple[str, int]:
    """Return which node has been blamed how often in a row, after one more failure."""
    if finding.blame is not Blame.RANK or not finding.node:
        return run
    return finding.node, run[1] + 1 if run[0] == finding.node else 1


@_fold.register
def _(record: records.EvidenceCollected, ledger: Ledger) -> Ledger:
    """Blame whom the evidence is sure of in the place of whom the ranks' states had named."""
    if record.attempt != ledger.failed_attempt or not record.is_sure or record.finding is None:
        return ledger
    return replace(ledger, node_run=_blamed(ledger.run_before, record.finding))


@_fold.register
def _(record: records.IncidentEvent, ledger: Ledger) -> Ledger:
    if ledger.incident is None:
        raise JournalError(f"record {ledger.number} belongs to no incident: {record.event}")
    before = ledger.incident
    state = step(before.state, record.event)
    # An approval is of one try's plan, and a plan that waits is of the phase that it was made in.
    approved_by = before.approved_by if state.try_number == before.state.try_number else None
    incident = replace(before, state=state, waits=None, approved_by=approved_by)
    if state.phase is Phase.FENCING:
        return replace(
            ledger,
            incident=incident,
            wish=Wish.NOTHING,
            revision=ledger.number,
            finder=None,
            finders=(),
        )
    if state.phase is Phase.RECOVERED:
        is_behind = incident.highest_before is not None and ledger.is_comparable
        behind = incident if is_behind else None
        return replace(ledger, incident=None, behind=behind, taken_back=frozenset())
    if state.phase is Phase.CANCELLED:
        return replace(ledger, incident=None)
    if state.phase is Phase.ESCALATED:
        failure = incident.last_failure
        outcome = JobOutcome(
            OutcomeKind.ESCALATED,
            failure.exit_code,
            record.event.reason,
            state.incident_id,
            failure.rank,
            failure.error,
        )
        return _close(replace(ledger, incident=None), Closing(outcome, Stop.KILL, 0.0))
    return replace(ledger, incident=incident)


@_fold.register
def _(record: records.SlowFound, ledger: Ledger) -> Ledger:
    if record.attempt != ledger.attempt:
        return ledger
    slow = {**ledger.slow, record.rank: SlowNow(record, ledger.number)}
    return replace(ledger, slow=slow, revision=_told(ledger))


@_fold.register
def _(record: records.SlowExplained, ledger: Ledger) -> Ledger:
    known = ledger.slow.get(record.rank)
    if record.attempt != ledger.attempt or known is None:
        return ledger
    slow = {**ledger.slow, record.rank: replace(known, why=record)}
    return replace(ledger, slow=slow, revision=_told(ledger))


@_fold.register
def _(record: records.SlowEnded, ledger: Ledger) -> Ledger:
    if record.attempt != ledger.attempt or record.rank not in ledger.slow:
        return ledger
    slow = {rank: one for rank, one in ledger.slow.items() if rank != record.rank}
    return replace(ledger, slow=slow, revision=_told(ledger))


def _told(ledger: Ledger) -> int:
    """Return the revision by which the launchers hear of slow ranks; what runs stays as it is."""
    return ledger.number if ledger.wish is Wish.RANKS else ledger.revision


@_fold.register
def _(_record: records.CaughtUp, ledger: Ledger) -> Ledger:
    return replace(ledger, behind=None)


@_fold.register
def _(record: records.Decided, ledger: Ledger) -> Ledger:
    if ledger.incident is None:
        return ledger
    return replace(ledger, incident=replace(ledger.incident, plan=record.plan, waits=None))


@_fold.register
def _(record: records.PlanWaits, ledger: Ledger) -> Ledger:
    if ledger.incident is None:
        return ledger
    waits, before = (record.plan, record.reason), ledger.incident.waits
    is_same = before is not None and (before[0].step, before[0].without) == (
        record.plan.step,
        record.plan.without,
    )
    approved_by = ledger.incident.approved_by if is_same else None
    incident = replace(
        ledger.incident,
        waits=waits,
        waits_for=record.waits_for,
        waits_cause=record.cause,
        waits_about=record.about,
        approved_by=approved_by,
    )
    return replace(ledger, incident=incident)


@_fold.register
def _(record: records.NodesJoined, ledger: Ledger) -> Ledger:
    members = dict(ledger.members)
    replaced_number = ledger.replaced_number
    for joined in record.nodes:
        before = members.get(joined.node)
        if before is not None and before.launcher_id != joined.launcher_id:
            replaced_number = ledger.number
        members[joined.node] = _member(before, joined, ledger.number)
    return replace(ledger, members=members, replaced_number=replaced_number)


def _member(before: Member | None, joined: records.Joined, number: int) -> Member:
    after = Member(
        joined.node,
        joined.launcher_id,
        joined.boot_id,
        joined.slots,
        joined.peer_endpoint,
        joined.launcher_started_s,
        joined=number,
        launcher_since=number,
        boot_since=0,
    )
    if before is None:
        return after
    is_same_launcher = before.launcher_id == joined.launcher_id
    return replace(
        after,
        joined=before.joined,
        launcher_since=before.launcher_since if is_same_launcher else number,
        boot_since=number if is_other_boot(before.boot_id, joined.boot_id) else before.boot_since,
        replaced=before.replaced if is_same_launcher else before.replaced | {before.launcher_id},
        left=None if before.is_lost else before.left,
        left_cause=None if before.is_lost else before.left_cause,
    )


@_fold.register
def _(record: records.LaunchersEnded, ledger: Ledger) -> Ledger:
    members, had_ranks = dict(ledger.members), {place.node for place in ledger.placement}
    replaced_number = ledger.replaced_number
    for one in record.launchers:
        member = members.get(one.node)
        if member is None or member.launcher_id != one.launcher_id:
            continue
        members[one.node] = replace(
            member,
            left=member.left or LeaveReason(LeaveCause.ENDED).text,
            left_cause=member.left_cause or LeaveCause.ENDED,
            is_lost=member.left is None or member.is_lost,
            ended_through=one.empty_through,
        )
        if one.node in had_ranks:
            replaced_number = ledger.number
    return replace(ledger, members=members, replaced_number=replaced_number)


def is_other_boot(before: str, after: str) -> bool:
    """Return whether two boot ids prove a boot between them; one that can't be read proves nothing."""
    unknown = ("", "unknown")
    return before != after and before not in unknown and after not in unknown


@_fold.register
def _(record: records.AttemptHeard, ledger: Ledger) -> Ledger:
    return replace(
        ledger,
        attempt=record.attempt,
        is_attempt_open=True,
        wish=Wish.NOTHING,
        revision=ledger.number,
        placement=tuple(Placement(node, ()) for node in record.nodes),
        started_number=ledger.number,
        has_lost_lease=False,
        fence_waits=(),
    )


@_fold.register
def _(record: records.Adopted, ledger: Ledger) -> Ledger:
    """Go on as if this journal had ordered the attempt itself."""
    # Its launchers were there before it was ordered; whoever joins later is no launcher of it.
    members = dict(ledger.members)
    for joined in record.nodes:
        member = _member(members.get(joined.node), joined, ledger.number - 1)
        members[joined.node] = replace(member, launcher_since=ledger.number - 1, boot_since=0)
    choice = records.Choice(True, record.restore, "adopted: it runs")
    met = set()
    if record.rendezvous is not None:
        met = {(record.rendezvous.address, record.rendezvous.port)}
    is_same = record.attempt == ledger.attempt and ledger.adopted is not None
    after = replace(
        ledger,
        epoch=record.epoch,
        attempt=record.attempt,
        restarts=max(ledger.restarts, record.restarts),
        is_resumed=False,
        closing=None,
        adopted=record,
        incident_base=max(ledger.incident_base, record.epoch),
    )
    if not record.placement:  # nothing runs
        return replace(
            after, is_attempt_open=False, wish=Wish.NOTHING, revision=ledger.number, placement=()
        )
    return replace(
        after,
        started=AttemptStarted(
            record.attempt,
            Cause.TAKEOVER,
            choice,
            placement=record.placement,
            rendezvous=record.rendezvous,
        ),
        is_attempt_open=True,
        is_verified=ledger.is_verified and is_same,
        adopted_attempt=record.attempt,
        has_lost_lease=False,
        wish=Wish.RANKS,
        revision=ledger.number,
        placement=record.placement,
        world_size=sum(len(place.ranks) for place in record.placement),
        nodes=tuple(place.node for place in record.placement),
        started_number=ledger.number,
        members=members,
        rendezvous_used=ledger.rendezvous_used | met,
        last_restore_path=ledger.last_restore_path
        if record.restore is None
        else record.restore.path,
        finder=None,
        finders=(),
        fence_waits=(),
        slow={},
    )


@_fold.register
def _(record: records.NodeLeft, ledger: Ledger) -> Ledger:
    member = ledger.members.get(record.node)
    if member is None:
        return ledger
    # Who was blamed and then falls silent does not come back by speaking.
    is_lost = record.is_lost and (member.left is None or member.is_lost)
    left = replace(
        member,
        left=record.reason,
        left_cause=record.cause,
        is_lost=is_lost,
        cut_off_from=record.cut_off_from,
    )
    members = {**ledger.members, record.node: left}
    return replace(ledger, members=members)


@_fold.register
def _(record: records.FinderChosen, ledger: Ledger) -> Ledger:
    return replace(
        ledger,
        finder=record.node,
        finder_number=ledger.number,
        finders=(*ledger.finders, record.node),
        wish=Wish.NOTHING,
        revision=ledger.number,
    )


@_fold.register
def _(record: records.FenceWaits, ledger: Ledger) -> Ledger:
    return replace(ledger, fence_waits=record.nodes)


@_fold.register
def _(record: records.PersonActed, ledger: Ledger) -> Ledger:
    command = record.command
    commands = dict(ledger.commands)
    if command.key:
        commands[command.key] = record
        for key in list(commands)[:-_COMMANDS_MAX]:
            del commands[key]
    after = replace(ledger, commands=commands)
    return after if record.is_refused else _with_command(after, command)


def _with_command(ledger: Ledger, command: PersonCommand) -> Ledger:
    after = ledger
    match command:
        case PersonCommand(act=PersonAct.PAUSE, who=who):
            after = replace(ledger, paused_by=who)
        case PersonCommand(act=PersonAct.CANCEL, who=who):
            after = replace(ledger, paused_by=who, set_aside=_set_aside(ledger))
        case PersonCommand(act=PersonAct.RESTART | PersonAct.LEAVE_NODE):
            after = replace(ledger, paused_by=None, set_aside=0)  # it is to be done: decide again
        case PersonCommand(act=PersonAct.RESUME, node=None):
            after = replace(ledger, paused_by=None, set_aside=0)
        case PersonCommand(act=PersonAct.RESUME, node=str(node)) if node in ledger.members:
            after = _taken_back(ledger, node, command.who)
        case PersonCommand(act=PersonAct.APPROVE, who=who) if ledger.incident is not None:
            after = replace(ledger, incident=replace(ledger.incident, approved_by=who))
        case PersonCommand(act=PersonAct.CONFIRM_GONE, node=str(node)):
            after = replace(ledger, confirmed={**ledger.confirmed, node: ledger.attempt})
    return after


def _set_aside(ledger: Ledger) -> int:
    """Return the attempt that is left as it is when the open incident is cancelled; 0 for none."""
    incident = ledger.incident
    if incident is None or trains(incident.last_failure.finding):
        return 0
    return incident.last_failure.attempt


def _taken_back(ledger: Ledger, node: str, who: str) -> Ledger:
    """Return the ledger once a person has cleared the node of all that was held against it."""
    member = replace(ledger.members[node], left=None, left_cause=None, is_lost=False)
    evidence = {
        identity: replace(kept, overruled_by=who) if kept.evidence.node == node else kept
        for identity, kept in ledger.evidence.items()
    }
    return replace(
        ledger,
        members={**ledger.members, node: member},
        evidence=evidence,
        node_run=("", 0) if ledger.node_run[0] == node else ledger.node_run,
        run_before=("", 0) if ledger.run_before[0] == node else ledger.run_before,
        taken_back=ledger.taken_back | {node},
    )


def is_set_aside(ledger: Ledger) -> bool:
    """Return whether a person has cancelled what was to be done about the newest attempt."""
    return ledger.paused_by is not None and 0 < ledger.attempt == ledger.set_aside


def stands_paused(ledger: Ledger) -> bool:
    """Return whether a job does not train, and nothing is done about it since it is paused."""
    if ledger.paused_by is None or ledger.incident is not None or ledger.closing is not None:
        return False
    return ledger.wish is Wish.NOTHING or is_set_aside(ledger)


@_fold.register
def _(record: records.StopRequested, ledger: Ledger) -> Ledger:
    is_limit = record.cause is StopReason.TIME_LIMIT
    kind = OutcomeKind.TIME_LIMIT if is_limit else OutcomeKind.STOPPED
    outcome = JobOutcome(kind, record.cause.exit_code, f"stop asked for: {record.reason}")
    return _close(ledger, Closing(outcome, record.stop, record.grace_s))


def _close(ledger: Ledger, closing: Closing) -> Ledger:
    return replace(ledger, closing=closing, wish=Wish.NOTHING, revision=ledger.number)


@_fold.register
def _(record: records.JobEnded, ledger: Ledger) -> Ledger:
    return replace(ledger, ended=record.outcome, closing=None, incident=None)


@_fold.register
def _(_record: records.BudgetsReset, ledger: Ledger) -> Ledger:
    return replace(
        _without_spent(ledger),
        restores=(),
        last_restore_path=None,
        node_run=("", 0),
        run_before=("", 0),
        adopted=None,
    )


@_fold.register
def _(record: records.RecordsLost, ledger: Ledger) -> Ledger:
    highest = [at for at in (ledger.highest_step, record.highest_step) if at is not None]
    is_ahead = record.attempt > ledger.attempt
    return replace(
        ledger,
        wish=Wish.NOTHING if is_ahead else ledger.wish,
        revision=ledger.number if is_ahead else ledger.revision,
        attempt=max(ledger.attempt, record.attempt),
        restarts=max(ledger.restarts, record.restarts),
        barren=_at_least(ledger.barren, record.restarts_without_progress),
        highest_step=max(highest, default=None),
        is_attempt_open=ledger.is_attempt_open or is_ahead,
        placement=tuple(Placement(node, ()) for node in record.nodes)
        if is_ahead
        else ledger.placement,
        started_number=ledger.number if is_ahead else ledger.started_number,
        has_lost_lease=record.has_lease if is_ahead else ledger.has_lost_lease,
    )


def _at_least(barren: tuple[Fault, ...], count: int) -> tuple[Fault, ...]:
    """Return ``count`` restarts without progress at least; what those not known were for is lost."""
    lost = min(count, _BARREN_MAX) - len(barren)
    return (*(UNSEEN for _one in range(lost)), *barren)


@dataclass(frozen=True, slots=True)
class Copy:
    """The budgets as they lie beside the checkpoints, for a job whose state folder is lost."""

    version: int
    job_id: str
    record_number: int
    attempt: int
    restarts: int
    restarts_without_progress: int
    highest_step: int | None
    nodes: tuple[str, ...] = ()  # of the attempt, where it may not be gone, by group rank
    has_lease: bool = False  # its launchers keep one


_COPY_VERSION: Final = 1


def encode_copy(ledger: Ledger) -> bytes:
    """Return the budgets of ``ledger`` in the form of the copy."""
    assert ledger.job_id is not None, "a job without an identity has no budgets"
    return msgspec.json.encode(
        Copy(
            _COPY_VERSION,
            ledger.job_id,
            ledger.number,
            ledger.attempt,
            ledger.restarts,
            ledger.restarts_without_progress,
            ledger.highest_step,
            tuple(place.node for place in ledger.placement) if ledger.is_attempt_open else (),
            ledger.has_lease,
        )
    )


def decode_copy(body: bytes) -> Copy:
    """Return the budgets of a copy, or raise JournalError with what is wrong."""
    if len(body) > COPY_BYTES_MAX:
        raise JournalError(f"the copy of the budgets has {len(body)} bytes, over {COPY_BYTES_MAX}")
    try:
        copy = msgspec.json.decode(body, type=Copy, strict=True)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JournalError(f"the copy of the budgets can't be read: {error}") from error
    numbers = (copy.record_number, copy.attempt, copy.restarts, copy.restarts_without_progress)
    if copy.version != _COPY_VERSION or min(numbers) < 0:
        raise JournalError(f"the copy of the budgets is impossible: {copy}")
    return copy
