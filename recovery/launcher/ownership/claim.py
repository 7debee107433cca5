"""The owner of a checkpoint folder. Pure: what is known of a claim in, what a challenger may do out.

One owner writes to a checkpoint folder: a launcher, or all launchers of one job on several nodes.
It leaves a claim beside the checkpoints and counts up there. A challenger may take the folder only
when the owner has released it, when something proves that the owner is gone (docs/operate/fencing.md,
"The owner of a checkpoint folder"), or when a person says so. Silence is no proof.
"""

from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Final

import msgspec

from rankmend.printable import printable
from recovery.journal.job_records import ClaimProof
from recovery.launcher.processes.identity import (
    INITIAL_PID_NAMESPACE,
    ProcessIdentity,
    Standing,
)

_UNIX_S_MAX: Final = (
    253402300799.0  # the last second of the year 9999: a date can show no later one
)
BEAT_S: Final = 3.0  # an owner counts up this often
WATCH_S: Final = 12.0  # four beats: for a challenger to see whether the owner counts
TAKE_OVER_WATCH_S: Final = 30.0  # the same before a person's word is acted upon
ROOT_UID: Final = 0
_SHOWN_MAX: Final = 128


class OwnerKind(Enum):
    LAUNCHER = "launcher"  # one process on one node
    MEETING = "meeting"  # launchers that meet at --rdzv-endpoint
    SERVICE = "service"  # launchers of a controller's job


class FolderClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The claim of an owner, as it lies beside the checkpoints."""

    generation: int = 0  # counts up with each owner
    token: str  # unique to this claim
    kind: OwnerKind
    owner: str  # launchers with the same one are one owner
    name: str  # the job's name, for people
    job_id: str = ""  # the mark of its ranks, once it is known
    folder: str  # the checkpoint folder: a claim in another one is a copy
    host: str
    machine: str  # digest of what identifies the machine; "": nothing does
    uid: int
    pid: int
    start_ticks: int
    pid_namespace: int
    time_namespace: int
    boot_id: str
    started_unix_s: Annotated[float, msgspec.Meta(ge=0, le=_UNIX_S_MAX)]
    scheduler: str = ""  # the scheduler's job, for people
    is_released: bool = False
    lock_inode: int = 0  # of the file that its processes lock; 0: they lock none

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(
            self.pid, self.start_ticks, self.pid_namespace, self.time_namespace, self.boot_id
        )


class LockState(Enum):
    """What a challenger sees of the lock of an owner's processes (`claim_lock`)."""

    HELD = "held"  # one of them lives
    FREE = "free"  # none does
    FREE_ON_NETWORK = "free_on_network"  # none does, unless a server has forgotten the lock
    UNKNOWN = "unknown"


class ClaimVerdict(Enum):
    """What a claim means to a challenger."""

    FREE = "free"
    OURS = "ours"  # another launcher of the same owner has made it
    PROCESSES_GONE = "processes_gone"
    LOCK_DROPPED = "lock_dropped"
    OTHER_BOOT = "other_boot"
    ALIVE = "alive"
    UNPROVEN = "unproven"


PROOFS: Final = {
    ClaimVerdict.PROCESSES_GONE: ClaimProof.PROCESSES,
    ClaimVerdict.LOCK_DROPPED: ClaimProof.LOCK,
    ClaimVerdict.OTHER_BOOT: ClaimProof.BOOT,
}


def judge_claim(
    claim: FolderClaim,
    challenger: FolderClaim,
    standing: Standing,
    lock: LockState = LockState.UNKNOWN,
) -> ClaimVerdict:
    """Return what ``claim`` means to ``challenger``, who sees the claim's process as ``standing``, and its lock."""
    if claim.is_released:
        return ClaimVerdict.FREE
    if claim.owner == challenger.owner:
        return ClaimVerdict.OURS
    if standing is Standing.ALIVE:
        return ClaimVerdict.ALIVE
    return _look_for_proof(claim, challenger, standing, lock)


def _look_for_proof(
    claim: FolderClaim, challenger: FolderClaim, standing: Standing, lock: LockState
) -> ClaimVerdict:
    if claim.kind is not OwnerKind.LAUNCHER:
        return ClaimVerdict.UNPROVEN  # one process of several nodes says nothing of the others
    if standing is Standing.GONE and challenger.uid in (claim.uid, ROOT_UID):
        return ClaimVerdict.PROCESSES_GONE  # and what it left can be found: marks are readable
    if lock is LockState.FREE:  # in another container: not even its ranks are left
        return ClaimVerdict.LOCK_DROPPED
    if is_other_boot(claim, challenger):
        return ClaimVerdict.OTHER_BOOT
    return ClaimVerdict.UNPROVEN


def is_other_boot(claim: FolderClaim, challenger: FolderClaim) -> bool:
    """Return whether the owner's machine is this one, booted anew: no process outlives a boot.

    A container can have any host name and the machine id of its image, so neither may be one.
    """
    return (
        claim.machine == challenger.machine != ""
        and claim.host == challenger.host
        and claim.pid_namespace == challenger.pid_namespace == INITIAL_PID_NAMESPACE
        and claim.boot_id != challenger.boot_id
        and "unknown" not in (claim.boot_id, challenger.boot_id)
    )


def describe_owner(claim: FolderClaim, here: FolderClaim) -> str:
    """Return the folder's owner in words: job, host, process, since when."""
    name, host = _printable(claim.name), _printable(claim.host)
    since = datetime.fromtimestamp(claim.started_unix_s, timezone.utc)
    what = {
        OwnerKind.LAUNCHER: f"job '{name}', process {claim.pid} on {host}",
        OwnerKind.MEETING: f"job '{name}' on several nodes, first {host} (process {claim.pid})",
        OwnerKind.SERVICE: f"job '{name}' of a controller, first {host} (process {claim.pid})",
    }[claim.kind]
    details = [f"since {since:%Y-%m-%d %H:%M:%S} UTC"]
    if claim.scheduler:
        details.append(_printable(claim.scheduler))
    if claim.boot_id == here.boot_id and claim.pid_namespace != here.pid_namespace:
        details.append("in another container of this machine")
    if claim.uid != here.uid:
        details.append(f"uid {claim.uid}")
    return f"{what}, {', '.join(details)}"


def refuse_living(claim: FolderClaim, here: FolderClaim, *, is_asked: bool) -> str:
    """Return why this launcher doesn't start while the owner lives, and what to do."""
    stop = f"kill -TERM {claim.pid} on {_printable(claim.host)}"
    if claim.pid_namespace != here.pid_namespace:
        stop += ", in its container"
    if claim.kind is OwnerKind.SERVICE:
        stop = f"rankmend stop {_printable(claim.name)}"
    elif claim.kind is OwnerKind.MEETING:
        stop = f"rankmend stop {_printable(claim.name)} --job-folder {here.folder}"
    text = (
        f"the checkpoint folder {here.folder} is in use by {describe_owner(claim, here)}. That "
        f"owner is alive. Stop it first ({stop}), or give this run its own --checkpoint-dir"
    )
    return f"{text}. --take-over is only for an owner that no longer runs" if is_asked else text


def refuse_silent(claim: FolderClaim, here: FolderClaim, watched_s: float) -> str:
    """Return why an owner that shows no sign of life keeps the folder, and what to do."""
    requeued = ""
    if claim.scheduler and claim.scheduler == here.scheduler:
        requeued = " A requeue proves nothing either: a scheduler gives up nodes on which ranks keep running."
    return (
        f"the checkpoint folder {here.folder} still belongs to {describe_owner(claim, here)}. That owner has "
        f"shown no sign of life for {watched_s:.0f} s but did not release the folder. Silence does not prove "
        f"that it has ended: its host may be cut off.{requeued} If it runs, stop it there. If you are "
        f"certain that it is gone, add --take-over to this command"
    )


def refuse_holding(claim: FolderClaim, here: FolderClaim, lock_path: str) -> str:
    """Return why an owner keeps the folder that shows no sign of life, but whose processes are there."""
    return (
        f"the checkpoint folder {here.folder} still belongs to {describe_owner(claim, here)}. That owner shows "
        f"no sign of life, but at least one of its processes is left: stopped, about to end, or started by a "
        f"rank. On the host, `fuser -v {lock_path}` names them. Once they have ended, start again"
    )


def _printable(text: str) -> str:
    """Return another program's text, cut short and without control characters."""
    return printable(text[:_SHOWN_MAX])


def refuse_unreadable(path: str, reason: str) -> str:
    return (
        f"the claim {path} can't be understood ({reason}), so its owner may be alive. If no launcher "
        f"uses these checkpoints, remove that file"
    )
