"""The launcher's state and its possible actions: values only. Pure."""

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from recovery.messages.candidates import WHOLE, Share
from recovery.messages.exchange import Claim, Order, Peer

# a progress file stores it in 32 bits; at one attempt a second, 68 years
ATTEMPT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FollowedOrders:
    """The controller that a launcher follows, and that controller's orders.

    In each epoch only the first controller that sends an order counts, and only its newest order.
    Orders of older epochs are refused.
    """

    job_id: str
    node: str
    launcher_id: str  # empty: the only launcher of its job
    slots: int
    followed_at_s: float  # when the followed controller last answered; monotonic
    epoch: int = 0  # the highest epoch seen
    controller_id: str = ""  # the first controller of that epoch
    newest: Order | None = None  # carried out or not
    standing: Order | None = None  # the newest order that places ranks
    # epoch and UUID of the controller that accepts our reports
    answered_by: tuple[int, str] = (0, "")

    @property
    def group_count(self) -> int:
        """Return the number of reporting launchers, including this one."""
        return 1 if self.newest is None else self.newest.group_count

    def refusal(self, order: Order) -> str | None:  # noqa: PLR0911 - a reason each
        """Return why an order is refused, None if it is accepted; empty if it is merely an old order."""
        if order.job_id != self.job_id or order.node not in ("", self.node):
            return f"it is for node {order.node!r} of job {order.job_id}"
        if order.launcher_id not in ("", self.launcher_id):
            return f"it is for launcher {order.launcher_id}; this is {self.launcher_id}"
        if order.epoch < self.epoch:
            return f"it comes from controller epoch {order.epoch}, but epoch {self.epoch} was already seen"
        if order.epoch == self.epoch and self.controller_id not in ("", order.controller_id):
            return f"it comes from another controller of epoch {order.epoch}: {order.controller_id}"
        if order.attempt > ATTEMPT_MAX:
            return f"its attempt is {order.attempt}; the limit is {ATTEMPT_MAX}"
        if len(order.ranks) > self.slots:
            return f"it has {len(order.ranks)} ranks; this node runs at most {self.slots}"
        newest = self.newest
        if newest is None or order.epoch > newest.epoch or order.revision > newest.revision:
            return None
        return ""

    def follow(self, order: Order, now_s: float) -> "FollowedOrders":
        """Return the state after an accepted order."""
        standing = self.standing
        if order.ranks or standing is None or standing.attempt != order.attempt:
            standing = order
        return replace(
            self,
            followed_at_s=now_s,
            epoch=order.epoch,
            controller_id=order.controller_id,
            newest=order,
            standing=standing,
        )

    def hear(self, epoch: int, controller_id: str, at_s: float) -> "FollowedOrders":
        """Return the state after a controller has accepted a report."""
        is_followed = (epoch, controller_id) == (self.epoch, self.controller_id)
        followed_at_s = max(self.followed_at_s, at_s) if is_followed else self.followed_at_s
        return replace(self, answered_by=(epoch, controller_id), followed_at_s=followed_at_s)

    def claim(self, now_s: float) -> Claim | None:
        """Return the claim to send to a controller other than the followed one."""
        followed = (self.epoch, self.controller_id)
        if self.answered_by in ((0, ""), followed) or not self.controller_id:
            return None
        order = self.standing
        assert order is not None, "a controller that is followed has sent an order"
        return Claim(
            contact_age_s=now_s - self.followed_at_s,
            attempt=order.attempt,
            ranks=order.ranks,
            world_size=order.world_size,
            group_rank=order.group_rank,
            group_count=order.group_count,
            restarts=order.restarts,
            restore=order.restore,
            rendezvous=order.rendezvous,
            peers=order.peers,
            snapshot=order.snapshot,
            group_sizes=order.group_sizes,
        )


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """The current state of the attempt that this launcher has started."""

    number: int
    started_at_s: float
    rank_count: int
    is_started: bool = False  # every rank has a process, and none has ended
    has_ended: bool = False  # every rank has ended
    is_stepping: bool = False  # every living rank has made two steps
    has_leftovers: bool = False  # every rank ended with 0, but a child of one still lives


@dataclass(frozen=True, slots=True)
class KeptLease:
    """The lease that the peers of an attempt keep for each other."""

    attempt: int
    peers: tuple[Peer, ...]
    lease_s: float
    neighbours: tuple[Peer, ...] = ()
    kill_bound_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LauncherState:
    # What the loop has just observed.
    attempt: AttemptFacts | None = None
    empty_through: int = 0  # no process of the attempts up to this one is left
    can_collect: bool = False  # evidence of a hang
    evidence_wait_s: float = 0.0  # how long a collection may still delay the kill
    fenced_attempt: int | None = None  # the last attempt for which the storage has answered
    # last contact with the controller or a majority of peers; CLOCK_BOOTTIME
    reached_at_s: float = float("-inf")
    stop_asked_at_s: float | None = None  # when a signal or the time limit requested the job's end
    grace_s: float = 30.0  # for a planned stop without a controller's order
    report_pause_min_s: float = 0.0  # the shortest pause that the controller accepts

    # What the launcher has done.
    carried: tuple[int, int] = (0, 0)  # epoch and revision of the newest order carried out
    kill_sent_through: int = 0
    grace_until_s: float | None = None
    leftover_until_s: float | None = None
    collected_for: tuple[str, int] | None = None  # incident and attempt
    fence_asked: tuple[int, float] | None = None  # attempt, since when
    pinned_attempt: int | None = None  # whose checkpoint is held until its ranks train
    # epoch and revision of the last order to look for checkpoints
    found_for: tuple[int, int] = (0, 0)
    continued: int = 0  # number of the last record for which ranks were continued
    lease: KeptLease | None = None
    leased_until_s: float | None = None  # the guardian's value; CLOCK_BOOTTIME


@dataclass(frozen=True, slots=True)
class AskRanksToStop:
    """SIGTERM to every rank."""

    attempt: int
    is_alone: bool = False  # no controller has ordered it


@dataclass(frozen=True, slots=True)
class ContinueRanks:
    """SIGCONT to the processes of these ranks that a signal has stopped."""

    attempt: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillThrough:
    """SIGKILL to every process of the attempts up to this one."""

    attempt: int


@dataclass(frozen=True, slots=True)
class CollectEvidence:
    incident_id: str
    attempt: int
    within_s: float  # 0: the ranks are dead, so save only what they left


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """Drop the files and the store of an attempt that has no process left."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AskForFence:
    """Advance the fence: only this attempt may publish checkpoints. Hold what it restores."""

    attempt: int
    restore_path: str | None


@dataclass(frozen=True, slots=True)
class StartRanks:
    order: Order


@dataclass(frozen=True, slots=True)
class ReleaseCheckpoint:
    """Let what this attempt restored be deleted: its ranks train."""

    attempt: int


@dataclass(frozen=True, slots=True)
class WatchCheckpoints:
    """Look at new checkpoints while the ranks train."""

    share: Share = WHOLE  # of each checkpoint's files


@dataclass(frozen=True, slots=True)
class FindCheckpoints:
    empty_through: int
    revision: int
    share: Share = WHOLE  # of each checkpoint's files


@dataclass(frozen=True, slots=True)
class KeepLease:
    """Let the peers renew this lease, or none."""

    lease: KeptLease | None


@dataclass(frozen=True, slots=True)
class LeaseRanks:
    """Let the guardian stop the ranks at this time; None: cancel that."""

    attempt: int
    until_s: float | None  # CLOCK_BOOTTIME
    kill_bound_s: float = 0.0  # later the ranks end themselves; 0: they don't


@dataclass(frozen=True, slots=True)
class Leave:
    """End the launcher: it runs nothing, and no controller answers."""


LauncherAction: TypeAlias = (
    AskRanksToStop
    | ContinueRanks
    | KillThrough
    | CollectEvidence
    | ForgetAttempt
    | AskForFence
    | StartRanks
    | ReleaseCheckpoint
    | WatchCheckpoints
    | FindCheckpoints
    | KeepLease
    | LeaseRanks
    | Leave
)


@dataclass(frozen=True, slots=True)
class LauncherDecision:
    state: LauncherState  # after the actions
    actions: tuple[LauncherAction, ...] = ()
