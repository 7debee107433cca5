"""Consoles that nobody reads: `rankmend run | less`, Ctrl-S, an ssh connection that is dead."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from recovery.journal.attempt_records import AttemptVerified
from recovery.launcher.processes.process_tree import read_state
from recovery.local.report.overview import view_ranks
from tests.support.eventually import eventually
from tests.support.faults.console import Console, Pipe, Terminal
from tests.system.faults.harness import Job, kill

pytestmark = pytest.mark.process
Make = Callable[..., Job]


@pytest.fixture(params=[Terminal, Pipe])
def console(request: pytest.FixtureRequest) -> Iterator[Console]:
    console: Console = request.param()
    yield console
    console.close()


def test_recovery_waits_for_no_console_and_the_lines_come_once_it_is_read(
    make_lockstep: Make, console: Terminal | Pipe
) -> None:
    job = make_lockstep(console=console)
    end = job.folder / "end"
    job.arguments += ["--steps=1000000", f"--until={end}"]
    with console.hold():
        job.start()
        kill(job.pids_at_step(25)[1])
        job.pids_at_step(1, attempt=2)
        assert b"rankmend" not in console.shown
    console.hand_over()

    console.read_until(b"rankmend: attempt 2 makes progress on 4 ranks")
    end.touch()

    console.read_until(b"rankmend: done")
    assert job.wait() == 0
    assert b"rank 1 failed after step" in console.shown
    assert b"dropped" not in console.shown


def test_a_job_whose_console_is_never_read_again_ends_all_the_same(make_lockstep: Make) -> None:
    console = Pipe()
    job = make_lockstep(console=console)
    with console.hold():
        job.start()

        code = job.wait()

    assert code == 0
    console.close()


@pytest.mark.real_fault("console gone")
def test_a_console_that_is_gone_ends_no_training(make_lockstep: Make) -> None:
    console = Pipe()
    job = make_lockstep(console=console)
    job.start()
    console.close()

    kill(job.pids_at_step(25)[1])

    assert job.wait() == 0
    assert len(eventually(lambda: job.records(AttemptVerified), "verified")) == 2


ASKING = """
import os, sys, time
print("columns", os.get_terminal_size(1).columns, flush=True)
print("terminals", [stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)], flush=True)
answer = input("what? ")
while os.get_terminal_size(2).columns == 71:
    time.sleep(0.01)
print("answer", answer, os.get_terminal_size(2).columns)
"""


def test_ranks_have_the_users_terminal_as_under_torchrun(make_job: Make) -> None:
    console = Terminal()
    console.resize(24, 80)
    job = make_job("", world_size=1, console=console, stdin=console.inner)
    job.script = job.folder / "asking.py"
    job.script.write_text(ASKING)
    job.start()

    console.read_until(b"[rank 0] what? ")  # although its line has no end
    assert b"[rank 0] columns 71\r\n" in console.shown  # less the prefix
    assert b"terminals [True, True, True]" in console.shown
    console.resize(24, 100)
    job.signal(signal.SIGWINCH)  # a controlling terminal sends it
    console.type(b"yes\n")

    console.read_until(b"answer yes 91")
    assert job.wait() == 0
    console.close()


def test_a_pipe_into_rankmend_reaches_the_rank_and_no_pipe_out_of_it_is_a_terminal(
    make_job: Make,
) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"from a pipe\n")
    os.close(write_end)
    job = make_job("", world_size=1, stdin=read_end)
    job.script = job.folder / "reading.py"
    job.script.write_text("import sys; print(sys.stdin.read(), sys.stdout.isatty())")
    job.start()
    os.close(read_end)

    assert job.wait() == 0
    job.expect_output("[rank 0] from a pipe")
    job.expect_output("False")


def test_a_launcher_suspended_by_ctrl_z_says_so_and_its_ranks_train_on(make_lockstep: Make) -> None:
    job = make_lockstep()
    end = job.folder / "end"
    job.arguments += ["--steps=1000000", f"--until={end}"]
    job.start()
    job.pids_at_step(25)
    assert job.process is not None
    pid = job.process.pid

    job.signal(signal.SIGTSTP)

    eventually(lambda: (state := read_state(pid)) and state.letter == "T", "the launcher stops")
    job.expect_output("suspended by Ctrl-Z")
    job.pids_at_step(job_step(job) + 20)
    job.signal(signal.SIGCONT)
    end.touch()
    assert job.wait() == 0
    assert job.incidents == []


def job_step(job: Job) -> int:
    return max(rank.step or 0 for rank in view_ranks(job.runtime, time.monotonic))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGQUIT, 131), (signal.SIGHUP, 129), (signal.SIGTERM, 143)]
)
def test_each_signal_that_torchrun_handles_is_a_planned_stop(
    make_lockstep: Make, number: signal.Signals, code: int
) -> None:
    job = make_lockstep("--steps=1000000")
    job.start()
    job.pids_at_step(5)

    job.signal(number)

    assert job.wait() == code
    assert job.incidents == []
