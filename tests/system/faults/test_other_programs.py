"""Ranks behind a program that starts their Python: a shell script, another launcher, or the script itself."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.torch_here import needs_torch
from tests.system.faults.harness import Job, children, guardian_of, kill

pytestmark = [pytest.mark.process, pytest.mark.torch]
Make = Callable[..., Job]
RARE = pytest.mark.thorough  # each takes PyTorch's import in six processes
INNER = Path(__file__).parent / "jobs" / "inner_ranks.py"
ALONE = INNER.with_name("alone.py")


def test_steps_are_counted_behind_a_shell_script_and_its_python_is_restarted_when_it_is_killed(
    make_job: Make,
) -> None:
    needs_torch()
    job = make_job("", world_size=1, flags=["--no-python"])
    job.script = job.folder / "wrapper.sh"
    job.script.write_text(f'#!/bin/sh\n{sys.executable} {shlex.quote(str(ALONE))} "$@"\n')
    job.script.chmod(0o755)
    job.arguments = [
        f"--folder={job.checkpoints}",
        f"--let-go={job.let_go}",
        "--resume",
        "{checkpoint}",
    ]
    job.start()
    pids = job.pids_at_step(25)
    assert b"alone.py" in Path(f"/proc/{pids[0]}/cmdline").read_bytes()

    kill(pids[0])

    assert_restarted_at_20(job)
    assert "starts ranks of its own" not in job.output


def assert_restarted_at_20(job: Job) -> None:
    job.pids_at_step(30, attempt=2)
    assert job.wait() == 0, job.output
    (incident,) = job.incidents
    assert incident.failure.step is not None
    assert incident.failure.step >= 25
    restored = eventually(lambda: job.attempts[1].choice.restore, "a checkpoint is restored")
    assert restored.step == 20


def test_what_a_shell_script_does_after_its_training_is_no_hang(make_job: Make) -> None:
    needs_torch()
    job = make_job(
        "", world_size=1, flags=["--no-python", "--hang-min=9", "--hang-max=9", "--hang-stopped=1"]
    )
    python, training = sys.executable, shlex.quote(str(ALONE))
    job.script = job.folder / "wrapper.sh"
    job.script.write_text(
        f'#!/bin/sh\n{python} -c "import torch"\n{python} {training} "$@"\n'
        f'sleep 20\n{python} {training} "$@"\necho all done\n'
    )
    job.script.chmod(0o755)
    job.arguments = [f"--folder={job.checkpoints}", f"--let-go={job.let_go}"]
    job.start()
    job.pids_at_step(25)

    assert job.wait() == 0, job.output

    assert job.incidents == []
    assert len(job.attempts) == 1
    assert job.output.count("all done") == 1


def by_script(how: str) -> Callable[[Path, str], tuple[Path, list[str]]]:
    def start(_folder: Path, _python: str) -> tuple[Path, list[str]]:
        return INNER, [how]

    return start


def by_accelerate(folder: Path, python: str) -> tuple[Path, list[str]]:
    pytest.importorskip("accelerate")
    program = folder / "accelerate"
    program.write_text(f"#!{python}\nfrom accelerate.commands.accelerate_cli import main\nmain()\n")
    program.chmod(0o755)
    return program, [
        "launch",
        "--cpu",
        "--num_processes=2",
        "--num_machines=1",
        str(INNER),
        "in place",
    ]


def by_deepspeed(folder: Path, python: str) -> tuple[Path, list[str]]:
    pytest.importorskip("deepspeed")
    program = folder / "deepspeed"
    program.write_text(f"#!{python}\nfrom deepspeed.launcher.runner import main\nmain()\n")
    program.chmod(0o755)
    return program, ["--num_gpus=2", "--no_local_rank", str(INNER), "in place"]


def by_torchrun(folder: Path, python: str) -> tuple[Path, list[str]]:
    program = folder / "torchrun"
    program.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
    program.chmod(0o755)
    return program, ["--standalone", "--nproc-per-node=2", str(INNER), "in place"]


def by_debug_launcher(_folder: Path, _python: str) -> tuple[Path, list[str]]:
    pytest.importorskip("accelerate")
    return INNER, ["debug_launcher"]


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(by_script("spawn"), id="torch.multiprocessing.spawn"),
        pytest.param(by_script("fork"), id="start_processes by fork"),
        pytest.param(by_script("forkserver"), id="start_processes by forkserver", marks=RARE),
        pytest.param(by_script("torchrun"), id="torchrun as a subprocess", marks=RARE),
        pytest.param(by_torchrun, id="torchrun"),
        pytest.param(by_accelerate, id="accelerate launch", marks=RARE),
        pytest.param(by_debug_launcher, id="debug_launcher", marks=RARE),
        pytest.param(by_deepspeed, id="deepspeed", marks=RARE),
    ],
)
def test_ranks_that_the_script_starts_report_steps_and_come_back_after_a_kill(
    make_job: Make, start: Callable[[Path, str], tuple[Path, list[str]]]
) -> None:
    needs_torch()
    job = make_job("", world_size=1)
    job.script, first = start(job.folder, sys.executable)
    job.flags = [] if job.script == INNER else ["--no-python"]
    job.arguments = [*first, str(job.checkpoints), str(job.let_go), "{checkpoint}"]
    job.start()
    pid = job.pids_at_step(25)[0]
    assert pid not in children(guardian_of(job)), "one that the rank has started reports"

    kill(pid)

    assert_restarted_at_20(job)
    if start is by_torchrun:
        assert "starts ranks of its own" in job.output
