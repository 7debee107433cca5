"""`rankmend preflight`: puts this node under a bounded load and says whether it is fit."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli.options import NAME, examples, fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.cli.preflights.preflight_check import LOCAL_DISK, CheckOptions, check_this_node
from rankmend.cli.preflights.preflight_tables import print_plan, print_result
from rankmend.cli.sources.controller_options import REACH_OPTIONS
from rankmend.cli.units import DURATION, RATE
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from agent.preflight.result_file import FlightResult

UNCHECKED: Final = 64  # EX_USAGE in sysexits.h, as in `check`
UNFIT: Final = 3  # as in `check node --for prolog`
_SIGNALLED: Final = 128

_FLIGHT_OPTIONS: Final = (
    json_option,
    click.option(
        "--dry-run", is_flag=True, help="Print the load and its bounds, but don't run it."
    ),
    click.option(
        "--python",
        "python_path",
        metavar="PATH",
        help="Python that has PyTorch, for the loads. [default: the one that rankmend runs under]",
    ),
    click.option(
        "--disk",
        type=click.Path(path_type=Path),
        default=LOCAL_DISK,
        show_default=True,
        help="Folder on the local disk to write to.",
    ),
    click.option("--no-disk", is_flag=True, help="Don't test the local disk."),
    click.option(
        "--checkpoint-dir",
        type=click.Path(path_type=Path),
        help="Folder of the job's checkpoints: also write to that storage.",
    ),
    click.option(
        "--checkpoint-size",
        "checkpoint_bytes",
        type=RATE,
        metavar="BYTES",
        help="How much of a checkpoint this node writes: 500M, 2G. [default: the largest "
        "file of the newest one]",
    ),
    click.option(
        "--tools",
        is_flag=True,
        help="Also run dcgmi diag, nvbandwidth and nccl-tests where they are installed (job, burn-in).",
    ),
    click.option(
        "--network",
        is_flag=True,
        help="Test the network between all nodes that run this command at once, under srun or with --shared (job, burn-in).",
    ),
    click.option(
        "--shared",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Private folder in which the nodes meet.  [default: below the state folder, under srun]",
    ),
    click.option(
        "--nnodes",
        type=int,
        help="Nodes that are checked at once, for --network.  [default: Slurm's]",
    ),
    click.option(
        "--node-rank", type=int, help="Number of this node among them, from 0.  [default: Slurm's]"
    ),
    click.option(
        "--rail", "rails", multiple=True, metavar="INTERFACE", help="Interface to test. Repeatable."
    ),
    click.option("--no-gpu", is_flag=True, help="Don't test the GPUs."),
    click.option(
        "--no-health",
        is_flag=True,
        help="Don't check the node by the agent's rules during the load.",
    ),
    click.option(
        "--baseline",
        "baselines",
        multiple=True,
        type=click.Path(path_type=Path),
        help="File, or folder of *.baseline.json, with the results of other nodes. Repeatable.",
    ),
    click.option(
        "--state-dir",
        "state",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of this node's results and its baseline. "
        "[default: /var/lib/rankmend/preflight for root, else ~/.local/state/rankmend/preflight]",
    ),
    click.option("--node-name", metavar="NAME", type=NAME, help="Name of this node."),
    click.option(
        "--policy",
        "policy_path",
        type=click.Path(path_type=Path),
        help="TOML file with the fleet's bounds. [default: /etc/rankmend/preflight.toml if it exists]",
    ),
    click.option(
        "--hold",
        type=click.Choice(["slurm", "controller", "kubernetes"]),
        help="Keep the node out if it fails, and return it if it passes and rankmend took it "
        "out: with Slurm's commands, at rankmend's controller, or there and with its cordon "
        "in Kubernetes. A dry run without --act.",
    ),
    click.option(
        "--beside-ranks",
        is_flag=True,
        help="Load the node even if its agent sees ranks on it. They will be slow, and so "
        "may the results.",
    ),
    click.option("--act", is_flag=True, help="Do what --hold says, instead of only printing it."),
    click.option(
        "--hold-hung", is_flag=True, help="Also keep the node out if a load hangs in the kernel."
    ),
    click.option(
        "--drain-share",
        "share_max",
        type=click.FloatRange(0, 1),
        default=0.1,
        show_default=True,
        metavar="SHARE",
        help="Largest share of a partition's nodes that rankmend may have drained; one node "
        "always may be.",
    ),
    *REACH_OPTIONS,
    click.option(
        "--for",
        "use",
        type=click.Choice(["person", "prolog"]),
        default="person",
        show_default=True,
        help="For Slurm's prolog: exit with 3 if the node must be kept out and --act is "
        "given, else with 0.",
    ),
    click.option(
        "--config", "config_path", type=click.Path(path_type=Path), help="The agent's TOML file."
    ),
)


def _flight_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_FLIGHT_OPTIONS):
        command = option(command)
    return command


@click.group()
def preflight() -> None:
    """Put this node under a bounded load, and say whether it is fit.

    Exit codes: 0 passed, 1 a check gave no answer or hangs, 2 a check failed, 64 could not start, 75 not now
    (too many nodes, or another check or ranks on this one), 130 and 143 stopped by SIGINT and SIGTERM.
    """


@preflight.command(epilog=examples("rankmend preflight quick"))
@_flight_options
def quick(**options: Any) -> None:
    """Check within 60 seconds: for a prolog, or before a job."""
    _check("quick", None, options)


@preflight.command(epilog=examples("rankmend preflight job --json"))
@_flight_options
def job(**options: Any) -> None:
    """Check within 5 minutes: before a job that will run for days."""
    _check("job", None, options)


@preflight.command("burn-in", epilog=examples("rankmend preflight burn-in --time 4h"))
@click.option(
    "--time",
    "time_s",
    type=DURATION,
    help="How long. [default: 4h]",
)
@_flight_options
def burn_in(time_s: float | None, **options: Any) -> None:
    """Load the node for hours: before it enters or returns to service."""
    _check("burn-in", time_s, options)


@preflight.command(epilog=examples("rankmend preflight merge fleet.baseline.json baselines/"))
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
def merge(target: Path, sources: tuple[Path, ...]) -> None:
    """Merge the baselines in SOURCES (files, or folders of *.baseline.json) into the file TARGET."""
    from agent.preflight import baseline_file

    try:
        merged = baseline_file.load(sources)
        baseline_file.save(target, merged)
    except (RankmendError, OSError) as error:
        fail(str(error), UNCHECKED)
    nodes = {sample.node for samples in merged.samples.values() for sample in samples}
    echo(f"{target}: {len(merged.samples)} figures by model, of {len(nodes)} nodes")


def _check(level_name: str, time_s: float | None, options: dict[str, Any]) -> None:
    from detectors.preflight.levels import FlightLevel

    as_json, use = options.pop("as_json"), options.pop("use")
    requested = CheckOptions(**options)
    try:
        done = check_this_node(FlightLevel(level_name), time_s, requested)
    except (RankmendError, OSError) as error:
        if use == "prolog":  # a typo must not drain one node after the other
            echo(f"rankmend: {error}; node not checked", err=True)
            sys.exit(0)
        fail(str(error), UNCHECKED)
    code, result = done.exit_code, done.result
    if result is None:
        print_plan(level_name, done.plan, as_json=as_json)
        sys.exit(0)
    if use == "prolog" and code < _SIGNALLED:
        code = prolog_code(result, done.held, acts=requested.act, is_hang_cause=requested.hold_hung)
    if as_json:
        print_json({**result.to_json(), "hold": done.held, "exit_code": code})
    else:
        print_result(result)
    sys.exit(code)


def prolog_code(
    result: "FlightResult", held: dict[str, Any], *, acts: bool, is_hang_cause: bool
) -> int:
    """Return 3 if jobs are to be kept off: something speaks against the node, `--act` is given and no brake holds."""
    from detectors.preflight.holds import causes_of

    is_unfit = bool(causes_of(result.checks, is_hang_cause=is_hang_cause))
    return UNFIT if is_unfit and acts and held.get("outcome") != "braked" else 0
