"""What tests wait for: rankmend's processes name what they have reached, and a rank learns nothing of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend.milestones import ENV_MILESTONES_FD, ProcessMilestone, name_milestone
from tests.support.eventually import DEADLINE_S
from tests.support.milestones import Milestones, milestones

pytestmark = pytest.mark.process

# Notes what of the descriptor it has inherited, and is killed in its first attempt.
SCRIPT = """
import os, pathlib, signal, sys
import rankmend
leaked = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2
          and os.path.exists(f"/proc/self/fd/{name}")]
pathlib.Path(sys.argv[1]).write_text("\\n".join([*leaked, os.environ.get("RANKMEND_MILESTONES_FD", "no variable")]))
for step in range(1, 6):
    rankmend.step(step)
if os.environ["RANKMEND_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def start(folder: Path, seen: Milestones) -> subprocess.Popen[bytes]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "rankmend.cli", "run", "--standalone", "--nproc-per-node=1"]
    return subprocess.Popen(
        [*command, f"--state-dir={folder / 'state'}", str(script), str(folder / "noted")],
        cwd=folder,
        env={**os.environ, **seen.environment},
        pass_fds=[seen.descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_each_process_names_what_it_has_reached_in_order(tmp_path: Path) -> None:
    with milestones() as seen:
        launcher = start(tmp_path, seen)
        guardian = seen.wait("guardian", ProcessMilestone.READY)
        first = seen.wait("controller", ProcessMilestone.ORDER_SENT)
        assert launcher.wait(DEADLINE_S) == 0

        fenced = seen.wait("launcher", ProcessMilestone.FENCED, 1)
        seen.wait("controller", ProcessMilestone.STEP_SEEN, 5)

    killed = next(line for line in seen.reached if line.milestone is ProcessMilestone.KILLED)
    assert (killed.process, killed.pid) == ("guardian", guardian.pid)
    assert fenced.pid == first.pid == launcher.pid
    assert seen.reached.index(killed) < seen.reached.index(fenced), "proved before it is believed"
    noted = (tmp_path / "noted").read_text().splitlines()
    assert noted[-1] == "no variable"
    assert not [path for path in noted if path.startswith("pipe:")]


def test_without_the_variable_nothing_is_written_and_nothing_fails() -> None:
    assert ENV_MILESTONES_FD not in os.environ

    name_milestone("launcher", ProcessMilestone.READY)


def test_reader_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    with milestones() as seen:
        os.dup2(os.open(os.devnull, os.O_RDONLY), seen.descriptor)  # writing there fails

        assert start(tmp_path, seen).wait(DEADLINE_S) == 0
