"""Launchers below `rankmend run`: their process is no rank, one that they start is."""

from pathlib import Path

import pytest

from rankmend.hook.nested_launchers import named_by, started_by
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process

ATTACH = "import rankmend; print(rankmend.attach())"


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("python /venv/bin/torchrun --standalone train.py", "torchrun"),
        ("python -u -X faulthandler /venv/bin/accelerate launch train.py", "accelerate"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python -u -m deepspeed.launcher.launch train.py", "deepspeed.launcher.launch"),
        ("python train.py torchrun", None),
        ("python -m train -m torch.distributed.run", None),
        ("python -c torchrun", None),
        ("python -m", None),
        ("python", None),
        ("", None),
    ],
)
def test_only_what_python_runs_is_a_launcher(command: str, launcher: str | None) -> None:
    assert started_by(command.split()) == launcher


def test_a_program_and_a_module_have_names_of_their_own() -> None:
    assert named_by("/venv/bin/torchrun", False) == "torchrun"
    assert named_by("torch.distributed.run", True) == "torch.distributed.run"
    assert named_by("torchrun", True) is None
    assert named_by("torch.distributed.run", False) is None


@each_python
def test_a_process_that_a_launcher_starts_takes_the_place_of_the_rank(
    tmp_path: Path, python: str
) -> None:
    rank = Rank(tmp_path)
    launcher = tmp_path / "torchrun"
    launcher.write_text(
        f"import subprocess, sys\n{ATTACH}\nsys.stdout.flush()\n"
        f"subprocess.check_call([sys.executable, '-c', 'import os; {ATTACH}; print(os.getpid())'])\n"
    )

    said = rank.run_command([python, str(launcher)]).stdout.split()

    assert said[:2] == ["False", "True"]
    assert rank.read().pid == int(said[2])
