"""A rank's Python stacks on request: told by the right process, and nobody else disturbed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankmend.hook import layout
from recovery.launcher.evidence.rank_evidence import ask_for_stacks, read_head, read_stacks
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    stacks = tmp_path / "rank-0.stacks"
    stacks.touch(mode=0o600)
    made = Rank(tmp_path, environment={layout.ENV_STACKS_FILE: str(stacks)})
    yield made
    made.reader.close()


@pytest.fixture
def start(rank: Rank) -> Iterator[Start]:
    """Start a rank that says "ready" and then waits for the end of its stdin."""
    begun: list[subprocess.Popen[str]] = []

    def begin(python: str, code: str = "") -> "subprocess.Popen[str]":
        tail = "\nimport sys\ndef wait_here():\n    print('ready', flush=True); sys.stdin.read()\nwait_here()\n"
        process = rank.start(python, code + tail)
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def stacks_path(rank: Rank) -> Path:
    return rank.folder / "rank-0.stacks"


def told(rank: Rank) -> str:
    """Return the stacks once a whole dump is there."""
    descriptor = os.open(stacks_path(rank), os.O_RDONLY)
    try:
        eventually(lambda: "wait_here" in read_stacks(descriptor).decode(), "a stack")
        return read_stacks(descriptor).decode()
    finally:
        os.close(descriptor)


@each_python
def test_a_rank_tells_its_stack_and_lives_on(rank: Rank, start: Start, python: str) -> None:
    process = start(python)

    assert ask_for_stacks(stacks_path(rank)) is None

    assert "in wait_here" in told(rank)
    output, _none = process.communicate(input="")
    assert (process.returncode, output) == (0, "")


@each_python
def test_handlers_of_the_users_own_stay_and_work(rank: Rank, start: Start, python: str) -> None:
    code = """
import faulthandler, os, signal
faulthandler.register(signal.SIGUSR1, file=open("own.txt", "w"))
signal.signal(signal.SIGUSR2, lambda *_: print("heard", flush=True))
"""
    process = start(python, code)

    assert ask_for_stacks(stacks_path(rank)) is None
    assert "in wait_here" in told(rank)
    own = rank.folder / "own.txt"
    os.kill(process.pid, signal.SIGUSR1)
    # Not both at once: the kernel restarts the read.
    eventually(lambda: "in wait_here" in own.read_text(), own.read_text)
    os.kill(process.pid, signal.SIGUSR2)

    assert process.stdout is not None
    assert process.stdout.readline() == "heard\n"


def test_a_signal_that_somebody_handles_already_is_left_to_him(rank: Rank, start: Start) -> None:
    site = rank.folder / "user"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import os, signal; signal.signal({layout.STACKS_SIGNAL}, lambda *_: os.write(1, b'mine\\n'))\n"
        "import rankmend.hook.stacks as stacks; stacks.offer(); print(stacks._held, flush=True)\n"
    )
    rank.environment["PYTHONPATH"] = f"{site}:{rank.site}"
    process = rank.start(sys.executable, "import sys; sys.stdin.read()")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "None\n"
        reason = ask_for_stacks(stacks_path(rank))
        os.kill(process.pid, layout.STACKS_SIGNAL)
        assert process.stdout.readline() == "mine\n"
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    assert reason is not None
    assert "offers no Python stacks" in reason


@each_python
def test_a_closed_descriptor_is_never_written_to(rank: Rank, start: Start, python: str) -> None:
    code = (
        "import fcntl, os; os.closerange(3, 1024); kept = [open(f'shard{n}', 'w') for n in range(9)]\n"
        "again = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 512) for one in kept]"
    )
    process = start(python, code)

    reason = ask_for_stacks(stacks_path(rank))

    assert reason == f"process {process.pid} has closed the file of its stacks"
    process.communicate(input="")
    assert all((rank.folder / f"shard{number}").read_text() == "" for number in range(9))


def test_a_child_process_does_not_take_the_ranks_place_and_a_process_that_attaches_does(
    rank: Rank, start: Start
) -> None:
    code = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "pass"], check=True)
"""
    parent = start(sys.executable, code)
    head = read_head(stacks_path(rank))
    assert head is not None
    assert head[0].pid == parent.pid

    child = start(sys.executable, "import rankmend; rankmend.attach()")

    head = read_head(stacks_path(rank))
    assert head is not None
    assert head[0].pid == child.pid


def test_a_stopped_process_and_one_that_is_gone_are_not_asked(rank: Rank, start: Start) -> None:
    process = start(sys.executable)
    os.kill(process.pid, signal.SIGSTOP)
    eventually(lambda: "state T" in (ask_for_stacks(stacks_path(rank)) or ""), "a stopped process")

    process.kill()
    process.wait(DEADLINE_S)

    assert "is gone" in (ask_for_stacks(stacks_path(rank)) or "")


def test_a_head_that_names_another_process_sends_nothing(rank: Rank, tmp_path: Path) -> None:
    forged = tmp_path / "forged.stacks"
    ticks = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    forged.write_text(layout.STACKS_HEAD % (os.getpid(), 0, int(ticks)))

    reason = ask_for_stacks(forged)

    assert reason == f"process {os.getpid()} has closed the file of its stacks"
