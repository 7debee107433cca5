"""`rankmend run` takes its options from PET_* variables, as torchrun does."""

import re
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rankmend.cli import cli
from rankmend.cli.run import run

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[4]
# Read by torchrun; the command has no such option yet and says so where one of them is set.
BY_OPTION = {option.envvar: option for option in run.params if isinstance(option.envvar, str)}
OURS = {name for name in BY_OPTION if name.startswith("PET_")}


def parse(environment: Mapping[str, str], *arguments: str) -> dict[str, object]:
    """Return what the options come to, without running anything."""
    context = CliRunner(env=dict(environment)).isolation
    with context():
        return run.make_context("run", [*arguments, "train.py"]).params


@pytest.mark.torch
def test_every_variable_that_torchrun_reads_is_read_or_reported(tmp_path: Path) -> None:
    argparse_util = pytest.importorskip("torch.distributed.argparse_util")
    torchrun = pytest.importorskip("torch.distributed.run")
    kinds = (argparse_util.env, argparse_util.check_env)
    actions = [one for one in torchrun.get_args_parser()._actions if isinstance(one, kinds)]
    theirs = {f"PET_{action.dest.upper()}" for action in actions}

    missing = sorted(theirs - OURS)
    said = CliRunner().invoke(
        cli,
        ["run", "--nnodes=x", "train.py"],
        env={**dict.fromkeys(missing, "1"), "RANKMEND_STATE_DIR": str(tmp_path)},
    )

    assert len(theirs) >= 20
    assert theirs >= OURS
    assert [name for name in missing if f"{name} is set" not in said.output] == []


@pytest.mark.parametrize("arguments", [(), ("--nproc-per-node=4", "--nnodes=5")])
def test_command_line_overrides_the_environment(arguments: tuple[str, ...]) -> None:
    options = parse({"PET_NPROC_PER_NODE": "2", "PET_NNODES": "3"}, *arguments)

    expected = ("4", "5") if arguments else ("2", "3")
    assert (options["nproc_per_node"], options["nnodes"]) == expected


@pytest.mark.parametrize(("value", "is_set"), [("1", True), ("0", False), ("", False)])
def test_flags_are_one_or_zero(value: str, is_set: bool) -> None:
    options = parse({"PET_STANDALONE": value, "PET_NO_PYTHON": value, "PET_MODULE": value})

    assert [options[name] for name in ("standalone", "no_python", "is_module")] == [is_set] * 3
    assert parse({"PET_MODULE": "0"}, "-m")["is_module"] is True


def test_pod_of_a_pytorch_job_reads_where_its_nodes_meet() -> None:
    elastic = parse(
        {
            "PET_NNODES": "2:4",
            "PET_NPROC_PER_NODE": "8",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": "llama-worker-0:23456",
            "PET_RDZV_ID": "llama",
            "PET_MAX_RESTARTS": "3",
        }
    )
    static = parse(
        {
            "PET_NNODES": "2",
            "PET_NODE_RANK": "1",
            "PET_MASTER_ADDR": "llama-master-0",
            "PET_MASTER_PORT": "23456",
        }
    )

    assert elastic["rdzv_endpoint"] == "llama-worker-0:23456"
    assert (elastic["nnodes"], elastic["max_restarts"]) == ("2:4", 3)
    assert (static["master_addr"], static["master_port"]) == ("llama-master-0", 23456)
    assert static["node_rank"] == 1


def test_value_that_does_not_fit_names_the_variable() -> None:
    with pytest.raises(click.BadParameter, match="PET_MAX_RESTARTS"):
        raise_readable({"PET_MAX_RESTARTS": "many"})


def raise_readable(environment: Mapping[str, str]) -> None:
    try:
        parse(environment)
    except click.BadParameter as error:
        raise click.BadParameter(error.format_message()) from error


def test_variable_without_meaning_here_is_reported_by_its_name(tmp_path: Path) -> None:
    said = CliRunner().invoke(
        cli,
        ["run", "--nproc-per-node=none", "train.py"],
        env={
            "PET_START_METHOD": "fork",
            "PET_SOMETHING_NEW": "1",
            "RANKMEND_STATE_DIR": str(tmp_path),
        },
    )

    assert "PET_START_METHOD has no meaning here and is ignored" in said.output
    assert "PET_SOMETHING_NEW is set, but rankmend has no such option" in said.output


def test_documentation_lists_the_variables() -> None:
    text = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")

    assert set(re.findall(r"`(PET_\w+)`", text)) >= OURS
