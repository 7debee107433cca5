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
SCRIPT = """
import argparse, os, time
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--folder")
parser.add_argument("--let-go")
parser.add_argument("--resume")
options = parser.parse_args()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
step = 0
if options.resume:
    state = torch.load(options.resume)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while not os.path.exists(options.let_go):
    step += 1
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 20:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, options.folder + "/tmp")
        os.replace(options.folder + "/tmp", options.folder + "/step_20.pt")
"""


def in_shell(folder: Path, python: str) -> tuple[Path, list[str]]:
    wrapper = folder / "wrapper.sh"
    wrapper.write_text(f'#!/bin/sh\n{python} {shlex.quote(str(folder / "train.py"))} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper, []


def in_torchrun(folder: Path, python: str) -> tuple[Path, list[str]]:
    torchrun = folder / "torchrun"
    torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
    torchrun.chmod(0o755)
    return torchrun, ["--standalone", "--nproc-per-node=1", str(folder / "train.py")]


@pytest.mark.parametrize("behind", [in_shell, in_torchrun])
def test_steps_are_counted_behind_a_program_and_its_python_is_restarted_when_it_is_killed(
    make_job: Make, behind: Callable[[Path, str], tuple[Path, list[str]]]
) -> None:
    needs_torch()
    job = make_job("", world_size=1, flags=["--no-python"])
    (job.folder / "train.py").write_text(SCRIPT)
    job.script, first = behind(job.folder, sys.executable)
    job.arguments = [
        *first,
        f"--folder={job.checkpoints}",
        f"--let-go={job.let_go}",
        "--resume",
        "{checkpoint}",
    ]
    job.start()
    pids = job.pids_at_step(25)
    assert b"train.py" in Path(f"/proc/{pids[0]}/cmdline").read_bytes()

    kill(pids[0])
    job.pids_at_step(30, attempt=2)

    assert job.wait() == 0, job.output
    (incident,) = job.incidents
    assert incident.failure.step is not None
    assert incident.failure.step >= 25
    restored = eventually(lambda: job.attempts[1].choice.restore, "a checkpoint is restored")
    assert restored.step == 20
    assert ("starts ranks of its own" in job.output) is (behind is in_torchrun)


def test_what_a_shell_script_does_after_its_training_is_no_hang(make_job: Make) -> None:
    needs_torch()
    job = make_job(
        "", world_size=2, flags=["--no-python", "--hang-min=9", "--hang-max=9", "--hang-stopped=1"]
    )
    (job.folder / "train.py").write_text(SCRIPT)
    python, training = sys.executable, shlex.quote(str(job.folder / "train.py"))
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
    assert job.output.count("all done") == 2


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
    program, _options = in_torchrun(folder, python)
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
        pytest.param(by_torchrun, id="torchrun", marks=RARE),
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
    job.pids_at_step(30, attempt=2)

    assert job.wait() == 0, job.output
    (incident,) = job.incidents
    assert incident.failure.step is not None
    assert incident.failure.step >= 25
    restored = eventually(lambda: job.attempts[1].choice.restore, "a checkpoint is restored")
    assert restored.step == 20
