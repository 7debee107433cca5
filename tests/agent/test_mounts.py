"""Mounts: which are asked, what is told of them, and what a hung one does to the others."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from agent.collectors.mounts import (
    Mount,
    MountsCollector,
    answers_from_memory,
    choose_mounts,
    parse_mountinfo,
    parse_mounts,
)
from agent.sampling.collection import Slot
from agent.sources.mount_prober import Answer, HungMount, MountProber, MountRefusal, MountSpace
from rankmend.clock import SystemClock
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, FakeClock, values_of
from tests.support.collectors import PROC
from tests.support.eventually import eventually
from tests.support.faults.mounts import hanging_mount, tmpfs

pytestmark = pytest.mark.process

ANSWER_S_MAX = 3.0
OTHERS = (
    "mount_success{/,ext4}",
    "mount_success{/dev/shm,tmpfs}",
)  # one of them is on each machine


def mount(point: str, number: str = "8:1", root: str = "/", kind: str = "ext4") -> Mount:
    return Mount(point, "/dev/sda1", kind, number, root, is_read_only=False, is_for_writing=True)


def asking(answers: dict[str, Answer], asked: list[str]):  # type: ignore[no-untyped-def]
    def probe(points: Sequence[str]) -> dict[str, Answer]:
        asked.extend(points)
        return {point: answers.get(point, MountSpace(1000, 250, 10, 5, 0.001)) for point in points}

    return probe


def test_each_file_system_is_asked_once_and_pseudo_ones_never() -> None:
    asked: list[str] = []

    list(MountsCollector(PROC, FakeClock(), asking({}, asked)).collect())

    assert asked == ["/", "/dev/shm", "/home", "/mnt/whole disk", "/scratch2", "/sw"]


def test_local_file_systems_answer_without_a_child() -> None:
    asked: list[str] = []
    space = MountSpace(1000, 400, 0, 0, 0.001)
    collector = MountsCollector(
        PROC, FakeClock(), asking({}, asked), read_space=lambda _point: space
    )

    values = values_of(list(collector.collect()))

    assert "/home" in asked, "NFS"
    assert not {"/", "/dev/shm", "/mnt/whole disk"} & set(asked)
    assert values["disk_available_bytes{/dev/sda2,/}"] == 400


def test_local_file_system_below_a_server_is_asked_by_a_child() -> None:
    home = mount("/home", "0:40", kind="nfs4")
    below, beside = mount("/home/scratch", "8:2"), mount("/homes", "8:3")
    mounts = [mount("/"), home, below, beside]

    local = [one.point for one in mounts if answers_from_memory(one, mounts)]

    assert local == ["/", "/homes"]


def test_ignored_mounts_are_not_asked() -> None:
    asked: list[str] = []

    list(MountsCollector(PROC, FakeClock(), asking({}, asked), ignored=["/mnt/*"]).collect())

    assert asked == ["/", "/dev/shm", "/home", "/scratch2", "/sw"]


def test_disk_and_network_share_are_told_apart() -> None:
    values = values_of(list(MountsCollector(PROC, FakeClock(), asking({}, [])).collect()))

    assert values["disk_available_bytes{/dev/nvme0n1p1,/mnt/whole disk}"] == 250
    assert values["disk_inodes_available{/dev/sda2,/}"] == 5
    assert values["mount_available_bytes{/home,nfs4}"] == 250
    assert values["mount_success{/home,nfs4}"] == 1
    assert "mount_size_bytes{/,ext4}" not in values


def test_file_system_that_became_read_only_is_told_from_one_meant_to_be() -> None:
    values = values_of(list(MountsCollector(PROC, FakeClock(), None).collect()))

    assert values["mount_read_only{/,ext4}"] == 1  # mounted rw, and ro since an error
    assert values["mount_read_only{/mnt/whole disk,xfs}"] == 0  # only this mount of it is ro
    assert values["mount_read_only{/sw,nfs4}"] == 0  # mounted ro on purpose
    assert values["mount_read_only{/scratch2,ext4}"] == 1  # as kernels from 6.14 on say it


def test_sandbox_that_mounts_all_read_only_does_not_hide_the_fault(tmp_path: Path) -> None:
    proc = Path(shutil.copytree(PROC, tmp_path / "proc"))
    text = (proc / "self" / "mountinfo").read_text()
    (proc / "1" / "mountinfo").write_text(text)
    (proc / "self" / "mountinfo").write_text(text.replace(" rw,relatime ", " ro,relatime "))

    values = values_of(list(MountsCollector(proc, FakeClock(), None).collect()))

    assert values["mount_read_only{/,ext4}"] == 1
    assert values["mount_read_only{/sw,nfs4}"] == 0


def test_recorded_tree_is_not_asked_for_its_space() -> None:
    values = values_of(list(MountsCollector(PROC, FakeClock(), None).collect()))

    assert {name.partition("{")[0] for name in values} == {"mount_read_only"}


def test_hung_mount_shows_how_long_and_no_size() -> None:
    clock = FakeClock()
    answers: dict[str, Answer] = {"/home": HungMount(clock.now_s() - 42), "/": MountRefusal(5)}

    values = values_of(list(MountsCollector(PROC, clock, asking(answers, [])).collect()))

    assert values["mount_hung_seconds{/home,nfs4}"] == 42
    assert values["mount_success{/home,nfs4}"] == 0
    assert values["mount_success{/,ext4}"] == 0
    assert values["disk_usage_success{/dev/sda2,/}"] == 0
    assert not [name for name in values if "size" in name and ("/home" in name or "sda2" in name)]


def test_mount_of_another_user_is_neither_well_nor_broken() -> None:
    answers: dict[str, Answer] = {"/home": MountRefusal(13)}

    values = values_of(list(MountsCollector(PROC, FakeClock(), asking(answers, [])).collect()))

    assert "mount_success{/home,nfs4}" not in values


def test_required_mount_that_is_missing_is_told() -> None:
    required = ["/home", "/scratch", "/mnt/auto"]

    values = values_of(list(MountsCollector(PROC, FakeClock(), None, required).collect()))

    present = {name: value for name, value in values.items() if name.startswith("mount_present")}
    assert present == {
        "mount_present{/home}": 1,
        "mount_present{/scratch}": 0,
        "mount_present{/mnt/auto}": 0,  # the automounter waits there, nothing is mounted
    }


def test_whole_file_system_is_asked_rather_than_a_part_of_it() -> None:
    mounts = [mount("/a", root="/part"), mount("/longer/place")]

    assert [chosen.point for chosen in choose_mounts(mounts)] == ["/longer/place"]


def test_mount_that_covers_another_is_the_one_that_counts() -> None:
    mounts = [mount("/data", number="8:1"), mount("/data", number="8:2")]

    assert [chosen.number for chosen in choose_mounts(mounts)] == ["8:2"]


def test_node_without_a_list_of_mounts_is_absent(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        list(MountsCollector(tmp_path, FakeClock(), None).collect())


# --- real mounts


def test_full_tmpfs_has_nothing_left(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "full", "size=1m,nr_inodes=64") as folder:
        with pytest.raises(OSError, match="No space left"):
            (folder / "checkpoint").write_bytes(b"x" * (2 << 20))
        collector = MountsCollector(Path("/proc"), SystemClock(), MountProber(SystemClock()).probe)

        values = values_of(list(collector.collect()))

    place = f"{{{folder},tmpfs}}"
    assert values[f"mount_success{place}"] == 1
    assert values[f"mount_size_bytes{place}"] == 1 << 20
    assert values[f"mount_available_bytes{place}"] == 0
    assert values[f"mount_inodes{place}"] == 64


def make_read_only(folder: Path) -> None:
    """Make a file system read-only but not its mount, as the kernel does after an error."""
    import ctypes

    fspick, fsconfig, set_flag, reconfigure = 433, 431, 0, 7  # <asm-generic/unistd.h>, mount.h
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(fspick, -100, os.fsencode(folder), 0)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    try:
        assert libc.syscall(fsconfig, descriptor, set_flag, b"ro", None, 0) == 0
        assert libc.syscall(fsconfig, descriptor, reconfigure, None, None, 0) == 0
    finally:
        os.close(descriptor)


def test_real_file_system_that_became_read_only_is_told(tmp_path: Path) -> None:
    collector = MountsCollector(Path("/proc"), SystemClock(), None)
    name = f"mount_read_only{{{tmp_path / 'disk'},tmpfs}}"
    with tmpfs(tmp_path / "disk", "size=1m") as folder:
        before = values_of(list(collector.collect()))
        make_read_only(folder)
        with pytest.raises(OSError, match="Read-only file system"):
            (folder / "checkpoint").write_bytes(b"x")

        fault = values_of(list(collector.collect()))
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        purpose = values_of(list(collector.collect()))

    assert (before[name], fault[name], purpose[name]) == (0, 1, 0)


def test_mount_point_that_is_gone_is_refused_by_the_kernel(tmp_path: Path) -> None:
    answers = MountProber(SystemClock()).probe([str(tmp_path / "gone"), str(tmp_path)])

    assert answers[str(tmp_path / "gone")] == MountRefusal(2)
    assert isinstance(answers[str(tmp_path)], MountSpace)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def probed(
    prober: MountProber, points: Sequence[str], hung: Sequence[str] = ()
) -> dict[str, Answer]:
    """Return the answers of a run in which the others answer: a busy machine may start a child too late for that."""

    def look() -> dict[str, Answer] | None:
        answers = dict(prober.probe(points))
        others = [answers[point] for point in points if point not in hung]
        return answers if all(isinstance(answer, MountSpace) for answer in others) else None

    return eventually(look, "the mounts that are well")


def test_hung_mount_hurts_no_other_and_answers_again_when_its_server_does(tmp_path: Path) -> None:
    prober = MountProber(SystemClock(), ANSWER_S_MAX)
    with hanging_mount(tmp_path / "fuse") as mounted:
        point = str(mounted.point)
        points = [point, str(tmp_path), "/"]
        well = probed(prober, points)
        mounted.stop_answering()

        hung = probed(prober, points, hung=[point])

        assert well[point] == MountSpace(4096_000, 1024_000, 0, 0, well[point].took_s)  # type: ignore[union-attr]
        assert isinstance(hung[point], HungMount)
        assert isinstance(hung[str(tmp_path)], MountSpace)
        assert isinstance(hung["/"], MountSpace)

        mounted.answer_again()
        answers: list[Answer] = []

        def is_back() -> bool:
            answers.append(prober.probe(points)[point])
            return isinstance(answers[-1], MountSpace)

        eventually(is_back, "an answer of the mount")
        eventually(
            lambda: prober.probe([]) == {} and prober.left_behind(point) == 0, "the children"
        )


def test_hung_mount_holds_at_most_two_children_for_ever(tmp_path: Path) -> None:
    prober = MountProber(SystemClock(), ANSWER_S_MAX)
    with hanging_mount(tmp_path / "fuse") as mounted:
        point = str(mounted.point)
        mounted.stop_answering()

        counts, since_s = [], set()
        for _round in range(5):
            answer = prober.probe([point])[point]
            assert isinstance(answer, HungMount)
            since_s.add(answer.since_s)
            counts.append(prober.left_behind(point))
        children = [
            int(pid)
            for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            if b"mount_probe" in Path(f"/proc/{pid}/cmdline").read_bytes()
            or state_of(int(pid)) == "D"
        ]

        assert counts == [1, 2, 2, 2, 2]
        assert len(since_s) == 1  # hung since the first time, not since the newest
        eventually(lambda: [state_of(pid) for pid in children] == ["D", "D"], "both to wait")


def test_two_hung_mounts_in_one_row_are_both_found_in_one_run(tmp_path: Path) -> None:
    prober = MountProber(SystemClock(), ANSWER_S_MAX)
    with hanging_mount(tmp_path / "a") as one, hanging_mount(tmp_path / "b") as two:
        one.stop_answering()
        two.stop_answering()

        points = [str(one.point), str(two.point), str(tmp_path)]
        answers = probed(prober, points, hung=points[:2])

    kinds = [type(answers[str(point)]) for point in (one.point, two.point, tmp_path)]
    assert kinds == [HungMount, HungMount, MountSpace]


def test_agent_shows_a_hung_mount_and_its_collector_stays_well(tmp_path: Path) -> None:
    clock = SystemClock()
    with hanging_mount(tmp_path / "fuse") as mounted:
        collector = MountsCollector(Path("/proc"), clock, MountProber(clock, ANSWER_S_MAX).probe)
        slot = Slot(collector, 30.0, clock, FAMILIES)
        mounted.stop_answering()

        def look() -> dict[str, float] | None:
            slot.run()
            values = values_of(list(slot.view(clock.now_s()).metrics))
            return values if 1 in [values.get(series) for series in OTHERS] else None

        values = eventually(look, "a mount that is well")
    assert values[f"mount_success{{{mounted.point},fuse}}"] == 0
    assert values[f"mount_hung_seconds{{{mounted.point},fuse}}"] >= ANSWER_S_MAX


# --- parsers


def escaped(text: str) -> str:
    return "".join(f"\\{ord(char):03o}" if char in " \t\n\\#" else char for char in text)


NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1)


@PATIENT
@given(NAMES, NAMES)
def test_every_mount_is_read_back(point: str, device: str) -> None:
    line = f"24 21 0:45 / /{escaped(point)} rw,relatime shared:30 master:1 - nfs4 {escaped(device)} ro\n"

    assert parse_mountinfo(line) == [
        Mount(f"/{point}", device, "nfs4", "0:45", "/", is_read_only=True, is_for_writing=True)
    ]


@PATIENT
@given(st.text())
def test_any_list_of_mounts_is_understood_or_refused(text: str) -> None:
    for parse in (parse_mountinfo, parse_mounts):
        try:
            mounts = parse(text)
        except SourceError:
            continue
        assert len(choose_mounts(mounts)) <= len(mounts)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_a_test_mounts_is_seen_by_no_other_process_of_the_machine() -> None:
    """A mount that hangs here is a broken mount to the agents that another worker tests."""
    assert Path("/proc/self/ns/mnt").readlink() != Path(f"/proc/{os.getppid()}/ns/mnt").readlink()
