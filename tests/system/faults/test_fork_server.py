"""Restarts out of a fork server, in whole jobs."""

import json
import os
import shutil
import signal
from collections.abc import Callable

import pytest

from recovery.launcher.processes.process_tree import find_marked
from tests.support.eventually import eventually
from tests.support.torch_here import needs_torch
from tests.system.faults.harness import (
    Job,
    assert_recovered,
    is_alive,
    kill,
    paced_training,
    ready_server,
    starts,
)

pytestmark = pytest.mark.process
Make = Callable[..., Job]


def test_ranks_are_forked_at_each_restart_and_end_with_the_same_result(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair()
    job.start()
    job.pids_at_step(3)
    assert starts(job) == {("forked", None)}, "by the imports at the head of the script"
    server = ready_server(job)

    kill(job.pids_at_step(10)[1])
    second = job.pids_at_step(20, attempt=2)
    assert starts(job) == {("forked", None)}
    kill(second[0])
    third = job.pids_at_step(30, attempt=3)

    assert starts(job) == {("forked", None)}
    assert not set(second.values()) & set(third.values())
    assert is_alive(server), "the same one, which is ready at once"
    assert_recovered(job, undisturbed_pair, incidents=2)
    assert not is_alive(server)


def test_a_server_killed_in_training_stops_no_rank_and_the_next_restart_is_an_ordinary_one(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair()
    job.start()
    job.pids_at_step(3)
    server = ready_server(job)
    kill(job.pids_at_step(5)[1])
    second = job.pids_at_step(12, attempt=2)

    kill(server)
    assert job.pids_at_step(20, attempt=2) == second, "the same ranks go on"

    kill(second[1])
    assert_recovered(job, undisturbed_pair, incidents=2)


def test_a_stopped_server_costs_the_quick_start_and_nothing_else(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair()
    job.start()
    job.pids_at_step(3)
    server = ready_server(job)

    os.kill(server, signal.SIGSTOP)
    kill(job.pids_at_step(5)[1])

    job.pids_at_step(12, attempt=2)
    assert {start for start, _why in starts(job)} == {"fresh"}
    assert_recovered(job, undisturbed_pair, incidents=1)


def test_a_killed_launcher_leaves_no_forked_rank_and_no_server(make_pair: Make) -> None:
    job = make_pair()
    job.start()
    job.pids_at_step(3)
    ready_server(job)
    kill(job.pids_at_step(5)[1])
    job.pids_at_step(8, attempt=2)

    job.signal(signal.SIGKILL)
    job.wait()

    eventually(lambda: not find_marked(job.job_id), "no process is left")


def test_a_daemon_of_a_forked_rank_is_found_by_its_mark(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair()
    pid_file = job.folder / "daemon"
    job.arguments.append(f"--forked={pid_file}")
    job.start()
    job.pids_at_step(3)
    ready_server(job)
    kill(job.pids_at_step(5)[1])
    ranks = job.pids_at_step(15, attempt=2)
    daemon = int(eventually(lambda: pid_file.exists() and pid_file.read_text(), "the daemon"))

    kill(ranks[1])
    job.pids_at_step(20, attempt=3)

    assert not is_alive(daemon)
    assert_recovered(job, undisturbed_pair, incidents=2)


@pytest.mark.torch
def test_an_unchanged_pytorch_script_is_forked_and_still_seen(make_job: Make) -> None:
    needs_torch()
    job = make_job("", world_size=2)
    job.script = paced_training(job)
    job.arguments = [f"--folder={job.checkpoints}", "--epochs=100000", "--steps-per-epoch=10"]
    job.start()
    job.pids_at_step(15)
    ready_server(job)

    kill(job.pids_at_step(20)[1])
    job.pids_at_step(22, attempt=2)

    assert starts(job) == {("forked", None)}
    job.signal(signal.SIGINT)
    assert job.wait() in (0, 130), job.output
    assert len(job.incidents) == 1


SETS_VARIABLES = """
import os, runpy, sys

began = os.environ.get("TORCH_DISTRIBUTED_DEBUG")
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"  # read once, at this import
import torch.distributed

os.environ["TOKENIZERS_PARALLELISM"] = "false"
place = "{folder}/met-%s-%s" % (os.environ["RANKMEND_ATTEMPT"], os.environ["RANK"])
with open(place, "w") as file:
    file.write("%s %s" % (began, torch.distributed.get_debug_level().name))
runpy.run_path("{script}", run_name="__main__")
"""


@pytest.mark.torch
def test_pytorch_meets_in_a_forked_rank_the_variables_that_the_script_had_set(
    make_job: Make,
) -> None:
    needs_torch()
    job = make_job("", world_size=2)
    job.script = job.folder / "sets_variables.py"
    train = paced_training(job)
    job.script.write_text(SETS_VARIABLES.format(folder=job.folder, script=train))
    job.arguments = [f"--folder={job.checkpoints}", "--epochs=100000", "--steps-per-epoch=10"]
    job.start()
    job.pids_at_step(15)
    ready_server(job)

    kill(job.pids_at_step(20)[1])
    job.pids_at_step(22, attempt=2)

    assert starts(job) == {("forked", None)}
    met = {path.name: path.read_text() for path in job.folder.glob("met-*")}
    assert met == {f"met-{attempt}-{rank}": "None INFO" for attempt in (1, 2) for rank in (0, 1)}
    job.signal(signal.SIGINT)
    assert job.wait() in (0, 130), job.output


def test_the_next_runs_first_ranks_are_forked_and_a_kill_soon_after_costs_little(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair()
    another = job.folder / "another"
    job.start("--job=another", f"--checkpoint-dir={another}", f"--state-dir={another}-state")
    kept = eventually(
        lambda: list(job.folder.glob("another-state/imports/*.json")), "a list is kept"
    )
    assert job.wait() == 0, job.output
    job.let_go.unlink()
    shutil.rmtree(job.checkpoints)
    shutil.copytree(kept[0].parent, job.state / "imports")
    job.state.chmod(0o700)

    job.start()
    ranks = job.pids_at_step(2)

    assert starts(job) == {("forked", None)}
    kill(ranks[1])
    job.pids_at_step(5, attempt=2)
    assert starts(job) == {("forked", None)}
    assert_recovered(job, undisturbed_pair, incidents=1)


def test_a_job_that_is_interrupted_while_its_ranks_wait_for_the_server_ends_without_them(
    make_pair: Make,
) -> None:
    job = make_pair()
    packages = job.folder / "site-packages"
    packages.mkdir()
    slow = packages / "slow.py"
    slow.write_text("import time; time.sleep(600)")
    job.environment = {"PYTHONPATH": str(packages)}
    job.start("--job=another", f"--state-dir={job.folder / 'another'}")
    kept = eventually(lambda: list(job.folder.glob("another/imports/*.json")), "a list is kept")
    assert job.wait() == 0, job.output
    job.let_go.unlink()
    shutil.rmtree(job.checkpoints)
    told = json.loads(kept[0].read_text())
    told["told"]["modules"].append(["slow", str(slow)])
    kept[0].write_text(json.dumps(told))
    shutil.copytree(kept[0].parent, job.state / "imports")
    job.state.chmod(0o700)
    job.start()
    eventually(lambda: job.has_state and find_marked(job.job_id), "the server imports")
    eventually(lambda: job.attempts, "the ranks are ordered")

    job.signal(signal.SIGINT)

    assert job.wait() == 130, job.output
    assert not list(job.checkpoints.glob("step-*"))
    assert "makes progress" not in job.output


def test_without_a_fork_server_there_is_none(make_pair: Make) -> None:
    job = make_pair(flags=["--no-fork-server"])
    job.start()
    ranks = job.pids_at_step(3)
    kill(ranks[1])
    job.pids_at_step(5, attempt=2)

    assert starts(job) == {("fresh", None)}
    assert {ref.attempt for ref in find_marked(job.job_id)} == {2}
    assert job.wait() == 0, job.output
