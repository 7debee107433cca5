"""The ledger of a job: the state that its journal's records add up to. Pure.

Nothing here reads a clock or a file, so the same journal gives the same ledger after a crash, in
`rankmend status` and in the simulation (`recovery.journal.fold.entry_fold` makes it). A revision is
the number of the record that an order follows from: it grows with every change of the desired
state, and a change is durable before its revision exists.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean, median
from typing import Final

from detectors.failed.loading_error import LoadingVerdict
from detectors.finding import Finding, Symptom
from detectors.replicas.layout import ParallelLayout
from recovery.journal.attempt_records import (
    Adopted,
    AttemptStarted,
    CheckpointPutBack,
    CheckpointSeen,
    Placement,
    RestoreDamaged,
    SavesMissing,
    SavesSeen,
    StallSource,
    StandStill,
    StartWaits,
)
from recovery.journal.faults import UNSEEN, Fault, count_in_a_row, count_most_alike
from recovery.journal.incident_machine import IncidentState
from recovery.journal.incident_records import (
    ChargedNode,
    Failure,
    Plan,
    WaitCause,
    WaitReason,
    WaitsFor,
)
from recovery.journal.job_records import JobOutcome, PersonActed
from recovery.journal.limits import BudgetsSpent, Policy
from recovery.journal.node_records import CheckpointReader, LeaveCause
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    FabricProbeSkipped,
    GoesBack,
    NumbersWrong,
    ReplicasDiffer,
    ReplicasKnown,
    SlowExplained,
    SlowFound,
)
from recovery.messages.exchange import Endpoint, Stop
from recovery.messages.outside import NodeEvidence, trains

SAVES_KEPT: Final = 16  # records; each is of one save, or of several that came fast
_INTERVALS: Final = 5  # newest records that the usual interval is the median of
HALF_LIFE_S: Final = 7 * 86400.0
"""Running time after which a failure counts half. Our choice: repairs change a rate within weeks."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the ranks of attempts have come, in steps."""

    highest: int | None = None  # step of the foremost rank
    floor: int | None = None  # that every rank has made


def farther(known: Reach, highest: int, floor: int | None) -> Reach:
    """Return how far attempts have come, with an attempt at ``highest`` and ``floor`` added."""
    return Reach(_greater(known.highest, highest), _greater(known.floor, floor))


def is_farther(known: Reach, reached: Reach) -> bool:
    """Return whether the foremost rank or the hindmost one has made a step that is new."""
    is_highest = known.highest is None or known.highest != reached.highest
    return is_highest or (known.floor is not None and known.floor != reached.floor)


def _greater(number: int | None, other: int | None) -> int | None:
    if number is None:
        return other
    return number if other is None or number >= other else other


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint that ranks have read."""

    size_bytes: int
    took_s: float  # of the slowest rank: from asking for it to its first section


@dataclass(frozen=True, slots=True)
class SaveHistory:
    """What the journal adds up to about the job's saves, failures and restarts.

    `recovery.journal.fold.observation_fold` makes it, `recovery.console.views.checkpoint_view`
    turns it into costs.
    """

    saves: tuple[SavesSeen, ...] = ()  # oldest first
    ran_s: float = 0.0  # ranks were verified and trained; older time and failures count less
    failures: float = 0.0
    # Of these, the ones after which every rank began where it had been: what it kept in memory was there.
    stayed: float = 0.0
    repairs: float = 0.0  # failures that were recovered from, ...
    repaired_s: float = 0.0  # ... and for how long no step was made: fault to first step
    restored: Restored | None = None  # the newest that was measured

    @property
    def interval_s(self) -> float | None:
        """Return the usual time from the begin of a save to the next; None before two saves."""
        return _middle(save.interval_s for save in self.saves[-_INTERVALS:])

    @property
    def save_s(self) -> float | None:
        return _middle(save.save_s for save in self.saves[-_INTERVALS:])

    @property
    def stall_source(self) -> StallSource:
        """Return the best source that has measured a stall."""
        sources = {save.stall_source for save in self.saves if save.stall_s is not None}
        best = (StallSource.SECTION, StallSource.STEPS)
        return next((item for item in best if item in sources), StallSource.UNKNOWN)

    @property
    def stall_s(self) -> float | None:
        """Return for how long a save stops training, by the best source; None: not known."""
        source = self.stall_source
        stalls = [save.stall_s for save in self.saves if save.stall_source is source]
        known = [stall_s for stall_s in stalls if stall_s is not None]
        if not known:
            return None
        # The steps' time may contain an evaluation, or a step that was slow by chance.
        return fmean(known) if source is StallSource.SECTION else median(known)

    @property
    def repair_s(self) -> float | None:
        """Return the mean time from a fault to the first step; None before the first recovery."""
        return self.repaired_s / self.repairs if self.repairs else None


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


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
    # The checkpoint that the attempt began from, where steps count from there or none was made.
    base: str | None
    count: int
    incidents: tuple[str, ...] = ()  # of which it is the failure, oldest first


@dataclass(frozen=True, slots=True)
class StartFailure:
    """An attempt that ended before its first step, and what it began from."""

    attempt: int
    identity: str  # of what it began from; empty: it began at zero
    path: str  # of the checkpoint; empty: it began at zero, or from memory
    symptom: Symptom
    error: str  # in the program's own words, else the finding's
    is_own: bool  # the program ended itself
    verdict: LoadingVerdict
    is_fallback: bool  # a newer checkpoint had been passed over for this one
    incident_id: str = ""

    @property
    def is_loading(self) -> bool:
        return bool(self.path) and self.verdict is LoadingVerdict.LOADING

    @property
    def may_be_state(self) -> bool:
        """Whether the checkpoint can be the cause, though the error does not show it."""
        return self.is_own and self.verdict is not LoadingVerdict.OUTSIDE

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


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
    last_failure: Failure  # the newest try's failure
    policy: Policy  # the limits in force when it was opened
    plan: Plan | None = None  # the newest that was decided
    waits: tuple[Plan, str] | None = None  # a plan that must not be carried out yet, and why
    waits_for: WaitsFor = WaitsFor.LEAVE  # where one waits
    waits_cause: WaitCause = WaitCause.UNKNOWN
    waits_about: str = ""
    approved_by: str | None = None  # who approved the plan of this try
    is_approved_within: bool = False  # by a person who speaks for the job alone
    opened_at: Moment = Moment()
    fault_age_s: float = 0.0
    stopped_at: Moment | None = (
        None  # its first plan was accepted, so that no rank trains; None: not yet
    )
    judged: Finding | None = None  # the newest failure's after the evidence; None: as it was

    def cost_s(self, until: Moment) -> float:
        """Return for how long no rank trained until a moment: from the fault on, or from when ranks that trained on were stopped."""
        if self.stopped_at is not None and trains(self.failure.finding):
            return self.stopped_at.until_s(until)
        return self.fault_age_s + self.opened_at.until_s(until)

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
    launcher_since: int  # number of the record that introduced this launcher
    boot_since: int  # number of the record in which its boot changed; 0: it never did
    replaced: frozenset[str] = frozenset()  # older launchers: refused for ever
    left: str | None = None  # why it gets no ranks, in words
    left_cause: LeaveCause | None = None  # the same, for decisions
    cut_off_from: tuple[str, ...] = ()  # nodes it did not reach when it left
    is_lost: bool = False  # it left because it was silent or cut off, or its launcher ended
    ended_through: int | None = (
        None  # its launcher has ended, with nothing left through this attempt
    )
    is_off: bool = False  # its launcher ended with the node's power, by its BMC
    folder_id: str = ""  # of the checkpoint folder that it sees; empty: not known
    role: str = ""  # --role of its ranks; empty: "default"


def is_other_boot(before: str, after: str) -> bool:
    """Return whether two boot ids prove a boot between them; an id that can't be read proves nothing."""
    unknown = ("", "unknown")
    return before != after and before not in unknown and after not in unknown


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    evidence: NodeEvidence
    attempt: int  # in which it was taken
    incident_id: str | None
    at: Moment = Moment()
    overruled_by: str | None = None  # who took the node back: it counts no more until it has ended
    doubted: str = ""  # why it counts only where something else agrees


@dataclass(frozen=True, slots=True)
class Closing:
    """The job is on its way out: nothing is to run, and then it has ended so."""

    outcome: JobOutcome
    stop: Stop
    grace_s: float


@dataclass(frozen=True, slots=True)
class ProbesNow:
    """The newest probe of the network for the job."""

    asked: FabricProbeAsked | None = None
    asked_at: Moment = Moment()
    ended: FabricProbeEnded | None = None  # of that one; None: it is under way, or was dry
    skipped: FabricProbeSkipped | None = None  # since then
    slow_nodes: frozenset[str] = frozenset()  # found slow by the newest probe that tested them

    @property
    def open(self) -> FabricProbeAsked | None:
        """Return the probe that is under way, as far as is on record."""
        return None if self.asked is None or self.asked.is_dry or self.ended else self.asked

    @property
    def about(self) -> int:
        """Return the newest record of a slow rank that was probed for; 0: none was."""
        return 0 if self.asked is None else self.asked.about


@dataclass(frozen=True, slots=True)
class SlowNow:
    """A rank that is called slow, and why once that is known."""

    found: SlowFound
    number: int  # its record's number
    why: SlowExplained | None = None


@dataclass(frozen=True, slots=True)
class UnsavedNow:
    """The job trains and saves nothing that could be restored."""

    record: SavesMissing
    at: Moment = Moment()


@dataclass(frozen=True)  # without slots: it is copied for each record, and its dict at once
class Ledger:
    number: int = 0  # the newest entry's number
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
    telling_ranks: frozenset[int] = frozenset()  # ranks that have ever reported a step
    highest_step: int | None = None
    floor_step: int | None = None  # the highest step that every rank has made
    # The same of relative steps, by the checkpoint that they count from: its identity.
    reaches: tuple[tuple[str, Reach], ...] = ()
    is_base_known: bool = False  # the newest attempt's checkpoint: an earlier one began from it
    restarts: int = 0  # since the last start by a person: what counts against the budget
    restarts_in_all: int = 0
    barren: tuple[Fault, ...] = ()  # what the restarts since the last progress were for
    # Restarts of the last day that no new step followed: attempt, unix seconds.
    stepless: tuple[tuple[int, float], ...] = ()
    has_advanced: bool = False  # the newest attempt has made progress
    last_fault: Fault | None = UNSEEN  # the newest failure's fault; None: it does not count
    # Identity of a checkpoint, and what its restores without progress ended with.
    restores: tuple[tuple[str, tuple[Fault, ...]], ...] = ()
    # Paths of checkpoints that attempts of this run made progress from, and when each was saved; newest last.
    proven: tuple[tuple[str, float], ...] = ()
    last_restore_path: str | None = None  # by any attempt of this run
    restorable: CheckpointSeen | None = None  # the newest that a failure could restore
    saved_number: int = 0  # number of the record of the newest save by this job; 0: none is known
    unsaved: UnsavedNow | None = None  # a notice was sent since then
    layout: ParallelLayout | None = None  # as the job's owner declares it
    differing: tuple[ReplicasDiffer, ...] = ()  # newest last
    replicas: ReplicasKnown | None = None  # of the newest attempt of which that is known
    wrong_numbers: tuple[NumbersWrong, ...] = ()  # newest last
    rollbacks: tuple[GoesBack, ...] = ()  # that were requested; newest last
    goes_back: GoesBack | None = None  # the next attempt begins before it
    # Identities of checkpoints that were there when the job went back, and not from before that step.
    spoiled: tuple[str, ...] = ()
    damaged_restores: tuple[RestoreDamaged, ...] = ()  # newest last
    leaves_damaged: RestoreDamaged | None = None  # the next attempt begins from what is older
    standing: StandStill | None = None  # ranks of the newest attempt stand still, and may go on
    continued: tuple[tuple[int, Moment], ...] = ()  # ranks of the newest attempt that got SIGCONT
    continued_number: int = 0  # number of the newest such record; 0: none
    put_backs: Mapping[str, CheckpointPutBack] = field(default_factory=dict)  # newest, by node
    start_waits: StartWaits | None = None  # no attempt is started before a person has seen to it
    start_approved_by: str | None = None  # who lets the start that waits begin at step 0
    base_step: int | None = None  # highest step that an attempt of this run was restored from
    memory_step: int | None = None  # the same of snapshots
    # The newest attempt that began from no snapshot: those of older attempts were left behind on purpose.
    memory_since: int = 0
    # Own errors of one cause in attempts in a row that began from snapshots, without a checkpoint saved between them.
    memory_errors: int = 0
    memory_errors_after: str | None = None  # the newest checkpoint at the last of them
    base_modified_unix_s: float | None = None  # newest checkpoint that one was restored from
    has_ordered: bool = False  # an attempt was started since this launcher or controller was
    errors: ErrorRun | None = None
    # Attempts that ended before their first step since one got past it; oldest first.
    start_failures: tuple[StartFailure, ...] = ()
    # Identities of checkpoints that the program could not begin from while an older one served, and why.
    not_loaded: tuple[tuple[str, str], ...] = ()
    reads_choice: bool = False  # its ranks have called `rankmend.resume()`
    chooses_itself: bool = False  # its ranks have begun from another checkpoint than the given one
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
    placement: tuple[Placement, ...] = ()  # the newest attempt's; (): that of the settings
    started_number: int = 0  # number of the newest attempt's record
    has_lost_lease: bool = False  # the newest attempt is one of a lost journal, and keeps a lease
    # number of the record in which a node's launcher was last replaced or ended
    replaced_number: int = 0
    rendezvous_used: tuple[tuple[str, int], ...] = ()  # by the newest attempts, newest last
    finder: str | None = None  # the node that looks for checkpoints, by the record `finder_number`
    finder_number: int = 0
    readers: tuple[CheckpointReader, ...] = ()  # all that look by that record
    finders: tuple[str, ...] = ()  # requested since the newest attempt
    confirmed: Mapping[str, int] = field(default_factory=dict)  # node, attempt: a person's word
    fence_waits: tuple[str, ...] = ()  # nodes of the newest attempt in notices to people
    paused_by: str | None = None  # who wants nothing to be decided
    set_aside: int = 0  # the attempt whose failure a person cancelled: it is left as it is
    taken_back: frozenset[str] = frozenset()  # nodes, by a person, since they were last accused
    commands: Mapping[str, PersonActed] = field(default_factory=dict)  # by the key of the command
    evidence: Mapping[str, KeptEvidence] = field(default_factory=dict)  # by identity
    # incident and attempt of the newest evidence on record, oldest first
    collected: tuple[tuple[str, int], ...] = ()
    # What the open incident counts against nodes, as far as is on record.
    charged: tuple[ChargedNode, ...] = ()
    node_run: tuple[str, int] = ("", 0)  # the node blamed last, and how often in a row
    run_before: tuple[str, int] = ("", 0)  # the same before the newest failure, which was
    failed_attempt: int = 0  # this attempt's
    slow: Mapping[int, SlowNow] = field(default_factory=dict)  # ranks of the newest attempt
    probes: ProbesNow = ProbesNow()
    adopted: Adopted | None = None  # and no person has confirmed the budgets since
    incident_base: int = 0  # numbers of incidents begin above: those of a lost journal are taken
    fault: tuple[str, Finding] | None = None  # newest incident since the start, what it is about
    restart_cost_s: float | None = None  # fault to caught up, of the newest incident that got there
    history: SaveHistory = field(default_factory=SaveHistory)
    ran_at: Moment | None = None  # ranks trained up to here, and still do; None: they don't

    @property
    def has_run(self) -> bool:
        """Whether the ranks of the newest attempt had started, by what is on record."""
        return self.is_verified or 0 < self.adopted_attempt == self.attempt

    @property
    def has_lease(self) -> bool:
        """Whether the others can query every launcher of the newest attempt."""
        members = [self.members.get(place.node) for place in self.placement]
        is_known = all(
            member is not None and member.peer_endpoint is not None for member in members
        )
        return self.has_lost_lease or (bool(members) and is_known)

    @property
    def unconfirmed(self) -> str | None:
        """Return why budgets count as spent until a person confirms, or None."""
        adopted = self.adopted
        if adopted is None or not adopted.is_history_lost:
            return None
        return (
            f"the journal was lost, and attempt {adopted.attempt} was adopted: its restarts so far "
            f"and the held-back nodes are unknown"
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
    def restorable_path(self) -> str | None:
        """Return a checkpoint of this run that could be restored once, or None where there was none."""
        return self.last_restore_path if self.restorable is None else self.restorable.path

    @property
    def restored_step(self) -> int | None:
        """Return the step of the snapshot that the newest attempt began from; None: from none."""
        snapshot = None if self.started is None else self.started.choice.snapshot
        return None if snapshot is None else snapshot.step

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


def is_set_aside(ledger: Ledger) -> bool:
    """Return whether a person has cancelled what was to be done about the newest attempt."""
    return ledger.paused_by is not None and 0 < ledger.attempt == ledger.set_aside


def stands_paused(ledger: Ledger) -> bool:
    """Return whether a job does not train, and nothing is done about it since it is paused."""
    if ledger.paused_by is None or ledger.incident is not None or ledger.closing is not None:
        return False
    return ledger.wish is Wish.NOTHING or is_set_aside(ledger)
