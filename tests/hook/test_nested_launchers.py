"""Launchers below `rankmend run`: their process is no rank, one that they start is."""

import sys
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


# A script that starts its ranks. A process is in a group where PyTorch's module says so: here a stand-in that is told.
GROUP = """
import os, subprocess, sys, types
import rankmend

group = types.ModuleType("torch.distributed")
group.is_available = lambda: True
group.is_initialized = lambda: is_in_group
is_in_group = False
sys.modules["torch.distributed"] = group

def in_fork(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        work()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)

def form_and_step():
    global is_in_group
    is_in_group = True
    rankmend.step(7)
    print(os.getpid())
"""


@each_python
def test_forked_rank_takes_the_place_of_a_script_that_has_told_nothing(
    tmp_path: Path, python: str
) -> None:
    rank = Rank(tmp_path)

    said = rank.run(python, f"{GROUP}\nrankmend.attach()\nin_fork(form_and_step)\n").split()

    assert rank.read().pid == int(said[0])
    assert rank.steps() == [7]


def test_forked_process_without_a_group_of_its_own_reports_no_step(tmp_path: Path) -> None:
    rank = Rank(tmp_path)

    rank.run(
        sys.executable,
        f"{GROUP}\nrankmend.attach()\nin_fork(lambda: rankmend.step(7))\n"
        "is_in_group = True\nin_fork(lambda: rankmend.step(8))\n",
    )

    assert rank.read().step_count == 0


def test_script_that_has_told_a_step_keeps_its_place(tmp_path: Path) -> None:
    rank = Rank(tmp_path)

    rank.run(
        sys.executable,
        f"{GROUP}\nrankmend.step(3)\nin_fork(form_and_step)\n"
        "subprocess.check_call([sys.executable, '-c', 'import rankmend; rankmend.step(9)'])\n",
    )

    assert rank.steps() == [3]


def test_process_that_a_script_starts_takes_its_place_at_the_first_step(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    inner = "import os, rankmend; rankmend.attach(); rankmend.step(5); print(os.getpid())"

    said = rank.run(
        sys.executable,
        "import subprocess, sys, rankmend\nrankmend.attach()\n"
        f"subprocess.check_call([sys.executable, '-c', {inner!r}])\n",
    ).split()

    assert rank.read().pid == int(said[0])
    assert rank.steps() == [5]


def test_script_whose_place_is_taken_writes_nothing_while_that_rank_lives(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    inner = "import sys, rankmend; rankmend.step(5); print(flush=True); sys.stdin.read()"

    rank.run(
        sys.executable,
        "import subprocess, sys, rankmend\nrankmend.attach()\n"
        f"inner = subprocess.Popen([sys.executable, '-c', {inner!r}], stdin=-1, stdout=-1)\n"
        "inner.stdout.readline()\nrankmend.step(900)\ninner.communicate()\n",
    )

    assert rank.steps() == [5]


def test_process_that_is_not_below_the_holder_leaves_its_place(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    holder = rank.start(
        sys.executable,
        "import sys, rankmend; rankmend.attach(); print(flush=True); sys.stdin.read()",
    )
    assert holder.stdout is not None
    holder.stdout.readline()

    rank.run(sys.executable, "import rankmend; rankmend.step(5)")

    assert rank.read().pid == holder.pid
    holder.communicate()
