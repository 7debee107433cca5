"""Takes a checkpoint folder for this launcher, or raises JobHeldError with the owner's name."""

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import JobHeldError, SourceError
from recovery.checkpoints.marks import BESIDE
from recovery.journal.job_records import ClaimProof, ClaimTaken
from recovery.launcher.ownership.claim import (
    PROOFS,
    TAKE_OVER_WATCH_S,
    WATCH_S,
    ClaimVerdict,
    FolderClaim,
    LockState,
    OwnerKind,
    describe_owner,
    judge_claim,
    refuse_holding,
    refuse_living,
    refuse_silent,
    refuse_unreadable,
)
from recovery.launcher.ownership.claim_folder import ClaimFolder, FoundClaim
from recovery.launcher.ownership.claim_lock import look_at_lock
from recovery.launcher.processes.identity import ProcessIdentity, Standing
from recovery.launcher.processes.standing import identify, judge

_LOOK_S: Final = 0.25
_LOG_AFTER_S: Final = 2.0
_TRIES_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class TakenFolder:
    """A checkpoint folder that is this launcher's, or its job's, from now on."""

    claim: FolderClaim
    is_maker: bool  # False: another launcher of the same owner has made the claim
    taken_from: FolderClaim | None = None  # an owner that had not released it
    record: ClaimTaken | None = None  # for the journal, where there was one
    is_copy: bool = False  # what lies beside the checkpoints belongs to another folder


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long a challenger watches, and what it uses for that."""

    watch_s: float = WATCH_S
    take_over_watch_s: float = TAKE_OVER_WATCH_S
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = print
    judge: Callable[[ProcessIdentity, ProcessIdentity], Standing] = judge
    look_at_lock: Callable[[ClaimFolder, FolderClaim, FolderClaim], LockState] = look_at_lock


def make_claim(
    checkpoint_folder: Path,
    kind: OwnerKind,
    key: str,
    name: str,
    environment: Mapping[str, str],
) -> FolderClaim:
    """Return the claim of this process, not made yet. ``key``: of the job, the same on its nodes."""
    token = uuid.uuid4().hex
    process = identify()
    owner = token if kind is OwnerKind.LAUNCHER else key
    number = environment.get("SLURM_JOB_ID")
    return FolderClaim(
        token=token,
        kind=kind,
        owner=f"{kind.value}:{owner}",
        name=name,
        folder=str(checkpoint_folder.resolve()),
        host=os.uname().nodename,
        machine=read_machine(),
        uid=os.getuid(),
        pid=process.pid,
        start_ticks=process.start_ticks,
        pid_namespace=process.pid_namespace,
        time_namespace=process.time_namespace,
        boot_id=process.boot_id,
        started_unix_s=time.time(),
        scheduler=f"Slurm job {number}" if number else "",
    )


def read_machine(
    machine_id: Path = Path("/etc/machine-id"), interfaces: Path = Path("/sys/class/net")
) -> str:
    """Return a digest of what identifies this machine over boots; "" where nothing does.

    The machine id alone may be that of an image; with it the addresses of the network interfaces
    that are hardware.
    """
    try:
        name = machine_id.read_text(encoding="ascii").strip()
        addresses = sorted(_hardware_addresses(interfaces.iterdir()))
    except (OSError, UnicodeDecodeError):
        return ""
    if not name or not addresses:
        return ""
    return hashlib.sha256("\n".join((name, *addresses)).encode()).hexdigest()[:32]


def _hardware_addresses(interfaces: Iterable[Path]) -> list[str]:
    return [
        (interface / "address").read_text(encoding="ascii").strip()
        for interface in interfaces
        if (interface / "device").exists()
    ]


def take(
    folder: ClaimFolder, challenger: FolderClaim, *, take_over: bool, waiting: Waiting
) -> TakenFolder:
    """Make ``challenger`` the owner, or raise JobHeldError where another one is or may be."""
    for _try in range(_TRIES_MAX):  # each but the last lost a race, which another one has won
        found = folder.newest()
        taken = _try_once(folder, found, challenger, take_over=take_over, waiting=waiting)
        if taken is not None:
            return taken
    raise JobHeldError(
        f"{folder.beside}: {_TRIES_MAX} tries to claim the checkpoint folder failed, because others "
        f"claimed it at the same time"
    )


def _try_once(
    folder: ClaimFolder,
    found: FoundClaim | None,
    challenger: FolderClaim,
    *,
    take_over: bool,
    waiting: Waiting,
) -> TakenFolder | None:
    """Return what came of one look at the newest claim; None: look again."""
    if found is None:
        return _make(folder, 0, TakenFolder(challenger, is_maker=True))
    claim = found.claim
    if claim is None:
        raise JobHeldError(refuse_unreadable(str(folder.path(found.generation)), found.error))
    if is_copy(claim, challenger):
        return _make(folder, found.generation, TakenFolder(challenger, is_maker=True, is_copy=True))
    standing = waiting.judge(claim.process, challenger.process)
    lock = waiting.look_at_lock(folder, claim, challenger)
    verdict = judge_claim(claim, challenger, standing, lock)
    if verdict is ClaimVerdict.FREE:
        return _make(folder, found.generation, TakenFolder(challenger, is_maker=True))
    if verdict is ClaimVerdict.OURS:
        return TakenFolder(claim, is_maker=False)
    if verdict is ClaimVerdict.ALIVE:
        raise JobHeldError(refuse_living(claim, challenger, is_asked=take_over))
    proof = PROOFS.get(verdict) or _watch(
        folder, claim, challenger, take_over=take_over, waiting=waiting
    )
    if proof is None:
        return None
    record = ClaimTaken(describe_owner(claim, challenger), proof, f"uid {os.getuid()}")
    # Until the new owner's ranks start, those that a search must find are the former one's.
    challenger = msgspec.structs.replace(challenger, job_id=claim.job_id)
    taken = TakenFolder(challenger, is_maker=True, taken_from=claim, record=record)
    return _make(folder, found.generation, taken)


def _make(folder: ClaimFolder, after: int, taken: TakenFolder) -> TakenFolder | None:
    claim = msgspec.structs.replace(taken.claim, generation=after + 1)
    if not folder.make(claim):
        return None
    return TakenFolder(claim, taken.is_maker, taken.taken_from, taken.record, taken.is_copy)


def _watch(
    folder: ClaimFolder,
    claim: FolderClaim,
    challenger: FolderClaim,
    *,
    take_over: bool,
    waiting: Waiting,
) -> ClaimProof | None:
    """Watch an owner by our own clock, and return what proves by then that it is gone.

    None where there is something new to judge. Raise JobHeldError where the owner counts, and
    where it does not, nothing proves that it is gone and nobody has confirmed it.
    """
    watch_s = waiting.take_over_watch_s if take_over else waiting.watch_s
    began_s = waiting.now_s()
    first = folder.read_beat(claim.generation)
    lock = LockState.UNKNOWN
    has_said = False
    while (watched_s := waiting.now_s() - began_s) < watch_s:
        waiting.sleep(_LOOK_S)
        found = folder.newest()
        if found is None or found.claim != claim:
            return None
        if folder.read_beat(claim.generation) != first:
            raise JobHeldError(refuse_living(claim, challenger, is_asked=take_over))
        lock = waiting.look_at_lock(folder, claim, challenger)
        if lock is LockState.FREE and claim.kind is OwnerKind.LAUNCHER:
            return None  # the last of its processes has ended just now
        if watched_s >= _LOG_AFTER_S and not has_said:
            has_said = True
            waiting.say(
                f"the checkpoint folder belongs to {describe_owner(claim, challenger)}: "
                f"watching for {watch_s:.0f} s whether that owner is alive"
            )
    if lock is LockState.HELD:
        path = str(folder.lock_path(claim.token))
        raise JobHeldError(refuse_holding(claim, challenger, path))
    if lock is LockState.FREE_ON_NETWORK and claim.kind is OwnerKind.LAUNCHER:
        return ClaimProof.LOCK
    if not take_over:
        raise JobHeldError(refuse_silent(claim, challenger, watch_s))
    return ClaimProof.PERSON


def refuse_other_job(
    folder: ClaimFolder, claim: FolderClaim, job_id: str, waiting: Waiting
) -> None:
    """Raise JobHeldError where launchers of a job with another id count in our owner's name."""
    if claim.kind is not OwnerKind.SERVICE or claim.job_id in ("", job_id):
        return
    began_s, first = waiting.now_s(), folder.read_beat(claim.generation)
    while waiting.now_s() - began_s < waiting.watch_s:
        waiting.sleep(_LOOK_S)
        if folder.read_beat(claim.generation) != first:
            raise JobHeldError(
                f"the checkpoint folder {claim.folder} is in use by job {claim.name!r} of another "
                f"controller, which knows it as {claim.job_id}; here it is {job_id}. Stop it there, or "
                f"give this job its own --checkpoint-dir"
            )


def is_copy(claim: FolderClaim, challenger: FolderClaim) -> bool:
    """Return whether the claim came into this folder by copying another one (cp -r).

    It did where the folder that it names is another one than ours, and has a claim of the same
    job or of the same token. Where that can't be seen, the claim counts.
    """
    if claim.folder == challenger.folder:
        return False
    original = Path(claim.folder)
    try:
        if original.samefile(challenger.folder):
            return False
        found = ClaimFolder(original / BESIDE).newest()
    except (OSError, SourceError):
        return False
    if found is None or found.claim is None:
        return False
    is_same_job = bool(claim.job_id) and found.claim.job_id == claim.job_id
    is_kin = found.claim.token == claim.token or is_same_job
    return is_kin and not _is_mounted_twice(original, Path(challenger.folder))


def _is_mounted_twice(original: Path, ours: Path) -> bool:
    """Return whether both paths lead to one folder: a file made under one is seen under the other.

    Device and inode don't tell: a network file system may be mounted twice.
    """
    name = f".probe-{uuid.uuid4().hex}.tmp"
    probe = ours / BESIDE / name
    try:
        probe.touch(mode=0o600, exist_ok=False)
    except OSError:
        return True  # not known: then the claim counts
    try:
        return (original / BESIDE / name).exists()
    except OSError:
        return True
    finally:
        probe.unlink(missing_ok=True)
