"""One owner of a checkpoint folder: what proves that it is gone, and what does not."""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rankmend.errors import JobHeldError, LaunchError, StorageError
from rankmend.printable import is_printable
from recovery.checkpoints.marks import BESIDE
from recovery.journal.job_records import ClaimProof
from recovery.launcher.early_stop import exit_on
from recovery.launcher.ownership.claim import (
    ClaimVerdict,
    FolderClaim,
    OwnerKind,
    describe_owner,
    judge_claim,
    refuse_living,
)
from recovery.launcher.ownership.claim_folder import ClaimFolder, FoundClaim
from recovery.launcher.ownership.claim_keeper import Keeper
from recovery.launcher.ownership.ownership import Ownership
from recovery.launcher.ownership.taking import (
    TakenFolder,
    Waiting,
    make_claim,
    read_machine,
    refuse_other_job,
    take,
)
from recovery.launcher.processes.identity import INITIAL_PID_NAMESPACE, Standing
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = [pytest.mark.process, pytest.mark.safety]

OWNER = FolderClaim(
    generation=1,
    token="t-1",
    kind=OwnerKind.LAUNCHER,
    owner="launcher:t-1",
    name="llama",
    job_id="u-1",
    folder="/shared/ckpt",
    host="node1",
    machine="m-1",
    uid=1000,
    pid=4711,
    start_ticks=900,
    pid_namespace=INITIAL_PID_NAMESPACE,
    time_namespace=3,
    boot_id="b-1",
    started_unix_s=1_790_000_000.0,
)


def challenger(**changes: object) -> FolderClaim:
    base = {"token": "t-2", "owner": "launcher:t-2", "job_id": "", "pid": 10, "generation": 0}
    return msgspec.structs.replace(OWNER, **{**base, **changes})


class Time:
    """Time that passes by sleeping; `during` is called with it."""

    def __init__(self, during: Callable[[float], None] = lambda _now_s: None) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self._during = during

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._during(self.now)

    def waiting(self, standing: Standing = Standing.UNKNOWN) -> Waiting:
        return Waiting(
            now_s=lambda: self.now,
            sleep=self.sleep,
            say=self.said.append,
            judge=lambda _process, _here: standing,
        )


@pytest.fixture
def folder(tmp_path: Path) -> ClaimFolder:
    (tmp_path / "ckpt").mkdir()
    return ClaimFolder(tmp_path / "ckpt" / BESIDE)


def own(folder: ClaimFolder, **changes: object) -> FolderClaim:
    """Have an owner there, which has counted up to 5."""
    claim = msgspec.structs.replace(OWNER, folder=str(folder.beside.parent), **changes)
    assert folder.make(claim)
    folder.beat(claim.generation, 5)
    return claim


def challenge(
    at: ClaimFolder,
    standing: Standing = Standing.UNKNOWN,
    time: Time | None = None,
    *,
    take_over: bool = False,
    **changes: object,
) -> TakenFolder:
    changes.setdefault("folder", str(at.beside.parent))
    waiting = (time or Time()).waiting(standing)
    return take(at, challenger(**changes), take_over=take_over, waiting=waiting)


@pytest.mark.parametrize(
    ("claim", "changes", "standing", "verdict"),
    [
        ({"is_released": True}, {}, Standing.ALIVE, ClaimVerdict.FREE),
        ({}, {}, Standing.ALIVE, ClaimVerdict.ALIVE),
        ({}, {}, Standing.GONE, ClaimVerdict.PROCESSES_GONE),
        ({}, {}, Standing.UNKNOWN, ClaimVerdict.UNPROVEN),
        # Ranks of another user can't be told by their mark; root sees all.
        ({}, {"uid": 1001}, Standing.GONE, ClaimVerdict.UNPROVEN),
        ({}, {"uid": 0}, Standing.GONE, ClaimVerdict.PROCESSES_GONE),
        ({}, {"boot_id": "b-2"}, Standing.UNKNOWN, ClaimVerdict.OTHER_BOOT),
        ({}, {"boot_id": "b-2", "machine": "m-2"}, Standing.UNKNOWN, ClaimVerdict.UNPROVEN),
        ({}, {"boot_id": "b-2", "host": "node2"}, Standing.UNKNOWN, ClaimVerdict.UNPROVEN),
        ({"machine": ""}, {"boot_id": "b-2", "machine": ""}, Standing.UNKNOWN, ClaimVerdict.UNPROVEN),
        # A container's host name and machine id may be those of its image.
        ({"pid_namespace": 8}, {"boot_id": "b-2", "pid_namespace": 8}, Standing.UNKNOWN, ClaimVerdict.UNPROVEN),
        ({}, {"boot_id": "unknown"}, Standing.UNKNOWN, ClaimVerdict.UNPROVEN),
        # One launcher of several nodes that is gone says nothing of the others.
        ({"kind": OwnerKind.MEETING, "owner": "meeting:x"}, {}, Standing.GONE, ClaimVerdict.UNPROVEN),
        ({"kind": OwnerKind.SERVICE, "owner": "service:x"}, {"owner": "service:x"}, Standing.ALIVE, ClaimVerdict.OURS),
    ],
)  # fmt: skip
def test_only_a_proof_opens_a_claim_and_silence_is_none(
    claim: dict[str, object], changes: dict[str, object], standing: Standing, verdict: ClaimVerdict
) -> None:
    held = msgspec.structs.replace(OWNER, **claim)

    assert judge_claim(held, challenger(**changes), standing) is verdict


def test_folder_without_an_owner_is_taken(folder: ClaimFolder) -> None:
    taken = challenge(folder)

    assert (taken.is_maker, taken.claim.generation, taken.record) == (True, 1, None)
    assert folder.newest().claim == taken.claim  # type: ignore[union-attr]


def test_released_folder_is_taken_without_a_word(folder: ClaimFolder) -> None:
    folder.replace(msgspec.structs.replace(own(folder), is_released=True))

    taken = challenge(folder)

    assert (taken.claim.generation, taken.record) == (2, None)


def test_living_owner_is_named_with_what_to_do(folder: ClaimFolder) -> None:
    own(folder)

    with pytest.raises(JobHeldError) as refused:
        challenge(folder, Standing.ALIVE)

    for part in ("process 4711 on node1", "since 2026-09-21 14:13:20 UTC", "kill -TERM 4711"):
        assert part in str(refused.value)


def test_owner_that_counts_lives_wherever_it_is(folder: ClaimFolder) -> None:
    own(folder)
    time = Time(lambda now_s: folder.beat(1, 6) if now_s >= 3 else None)

    with pytest.raises(JobHeldError, match="owner is alive"):
        challenge(folder, time=time)

    assert time.said, "a wait of seconds is explained"


def test_silent_owner_keeps_the_folder_and_the_way_out_is_named(folder: ClaimFolder) -> None:
    own(folder)

    with pytest.raises(JobHeldError, match="--take-over"):
        challenge(folder)

    assert folder.newest().generation == 1  # type: ignore[union-attr]


def test_persons_word_takes_a_silent_folder_and_is_recorded(folder: ClaimFolder) -> None:
    own(folder)

    taken = challenge(folder, take_over=True)

    assert taken.claim.generation == 2
    assert taken.record is not None
    assert taken.record.proof is ClaimProof.PERSON
    assert "process 4711 on node1" in taken.record.owner
    assert taken.record.by == f"uid {os.getuid()}"


@pytest.mark.parametrize("standing", [Standing.ALIVE, Standing.UNKNOWN])
def test_persons_word_does_not_overrule_a_living_owner(
    folder: ClaimFolder, standing: Standing
) -> None:
    own(folder)
    time = Time(lambda now_s: folder.beat(1, 6) if now_s >= 25 else None)

    with pytest.raises(JobHeldError, match="only for an owner that no longer runs"):
        challenge(folder, standing, time, take_over=True)


def test_owner_whose_processes_are_gone_makes_way_without_an_option(folder: ClaimFolder) -> None:
    own(folder, job_id="u-7")

    taken = challenge(folder, Standing.GONE)

    assert taken.record is not None
    assert taken.record.proof is ClaimProof.PROCESSES
    assert taken.taken_from is not None
    assert taken.taken_from.job_id == "u-7", "its ranks are found by this mark"


def test_owner_that_releases_while_it_is_watched_makes_way(folder: ClaimFolder) -> None:
    claim = own(folder)

    def release(now_s: float) -> None:
        if now_s >= 4:
            folder.replace(msgspec.structs.replace(claim, is_released=True))

    assert challenge(folder, time=Time(release)).claim.generation == 2


def test_requeue_is_no_proof_and_the_refusal_says_so(folder: ClaimFolder) -> None:
    own(folder, scheduler="Slurm job 12")

    with pytest.raises(JobHeldError, match="A requeue proves nothing either"):
        challenge(folder, scheduler="Slurm job 12", host="node2")


def test_launchers_of_one_job_are_one_owner(folder: ClaimFolder) -> None:
    own(folder, kind=OwnerKind.MEETING, owner="meeting:job:x")

    taken = challenge(folder, kind=OwnerKind.MEETING, owner="meeting:job:x", host="node2")

    assert not taken.is_maker
    assert folder.newest().generation == 1  # type: ignore[union-attr]


def test_same_job_at_another_controller_is_refused_while_its_launchers_count(
    folder: ClaimFolder,
) -> None:
    claim = own(folder, kind=OwnerKind.SERVICE, owner="service:job:x", job_id="u-1")
    time = Time(lambda now_s: folder.beat(1, 6) if now_s >= 3 else None)

    refuse_other_job(folder, claim, "u-1", time.waiting())
    refuse_other_job(folder, claim, "u-2", Time().waiting())
    with pytest.raises(JobHeldError, match="another controller"):
        refuse_other_job(folder, claim, "u-2", time.waiting())


def test_of_launchers_that_start_at_one_moment_exactly_one_wins(folder: ClaimFolder) -> None:
    for generation in (1, 2, 3):
        won = race(folder, generation)

        assert len(won) == 1
        assert folder.newest().claim.token == won[0]  # type: ignore[union-attr]


def race(folder: ClaimFolder, generation: int) -> list[str]:
    """Return the tokens of those that were told to have won."""
    start, won = threading.Barrier(8), []

    def claim(number: int) -> None:
        token = f"{generation}-{number}"
        one = challenger(token=token, owner=f"launcher:{token}", generation=generation)
        start.wait(DEADLINE_S)
        if folder.make(one):
            won.append(token)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return won


def test_claim_below_a_newer_one_is_lost(folder: ClaimFolder) -> None:
    own(folder, generation=5)

    assert not folder.make(challenger(generation=3))


def test_old_claims_are_removed(folder: ClaimFolder) -> None:
    for generation in range(1, 8):
        assert folder.make(challenger(token=f"t{generation}", generation=generation))

    names = sorted(path.name for path in folder.beside.iterdir())
    assert names == ["owner-5.json", "owner-6.json", "owner-7.json"]


@pytest.mark.parametrize("body", [b"", b"[]", b"\x00", b'{"generation": 1}'])
def test_claim_that_nobody_understands_is_no_free_folder(folder: ClaimFolder, body: bytes) -> None:
    folder.beside.mkdir()
    folder.path(1).write_bytes(body)

    with pytest.raises(JobHeldError, match=r"owner-1\.json"):
        challenge(folder)


def test_claim_of_a_copied_folder_binds_nobody(folder: ClaimFolder, tmp_path: Path) -> None:
    claim = own(folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder.beside.parent, copy)

    taken = challenge(ClaimFolder(copy / BESIDE), folder=str(copy))

    assert taken.is_copy
    assert folder.newest().claim == claim  # type: ignore[union-attr]


def test_folder_that_was_moved_or_has_two_paths_keeps_its_owner(
    folder: ClaimFolder, tmp_path: Path
) -> None:
    own(folder)
    (tmp_path / "alias").symlink_to(folder.beside.parent)
    with pytest.raises(JobHeldError):
        challenge(ClaimFolder(tmp_path / "alias" / BESIDE), folder=str(tmp_path / "alias"))

    moved = folder.beside.parent.rename(tmp_path / "moved")

    with pytest.raises(JobHeldError):
        challenge(ClaimFolder(moved / BESIDE), folder=str(moved))


def test_what_another_user_planted_is_not_followed(folder: ClaimFolder, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    own(folder)
    (folder.beside / "owner-1.beat").unlink()
    (folder.beside / "owner-1.beat").symlink_to(precious)

    with pytest.raises(StorageError, match=r"owner-1\.beat"):
        folder.beat(1, 7)

    assert precious.read_text() == "mine"


def test_names_in_a_claim_reach_no_terminal_as_they_are() -> None:
    hostile = msgspec.structs.replace(OWNER, name="a\x1b]0;x\x07\nrankmend: done", host="h\x1b[2J")

    for text in (
        describe_owner(hostile, challenger()),
        refuse_living(hostile, challenger(), is_asked=True),
    ):
        assert is_printable(text)


def test_machine_is_known_by_more_than_the_id_of_its_image(tmp_path: Path) -> None:
    machine_id, interfaces = tmp_path / "machine-id", tmp_path / "net"
    machine_id.write_text("3d12\n")
    for name, address in (("eth0", "aa:01"), ("docker0", "02:42")):
        (interfaces / name).mkdir(parents=True)
        (interfaces / name / "address").write_text(f"{address}\n")
    alone = read_machine(machine_id, interfaces)
    (interfaces / "eth0" / "device").mkdir()
    first = read_machine(machine_id, interfaces)
    (interfaces / "eth0" / "address").write_text("aa:02\n")

    assert alone == "", "no hardware address: a container, perhaps"
    assert first not in ("", read_machine(machine_id, interfaces))
    assert read_machine(tmp_path / "none", interfaces) == ""


class Ear:
    def __init__(self) -> None:
        self.lost: list[str] = []


def keeper(folder: ClaimFolder, taken: TakenFolder, ear: Ear) -> Keeper:
    made = Keeper(folder, taken, ear.lost.append, beat_s=0.01, follow_s=0.05)
    made.start()
    return made


@pytest.fixture
def mine(folder: ClaimFolder) -> TakenFolder:
    claim = make_claim(folder.beside.parent, OwnerKind.LAUNCHER, "k", "mine", {})
    return take(folder, claim, take_over=False, waiting=Waiting())


def test_owner_counts_up_and_releases(folder: ClaimFolder, mine: TakenFolder) -> None:
    kept = keeper(folder, mine, Ear())
    eventually(lambda: (folder.read_beat(1) or 0) > 3, "it counts")

    kept.release()

    assert folder.newest().claim.is_released  # type: ignore[union-attr]


def test_owner_that_finds_a_newer_owner_stops(folder: ClaimFolder, mine: TakenFolder) -> None:
    ear = Ear()
    kept = keeper(folder, mine, ear)
    assert folder.make(challenger(generation=2))

    eventually(lambda: ear.lost, "it has noticed")
    kept.release()

    assert "process 10 on node1" in ear.lost[0]
    assert not folder.newest().claim.is_released, "the claim is not ours"  # type: ignore[union-attr]


def test_owner_whose_claim_was_removed_makes_it_again(
    folder: ClaimFolder, mine: TakenFolder
) -> None:
    ear = Ear()
    kept = keeper(folder, mine, ear)
    shutil.rmtree(folder.beside, ignore_errors=True)

    eventually(folder.newest, "it is there again")
    kept.close()

    assert folder.newest().claim.token == mine.claim.token  # type: ignore[union-attr]
    assert ear.lost == []


def test_claim_and_fence_come_back_where_the_checkpoint_folder_itself_was_removed(
    folder: ClaimFolder, mine: TakenFolder
) -> None:
    fenced: list[bool] = []
    kept = Keeper(folder, mine, Ear().lost.append, beat_s=0.01)
    kept.keep_fence(lambda: bool(fenced.append(folder.beside.parent.is_dir())))
    shutil.rmtree(folder.beside.parent)
    kept.start()

    eventually(folder.newest, "the claim is there again")
    eventually(lambda: True in fenced, "the fence is asked for")
    kept.close()


def test_fence_is_made_again_also_where_the_claim_can_not_be(
    folder: ClaimFolder, mine: TakenFolder
) -> None:
    asked: list[None] = []
    kept = Keeper(folder, mine, Ear().lost.append, beat_s=0.01)
    kept.keep_fence(lambda: bool(asked.append(None)))
    shutil.rmtree(folder.beside)
    folder.beside.write_text("a file in place of the folder")
    kept.start()

    eventually(lambda: asked, "the fence is asked for")
    kept.close()


class HangingFolder(ClaimFolder):
    """Storage that answers nothing until it is let go."""

    def __init__(self, beside: Path) -> None:
        super().__init__(beside)
        self.may_answer = threading.Event()

    def newest(self) -> FoundClaim | None:
        self.may_answer.wait()
        return super().newest()


def test_release_does_not_wait_for_storage_that_hangs(
    folder: ClaimFolder, mine: TakenFolder
) -> None:
    hanging = HangingFolder(folder.beside)
    kept = Keeper(hanging, mine, Ear().lost.append, close_s=0.05)
    kept.start()

    kept.release()

    assert not folder.newest().claim.is_released  # type: ignore[union-attr]
    hanging.may_answer.set()


def test_folder_is_not_given_back_while_an_earlier_launchers_processes_may_be_left(
    folder: ClaimFolder, mine: TakenFolder
) -> None:
    held = Ownership(folder, mine)

    with pytest.raises(LaunchError), held.clearing():
        raise LaunchError("processes of an earlier launcher remain: 26925 (D)")
    held.end()

    assert not folder.newest().claim.is_released  # type: ignore[union-attr]


def test_folder_is_given_back_where_nothing_was_left_and_no_rank_has_run(
    folder: ClaimFolder, mine: TakenFolder
) -> None:
    held = Ownership(folder, mine)

    with held.clearing():
        pass
    held.end()

    assert folder.newest().claim.is_released  # type: ignore[union-attr]


def test_stop_signal_waits_for_the_proof_that_nothing_was_left(
    folder: ClaimFolder, mine: TakenFolder
) -> None:
    held = Ownership(folder, mine)

    with exit_on([signal.SIGUSR1]):
        with pytest.raises(SystemExit) as ended, held.clearing():
            signal.raise_signal(signal.SIGUSR1)
        held.end()

    assert ended.value.code == 128 + signal.SIGUSR1
    assert folder.newest().claim.is_released  # type: ignore[union-attr]


def test_second_stop_signal_waits_for_no_proof(folder: ClaimFolder, mine: TakenFolder) -> None:
    held = Ownership(folder, mine)

    with exit_on([signal.SIGUSR1]):
        with pytest.raises(SystemExit), held.clearing():
            [signal.raise_signal(signal.SIGUSR1) for _ in range(2)]
        held.end()

    assert not folder.newest().claim.is_released  # type: ignore[union-attr]


def test_who_takes_a_dead_owners_folder_names_its_ranks_until_they_are_gone(
    folder: ClaimFolder,
) -> None:
    own(folder, job_id="u-7")
    taken = challenge(folder, Standing.GONE)

    Ownership(folder, taken).end()  # an error before the ranks of u-7 were looked for

    left = folder.newest()
    assert left is not None
    assert left.claim is not None
    assert not left.claim.is_released
    assert left.claim.job_id == "u-7"


def test_launcher_that_started_in_a_folder_without_its_claim_yields_to_the_older_owner(
    folder: ClaimFolder, mine: TakenFolder
) -> None:
    old, new = Ear(), Ear()
    folder.path(1).unlink()
    newcomer = take(folder, challenger(), take_over=False, waiting=Waiting())
    kept = [keeper(folder, newcomer, new), keeper(folder, mine, old)]

    eventually(lambda: new.lost, "the newcomer has noticed")
    for one in kept:
        one.close()

    assert old.lost == []
    assert f"process {os.getpid()} " in new.lost[0]


class FullFolder(ClaimFolder):
    """Storage that takes nothing for a while."""

    is_full = False

    def replace(self, claim: FolderClaim) -> None:
        if self.is_full:
            raise StorageError("No space left on device")
        super().replace(claim)

    def beat(self, generation: int, count: int) -> None:
        if self.is_full:
            raise StorageError("No space left on device")
        super().beat(generation, count)


def test_owner_that_cannot_count_warns_once_and_goes_on(
    tmp_path: Path, mine: TakenFolder, caplog: pytest.LogCaptureFixture
) -> None:
    folder, ear = FullFolder(tmp_path / "ckpt" / BESIDE), Ear()
    folder.is_full = True
    kept = keeper(folder, mine, ear)
    eventually(lambda: "No space left" in caplog.text, "it warns")

    folder.is_full = False
    eventually(lambda: folder.read_beat(1), "it counts again")
    kept.close()

    assert caplog.text.count("cannot update its claim") == 1
    assert "Training continues" in caplog.text
    assert ear.lost == []


def test_owner_on_a_full_disk_still_releases(tmp_path: Path, mine: TakenFolder) -> None:
    folder = FullFolder(tmp_path / "ckpt" / BESIDE)
    kept = keeper(folder, mine, Ear())
    eventually(lambda: folder.read_beat(1), "it counts")
    folder.is_full = True

    kept.release()

    assert challenge(ClaimFolder(folder.beside)).record is None


def test_of_a_jobs_launchers_one_counts_and_another_goes_on_when_it_is_gone(
    folder: ClaimFolder,
) -> None:
    group = {"kind": OwnerKind.MEETING, "owner": "meeting:job:x"}
    first = challenge(folder, **group)
    second = challenge(folder, **group, token="t-3", host="node2")
    kept = [keeper(folder, one, Ear()) for one in (first, second)]
    eventually(lambda: (folder.read_beat(1) or 0) > 3, "one counts")

    kept[0].close()
    beat = folder.read_beat(1) or 0

    eventually(lambda: (folder.read_beat(1) or 0) > beat + 3, "the other one counts")
    kept[1].close()


def test_job_whose_one_launcher_left_early_keeps_the_folder(folder: ClaimFolder) -> None:
    group = {"kind": OwnerKind.MEETING, "owner": "meeting:job:x"}
    first = challenge(folder, **group)
    second = challenge(folder, **group, token="t-3")
    leaving, staying = keeper(folder, first, Ear()), keeper(folder, second, Ear())

    leaving.release()

    eventually(lambda: not folder.newest().claim.is_released, "claimed again")  # type: ignore[union-attr]
    staying.release()
    assert folder.newest().claim.is_released  # type: ignore[union-attr]
