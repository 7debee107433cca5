"""The launcher's loop with real ranks; the test plays the controller."""

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import LeaseExpired, SpawnFailed
from recovery.launcher.processes.process_tree import find_marked, read_state
from recovery.launcher.rank_starter import RankStarter
from recovery.launcher.ranks.launched import LaunchedAttempt
from recovery.launcher.ranks.waiting_processes import WaitingProcesses
from recovery.messages.exchange import (
    RankStart,
    Report,
    Restore,
    StartKind,
    Stop,
)
from tests.support.eventually import DEADLINE_S
from tests.support.faults.process import kill, stop
from tests.support.launcher_bench import STEPS, Node, both, make_node

pytestmark = [pytest.mark.process, pytest.mark.safety]

__all__ = ["make_node"]  # a fixture


def steps(report: Report) -> list[int]:
    return [rank.steps_done for rank in report.ranks]


def test_ranks_that_are_ordered_run_and_tell_of_their_steps(
    make_node: Callable[[str], Node],
) -> None:
    node = make_node(STEPS)

    node.send()
    report = node.wait(lambda report: both(report, lambda rank: rank.steps_done >= 3))

    assert (report.attempt, report.revision) == (1, 1)
    assert [rank.local_rank for rank in report.ranks] == [0, 1]
    assert all(rank.attached_age_s is not None for rank in report.ranks)
    first = [one.ranks[0] for one in node.reports if one.ranks]
    assert [rank.start for rank in first] == [
        RankStart(StartKind.FRESH) if rank.pid else None for rank in first
    ]
    numbers = [timing.number for rank in first for timing in rank.timings]
    assert numbers[:3] == [1, 2, 3]
    assert numbers == sorted(set(numbers))


def test_the_same_order_twice_starts_nothing_twice(make_node: Callable[[str], Node]) -> None:
    node = make_node(STEPS)
    node.send()
    first = node.wait(lambda report: both(report, lambda rank: rank.steps_done >= 1))

    node.send()
    node.send(revision=2)
    second = node.wait(lambda report: report.revision == 2)

    assert [rank.pid for rank in second.ranks] == [rank.pid for rank in first.ranks]


def test_an_order_without_ranks_leaves_none_and_proves_it(make_node: Callable[[str], Node]) -> None:
    node = make_node(STEPS)
    node.send()
    node.wait(lambda report: both(report, lambda rank: rank.steps_done >= 1))

    node.send(revision=2, ranks=())
    report = node.wait(lambda report: report.revision == 2)

    assert report.empty_through >= 1
    assert not find_marked(str(node.job_id))


def test_a_newer_attempt_starts_only_after_the_older_is_gone(
    make_node: Callable[[str], Node],
) -> None:
    node = make_node(STEPS)
    node.send()
    node.wait(lambda report: both(report, lambda rank: rank.steps_done >= 1))

    node.send(revision=2, attempt=2, restore=Restore("/ckpt/5", 5), restarts=1)
    node.wait(
        lambda report: report.attempt == 2 and both(report, lambda rank: rank.steps_done >= 1)
    )

    marked = find_marked(str(node.job_id))
    assert {ref.attempt for ref in marked} == {2}


def test_a_patient_stop_lets_the_ranks_save(make_node: Callable[[str], Node]) -> None:
    node = make_node(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        + STEPS
    )
    node.send()
    node.wait(lambda report: both(report, lambda rank: rank.steps_done >= 1))

    node.send(revision=2, ranks=(), stop=Stop.GRACE, grace_s=20.0)
    node.wait(lambda report: report.revision == 2)

    assert node.console.shown[1].count(b"saved\n") == 2
    assert not find_marked(str(node.job_id))


def test_an_exception_is_reported_with_its_traceback(make_node: Callable[[str], Node]) -> None:
    node = make_node("raise ValueError('no such thing')")

    node.send()
    report = node.wait(lambda report: both(report, lambda rank: rank.exit is not None))

    exits = [rank.exit for rank in report.ranks]
    assert [(one.exit_code, one.by_launcher) for one in exits if one] == [(1, False), (1, False)]
    assert exits[0] is not None
    assert exits[0].error is not None
    assert (exits[0].error.type_name, exits[0].error.message) == ("ValueError", "no such thing")


def test_a_program_that_is_missing_is_reported_and_nothing_is_left(
    make_node: Callable[..., Node],
) -> None:
    node = make_node(argv=("/no/such/program",))

    node.send()
    report = node.wait(lambda report: report.launch_error is not None)

    assert "/no/such/program" in (report.launch_error or "")
    node.send(revision=2, ranks=())
    node.wait(lambda report: report.revision == 2 and report.empty_through >= 1)


def test_children_that_outlive_ranks_which_ended_well_are_ended(
    make_node: Callable[[str], Node], tmp_path: Path
) -> None:
    node = make_node(
        "import os, subprocess\n"
        "child = subprocess.Popen(['sleep', '6000'], start_new_session=True)\n"
        f"with open(f'{tmp_path}/child-{{os.environ[\"RANK\"]}}', 'w') as file:\n"
        "    file.write(str(child.pid))\n"
    )

    node.send()
    report = node.wait(lambda report: report.empty_through >= 1)

    assert [rank.exit.exit_code for rank in report.ranks if rank.exit] == [0, 0]
    children = [int((tmp_path / f"child-{rank}").read_text()) for rank in (0, 1)]
    assert [read_state(pid) for pid in children] == [None, None], "sooner than by themselves"
    assert not find_marked(str(node.job_id))


def test_a_broken_progress_file_is_reported_and_stops_nothing(
    make_node: Callable[[str], Node],
) -> None:
    node = make_node(STEPS)
    node.send()
    node.wait(lambda report: both(report, lambda rank: rank.steps_done >= 1))

    path = node.runtime.path / "attempt-1" / "rank-1.progress"
    os.truncate(path, 100)
    report = node.wait(lambda report: bool(report.ranks[1].progress_error))

    assert "rank-1.progress" in (report.ranks[1].progress_error or "")
    assert report.ranks[0].progress_error is None


def test_a_stopped_guardian_is_woken_and_tells_of_the_rank_that_died_meanwhile(
    make_node: Callable[[str], Node],
) -> None:
    node = make_node(STEPS)
    node.send()
    before = node.wait(lambda report: both(report, lambda rank: rank.steps_done >= 1))

    stop(node.launcher.guardian_pid)
    kill(before.ranks[1].pid)

    report = node.wait(lambda report: report.ranks[1].exit is not None)
    assert report.ranks[1].exit is not None
    assert report.ranks[1].exit.signal == signal.SIGKILL


def test_a_guardian_that_is_killed_takes_the_ranks_with_it_and_is_replaced(
    make_node: Callable[[str], Node],
) -> None:
    node = make_node(STEPS)
    node.send()
    before = node.wait(lambda report: both(report, lambda rank: rank.steps_done >= 1))

    os.kill(node.launcher.guardian_pid, signal.SIGKILL)
    report = node.wait(lambda report: both(report, lambda rank: rank.exit is not None))

    assert [rank.exit.signal for rank in report.ranks if rank.exit] == [9, 9]
    node.wait(lambda report: report.empty_through >= 1)
    node.send(revision=2, attempt=2)
    after = node.wait(
        lambda report: report.attempt == 2 and both(report, lambda rank: rank.steps_done >= 1)
    )
    assert not {rank.pid for rank in before.ranks} & {rank.pid for rank in after.ranks}


def test_a_rank_whose_lease_ended_before_it_was_forked_is_told_as_ended_by_its_launcher(
    make_node: Callable[[str], Node],
) -> None:
    node = make_node(STEPS)
    node.launcher.finish()
    node.thread.join(DEADLINE_S)
    starter = RankStarter(node.plan, node.store, node.output, node.runtime, ForkingProcesses())
    attempt = LaunchedAttempt(1, 0.0)
    starter.make_ranks(node.order, attempt)
    node.launcher._attempt = attempt
    node.launcher._take_event(LeaseExpired(1))

    node.launcher._take_event(SpawnFailed(1, 1, errno.ESTALE, "attempt 1 is fenced"))

    told = attempt.ranks[1].report(time.monotonic)
    assert told.exit is not None
    assert told.exit.by_launcher
    assert attempt.ranks[0].exit is None


class ForkingProcesses(WaitingProcesses):
    """Forks each rank, as far as anyone is told."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.failed: list[SpawnFailed] = []

    def start(self, guardian: Guardian, spawn: Spawn, tells_to: Path | None) -> RankStart:
        return RankStart(StartKind.FORKED)

    def note_failed_fork(self, guardian: Guardian, failed: SpawnFailed) -> None:
        self.failed.append(failed)


class SpawningGuardian(Guardian):
    def __init__(self) -> None:
        self.spawned: list[int] = []

    def spawn(self, spawn: Spawn) -> None:
        self.spawned.append(spawn.rank)


def test_a_rank_that_could_not_be_forked_is_started_afresh_unless_it_was_fenced(
    make_node: Callable[[str], Node],
) -> None:
    node = make_node(STEPS)
    waiting, guardian = ForkingProcesses(), SpawningGuardian()
    starter = RankStarter(node.plan, node.store, node.output, node.runtime, waiting)
    attempt = LaunchedAttempt(1, 0.0)
    starter.make_ranks(node.order, attempt)
    starter.start(node.order, attempt, guardian)
    late = SpawnFailed(1, 0, errno.ETIMEDOUT, "no rank was forked in 3 s")
    fenced = SpawnFailed(1, 1, errno.ESTALE, "attempt 1 is fenced")

    assert starter.start_again(late, guardian)
    assert starter.start_again(fenced, guardian)

    assert guardian.spawned == [0]
    assert waiting.failed == [late]
    afresh, forked = attempt.ranks[0], attempt.ranks[1]
    assert afresh.report(time.monotonic).start is None, "it has no process yet"
    afresh.pid = forked.pid = os.getpid()
    assert afresh.report(time.monotonic).start == RankStart(StartKind.FRESH, late.message)
    assert forked.report(time.monotonic).start == RankStart(StartKind.FORKED)
    assert not starter.start_again(late, guardian), "it was started afresh already"
    attempt.close()
