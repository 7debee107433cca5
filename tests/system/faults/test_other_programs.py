"""Ranks behind a program that starts their Python: a shell script, another launcher, or the script itself."""

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.torch_here import needs_torch
from tests.system.faults.harness import Job, children, guardian_of, kill

pytestmark = [pytest.mark.process, pytest.mark.torch]
Make = Callable[..., Job]
INNER = Path(__file__).parent / "jobs" / "inner_ranks.py"
ALONE = INNER.with_name("alone.py")
WITHOUT_TORCH = INNER.with_name("alone_without_torch.py")
SAVED_EVERY = 20  # steps: each attempt of `INNER` saves once, at the next multiple


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
    python, training = sys.executable, shlex.quote(str(WITHOUT_TORCH))
    job.script = job.folder / "wrapper.sh"
    job.script.write_text(
        f'#!/bin/sh\n{python} -c "import torch"\n{python} {training} "$@"\n'
        f'sleep 20\n{python} {training} "$@"\necho all done\n'
    )
    job.script.chmod(0o755)
    job.arguments = [str(job.let_go)]
    job.start()
    job.pids_at_step(25)

    assert job.wait() == 0, job.output

    assert job.incidents == []
    assert len(job.attempts) == 1
    assert job.output.count("all done") == 1


def start_by(how: Sequence[str], job: Job) -> None:
    """Have the script start its ranks in these ways: each attempt in the next one, and then in the first again."""
    job.script = INNER
    job.arguments = [",".join(how)]


def launch_by(launchers: Sequence[Sequence[str]], job: Job) -> None:
    """Have each attempt start the script's ranks by the next of these programs, and the last one by the script itself."""
    job.flags = ["--no-python", "--store=ranks"]
    job.script = job.folder / "torchrun"  # by this name rankmend knows what it runs
    cases = []
    for number, (module, *words) in enumerate(launchers, 1):
        program = job.folder / f"by-{number}" / NAMES[module]
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\nfrom {module} import main\nmain()\n")
        program.chmod(0o755)
        command = shlex.join([str(program), *words, str(INNER), "in place"])
        cases.append(f'{number}) exec {command} "$@" ;;\n')
    cases.append(f'*) exec {shlex.join([sys.executable, str(INNER), "fork"])} "$@" ;;\n')
    job.script.write_text(f'#!/bin/sh\ncase "$RANKMEND_ATTEMPT" in\n{"".join(cases)}esac\n')
    job.script.chmod(0o755)


NAMES = {
    "torch.distributed.run": "torchrun",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
LAUNCHERS = (
    ("torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    ("accelerate.commands.accelerate_cli", "launch", "--cpu", "--num_processes=2", "--num_machines=1"),
    ("deepspeed.launcher.runner", "--num_gpus=1", "--no_local_rank"),
)  # fmt: skip


def kill_each(job: Job, ways: Sequence[object]) -> None:
    """Kill a rank of each attempt: each way of starting them, and then one more from a checkpoint."""
    job.arguments += [str(job.checkpoints), str(job.let_go), "{checkpoint}"]
    job.start()
    for attempt, way in enumerate(ways, 1):
        saved = SAVED_EVERY * attempt
        pid = job.pids_at_step(saved + 5, attempt=attempt)[0]
        assert pid not in children(guardian_of(job)), (
            f"{way}: one that the rank has started reports"
        )
        kill(pid)
        restored = eventually(
            partial(restore_of, job, attempt + 1), f"{way}: a checkpoint is restored"
        )
        assert restored.step == saved, way
    job.pids_at_step(SAVED_EVERY * len(ways) + 5, attempt=len(ways) + 1)

    assert job.wait() == 0, job.output
    assert len(job.incidents) == len(ways)
    for attempt, (way, incident) in enumerate(zip(ways, job.incidents, strict=True), 1):
        assert (incident.failure.step or 0) >= SAVED_EVERY * attempt + 5, way


def restore_of(job: Job, attempt: int) -> Any:
    return next((one.choice.restore for one in job.attempts if one.attempt == attempt), None)


def test_ranks_that_the_script_starts_report_steps_and_come_back_after_a_kill(
    make_job: Make,
) -> None:
    needs_torch()
    # A fork server would import anew what each way has imported; forked ranks that start processes are in test_data_loader.
    job = make_job("", world_size=1, flags=["--no-fork-server", "--store=ranks"])
    ways = ["fork", "spawn", "forkserver", "torchrun"]  # the first is cheap, and comes twice
    if find_spec("accelerate") is not None:
        ways.append("debug_launcher")
    start_by(ways, job)

    kill_each(job, ways)


def test_ranks_of_another_launcher_report_steps_and_come_back_after_a_kill(make_job: Make) -> None:
    needs_torch()
    job = make_job("", world_size=1)
    launchers = [one for one in LAUNCHERS if find_spec(one[0].partition(".")[0]) is not None]
    launch_by(launchers, job)

    kill_each(job, launchers)

    assert "starts ranks of its own" in job.output
