"""What a rank tells the fork server of its imports, and what one that comes from it tells."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from rankmend.hook import layout
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    installed = tmp_path / "lib" / "site-packages" / "installed"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    (installed / "part.py").write_text("")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "users_own.py").write_text("")
    path = f"{installed.parent}{os.pathsep}{tmp_path / 'own'}"
    told = {layout.ENV_IMPORTS_FILE: str(tmp_path / "told"), "ADDED_TO_PYTHONPATH": path}
    return Rank(tmp_path, environment=told)


CODE = """
import os, sys
sys.path[:0] = os.environ["ADDED_TO_PYTHONPATH"].split(os.pathsep)
import json, users_own, installed.part
import rankmend
os.environ["CHANGED"] = "yes"
del os.environ["ADDED_TO_PYTHONPATH"]
rankmend.step(1)
import decimal
rankmend.step(2)
"""


def told_by(rank: Rank) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((rank.folder / "told").read_text())
    return told


@each_python
def test_a_rank_tells_its_installed_modules_and_changed_variables_at_its_first_step(
    rank: Rank, python: str
) -> None:
    rank.run(python, CODE)

    told = told_by(rank)
    modules = dict(told["modules"])
    assert modules["installed"] == str(rank.folder / "lib/site-packages/installed/__init__.py")
    assert modules["installed.part"] == str(rank.folder / "lib/site-packages/installed/part.py")
    assert modules["json"].endswith("/json/__init__.py")
    names = list(modules)
    assert names.index("json") < names.index("installed") < names.index("installed.part")
    assert not {"users_own", "__main__", "rankmend", "sitecustomize", "decimal"} & set(modules)
    assert told["environment"] == {"CHANGED": "yes", "ADDED_TO_PYTHONPATH": None}
    assert stat.S_IMODE((rank.folder / "told").stat().st_mode) == 0o600


@each_python
def test_a_rank_that_nobody_asks_tells_nothing(rank: Rank, python: str) -> None:
    del rank.environment[layout.ENV_IMPORTS_FILE]

    rank.run(python, CODE)

    assert not (rank.folder / "told").exists()


@each_python
def test_a_file_that_can_not_be_written_disturbs_no_training(rank: Rank, python: str) -> None:
    rank.environment[layout.ENV_IMPORTS_FILE] = "/proc/no/such/folder"

    done = rank.run(python, CODE + "print('trained')")

    assert done == "trained\n"


BECOMING = """
import os
path = os.environ.pop("RANKMEND_PROGRESS_FILE")
import rankmend  # by a process that waits to become a rank
os.environ["RANKMEND_PROGRESS_FILE"] = path
from rankmend.hook import becoming
becoming.watch_steps()
rankmend.step(1)
if os.fork() == 0:
    rankmend.step(2)
    os._exit(0)
os.wait()
"""


@each_python
def test_a_child_of_a_rank_that_was_forked_or_stood_by_tells_no_steps(
    rank: Rank, python: str
) -> None:
    rank.run(python, BECOMING)

    assert rank.steps() == [1]
