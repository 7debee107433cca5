"""The list by which a job's unmarked processes are found once launcher and guardian are dead."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.processes.process_list import read_list, write_list
from recovery.launcher.processes.process_tree import (
    ProcessRef,
    fence_leftovers,
    is_alive,
    read_state,
)
from tests.support.eventually import deadline_s, eventually
from tests.support.faults.process import kill

pytestmark = [pytest.mark.process, pytest.mark.safety]

# A daemon as careful ones do it: its own session, forked twice, and an empty environment.
UNMARKED = """
import os, sys, time
NOTE_AND_SLEEP = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", NOTE_AND_SLEEP, sys.argv[1]], {})
    os._exit(0)
time.sleep(600)
"""


@pytest.fixture
def sleeper() -> Iterator[ProcessRef]:
    process = subprocess.Popen(["sleep", "600"])
    state = read_state(process.pid)
    assert state is not None
    yield ProcessRef(process.pid, state.start_ticks)
    process.kill()
    process.wait()


def test_list_returns_what_still_runs(tmp_path: Path, sleeper: ProcessRef) -> None:
    file = str(tmp_path / "processes")
    write_list(file, [(sleeper.pid, sleeper.start_ticks), (sleeper.pid, 1), (2**22, 5)])

    assert read_list(file) == (sleeper,)


@pytest.mark.parametrize("change", [("-", "+"), ("\n", "\nx "), ("\n", "")])
def test_list_of_another_boot_or_torn_or_forged_counts_as_missing(
    tmp_path: Path, sleeper: ProcessRef, change: tuple[str, str]
) -> None:
    file = tmp_path / "processes"
    write_list(str(file), [(sleeper.pid, sleeper.start_ticks)])
    file.write_text(file.read_text().replace(*change))

    assert read_list(str(file)) == ()


def test_a_link_in_place_of_the_list_is_not_followed(tmp_path: Path, sleeper: ProcessRef) -> None:
    write_list(str(tmp_path / "elsewhere"), [(sleeper.pid, sleeper.start_ticks)])
    (tmp_path / "processes").symlink_to(tmp_path / "elsewhere")

    assert read_list(str(tmp_path / "processes")) == ()


def test_an_unmarked_daemon_is_fenced_after_guardian_and_rank_were_killed(tmp_path: Path) -> None:
    job_id = str(uuid.uuid4())
    file, pid_file = tmp_path / "processes", tmp_path / "daemon"
    guardian = Guardian.start(job_id, process_list=file)
    env = {"PATH": os.environ["PATH"], "RANKMEND_JOB_ID": job_id, "RANKMEND_ATTEMPT": "1"}
    argv = [sys.executable, "-c", UNMARKED, str(pid_file)]
    guardian.spawn(Spawn(1, 0, argv, env, "/", 1, 2))

    def listed_daemon() -> ProcessRef | None:
        pid = int(pid_file.read_text() or 0) if pid_file.exists() else 0
        return next((ref for ref in read_list(str(file)) if ref.pid == pid), None)

    daemon = eventually(listed_daemon, lambda: f"the daemon is listed: {read_list(str(file))}")

    kill(guardian.pid)
    guardian.close()
    listed = read_list(str(file))
    left = fence_leftovers(job_id, None, deadline_s(), listed=listed)

    assert left.is_empty
    assert not is_alive(daemon)
