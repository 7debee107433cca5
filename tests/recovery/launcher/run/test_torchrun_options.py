"""`rankmend run` takes the options of torchrun, or says why not and what to use."""

import argparse
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rankmend.cli import cli
from rankmend.cli.run import NUMA_MODES, run
from rankmend.errors import ConfigError, LaunchError
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.launcher.host.interpreter import count_devices, read_bindings
from recovery.launcher.ranks.rank_output import Output
from recovery.launcher.run.node_launcher import VARIABLE, write_error_file
from recovery.launcher.run.options import (
    RunOptions,
    count_ranks,
    grace_s,
    make_output_plan,
    parse_filters,
    stop_signals,
)
from recovery.messages.exchange import RankError
from tests.support.console import FakeConsole

pytestmark = pytest.mark.process

OPTIONS = RunOptions("train.py")
# A value that torchrun takes, where "1" is none.
VALUES = {
    "signals_to_handle": "SIGTERM",
    "numa_binding": "node",
    "start_method": "spawn",
    "logs_specs": "default",
}


def parse(*arguments: str) -> dict[str, object]:
    """Return what the options come to, without running anything."""
    return run.make_context("run", [*arguments, "train.py", "--lr", "1"]).params


@pytest.mark.torch
def test_every_option_of_torchrun_is_accepted_in_each_of_its_spellings() -> None:
    torchrun = pytest.importorskip("torch.distributed.run")
    actions = [
        action
        for action in torchrun.get_args_parser()._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction)
    ]

    assert len(actions) >= 30
    for action in actions:
        for spelling in action.option_strings:
            value = [] if action.nargs == 0 else [VALUES.get(action.dest, "1")]
            assert parse(spelling, *value)["arguments"] == ("--lr", "1"), spelling


@pytest.mark.torch
@pytest.mark.parametrize("arguments", [("--nproc_per", "3"), ("--nproc-", "3"), ("--master-a=x",)])
def test_abbreviations_mean_what_they_mean_to_torchrun(arguments: tuple[str, ...]) -> None:
    torchrun = pytest.importorskip("torch.distributed.run")
    theirs = vars(torchrun.parse_args([*arguments, "train.py"]))

    ours = parse(*arguments)

    assert (ours["nproc_per_node"], ours["master_addr"] or "127.0.0.1") == (
        theirs["nproc_per_node"],
        theirs["master_addr"],
    )


def test_an_abbreviation_is_torchruns_option_before_it_is_ours() -> None:
    assert parse("--no-p")["no_python"] is True  # and not --no-prefix
    assert parse("--nproc", "3")["nproc_per_node"] == "3"  # torchrun from Python 3.12 on


def test_an_abbreviation_of_several_options_names_them() -> None:
    with pytest.raises(click.NoSuchOption, match="--rdzv-conf, --rdzv-endpoint"):
        parse("--rdzv", "1")


def test_an_option_with_a_wrong_last_letter_names_what_begins_alike() -> None:
    with pytest.raises(click.NoSuchOption, match=r"Did you mean --nproc-per-node\?"):
        parse("--nprocs", "2")


def test_arguments_of_the_script_are_never_expanded() -> None:
    assert run.make_context("run", ["train.py", "--nproc", "3"]).params["arguments"] == (
        "--nproc",
        "3",
    )
    assert run.make_context("run", ["-r=3", "-t1", "--", "t.py"]).params["redirects"] == "3"


def test_a_class_for_log_files_is_refused_with_what_to_use() -> None:
    said = CliRunner().invoke(cli, ["run", "--logs-specs", "mine", __file__])

    assert said.exit_code == 2
    assert "--logs-specs mine" in said.output
    assert "--redirects, --tee" in said.output


@pytest.mark.parametrize(
    ("grace", "timeout", "variable", "expected_s"),
    [(5.0, 7.0, "9", 5.0), (None, 7.0, "9", 7.0), (None, None, "9", 9.0), (None, None, "", 60.0)],
)
def test_the_time_to_shut_down_is_the_grace_unless_that_is_given(
    grace: float | None, timeout: float | None, variable: str, expected_s: float
) -> None:
    options = replace(OPTIONS, grace_s=grace, shutdown_timeout=timeout)

    assert grace_s(options, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": variable}) == expected_s


def test_signals_to_handle_are_those_named() -> None:
    assert stop_signals(OPTIONS) == (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
    )
    named = replace(OPTIONS, signals_to_handle="SIGTERM, SIGUSR1")
    assert stop_signals(named) == (signal.SIGTERM, signal.SIGUSR1)


@pytest.mark.parametrize("names", ["SIGKILL", "SIGTERM,TERM", "", "time limit"])
def test_a_signal_that_can_not_be_handled_is_named(names: str) -> None:
    with pytest.raises(ConfigError, match="is not one of SIGHUP"):
        stop_signals(replace(OPTIONS, signals_to_handle=names))


def test_devices_are_counted_by_the_ranks_own_pytorch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "class Devices:\n"
        "    is_available = staticmethod(lambda: True)\n"
        "    device_count = staticmethod(lambda: 6)\n"
        "xpu = Devices\n"
        "nn = object()\n"
    )
    environment = {"PYTHONPATH": str(tmp_path)}

    def count(kind: str) -> int:
        return count_devices(sys.executable, environment, kind)

    assert count_ranks("xpu", environment, count) == 6
    with pytest.raises(ConfigError, match="--nproc-per-node 'npu': PyTorch sees no such device"):
        count_ranks("npu", environment, count)
    assert count("nn") == 0


def test_auto_without_pytorch_is_a_rank_for_each_processor() -> None:
    def fail(_kind: str) -> int:
        raise LaunchError("no torch")

    no_gpu = {"CUDA_VISIBLE_DEVICES": ""}

    assert count_ranks("auto", no_gpu, fail) == count_ranks("cpu", no_gpu, fail)
    with pytest.raises(ConfigError, match="no torch"):
        count_ranks("gpu", no_gpu, fail)


def test_filters_are_lists_in_which_two_commas_are_one() -> None:
    assert parse_filters("loss,step,,lr") == (b"loss", b"step,lr")
    assert parse_filters(None) == ()


def test_lines_with_a_text_are_copied_to_a_file_of_all_ranks(tmp_path: Path) -> None:
    plan = make_output_plan(replace(OPTIONS, duplicate_stdout_filters="loss"), 2)
    console = FakeConsole()
    output = Output(replace(plan, log_folder=tmp_path), console)

    for rank in range(2):
        out, err = output.open_rank(1, rank, rank)
        os.write(out, b"step 1\nloss 0.5\n")
        os.write(err, b"loss of mind\n")
        os.close(out)
        os.close(err)
    output.close()

    copied = (tmp_path / "attempt_1" / "filtered_stdout.log").read_bytes()
    assert sorted(copied.splitlines()) == [b"[rank 0] loss 0.5", b"[rank 1] loss 0.5"]
    assert not (tmp_path / "attempt_1" / "filtered_stderr.log").exists()
    assert console.shown[1].count(b"step 1") == 2


BINDING = """
from enum import Enum
class AffinityMode(Enum):
    NODE = "node"
class NumaOptions:
    def __init__(self, affinity_mode): self.mode = affinity_mode
def _get_logical_cpus_to_bind_to(*, gpu_index, numa_options):
    if gpu_index > 1: raise RuntimeError("no GPU %d" % gpu_index)
    return {gpu_index, gpu_index + 8}
"""


@pytest.fixture
def torch_with_numa(tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "torch" / "numa"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "binding.py").write_text(BINDING)
    return {"PYTHONPATH": str(tmp_path)}


def test_processors_of_each_rank_are_what_pytorch_chooses(torch_with_numa: dict[str, str]) -> None:
    assert read_bindings(sys.executable, torch_with_numa, "node", 2) == ((0, 8), (1, 9))


def test_a_rank_without_a_gpu_to_bind_to_is_an_error_with_pytorchs_words(
    torch_with_numa: dict[str, str],
) -> None:
    with pytest.raises(ConfigError, match=r"--numa-binding node.*no GPU 2"):
        read_bindings(sys.executable, torch_with_numa, "node", 3)


@pytest.mark.torch
def test_pytorch_has_the_functions_and_modes_that_we_ask_for() -> None:
    binding = pytest.importorskip("torch.numa.binding")

    assert {mode.value for mode in binding.AffinityMode} == set(NUMA_MODES)
    assert callable(binding._get_logical_cpus_to_bind_to)


OUTCOME = JobOutcome(OutcomeKind.ESCALATED, 1, "rank 3 failed again", "inc-1", 3)


def test_the_error_file_of_the_launcher_holds_the_first_ranks_error(tmp_path: Path) -> None:
    path = tmp_path / "errors" / "error.json"
    outcome = replace(OUTCOME, error=RankError("ValueError", "nan", "Traceback ..."))

    write_error_file(outcome, {VARIABLE: str(path)}, 1.7e9)

    written = json.loads(path.read_text())["message"]
    assert written["message"] == "ValueError: nan"
    assert written["errorCode"] == 1
    assert written["extraInfo"] == {"py_callstack": "Traceback ...", "timestamp": "1700000000"}


def test_a_job_that_is_done_writes_no_error_file_and_one_that_was_killed_its_reason(
    tmp_path: Path,
) -> None:
    path = tmp_path / "error.json"

    write_error_file(replace(OUTCOME, exit_code=0), {VARIABLE: str(path)}, 0.0)
    assert not path.exists()
    write_error_file(OUTCOME, {VARIABLE: str(path)}, 0.0)

    assert json.loads(path.read_text())["message"]["message"] == "rank 3 failed again"
