"""The lock of a claim: held as long as one process lives that may write, wherever a challenger looks from."""

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rankmend.errors import JobHeldError
from recovery.checkpoints.marks import BESIDE
from recovery.journal.folder.network_storage import find_file_system_type
from recovery.journal.job_records import ClaimProof
from recovery.launcher.ownership.claim import (
    ClaimVerdict,
    FolderClaim,
    LockState,
    OwnerKind,
    judge_claim,
)
from recovery.launcher.ownership.claim_folder import ClaimFolder
from recovery.launcher.ownership.claim_lock import ClaimLock, hold_lock, look_at_lock
from recovery.launcher.ownership.taking import TakenFolder, Waiting, make_claim, take
from recovery.launcher.processes.identity import Standing

pytestmark = [pytest.mark.process, pytest.mark.safety]


class Time:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def folder(tmp_path: Path) -> ClaimFolder:
    return ClaimFolder(tmp_path / BESIDE)


@pytest.fixture
def lock(folder: ClaimFolder) -> ClaimLock:
    held = hold_lock(folder, "t-1")
    assert held is not None
    return held


def claim_of(folder: ClaimFolder, lock: ClaimLock, **changes: object) -> FolderClaim:
    """Return the claim of an owner in another container: its pid means nothing here."""
    made = make_claim(folder.beside.parent, OwnerKind.LAUNCHER, "k", "llama", {})
    return msgspec.structs.replace(
        made,
        **{"token": "t-1", "owner": "launcher:t-1", "pid_namespace": 8, "lock_inode": lock.inode, **changes},  # type: ignore[arg-type]
    )  # fmt: skip


def rival(folder: ClaimFolder) -> FolderClaim:
    return make_claim(folder.beside.parent, OwnerKind.LAUNCHER, "k", "rival", {})


def challenge(
    folder: ClaimFolder, state: LockState | None = None, *, take_over: bool = False
) -> TakenFolder:
    time = Time()
    waiting = Waiting(
        now_s=lambda: time.now_s,
        sleep=time.sleep,
        say=lambda _text: None,
        judge=lambda _process, _here: Standing.UNKNOWN,
        look_at_lock=look_at_lock if state is None else lambda *_claims: state,
    )
    return take(folder, rival(folder), take_over=take_over, waiting=waiting)


def test_lock_outlives_its_owner_in_what_has_inherited_it(
    folder: ClaimFolder, lock: ClaimLock
) -> None:
    claim = claim_of(folder, lock)
    rank = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock.descriptor]
    )
    states = [look_at_lock(folder, claim, rival(folder))]
    lock.close()
    states.append(look_at_lock(folder, claim, rival(folder)))
    rank.kill()
    rank.communicate()
    states.append(look_at_lock(folder, claim, rival(folder)))

    free = LockState.FREE
    assert states == [LockState.HELD, LockState.HELD, free], find_file_system_type(folder.beside)


def test_two_challengers_do_not_take_each_other_for_the_owner(
    folder: ClaimFolder, lock: ClaimLock
) -> None:
    claim = claim_of(folder, lock)
    lock.close()
    other = os.open(lock.path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)
    state = look_at_lock(folder, claim, rival(folder))
    os.close(other)

    assert state is LockState.FREE


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_id": "another"},  # its kernel knows its lock, ours does not
        {"lock_inode": 0},  # an owner of an older version
        {"lock_inode": 1},  # a copy of the folder
        {"token": "removed"},
        {"token": "../../../etc/passwd"},
    ],
)
def test_lock_of_another_kernel_or_none_proves_nothing(
    folder: ClaimFolder, lock: ClaimLock, changes: dict[str, object]
) -> None:
    claim = claim_of(folder, lock, **changes)
    lock.close()

    assert look_at_lock(folder, claim, rival(folder)) is LockState.UNKNOWN


@pytest.mark.skipif(os.getuid() != 0, reason="another user's file needs root")
def test_another_user_can_not_see_whose_ranks_are_left(
    folder: ClaimFolder, lock: ClaimLock, tmp_path: Path
) -> None:
    claim = claim_of(folder, lock)
    lock.close()
    os.chown(lock.path, 1234, 1234)
    tmp_path.chmod(0o755)

    assert look_at_lock(folder, claim, rival(folder)) is LockState.FREE, "root sees all"
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.chdir(folder.beside)  # pytest's folders are closed to others
            os.setuid(4321)
            state = look_at_lock(ClaimFolder(Path()), claim, claim)
            os._exit(0 if state is LockState.UNKNOWN else 1)
        os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    ("changes", "lock", "verdict"),
    [
        ({}, LockState.FREE, ClaimVerdict.LOCK_DROPPED),
        ({}, LockState.HELD, ClaimVerdict.UNPROVEN),  # who counts is told by the counter
        ({}, LockState.UNKNOWN, ClaimVerdict.UNPROVEN),
        ({}, LockState.FREE_ON_NETWORK, ClaimVerdict.UNPROVEN),
        # One launcher of several nodes that is gone says nothing of the others.
        ({"kind": OwnerKind.MEETING}, LockState.FREE, ClaimVerdict.UNPROVEN),
        ({"is_released": True}, LockState.HELD, ClaimVerdict.FREE),
    ],
)
def test_only_a_lock_that_one_kernel_has_dropped_is_proof(
    folder: ClaimFolder, changes: dict[str, object], lock: LockState, verdict: ClaimVerdict
) -> None:
    folder.beside.mkdir()
    held = hold_lock(folder, "t-1")
    assert held is not None
    claim = claim_of(folder, held, **changes)
    held.close()

    assert judge_claim(claim, rival(folder), Standing.UNKNOWN, lock) is verdict


def test_owner_whose_last_process_is_gone_makes_way_at_once(
    folder: ClaimFolder, lock: ClaimLock
) -> None:
    assert folder.make(claim_of(folder, lock, generation=1))
    lock.close()

    taken = challenge(folder)

    assert taken.record is not None
    assert taken.record.proof is ClaimProof.LOCK


@pytest.mark.parametrize("take_over", [False, True])
def test_owner_that_is_stopped_keeps_the_folder_whatever_a_person_says(
    folder: ClaimFolder, lock: ClaimLock, *, take_over: bool
) -> None:
    assert folder.make(claim_of(folder, lock, generation=1))

    with pytest.raises(JobHeldError, match=f"fuser -v {lock.path}"):
        challenge(folder, take_over=take_over)

    lock.close()


def test_lock_that_a_server_may_have_forgotten_is_proof_once_the_counter_stands_still(
    folder: ClaimFolder, lock: ClaimLock
) -> None:
    assert folder.make(claim_of(folder, lock, generation=1))
    lock.close()

    taken = challenge(folder, LockState.FREE_ON_NETWORK)

    assert taken.record is not None
    assert taken.record.proof is ClaimProof.LOCK


def test_locks_of_old_claims_are_removed(folder: ClaimFolder) -> None:
    for number in range(1, 6):
        held = hold_lock(folder, f"t-{number}")
        assert held is not None
        changes = {"token": f"t-{number}", "owner": f"launcher:{number}"}
        assert folder.make(claim_of(folder, held, generation=number, **changes))
        held.close()

    assert sorted(path.name for path in folder.beside.glob("*.lock")) == [
        "t-3.lock",
        "t-4.lock",
        "t-5.lock",
    ]
