"""The limits of recovery, each with its reason. Pure: no clock, no file.

They are journaled whenever an incident opens, so that what was decided can be checked later
against what was in force.
"""

from dataclasses import dataclass, field, fields
from enum import Enum

from detectors.finding import Kind
from detectors.hang.live import HungLimits
from detectors.wording import counted
from rankmend.backoff import Backoff
from rankmend.errors import ConfigError


class PlanStep(Enum):
    """The steps of recovery, cheapest first."""

    RESTART_IN_PLACE = "restart_in_place"
    MOVE = "move"  # leave nodes; spares take their places
    SHRINK = "shrink"  # leave nodes and go on with fewer
    ESCALATE = "escalate"

    @property
    def in_words(self) -> str:
        """What people read: "restart in place"."""
        return "give up" if self is PlanStep.ESCALATE else self.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Policy:
    # Restarts of one run in all: the bound of last resort. Llama 3 had 419 interruptions in 54 days
    # on 16,384 GPUs; at that rate 10,000 take 3.5 years.
    restarts_max: int = 10_000
    # Restarts within a day that no new step followed, whatever else did (a file written anew, ranks
    # that tell no steps). 100,000 GPUs fail some 48 times a day, and most restarts make new steps.
    restarts_per_day_max: int = 100
    # Restarts without progress (a new step, a newer checkpoint) after failures of one cause in a
    # row (recovery.journal.faults). One can fall to bad luck, two to a bad node; the fourth is the same again.
    no_progress_max: int = 3
    # The same after failures of whatever causes. A job that fails as often as it saves goes
    # through 12 in a row within days, and gets on all the same (docs/operate/giving-up.md).
    no_progress_any_max: int = 50
    # The same exception at the same step in so many attempts in a row is the program's own.
    # Two: deterministic by then; a third run would cost a whole restart and tell nothing new.
    same_error_max: int = 2
    # A checkpoint restored so often without progress, with failures of one cause, is passed over for
    # the one before it. Below no_progress_max, so that the older one gets its turn (LLNL SCR issue 174).
    restore_failures_max: int = 2
    # Attempts in a row that begin from an older checkpoint because the program could not begin from a newer
    # one. Three: a save costs minutes to hours of training, and a program that four saves in a row don't fit is
    # what has changed. 0: never.
    fallbacks_max: int = 3
    # Within one incident. Tries that start ranks count as restarts, too, so the limits above end
    # those first; with the pauses below the others (no storage, no port) take 14 min.
    tries_max: int = 20
    # The same while no rank of the job has trained yet: what keeps ranks from starting (no space in
    # /dev/shm, no such program) was so before, and the person who started the job is still there.
    first_start_tries_max: int = 3
    # Two: the first step can pass on warm buffers alone; the second needs every rank's gradients.
    verify_steps: int = 2
    # Before the second try, doubled for each further one: what failed for a moment (a port, a
    # storage that fails over) gets time to come back, and no loop spins.
    retry_pause_s: float = 1.0
    # The longest such pause: with 20 tries 14 min in all, so that a storage server can fail over.
    retry_pause_max_s: float = 60.0
    verify_timeout_s: float = (
        1800.0  # restore, compile and warm-up of a large model; as hung.startup_s
    )
    # SIGKILL to an empty process tree takes ms; a process freeing 100s of GB or stuck in a
    # driver takes seconds. One in state D for a minute will not go (docs/reference/thresholds.md).
    fence_timeout_s: float = 60.0
    start_timeout_s: float = (
        120.0  # order to a pid for every rank: fork, exec and a cold file system
    )
    # The same exception on all ranks arrives over tens of ms; one rank's victims likewise.
    settle_s: float = 0.3
    # Ranks that never tell a step. Imports and the rendezvous fail within seconds on a warm
    # machine; four imports of PyTorch on two busy cores took 10 s.
    verify_alive_s: float = 30.0
    # The same for ranks that are attached, and so will tell their steps: compiling and warming
    # up a large model takes minutes.
    verify_attached_s: float = 300.0
    # The highest step is journaled every 5 s, or every hundredth of the attempt's age when that
    # is longer: a crash of rankmend forgets 1 % of the progress, and 54 days take 1,000 records.
    milestone_s: float = 5.0
    milestone_ratio: float = 0.01
    # Several nodes (docs/internals/design/0003-cluster.md).
    # A launcher reports twice a second; 20 reports missing are no jitter. Nothing is concluded
    # about its ranks, but its peers may be stopped.
    node_silent_s: float = 10.0
    # A launcher alone for so long stops its ranks. Longer than a controller's restart and a
    # switch's failover (spanning tree: 6 s rapid), shorter than what people wait for.
    lease_s: float = 15.0
    kill_bound_s: float = 10.0  # SIGKILL to empty where the kernel frees much memory
    lease_margin_s: float = 2.0  # clocks that run apart (500 ppm), late timers, a busy machine
    # Whether a lost node's BMC is asked to switch its power off. Off: it may run what rankmend doesn't know of.
    power_off_to_fence: bool = False
    # Decides, and does nothing: a job whose ranks fail ends as it would without rankmend. Before anybody trusts it with acting.
    observe: bool = False
    # A death that a device can cause: the local agent reads the kernel log within a second, and
    # a scrape, a rule and a group take two more.
    evidence_wait_s: float = 3.0
    join_wait_s: float = 30.0  # for nodes above the minimum, at the first attempt
    # How long a job of MIN:MAX nodes trains at least until nodes that wait are taken in without a failure; 0: never. Off: a
    # restart costs every rank the steps since the save, and whether more nodes repay it depends on the job.
    grow_every_s: float = 0.0
    # Such a node has been usable for so long without a break. Our choice: a node that reboots again and again, or whose
    # agent finds something after its start, shows it within minutes.
    grow_healthy_s: float = 600.0
    # For a spare or a returning node when too few are left to start: a reboot takes minutes.
    spare_wait_s: float = 600.0
    # Whether a spare below a switch, rack, feed or coolant loop that is known to be broken may take a place, the last of all. Off: it would be
    # the next to fail, and take the job's time with it.
    spares_below_broken_parts: bool = False
    # Copies of each snapshot on other nodes: so many nodes can be lost at once. Each takes twice the snapshot's memory there.
    snapshot_copies: int = 1
    # A job that is held because nothing can be restored, until it is given up: somebody has come to
    # work by then. Most allocations end before.
    checkpoint_wait_s: float = 86400.0
    # Training that is redone for the sake of a checkpoint that was checked to its end, where the newest one is whole in its
    # structure alone. As long as a restart may wait for an answer about checkpoints (CheckpointSettings.validate_timeout_s):
    # it pays for certainty once, in whichever way. A wrong sum that shows after the restore costs one restart more.
    checkpoint_unverified_redo_s: float = 30.0
    # Training in which nothing is saved that a restart could use, until people are told; 0: never. At the published
    # rate of failures (Llama 3) the best interval on 1,024 GPUs is 54 min, where a save stops training for half a minute.
    save_wait_s: float = 3600.0
    # For what a hung job's ranks can still tell before they are stopped: NCCL's monitor looks once
    # a second whether a dump is wanted, and writing one takes about as long.
    collect_s: float = 5.0
    # Failures in a row that blame the same node, until it is left for a spare. Two: on a job of
    # 100 nodes the second falls on the same sound one once in 100 times.
    node_failures_max: int = 2
    # A node that is silent, or an alert that ends a device's use, lets a stand-still count after so
    # many median steps (at least node_silent_s), where 20 are asked for without either.
    accused_steps: float = 5.0
    # An alert that began longer ago is acted upon only when ranks stand still: a webhook is sent
    # again every few minutes, and what it tells of may long be over.
    evidence_fresh_s: float = 300.0
    # How long a job goes on, where nobody knows: a day. Half of all large jobs run longer.
    slow_horizon_s: float = 86400.0
    # How often a job goes back behind a loss that is no finite number, or behind ranks that came apart. Off: what a script
    # tells is its own affair, and some go on by themselves.
    numbers_rollbacks_max: int = 0
    # Whether it then also leaves the node of the one rank that had it first, where a spare is there.
    numbers_rollback_moves: bool = False
    # Steps that a finding of a kind allows; a kind that is not named allows all of them. To tell
    # a person is always allowed, and what a person asks for is never held against this.
    allow: dict[Kind, tuple[PlanStep, ...]] = field(default_factory=dict)
    hung: HungLimits = field(default_factory=HungLimits)

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if isinstance(value, int | float) and value < 0:
                raise ConfigError(f"{limit.name} is {value}: a limit can't be negative")
        for name in (
            "same_error_max",
            "restore_failures_max",
            "tries_max",
            "first_start_tries_max",
            "verify_steps",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least 1")

    def pause_before_s(self, try_number: int, outages: int = 0) -> float:
        """Return how long to wait before a try of an incident, in seconds.

        ``outages``: restarts in a row, without progress, after outages of what the program uses.
        """
        failures = max(try_number - 1, outages)
        if failures < 1:
            return 0.0
        return Backoff(self.retry_pause_s, self.retry_pause_max_s).wait_s(failures)

    def allows(self, kind: Kind, step: PlanStep) -> bool:
        """Return whether a finding of this kind may lead to the step."""
        return step is PlanStep.ESCALATE or step in self.allow.get(kind, tuple(PlanStep))


@dataclass(frozen=True, slots=True)
class BudgetsSpent:
    """What a job has used up of its budgets."""

    restarts: int
    without_progress: int  # restarts since the last progress
    of_one_cause: int  # the last of these, after failures of one cause
    in_a_day: int  # restarts of the last day that no new step followed


def out_of_restarts(spent: BudgetsSpent, policy: Policy) -> str | None:
    """Return why no further restart is allowed whatever the last attempt has saved, or None."""
    if spent.restarts >= policy.restarts_max:
        return (
            f"{counted(spent.restarts, 'restart')} of this run, {policy.restarts_max} are allowed"
        )
    if spent.in_a_day >= policy.restarts_per_day_max:
        return (
            f"{counted(spent.in_a_day, 'restart')} within a day without a new step, "
            f"{policy.restarts_per_day_max} are allowed"
        )
    return None


def out_of_patience(spent: BudgetsSpent, policy: Policy) -> str | None:
    """Return why no restart from the same checkpoint is allowed, or None.

    A checkpoint newer than any that was restored so far is progress, and allows one.
    """
    if spent.of_one_cause >= policy.no_progress_max:
        return (
            f"{counted(spent.of_one_cause, 'restart')} after the same failure brought no new step and no newer "
            f"checkpoint, {policy.no_progress_max} are allowed"
        )
    if spent.without_progress >= policy.no_progress_any_max:
        return (
            f"{counted(spent.without_progress, 'restart')} brought no new step and no newer checkpoint, "
            f"{policy.no_progress_any_max} are allowed"
        )
    return None


def restarts_left(spent: BudgetsSpent, policy: Policy) -> int:
    """Return how many restarts are left, should none of them make a new step."""
    left = (policy.restarts_max - spent.restarts, policy.restarts_per_day_max - spent.in_a_day)
    return max(0, min(left))


def patience_left(spent: BudgetsSpent, policy: Policy) -> int:
    """Return how many restarts without progress are left, should the cause stay the same."""
    left = (
        policy.no_progress_max - spent.of_one_cause,
        policy.no_progress_any_max - spent.without_progress,
    )
    return max(0, min(left))


def exhausted(spent: BudgetsSpent, policy: Policy) -> str | None:
    """Return which budget allows no further restart without progress, in words, or None."""
    return out_of_restarts(spent, policy) or out_of_patience(spent, policy)
