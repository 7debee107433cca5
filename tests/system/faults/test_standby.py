"""Restarts out of processes that have imported the framework already."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.launcher.guardian.packets import STANDBY_ATTEMPT
from recovery.launcher.processes.process_tree import find_marked, read_state
from tests.support.eventually import eventually
from tests.support.torch_here import needs_torch
from tests.system.faults.harness import LOOK_AT_ALL_S, Job, assert_recovered, kill, paced_training

pytestmark = pytest.mark.process
Make = Callable[..., Job]


def ready_standbys(job: Job, count: int) -> list[int]:
    """Return the pids of this job's standbys once all have done their imports."""

    def look() -> list[int] | None:
        marked = find_marked(job.job_id)
        pids = [ref.pid for ref in marked if ref.attempt == STANDBY_ATTEMPT]
        is_ready = len(pids) == count and not list(job.runtime.glob("standby-*.log"))
        return pids if is_ready else None

    return eventually(look, f"{count} standbys are ready", pause_s=LOOK_AT_ALL_S)


def test_ranks_are_restarted_out_of_standbys_and_standbys_made_again(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(flags=["--standby=numpy,json"])
    job.start()
    job.pids_at_step(3)
    first = ready_standbys(job, 2)

    kill(job.pids_at_step(10)[1])
    second = job.pids_at_step(20, attempt=2)

    assert set(second.values()) == set(first), "the very processes that stood by"
    again = ready_standbys(job, 2)
    assert not set(again) & set(first)
    kill(second[0])
    assert_recovered(job, undisturbed_pair, incidents=2)
    eventually(
        lambda: not [pid for pid in (*first, *again) if read_state(pid) is not None],
        "the standbys are reaped",
    )


def test_a_promoted_rank_looks_like_one_that_was_started_afresh(make_job: Make) -> None:
    job = make_job("tell_itself.py", world_size=1)
    job.arguments = ["--flag", "{checkpoint}", "a b"]
    job.start("--no-fork-server")  # whose ranks would have one variable more
    assert job.wait() == 0, job.output
    fresh = told_by(job)
    job.flags = ["--standby=json"]
    job.environment = {"TELL_WAIT": "1"}
    job.start()
    job.pids_at_step(2, attempt=2)
    ready_standbys(job, 1)

    kill(job.pids_at_step(2, attempt=2)[0])

    assert job.wait() == 0, job.output
    warm = told_by(job)
    changes = {"attempt": "3", "mark": "3"}
    assert warm == {**fresh, **changes}


def told_by(job: Job) -> dict[str, str]:
    lines = [line.removeprefix("[rank 0] ") for line in job.output.splitlines()]
    start = len(lines) - 1 - lines[::-1].index("tells:")
    return dict(line.split("=", 1) for line in lines[start + 1 :] if "=" in line)


def test_an_exception_of_a_promoted_rank_shows_the_scripts_frames_only(
    make_pair: Make,
) -> None:
    job = make_pair(
        "--fail-rank=1",
        "--fail-step=60",  # once the test lets it go
        "--fail-attempts=99",
        flags=["--standby=numpy"],
    )
    job.start()
    ready_standbys(job, 2)

    kill(job.pids_at_step(5)[0])

    assert job.wait() == 1
    job.expect_output("ValueError: the loss is not a number")
    job.expect_output("lockstep.py")
    assert "hook/standby.py" not in job.output


def test_a_daemon_of_a_promoted_rank_is_found_by_its_mark(
    make_pair: Make, undisturbed_pair: dict[str, object], tmp_path: Path
) -> None:
    pid_file = tmp_path / "daemon"
    job = make_pair(f"--forked={pid_file}", flags=["--standby=numpy"])
    job.start()
    job.pids_at_step(3)
    ready_standbys(job, 2)
    kill(job.pids_at_step(5)[1])
    ranks = job.pids_at_step(15, attempt=2)
    daemon = int(eventually(lambda: pid_file.exists() and pid_file.read_text(), "the daemon"))

    kill(ranks[1])
    job.pids_at_step(20, attempt=3)

    eventually(lambda: read_state(daemon) is None, "the daemon is reaped")
    assert_recovered(job, undisturbed_pair, incidents=2)


def test_a_killed_launcher_leaves_no_standby(make_pair: Make) -> None:
    job = make_pair(flags=["--standby=numpy"])
    job.start()
    job.pids_at_step(3)
    ready_standbys(job, 2)

    job.signal(signal.SIGKILL)
    job.wait()

    eventually(lambda: not find_marked(job.job_id), "no process is left")


def test_standbys_that_can_not_import_are_given_up_and_the_job_goes_on(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(flags=["--standby=no_such_module"])
    job.start()

    eventually(lambda: "no more will be started" in job.output, "they are given up")
    kill(job.pids_at_step(5)[0])

    assert_recovered(job, undisturbed_pair, incidents=1)
    job.expect_output("No module named 'no_such_module'")


def test_a_standby_that_dies_is_replaced_by_an_ordinary_start(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(flags=["--standby=numpy"])
    job.start()
    job.pids_at_step(3)
    standbys = ready_standbys(job, 2)

    kill(job.pids_at_step(10)[1], *standbys)

    assert_recovered(job, undisturbed_pair, incidents=1)


@pytest.mark.parametrize("modules", ["", "torch; import os", "-x", "a..b"])
def test_modules_that_are_none_are_refused(make_pair: Make, modules: str) -> None:
    job = make_pair(flags=[f"--standby={modules}"])

    job.start()

    assert job.wait() == 2
    job.expect_output("is not a list of modules")


@pytest.mark.torch
def test_an_unchanged_pytorch_script_restarts_warm_and_is_still_seen(make_job: Make) -> None:
    needs_torch()
    job = make_job("", world_size=1, flags=["--standby=torch"])
    job.script = paced_training(job)
    job.arguments = [f"--folder={job.checkpoints}", "--epochs=100000", "--steps-per-epoch=10"]
    job.start()
    job.pids_at_step(15)
    standbys = ready_standbys(job, 1)

    kill(job.pids_at_step(20)[0])
    second = job.pids_at_step(22, attempt=2)
    assert set(second.values()) == set(standbys)
    job.signal(signal.SIGINT)

    assert job.wait() in (0, 130), job.output
    assert len(job.incidents) == 1
