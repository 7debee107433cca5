"""Nothing that bound work has started outlives its program, whoever is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from recovery.launcher.processes.process_tree import parse_stat, read_processes
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = [pytest.mark.process, pytest.mark.safety]

# Starts a daemon that has left it in every way, and a process that is spared; then it works, or has done its work.
PROGRAM = """
import os, subprocess, sys, time
from pathlib import Path
from recovery.launcher.processes.bound_work import run_bound
FOLDER, how = Path(sys.argv[1]), sys.argv[2]

def note(name):
    (FOLDER / f".{name}").write_text(str(os.getpid()))
    (FOLDER / f".{name}").rename(FOLDER / name)

def work():
    note("worker")
    (FOLDER / "sweeper").write_text(str(os.getppid()))
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note("daemon")
            time.sleep(600)
        os._exit(0)
    os.wait()
    if os.fork() == 0:
        note("spared")
        while not (FOLDER / "spared-may-end").exists():
            time.sleep(0.01)
        (FOLDER / "spared-has-ended").touch()
        os._exit(0)
    while not ((FOLDER / "daemon").exists() and (FOLDER / "spared").exists()):
        time.sleep(0.01)
    if how == "ends":
        note("works")
        return 7
    try:
        note("works")
        time.sleep(600)
    finally:
        note("unwound")

def is_spared(pid):
    spared = FOLDER / "spared"
    return spared.exists() and spared.read_text() == str(pid)

sys.exit(run_bound(work, grace_s=60.0, is_spared=is_spared))
"""
# Its worker, the second fork, is interrupted as soon as it is there.
INTERRUPTED_EARLY = """
import os, signal, sys, time
from recovery.launcher.processes.bound_work import run_bound
me = os.getpid()

def interrupt():
    if os.getppid() != me:
        os.kill(os.getpid(), signal.SIGINT)

def work():
    time.sleep(600)

os.register_at_fork(after_in_child=interrupt)
sys.exit(run_bound(work))
"""


class Bound:
    def __init__(self, folder: Path, how: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), how])
        eventually((folder / "works").exists, "the work begins")

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def is_there(self, name: str) -> bool:
        try:
            state = parse_stat(Path(f"/proc/{self.pid(name)}/stat").read_bytes())
        except OSError:
            return False
        return not state.is_gone

    def let_spared_end(self) -> None:
        (self.folder / "spared-may-end").touch()


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Bound]:
    one = Bound(tmp_path, "works")
    yield one
    one.process.kill()
    one.process.wait()
    for name in ("sweeper", "worker", "daemon", "spared"):
        with suppress(ProcessLookupError):
            if one.is_there(name):
                os.kill(one.pid(name), signal.SIGKILL)


def check_gone(bound: Bound) -> None:
    eventually(lambda: not bound.is_there("daemon"), "the daemon is killed")
    assert bound.is_there("spared")
    bound.let_spared_end()
    eventually(
        lambda: not any(map(bound.is_there, ("sweeper", "worker", "spared"))), "all of it ends"
    )
    assert (bound.folder / "spared-has-ended").exists()


@pytest.mark.parametrize("killed", ["program", "sweeper", "worker"])
def test_whoever_is_killed_nothing_is_left_but_what_ends_by_itself(
    bound: Bound, killed: str
) -> None:
    os.kill(bound.process.pid if killed == "program" else bound.pid(killed), signal.SIGKILL)

    check_gone(bound)
    assert bound.process.wait(DEADLINE_S) != 0


def test_signal_unwinds_the_work_and_is_the_exit_code(bound: Bound) -> None:
    bound.process.send_signal(signal.SIGINT)

    eventually((bound.folder / "unwound").exists, "the work is interrupted")
    check_gone(bound)
    assert bound.process.wait(DEADLINE_S) == 128 + signal.SIGINT


def test_interrupt_that_comes_before_the_worker_heeds_it_is_not_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_EARLY], check=False, timeout=DEADLINE_S
    )

    assert done.returncode == 128 + signal.SIGINT


def test_exit_code_is_that_of_the_work(tmp_path: Path) -> None:
    one = Bound(tmp_path, "ends")
    one.let_spared_end()

    assert one.process.wait(DEADLINE_S) == 7
    assert not one.is_there("daemon")
    assert one.pid("daemon") not in read_processes()
