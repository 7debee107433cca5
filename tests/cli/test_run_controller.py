"""`rankmend run` takes the controller of RANKMEND_CONTROLLER, as the commands that ask do."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankmend.cli import cli

# Refused before anything is asked: a token goes over https only.
NAMED = "http://controller.example:9477"
OTHER = "http://other.example:9477"


def run(tmp_path: Path, *options: str, **environment: str) -> Result:
    told = {"RANKMEND_CONTROLLER": NAMED, "RANKMEND_STATE_DIR": str(tmp_path), **environment}
    arguments = ["run", "--checkpoint-dir", str(tmp_path / "ckpt"), *options, "train.py"]
    return CliRunner().invoke(cli, arguments, env=told)


@pytest.mark.parametrize("environment", [{}, {"PET_STANDALONE": "0"}])
def test_controller_of_the_variable_is_taken_and_named(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    done = run(tmp_path, **environment)

    assert done.exit_code == 2
    assert f"the controller is {NAMED} (RANKMEND_CONTROLLER; --standalone runs" in done.stderr
    assert f"{NAMED}: rankmend sends a token over https only" in done.stderr


def test_option_counts_before_the_variable(tmp_path: Path) -> None:
    done = run(tmp_path, "--controller", OTHER)

    assert f"{OTHER}: rankmend sends a token over https only" in done.stderr
    assert "controller.example" not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--standalone", "--nnodes=2"), "--standalone is for one node"),
        (("--rdzv-endpoint=h:1", "--nnodes=2", "--shrink-multiple=2"), "MIN:MAX"),
        (("--master-addr=h", "--nnodes=2", "--shrink-multiple=2"), "MIN:MAX"),
    ],
)
def test_option_that_says_where_the_nodes_meet_overrules_the_variable(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done = run(tmp_path, *options)

    assert said in done.stderr
    assert "controller.example" not in done.stderr


def test_quiet_keeps_the_name_to_itself(tmp_path: Path) -> None:
    assert "RANKMEND_CONTROLLER" not in run(tmp_path, "--quiet").stderr
