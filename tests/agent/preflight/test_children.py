"""Processes of a check: their deadlines hold whatever hangs, and none outlives its starter."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.preflight.children import ChildEndKind, LoadChildren
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.fuse_mount import fuse_mount

pytestmark = pytest.mark.process

HOLDER = """
import sys, time
from agent.preflight.children import LoadChildren
children = LoadChildren()
program = "import os, sys, time; open(sys.argv[1] + '/' + str(os.getpid()), 'w'); time.sleep(600)"
for number in range(3):
    children.start_program(f"p{number}", lambda _l: (sys.executable, "-c", program, sys.argv[1]), {}, 500)
children.start_function("f", lambda _end: open(sys.argv[1] + "/" + str(__import__("os").getpid()), "w") and time.sleep(600), 500)
print("ready", flush=True)
children.wait(["p0", "p1", "p2", "f"])
"""


def pids_in(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_program_is_killed_at_its_deadline_and_the_rest_goes_on() -> None:
    children = LoadChildren()
    children.start_program("slow", lambda _l: ("sleep", "600"), os.environ, 0.2)
    children.start_program("quick", lambda _l: ("sh", "-c", "echo '{\"a\": 1}'"), os.environ, 60)

    ends = children.wait(["slow", "quick"])

    assert ends["slow"].kind is ChildEndKind.KILLED
    assert (ends["quick"].kind, ends["quick"].status) == (ChildEndKind.ENDED, 0)
    assert ends["quick"].lines() == [{"a": 1}]
    assert children.left_behind == []


def test_what_a_program_leaves_in_its_group_ends_with_it() -> None:
    children = LoadChildren()
    words = ("sh", "-c", 'sleep 600 & echo "{\\"pid\\": $!}"')
    children.start_program("parent", lambda _l: words, os.environ, 60)

    end = children.wait(["parent"])["parent"]

    eventually(lambda: is_gone(end.lines()[0]["pid"]), "the sleep to be gone")


def test_a_function_ends_when_it_is_asked_to() -> None:
    def wait_for_end(until_end: int) -> Mapping[str, Any]:
        return {"read": len(os.read(until_end, 1))}

    children = LoadChildren()
    children.start_function("watch", wait_for_end, 60)
    children.ask_to_end("watch")

    assert children.wait(["watch"])["watch"].lines() == [{"read": 0}]


def test_a_program_that_is_not_there_says_so() -> None:
    children = LoadChildren()
    children.start_program("none", lambda _l: ("/nonexistent/python",), os.environ, 60)

    end = children.wait(["none"])["none"]

    assert end.status == 1
    assert "FileNotFoundError" in end.errors


@pytest.mark.parametrize("after", range(6))
def test_nothing_is_left_when_the_starter_is_killed_at_any_moment(
    tmp_path: Path, after: int
) -> None:
    """The moments: from before the first child to all of them running, by the number that have begun."""
    starter = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE
    )
    eventually(lambda: len(pids_in(tmp_path)) >= min(after, 4), "the children")

    starter.send_signal(signal.SIGKILL)
    starter.wait(DEADLINE_S)

    eventually(lambda: all(is_gone(pid) for pid in pids_in(tmp_path)), "the children to be gone")


def test_a_load_behind_a_wrapper_ends_with_its_starter(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexit 0\n')
    wrapper.chmod(0o755)
    code = f"""
import json, rankmend
from pathlib import Path
from agent.preflight.children import LoadChildren
start = str(Path(rankmend.__file__).parent / "loads" / "start.py")
spec = lambda line: json.dumps({{"loads": [{{"load": "processor", "seconds": 600}}], "lifeline": line, "alone_s": 600}})
children = LoadChildren()
children.start_program("load", lambda line: ({str(wrapper)!r}, start, spec(line)), {{"MARK": "1"}}, 600)
print("ready", flush=True)
children.wait(["load"])
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    below = eventually(
        lambda: found if len(found := _descendants(starter.pid)) >= 2 else None,
        "the load behind its wrapper",
    )

    starter.send_signal(signal.SIGKILL)
    starter.wait(DEADLINE_S)

    eventually(lambda: all(is_gone(pid) for pid in below), "the wrapper and the load to be gone")


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # its thread has just ended
            continue
        for child in children:
            found += [int(child), *_descendants(int(child))]
    return found


@pytest.fixture
def hung_mount(tmp_path: Path) -> Iterator[Path]:
    """A file system on which statfs waits in the kernel and SIGKILL does not end it."""
    point, faults = tmp_path / "point", tmp_path / "faults"
    hang = faults / "hang"
    module = "tests.support.faults.slow_disk"
    with fuse_mount(
        module, point, tmp_path / "served", faults, lambda: hang.unlink(missing_ok=True)
    ):
        hang.touch()
        yield point


def test_a_process_that_hangs_in_the_kernel_is_named_and_left_behind(hung_mount: Path) -> None:
    children = LoadChildren()
    program = "import os, sys; os.statvfs(sys.argv[1])"
    children.start_program(
        "hung", lambda _l: (sys.executable, "-c", program, str(hung_mount)), os.environ, 2.0
    )
    children.start_program("sound", lambda _l: ("true",), os.environ, 60)

    ends = children.wait(["hung", "sound"])

    assert ends["sound"].status == 0
    assert ends["hung"].kind is ChildEndKind.HUNG
    assert ends["hung"].waits_in.startswith("D")
    assert children.left_behind == ["hung"]


def test_a_signal_ends_the_wait_and_all_that_runs() -> None:
    wake, writer = os.pipe()
    children = LoadChildren(wake)
    children.start_program("long", lambda _l: ("sleep", "600"), os.environ, 600)
    threading.Timer(0.1, os.write, (writer, b"!")).start()

    ends = children.wait(["long"])

    assert ends["long"].kind is ChildEndKind.KILLED
    os.close(wake)
    os.close(writer)
