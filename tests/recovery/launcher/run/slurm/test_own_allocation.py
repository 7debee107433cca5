"""Launchers that host their controller have Slurm requeue their job, if they may, and never what others share."""

import stat
from pathlib import Path

import pytest

from recovery.launcher.run.slurm.own_allocation import OwnAllocation, OwnSlurm
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest

pytestmark = pytest.mark.process

# A job of two nodes. Slurm takes nodes to exclude only once the job was requeued.
SLURM = """#!/bin/sh
cd "$(dirname "$0")"
case "$(basename "$0") $*" in
  "scontrol show job 41")
    echo "JobId=41 JobName=j"; echo "   UserId=me({uid}) GroupId=me(7)"; echo "   JobState=$(cat state) Restarts=$(cat restarts) Requeue={may} BatchFlag=1"
    echo "   NodeList=n1,n2 BatchHost={batch_host} ExcNodeList=$(cat excluded)" ;;
  "scontrol show node n2 --oneliner") echo "NodeName=n2 State=IDLE" ;;
  "squeue --steps"*) printf '41.batch\\n41.0\\n{steps}' ;;
  "scontrol requeue 41")
    echo requeue >> acts; echo 1 > restarts; echo COMPLETING > state; {requeue_end} ;;
  "scontrol update jobid=41 excnodelist=n2")
    [ "$(cat state)" = COMPLETING ] || exit 1
    echo exclude >> acts; echo n2 > excluded ;;
  "scancel 41") echo cancel >> acts; {cancel_end} ;;
  *) echo "unexpected: $0 $*" >&2; exit 1 ;;
esac
"""
REQUEST = SchedulerRequest(
    "requeue/inc-1/41/0",
    SchedulerAction.REQUEUE,
    ("n2",),
    "41",
    "rank 1 was killed",
    "0",
    ("n1", "n2"),
    "0",
)


def programs(folder: Path, **changes: str) -> Path:
    """Make Slurm's programs in a folder."""
    facts = {
        **{"uid": "0", "may": "1", "steps": "", "requeue_end": "true"},
        **{"batch_host": "n1", "cancel_end": "true", **changes},
    }
    text = SLURM
    for name, value in facts.items():
        text = text.replace(f"{{{name}}}", value)
    (folder / "bin").mkdir()
    for name in ("scontrol", "squeue", "scancel"):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(stat.S_IRWXU)
    for name, value in {"state": "RUNNING", "restarts": "0", "excluded": "(null)"}.items():
        (folder / "bin" / name).write_text(changes.get(name, value))
    return folder / "bin"


def ask(folder: Path, slurm: Path, after_s: float | None, times: int = 1) -> str:
    """Ask for the requeue, each time by a launcher's next start, and return what was done to Slurm."""
    environment = {"PATH": f"{slurm}:/usr/bin:/bin"}
    for _time in range(times):
        own = OwnAllocation(OwnSlurm(environment, after_s), folder / "state")
        own.ask(REQUEST)
        own.close()
    acts = slurm / "acts"
    return acts.read_text() if acts.exists() else ""


def test_the_job_is_requeued_once_and_then_the_bad_nodes_are_excluded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(tmp_path, programs(tmp_path), 1.0, times=2) == "requeue\nexclude\n"
    assert "Slurm job 41 is requeued without n2: rank 1 was killed" in capsys.readouterr().err


def test_a_requeue_command_that_died_with_the_step_is_not_repeated(tmp_path: Path) -> None:
    slurm = programs(tmp_path, requeue_end="exit 1")

    assert ask(tmp_path, slurm, 1.0) == "requeue\nexclude\n"


@pytest.mark.parametrize(
    ("changes", "after_s", "why"),
    [
        ({}, None, "--slurm-requeue would have it requeued without n2"),
        ({"may": "0"}, 1.0, "it was submitted with --no-requeue"),
        ({"steps": "41.1\\n"}, 1.0, "job 41 is shared: a requeue would also end 41.1"),
        ({"uid": "7"}, 1.0, "job 41 is me's"),
        ({"restarts": "1"}, 1.0, "this start of it is being ended already"),
    ],
)
def test_nothing_is_done_and_people_are_told_why(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    after_s: float | None,
    why: str,
) -> None:
    assert ask(tmp_path, programs(tmp_path, **changes), after_s) == ""
    assert why in capsys.readouterr().err


def leave(folder: Path, slurm: Path, times: int = 1, **variables: str) -> str:
    """Let the host leave after the end of training, each time by its next start; return what was done to Slurm."""
    own = {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n2", **variables}
    for _time in range(times):
        allocation = OwnAllocation(
            OwnSlurm({"PATH": f"{slurm}:/usr/bin:/bin", **own}, None), folder / "state"
        )
        allocation.leave()
        allocation.close()
    acts = slurm / "acts"
    return acts.read_text() if acts.exists() else ""


def test_job_whose_batch_script_is_gone_with_its_node_is_ended_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(tmp_path, programs(tmp_path, batch_host="n0"), times=2) == "cancel\n"
    assert "its batch script is gone with n0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({"batch_host": "n1"}, {}),  # it lives
        ({"batch_host": ""}, {}),  # not told
        ({"state": "COMPLETING"}, {}),
        ({"steps": "41.1\\n"}, {}),  # another run of a sweep
        ({"uid": "7"}, {}),  # another user's: the variable is wrong
        ({}, {"SLURMD_NODENAME": "n9"}),  # not where this launcher runs
        ({}, {"SLURM_STEP_ID": ""}),  # no step
        ({}, {"SLURM_JOB_ID": "41; reboot"}),
    ],
)
def test_job_that_others_still_need_is_left(
    tmp_path: Path, changes: dict[str, str], variables: dict[str, str]
) -> None:
    slurm = programs(tmp_path, **{"batch_host": "n0", **changes})

    assert leave(tmp_path, slurm, **variables) == ""


def test_slurm_that_refuses_is_told_and_harms_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = programs(tmp_path, batch_host="n0", cancel_end="exit 1")

    assert leave(tmp_path, slurm) == "cancel\n"
    assert "may run on without a batch script" in capsys.readouterr().err
