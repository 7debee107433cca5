"""Two files in turns: one whole snapshot always remains, with room for two, for one and for none."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankmend.hook.snapshots import layout, room
from rankmend.hook.snapshots.keeper import MISSING_S, NONE, ONE, RETRY_S, TWO
from tests.hook.snapshots.rank import GIB, SnapshotRank, is_same
from tests.support.faults.storage import small_disk
from tests.support.hook import ROOT

pytestmark = pytest.mark.process

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")


@pytest.fixture
def rank(tmp_path: Path) -> SnapshotRank:
    return SnapshotRank(tmp_path)


def state_of(step: int, elements: int = 1000) -> dict[str, Any]:
    return {"w": np.full(elements, step), "lr": step / 7, "names": {"step": step}}


def is_state_of(state: Any, step: int, elements: int = 1000) -> bool:
    expected = state_of(step, elements)
    whole = state.pop("w")
    return bool((whole == expected.pop("w")).all()) and is_same(state, expected)


def test_snapshots_alternate_between_two_files_and_both_come_back(rank: SnapshotRank) -> None:
    keeper = rank.keeper()

    assert all(keeper.take(step, state_of(step)) for step in (10, 20, 30))

    headers = rank.headers()
    assert {buffer: (one.step, one.sequence) for buffer, one in headers.items()} == {
        0: (30, 3),
        1: (20, 2),
    }
    assert is_state_of(rank.restore(3, 30), 30)
    assert is_state_of(rank.restore(3, 20), 20)
    assert keeper.level == TWO
    count, refused, newest, size, total_ns, last_ns, level = rank.told[-1]
    assert (count, refused, newest, level) == (3, 0, 31, TWO)
    assert size >= 8000
    assert 0 < last_ns < total_ns


def test_a_step_has_one_snapshot_and_steps_that_go_back_have_none(
    rank: SnapshotRank, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20))

    assert not any(keeper.take(step, state_of(7)) for step in (20, 0, 10))
    assert not rank.keeper().take(20, state_of(7)), "nor by a process that takes the rank's place"

    assert rank.steps() == [10, 20]
    assert is_state_of(rank.restore(3, 20), 20)
    assert capsys.readouterr().err.count("there is one of step 20") == 2, "once in each process"
    assert keeper.take(21, state_of(21))
    rank.attempt = 4
    assert rank.keeper().take(11, state_of(11)), "another attempt may begin further back"


def test_a_later_attempt_goes_on_counting_and_keeps_the_newest(rank: SnapshotRank) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20, 30))

    rank.attempt = 4
    assert rank.keeper().take(35, state_of(35))

    assert sorted((h.attempt, h.step, h.sequence) for h in rank.headers().values()) == [
        (3, 30, 3),
        (4, 35, 4),
    ]


def test_the_restored_snapshot_outlives_a_newer_one_that_not_all_ranks_have(
    rank: SnapshotRank,
) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20))
    rank.attempt = 4

    keeper = rank.keeper(choice=(3, 10))  # 20 was whole on this rank only
    assert keeper.take(11, state_of(11))
    after_one = rank.steps()
    assert keeper.take(12, state_of(12))

    assert after_one == [10, 11]
    assert rank.steps() == [11, 12]


def ask_to_keep(rank: SnapshotRank, step: int, seconds: float = 60.0) -> None:
    until_ns = time.monotonic_ns() + int(seconds * 1e9)
    for buffer in range(layout.BUFFERS):
        if rank.path(buffer).exists():
            with rank.path(buffer).open("r+b") as file:
                file.seek(layout.KEEP_AT)
                file.write(layout.KEEP.pack(step + 1, until_ns))


def test_first_snapshot_from_the_step_that_is_copied_stays_until_a_later_one_is_asked_for(
    rank: SnapshotRank,
) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20))

    ask_to_keep(rank, 25)
    seen = []
    for step in (24, 30, 40, 50):
        assert keeper.take(step, state_of(step))
        seen.append(rank.steps())
    ask_to_keep(rank, 55)
    for step in (60, 70):
        assert keeper.take(step, state_of(step))
        seen.append(rank.steps())

    assert seen == [[20, 24], [24, 30], [24, 30, 40], [30, 40, 50], [40, 50, 60], [50, 60, 70]]
    assert is_state_of(rank.restore(3, 60), 60)
    assert keeper.level == TWO


def leave_copied(rank: SnapshotRank, step: int, *, attempt: int = 3, seconds: float = 60.0) -> None:
    until_ns = time.monotonic_ns() + int(seconds * 1e9)
    for buffer in range(layout.BUFFERS):
        if rank.path(buffer).exists():
            with rank.path(buffer).open("r+b") as file:
                file.seek(layout.COPIED_AT)
                file.write(layout.COPIED.pack(attempt, step + 1, until_ns))


def test_snapshot_of_which_all_ranks_have_copies_stays_until_a_later_one_has_them(
    rank: SnapshotRank,
) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20))
    leave_copied(rank, 20)
    ask_to_keep(rank, 45)

    seen = []
    for step in (30, 40, 50, 60, 70):
        assert keeper.take(step, state_of(step))
        seen.append(rank.steps())
    leave_copied(rank, 50)
    for step in (80, 90):
        assert keeper.take(step, state_of(step))
        seen.append(rank.steps())

    # While 20 has copies and 50 gets them, what is left is written in place.
    assert seen[:3] == [[10, 20, 30], [20, 30, 40], [20, 40, 50]]
    assert seen[3:] == [[20, 50, 60], [20, 50, 70], [50, 70, 80], [50, 80, 90]]
    assert keeper.level == TWO


def test_snapshot_with_copies_stays_in_the_next_attempt_until_the_time_is_over(
    rank: SnapshotRank,
) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20))
    leave_copied(rank, 10)
    assert keeper.take(30, state_of(30))
    assert rank.steps() == [10, 20, 30]
    rank.attempt = 4

    keeper = rank.keeper(choice=(3, 30))
    assert all(keeper.take(step, state_of(step)) for step in (31, 32, 33))
    later = rank.steps()
    leave_copied(rank, 10, seconds=-1.0)
    assert all(keeper.take(step, state_of(step)) for step in (34, 35))

    assert later == [10, 32, 33]
    assert rank.steps() == [33, 34, 35]


def test_with_room_for_two_files_the_one_that_gets_copies_stays_and_the_other_is_overwritten(
    rank: SnapshotRank,
) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20))
    rank.free_bytes = 0
    leave_copied(rank, 20)
    assert keeper.take(30, state_of(30))
    assert rank.steps() == [20, 30]

    ask_to_keep(rank, 25)
    assert keeper.take(40, state_of(40))

    assert rank.steps() == [30, 40]


def test_without_room_for_a_third_file_the_other_one_is_overwritten_while_one_is_copied(
    rank: SnapshotRank,
) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20))
    rank.free_bytes = 0
    ask_to_keep(rank, 15)

    seen = []
    for step in (30, 40, 50):
        assert keeper.take(step, state_of(step))
        seen.append(rank.steps())
    ask_to_keep(rank, 45)
    assert keeper.take(60, state_of(60))
    seen.append(rank.steps())

    assert seen == [[20, 30], [20, 40], [20, 50], [50, 60]]
    assert keeper.level == TWO


def test_third_file_goes_on_in_turn_in_the_next_attempt(rank: SnapshotRank) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (10, 20))
    ask_to_keep(rank, 15)
    assert all(keeper.take(step, state_of(step)) for step in (30, 40))
    assert rank.steps() == [20, 30, 40]
    ask_to_keep(rank, 0, seconds=-1.0)
    rank.attempt = 4

    keeper = rank.keeper(choice=(3, 30))
    assert keeper.take(31, state_of(31))
    first = rank.steps()
    assert keeper.take(32, state_of(32))

    assert first == [30, 31, 40]
    assert rank.steps() == [30, 31, 32]


def test_nothing_is_kept_once_the_launcher_has_ended(rank: SnapshotRank) -> None:
    keeper = rank.keeper()
    assert keeper.take(10, state_of(10))
    assert keeper.take(20, state_of(20))

    ask_to_keep(rank, 10, seconds=-1.0)
    assert keeper.take(30, state_of(30))

    assert rank.steps() == [20, 30]


def test_an_earlier_attempts_snapshot_is_not_kept_for_a_copy(rank: SnapshotRank) -> None:
    assert rank.keeper().take(10, state_of(10))
    ask_to_keep(rank, 5)
    rank.attempt = 4

    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (11, 12, 13))

    assert rank.steps() == [11, 12, 13]


def test_what_is_lent_is_never_changed_and_its_file_stays_until_two_are_newer(
    rank: SnapshotRank,
) -> None:
    keeper = rank.keeper()
    assert keeper.take(10, state_of(10, 100_000))
    del keeper
    rank.attempt = 4
    lent = rank.restore(3, 10)
    lent["w"][0] = -1
    inode = rank.path(0).stat().st_ino

    keeper = rank.keeper(choice=(3, 10))
    assert keeper.take(11, state_of(11, 100_000))
    both = rank.steps()
    assert keeper.take(12, state_of(12, 100_000))

    assert both == [10, 11]
    assert rank.steps() == [11, 12]
    assert rank.path(0).stat().st_ino != inode
    assert lent["w"][0] == -1
    assert (lent["w"][1:] == 10).all()


def test_a_restored_snapshot_that_the_script_let_go_is_overwritten_in_place(
    rank: SnapshotRank,
) -> None:
    assert rank.keeper().take(10, state_of(10))
    rank.attempt = 4
    inode = rank.path(0).stat().st_ino
    assert is_state_of(rank.restore(3, 10), 10)

    keeper = rank.keeper(choice=(3, 10))
    assert all(keeper.take(step, state_of(step)) for step in (11, 12))

    assert rank.path(0).stat().st_ino == inode
    assert rank.steps() == [11, 12]


def test_what_the_script_writes_never_reaches_the_snapshot(rank: SnapshotRank) -> None:
    assert rank.keeper().take(10, state_of(10))

    first = rank.restore(3, 10)
    first["w"][:] = 0

    assert is_state_of(rank.restore(3, 10), 10)


def test_a_state_that_grows_or_shrinks_is_kept(rank: SnapshotRank) -> None:
    keeper = rank.keeper()

    for step, elements in enumerate([10, 100_000, 200_000, 5, 300_000], 1):
        assert keeper.take(step, state_of(step, elements))
        assert is_state_of(rank.restore(3, step), step, elements)

    assert keeper.level == TWO
    assert sorted(path.name for path in rank.folder.iterdir()) == [
        "rank-0.0.snapshot",
        "rank-0.1.snapshot",
    ]


def test_bytes_and_lists_of_changing_length_need_no_new_file(rank: SnapshotRank) -> None:
    keeper = rank.keeper()
    rng = random.Random(5)
    assert keeper.take(1, {"blob": bytes(100), "seen": list(range(100))})
    assert keeper.take(2, {"blob": bytes(100), "seen": list(range(100))})
    inodes = [rank.path(buffer).stat().st_ino for buffer in (0, 1)]

    for step in range(3, 20):
        state = {"blob": rng.randbytes(rng.randrange(3000)), "seen": list(range(step * 9))}
        assert keeper.take(step, state)
        assert is_same(rank.restore(3, step), state)

    assert [rank.path(buffer).stat().st_ino for buffer in (0, 1)] == inodes


# Room --------------------------------------------------------------------------------------


def test_with_room_for_one_it_is_overwritten_in_place_and_that_is_said_once(
    rank: SnapshotRank, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper = rank.keeper()
    assert keeper.take(1, state_of(1))
    rank.free_bytes = 0

    assert all(keeper.take(step, state_of(step)) for step in (2, 3, 4))

    assert rank.steps() == [4]
    assert keeper.level == rank.told[-1][-1] == ONE
    assert capsys.readouterr().err.count("overwritten in place") == 1


def test_without_room_no_snapshot_is_kept_and_room_is_looked_for_again(
    rank: SnapshotRank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.free_bytes = 1000
    keeper = rank.keeper()

    assert not keeper.take(1, state_of(1))
    rank.free_bytes = GIB
    assert not keeper.take(2, state_of(2))
    assert (keeper.level, list(rank.folder.iterdir())) == (NONE, [])
    rank.now_s += RETRY_S
    assert keeper.take(3, state_of(3))

    said = capsys.readouterr().err
    assert said.count("no snapshot is kept") == 1
    assert "the test limits it" in said
    assert rank.told[-1][:3] == (1, 2, 4)


@needs_root
def test_a_full_file_system_leaves_one_snapshot_and_no_half_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as folder:
        rank = SnapshotRank(folder)  # whose numbers promise more than there is
        keeper = rank.keeper()

        taken = [keeper.take(step, state_of(step, 75_000)) for step in (1, 2, 3)]
        too_large = keeper.take(4, state_of(4, 500_000))

        assert (taken, too_large) == ([True] * 3, False)
        assert rank.steps() == [3]
        assert [path.name for path in folder.iterdir()] == ["rank-0.0.snapshot"]
    assert "No space left on device" in capsys.readouterr().err


def test_a_folder_that_somebody_removed_does_not_stop_training(
    rank: SnapshotRank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.folder = rank.folder / "gone"
    rank.folder.mkdir()
    keeper = rank.keeper()
    assert keeper.take(1, state_of(1))
    for path in rank.folder.iterdir():
        path.unlink()
    rank.folder.rmdir()

    assert not keeper.take(2, state_of(2))
    assert not keeper.take(3, state_of(3))

    assert capsys.readouterr().err.count("rankmend:") == 1
    rank.folder.mkdir()  # by the launcher
    rank.now_s += MISSING_S
    assert keeper.take(4, state_of(4))
    assert rank.steps() == [4]


@pytest.mark.parametrize(
    ("cgroup", "files", "free_mib"),
    [
        ("0::/\n", {}, 4000),
        ("0::/pod\n", {"pod/memory.max": 900 << 20, "pod/memory.current": 500 << 20}, 400),
        (
            "0::/pod/inner\n",
            {
                "pod/memory.max": 900 << 20,
                "pod/memory.current": 600 << 20,
                "pod/memory.stat": "inactive_file 104857600\nactive_file 20971520\n",
                "pod/inner/memory.max": "max",
            },
            410,
        ),
        (
            "4:memory:/job\n",
            {"memory/job/memory.limit_in_bytes": 100 << 20, "memory/job/memory.usage_in_bytes": 0},
            100,
        ),
        ("0::/pod\n", {"pod/memory.max": 1, "pod/memory.current": 2}, 0),
    ],
)
def test_room_is_the_least_of_file_system_machine_and_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, object], free_mib: int
) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(cgroup)
    kib = 4000 << 10
    (proc / "meminfo").write_text(f"MemTotal: {2 * kib} kB\nMemAvailable:  {kib} kB\n")
    for name, value in files.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(f"{value}\n")

    found = room.read(str(tmp_path), str(proc), str(cgroups))

    assert found.free_bytes == free_mib << 20
    assert found.total_bytes == 8000 << 20


def test_what_other_ranks_of_the_node_will_need_counts_as_taken(tmp_path: Path) -> None:
    for name, allocated in [("rank-1.0.snapshot", True), ("rank-2.0.snapshot.new", False)]:
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 20)
            if allocated:
                os.posix_fallocate(file.fileno(), 0, 1 << 20)
    (tmp_path / "rank-0.0.snapshot").write_bytes(b"own")
    (tmp_path / "other").write_bytes(b"")

    # Rank 2 has not allocated its file; rank 3 has none yet; a second file of each is not asked for.
    assert room.promised(str(tmp_path), 0, 5 << 20, 1, 4) == (1 + 5) << 20
    assert room.promised(str(tmp_path), 0, 5 << 20, 2, 4) == (1 + 5 * 4) << 20
    assert room.promised(str(tmp_path), 0, 5 << 20, 2, 1) == 1 << 20


# Faults ------------------------------------------------------------------------------------

WRITER = """
import sys, numpy as np
from pathlib import Path
from tests.hook.snapshots.rank import SnapshotRank
rank = SnapshotRank(Path(sys.argv[1]), attempt=int(sys.argv[2]))
keeper = rank.keeper()
arrays = [np.empty(50_000) for _ in range(4)]
print("ready", flush=True)
step = int(sys.argv[2]) * 1_000_000
while True:
    step += 1
    for array in arrays:
        array.fill(step)
    if not keeper.take(step, {"arrays": arrays, "step": step, "blob": b"%d" % step * 1000}):
        raise SystemExit("refused")
"""


def test_a_rank_killed_at_any_moment_leaves_a_whole_snapshot_of_one_step(
    tmp_path: Path,
) -> None:
    rank = SnapshotRank(tmp_path)
    rng = random.Random(1)
    torn = 0
    for attempt in range(1, 26):
        rank.attempt = attempt
        known = max(rank.steps(), default=0)
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(attempt)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            while max(rank.steps(), default=0) <= known:
                assert child.poll() is None
            for _ in range(rng.randrange(20_000)):  # a moment of the child's, whichever it is
                pass
            child.send_signal(signal.SIGKILL)

        headers = rank.headers()
        torn += len(headers) == 1
        assert headers
        for header in headers.values():
            state = rank.restore(header.attempt, header.step)
            assert state["step"] == header.step
            assert state["blob"] == b"%d" % header.step * 1000
            assert all((array == header.step).all() for array in state["arrays"])
    assert torn  # some kill met a write


def test_a_forked_child_keeps_no_snapshot_for_its_parent(rank: SnapshotRank) -> None:
    keeper = rank.keeper()
    assert keeper.take(1, state_of(1))

    pid = os.fork()
    if pid == 0:
        os._exit(int(keeper.take(2, state_of(2))))
    _pid, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert rank.steps() == [1]


class StopTrainingError(Exception):
    pass


def test_an_exception_of_the_scripts_signal_handler_passes_and_leaves_the_other_file(
    rank: SnapshotRank,
) -> None:
    keeper = rank.keeper()
    assert all(keeper.take(step, state_of(step)) for step in (1, 2))

    def stop(_number: int, _frame: object) -> None:
        assert not keeper.take(9, state_of(9))  # refused inside a handler
        raise StopTrainingError

    arrays = [np.zeros(10) for _ in range(20_000)]
    assert all(keeper.take(step, arrays) for step in (3, 4))
    old = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(StopTrainingError):  # noqa: PT012 (one of the calls is met)
            for step in range(5, 10_000):
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                keeper.take(step, arrays)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)

    assert rank.steps()
    assert keeper.take(20_000, arrays)
    assert 20_000 in rank.steps()


# What can't be given back ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "data", "reason"),
    [
        (0, b"x", "it begins with"),
        (20, b"x", "wrong checksum of the header"),
        (layout.COMMIT_AT, b"\0" * 8, "it is not whole"),
    ],
)
def test_a_damaged_snapshot_is_an_error_with_its_reason(
    rank: SnapshotRank, offset: int, data: bytes, reason: str
) -> None:
    assert rank.keeper().take(10, state_of(10))
    with rank.path(0).open("r+b") as file:
        file.seek(offset)
        file.write(data)

    with pytest.raises(ValueError, match=reason):
        rank.restore(3, 10)


def test_a_snapshot_of_another_step_or_world_is_an_error(rank: SnapshotRank) -> None:
    assert rank.keeper().take(10, state_of(10))

    with pytest.raises(ValueError, match="it holds step 10 of attempt 3"):
        rank.restore(3, 11)
    with pytest.raises(ValueError, match=r"rank-0\.1\.snapshot is not there"):
        rank.restore(4, 10)


def test_a_cut_file_is_an_error(rank: SnapshotRank) -> None:
    assert rank.keeper().take(10, state_of(10))
    os.truncate(rank.path(0), layout.DATA_AT + 100)

    with pytest.raises(ValueError, match="impossible header"):
        rank.restore(3, 10)
