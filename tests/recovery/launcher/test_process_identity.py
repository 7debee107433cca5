"""Whether a process that was named earlier, perhaps in another container, still lives."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.launcher.processes.identity import (
    INITIAL_PID_NAMESPACE,
    ProcessIdentity,
    Standing,
    parse_mark,
)
from recovery.launcher.processes.standing import ForeignMarks, identify, is_there, judge
from tests.support.eventually import DEADLINE_S
from tests.support.faults import process as faults

pytestmark = [pytest.mark.process, pytest.mark.safety]

BOOT = "b-1"
HERE = ProcessIdentity(10, 500, 7, 3, BOOT)
OWNER = ProcessIdentity(20, 900, 7, 3, BOOT)


def make_proc(root: Path, *processes: tuple[int, int, str], inner: dict[int, int] | None = None):
    """Make a /proc as process 10 sees it: (pid, start_ticks, letter), and NSpid of some."""
    (root / "self").symlink_to("10")
    for pid, start_ticks, letter in ((10, 500, "R"), *processes):
        folder = root / str(pid)
        folder.mkdir()
        threads = 0 if letter == "Z" else 1
        fields = [letter, "1", *["0"] * 4, "0", *["0"] * 10, str(threads), "0", str(start_ticks)]
        (folder / "stat").write_text(f"{pid} (python) {' '.join(fields)} 0 0\n")
        nested = f"{pid}\t{inner[pid]}" if inner and pid in inner else str(pid)
        (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{nested}\n")
    return str(root)


def standing(root: str, owner: ProcessIdentity = OWNER, here: ProcessIdentity = HERE) -> Standing:
    return judge(owner, here, root, exists=lambda _pid: False)


def test_process_with_its_start_time_lives(tmp_path: Path) -> None:
    assert standing(make_proc(tmp_path, (20, 900, "S"))) is Standing.ALIVE


def test_pid_that_was_used_again_is_another_process(tmp_path: Path) -> None:
    assert standing(make_proc(tmp_path, (20, 901, "S"))) is Standing.GONE


def test_stopped_process_lives_and_a_zombie_is_gone(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "z").mkdir()

    assert standing(make_proc(tmp_path / "t", (20, 900, "T"))) is Standing.ALIVE
    assert standing(make_proc(tmp_path / "z", (20, 900, "Z"))) is Standing.GONE


def test_process_that_proc_hides_is_unknown(tmp_path: Path) -> None:
    root = make_proc(tmp_path)

    assert judge(OWNER, HERE, root, exists=lambda _pid: True) is Standing.UNKNOWN
    assert judge(OWNER, HERE, root, exists=lambda _pid: False) is Standing.GONE


@pytest.mark.parametrize(
    "change",
    [{"boot_id": "b-2"}, {"time_namespace": 4}, {"pid_namespace": 8}, {"pid_namespace": 0}],
)
def test_what_is_counted_elsewhere_is_never_gone(tmp_path: Path, change: dict[str, object]) -> None:
    owner = replace(OWNER, **change)  # type: ignore[arg-type]

    assert standing(make_proc(tmp_path), owner) is Standing.UNKNOWN


def test_proc_of_another_namespace_proves_nothing(tmp_path: Path) -> None:
    root = make_proc(tmp_path)

    assert standing(root, here=replace(HERE, pid=11)) is Standing.UNKNOWN


def test_unknown_boot_proves_nothing(tmp_path: Path) -> None:
    owner, here = (replace(one, boot_id="unknown") for one in (OWNER, HERE))

    assert standing(make_proc(tmp_path), owner, here) is Standing.UNKNOWN


def test_machine_itself_sees_into_its_containers(tmp_path: Path) -> None:
    here = replace(HERE, pid_namespace=INITIAL_PID_NAMESPACE)
    owner = replace(OWNER, pid_namespace=8, pid=1)
    (tmp_path / "there").mkdir()
    (tmp_path / "gone").mkdir()
    there = make_proc(tmp_path / "there", (1, 5, "S"), (77, 900, "S"), inner={77: 1})
    gone = make_proc(tmp_path / "gone", (1, 5, "S"), (77, 901, "S"), inner={77: 1})

    assert standing(there, owner, here) is Standing.ALIVE
    assert standing(gone, owner, here) is Standing.GONE
    assert standing(gone, owner) is Standing.UNKNOWN, "a container does not see other containers"


def test_machine_whose_proc_hides_processes_proves_nothing_of_containers(tmp_path: Path) -> None:
    here = replace(HERE, pid_namespace=INITIAL_PID_NAMESPACE)

    assert standing(make_proc(tmp_path), replace(OWNER, pid_namespace=8), here) is Standing.UNKNOWN


@pytest.mark.parametrize("text", ["", "1", "1:2:3", "1:2:3:x", "1:2:3:4:5", "-1:2:3:4", "1:²:3:4"])
def test_mark_that_names_no_launcher_is_none(text: str) -> None:
    assert parse_mark(text, BOOT) is None


def test_mark_is_read_back() -> None:
    assert parse_mark(OWNER.mark(), BOOT) == OWNER


def test_real_process_is_alive_until_it_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner, here = identify(process.pid), identify()

        assert judge(owner, here) is Standing.ALIVE
        with faults.stop(process):
            assert judge(owner, here) is Standing.ALIVE
        faults.kill(process)
        process.wait(DEADLINE_S)
        assert judge(owner, here) is Standing.GONE
        assert not is_there(process.pid)


def test_own_processes_are_never_foreign_and_those_of_a_living_launcher_are() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        mark = identify(other.pid).mark()
        is_foreign = ForeignMarks(identify())

        assert is_foreign(mark)
        assert not is_foreign(identify().mark())
        assert not is_foreign("")
        faults.kill(other)
    assert not ForeignMarks(identify())(mark)
    assert identify().pid == os.getpid()
