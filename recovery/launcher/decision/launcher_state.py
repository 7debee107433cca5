"""The launcher's state and its possible actions: values only. Pure."""

from dataclasses import dataclass
from typing import TypeAlias

from recovery.checkpoints.model import WHOLE, Share
from recovery.messages.exchange import Order, Peer


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
    stop_asked_at_s: float | None = None  # when a signal or the time limit asked for the job's end
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
