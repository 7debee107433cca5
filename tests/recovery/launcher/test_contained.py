"""What runs in front of a rank, and what gets behind it."""

import subprocess
from pathlib import Path

import pytest

from rankmend.errors import ConfigError
from recovery.launcher.ranks.contained import (
    environment_in_front,
    parse_prefix,
    read_end,
    wrap,
)

pytestmark = pytest.mark.process

VALUES = {"runtime": "/dev/shm/x", "cwd": "/data", "rank": "3", "local_rank": "1", "attempt": "2"}
BASE = {"PATH": "/usr/bin:/bin", "HOME": "/root", "NCCL_DEBUG": "INFO", "SECRET": "s"}
RANKS = {**BASE, "RANK": "3", "RANKMEND_PROGRESS_FILE": "/dev/shm/x/p", "PYTHONPATH": "/hook"}


def test_prefix_is_split_as_by_a_shell_and_its_placeholders_are_filled_in() -> None:
    prefix = parse_prefix("env --chdir='{cwd}/a b' X={rank}-{attempt}", None, BASE["PATH"])

    assert prefix.fill(VALUES) == ("env", "--chdir=/data/a b", "X=3-2")


@pytest.mark.parametrize("passed", ["A;B", "A B", "$(id)"])
def test_names_of_variables_are_checked(passed: str) -> None:
    with pytest.raises(ConfigError, match="--rank-prefix-env"):
        parse_prefix("env", passed, BASE["PATH"])


def test_behind_a_tool_that_drops_the_environment_a_rank_has_what_is_set_for_it(
    tmp_path: Path,
) -> None:
    prefix = parse_prefix("env -i PATH=/usr/bin:/bin PYTHONPATH=/own", "NCCL_*", BASE["PATH"])
    hook = str(tmp_path / "hook; touch evaluated")
    argv = ["env"]

    command = wrap(prefix, argv, {**RANKS, "ODD": "$(touch evaluated) 'x'"}, BASE, hook, VALUES)
    told = subprocess.run(
        command, env={}, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    seen = dict(line.split("=", 1) for line in told)
    assert seen["RANK"] == "3"
    assert seen["NCCL_DEBUG"] == "INFO"
    assert seen["RANKMEND_PROGRESS_FILE"] == RANKS["RANKMEND_PROGRESS_FILE"]
    assert seen["PYTHONPATH"] == f"{hook}:/own"
    assert seen["ODD"] == "$(touch evaluated) 'x'"
    assert "SECRET" not in seen
    assert not (tmp_path / "evaluated").exists(), "nothing of it is for a shell"


def test_the_tool_itself_gets_no_hook() -> None:
    front = environment_in_front(RANKS, BASE)

    assert front == {**BASE, "RANK": "3"}


@pytest.mark.parametrize(
    ("told", "is_read_as"),
    [((0, None), (0, None)), ((137, None), (None, 9)), ((255, None), (255, None)), ((None, 15), (None, 15)), ((128, None), (128, None))],
)  # fmt: skip
def test_exit_code_of_a_tool_names_the_signal(
    told: tuple[int | None, int | None], is_read_as: tuple[int | None, int | None]
) -> None:
    assert read_end(*told) == is_read_as
