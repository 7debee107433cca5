"""The fork server in whole jobs that have it hard: killed launchers, kill after kill, no room."""

import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rankmend.hook import forking
from recovery.journal.attempt_records import AttemptVerified
from recovery.launcher.processes.process_tree import find_marked
from tests.support.eventually import eventually
from tests.support.faults.storage import fill
from tests.system.faults.conftest import run_undisturbed
from tests.system.faults.harness import (
    Job,
    assert_recovered,
    command_of,
    guardian_of,
    is_alive,
    kill,
    kill_launcher,
    ready_server,
    session_of,
    starts,
)

pytestmark = [pytest.mark.process, pytest.mark.safety]
Make = Callable[..., Job]
SUPPORT = Path(__file__).parents[2] / "support"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")
KILLS = 24
# Of those before, nothing depends on the launcher: the process waits for a rank.
STAGES = [
    stage.__name__ for stage in forking.STAGES[forking.STAGES.index(forking.await_a_rank) + 1 :]
]


def ready(job: Job) -> int:
    """Start a job, and return the pid of its server once that is ready."""
    job.start()
    job.pids_at_step(3)
    return ready_server(job)


def test_a_launcher_killed_at_any_stage_of_a_forked_rank_is_taken_over(
    make_pair: Make,
) -> None:
    job = make_pair("--steps=1000000")
    job.arguments.append(f"--until={job.folder / 'until'}")
    site = job.folder / "own-site"
    site.mkdir()
    faults = (SUPPORT / "faults" / "stop_at_stage.py").read_text()
    (site / "sitecustomize.py").write_text(faults)

    attempt = 1
    for stage in STAGES:
        stopped, begin = job.folder / f"stopped-{stage}", job.folder / f"begin-{stage}"
        job.environment = {
            "PYTHONPATH": str(site),
            "STOP_AT": stage,
            "STOPPED": str(stopped),
            "STOP_FROM": str(begin),  # the ranks of a launcher's first attempt are forked, too
        }
        job.start()
        ranks = job.pids_at_step(1, attempt=attempt)
        ready_server(job)
        begin.touch()
        kill(ranks[1])
        await_content(stopped)
        kill_launcher(job)
        await_end(int(pid) for pid in stopped.read_text().split())
        attempt = job.attempts[-1].attempt + 1
    job.environment = {}
    job.start()

    job.pids_at_step(1, attempt=attempt)
    (job.folder / "until").touch()
    assert job.wait() == 0, job.output
    assert len(job.incidents) == len(STAGES)
    assert job.result()["state"] == after(job.result()["step"])


def await_end(pids: Iterable[int]) -> None:
    """Wait for the end of processes that may not carry the job's mark yet."""
    for pid in pids:
        eventually(partial(is_gone, pid), f"process {pid} has ended")


def is_gone(pid: int) -> bool:
    return not is_alive(pid)


def await_content(path: Path) -> None:
    eventually(lambda: path.exists() and path.read_text(), f"a rank writes {path.name}")


def test_a_launcher_killed_while_forked_ranks_train_is_taken_over(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair()
    ready(job)
    kill(job.pids_at_step(5)[1])
    ranks = job.pids_at_step(12, attempt=2)

    kill_launcher(job)
    eventually(lambda: not any(map(is_alive, ranks.values())), "the kernel is done with the ranks")
    job.start()

    assert_recovered(job, undisturbed_pair, incidents=1)


def test_a_killed_guardian_takes_server_and_forked_ranks_along_and_both_come_back(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair()
    server = ready(job)
    kill(job.pids_at_step(5)[1])
    job.pids_at_step(12, attempt=2)

    kill(guardian_of(job))
    third = job.pids_at_step(20, attempt=3)

    assert not is_alive(server)
    assert starts(job) == {("forked", None)}, "by another server, which needed no trials"
    assert ready_server(job) != server
    kill(third[0])
    job.pids_at_step(30, attempt=4)
    assert starts(job) == {("forked", None)}
    assert_recovered(job, undisturbed_pair, incidents=3)


def test_forked_ranks_killed_in_mid_restore_are_forked_again(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair("--fail-in-restore", "--fail-rank=1")
    job.arguments += ["--fail-with=kill", "--fail-attempts=3"]
    server = ready(job)

    kill(job.pids_at_step(12)[1])
    job.pids_at_step(20, attempt=4)

    assert starts(job) == {("forked", None)}
    assert is_alive(server)
    assert_recovered(job, undisturbed_pair, incidents=1)


def holdings(job: Job, server: int) -> dict[str, int]:
    """Count what this job's own processes hold."""
    assert job.process is not None
    # Without those that wait for a rank: the server forks them while nothing is to do.
    pids = [one.pid for one in find_marked(job.job_id)]
    held = {"processes": sum(pid == server or session_of(pid) != server for pid in pids)}
    of = {"launcher": job.process.pid, "guardian": guardian_of(job), "server": server}
    for name, pid in of.items():
        held[f"descriptors of the {name}"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        held[f"threads of the {name}"] = len(list(Path(f"/proc/{pid}/task").iterdir()))
        held[f"mappings of files by the {name}"] = command_maps(pid)
    held["files in memory"] = len(list(job.runtime.rglob("*")))
    return held


def command_maps(pid: int) -> int:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum("/dev/shm" in line or "memfd:" in line for line in lines)


def after(steps: int) -> list[float]:
    """Return the state of the lockstep job with two ranks after so many undisturbed steps."""
    state = np.ones(4, np.float32)
    for step in range(1, steps + 1):
        parts = [(state * (rank + 1) / 7 + step).astype(np.float32) for rank in (0, 1)]
        state = ((parts[0] + parts[1]) % 1000).astype(np.float32)
    return [float(value) for value in state]


@pytest.mark.timeout(900)
def test_kill_after_kill_ends_in_the_right_result_and_leaks_nothing(
    make_pair: Make,
) -> None:
    job = make_pair("--steps=1000000", "--every=1", "--keep=5")
    job.arguments.append(f"--until={job.folder / 'until'}")
    server = ready(job)
    kill(job.pids_at_step(1)[1])
    job.pids_at_step(1, attempt=2)
    before = holdings(job, server)

    for number in range(2, KILLS + 1):
        pids = job.pids_at_step(1, attempt=number)
        try:
            kill(pids[number % 2])
        except ProcessLookupError:
            pytest.fail(f"rank {number % 2} of attempt {number} has ended by itself:\n{job.output}")
    job.pids_at_step(1, attempt=KILLS + 1)

    assert starts(job) == {("forked", None)}
    now = holdings(job, server)
    # What comes and goes, such as a thread that reads a checkpoint, is far fewer than the kills.
    grown = {
        name: (before[name], now[name]) for name in now if now[name] - before[name] > KILLS / 6
    }
    assert grown == {}
    assert now["processes"] == before["processes"]
    (job.folder / "until").touch()
    assert job.wait() == 0, job.output
    assert len(job.incidents) == KILLS
    assert job.result()["state"] == after(job.result()["step"])


def test_eight_ranks_of_a_launcher_with_256_descriptors_are_forked(
    make_pair: Make, tmp_path: Path
) -> None:
    undisturbed = run_undisturbed(tmp_path / "undisturbed", "--step-s=0", world_size=8)
    job = make_pair(world_size=8)
    job.prefix = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
    ready(job)

    kill(job.pids_at_step(5)[7])
    job.pids_at_step(20, attempt=2)

    assert starts(job) == {("forked", None)}
    assert_recovered(job, undisturbed, incidents=1)


@needs_root
def test_ranks_come_back_while_shared_memory_is_full(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair("--fail-rank=1", "--fail-step=60")  # once the test lets it go
    job.prefix = ["unshare", "-m", "sh", "-c"]
    job.prefix += ['mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"', "sh"]
    job.start()
    eventually(lambda: job.has_state and job.records(AttemptVerified), "the first attempt trains")
    assert job.process is not None

    fill(Path(f"/proc/{job.process.pid}/root/dev/shm"))

    assert_recovered(job, undisturbed_pair, incidents=1)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_fails_while_it_imports_does_no_harm(
    make_pair: Make, undisturbed_pair: dict[str, object], signum: signal.Signals
) -> None:
    job = make_pair()
    job.start()
    ranks = job.pids_at_step(3)
    known = {*ranks.values(), guardian_of(job), os.getpid()}
    server = eventually(
        lambda: next(
            (
                one.pid
                for one in find_marked(job.job_id)
                if "fork_server" in command_of(one.pid) and session_of(one.pid) == one.pid
            ),
            None,
        ),
        "a server",
    )
    assert server not in known
    os.kill(server, signum)

    kill(job.pids_at_step(10)[1])

    job.pids_at_step(20, attempt=2)
    assert {start for start, _why in starts(job)} <= {"fresh", "forked"}
    assert_recovered(job, undisturbed_pair, incidents=1)
