"""`rankmend preflight`: puts this node under a bounded load and says whether it is fit."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli.controller_options import REACH_OPTIONS
from rankmend.cli.options import NAME, fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.cli.preflight_holds import HOLD_S, HOLD_S_MAX, HoldOptions, hold_or_return
from rankmend.cli.preflight_tables import print_plan, print_result
from rankmend.cli.units import DURATION, RATE
from rankmend.errors import ConfigError, RankmendError
from rankmend.node import node_name

if TYPE_CHECKING:
    from agent.preflight.policy import PreflightPolicy
    from agent.preflight.preparing import FlightPreparation
    from agent.preflight.result_file import FlightResult
    from detectors.preflight.levels import FlightLevel, FlightRound, FlightStep, TestedStorage

UNCHECKED: Final = 64  # EX_USAGE in sysexits.h, as in `check`
TRY_LATER: Final = 75  # EX_TEMPFAIL
_UNANSWERED, _FAILED = 1, 2
UNFIT: Final = 3  # as in `check node --for prolog`
_SIGNALLED: Final = 128
_NETWORK_S: Final = 55.0  # 20 rounds of 1,024 nodes, and until they are all there
_NETWORK_JOIN_S: Final = 25.0
SAVE_S: Final = 1.5  # for the state folder's storage
_START_S: Final = 1.0  # of the bound, for what Python took until here
LOCAL_DISK: Final = Path("/var/tmp")  # noqa: S108 - files there have no name; it is on a disk, which /tmp often isn't
_MB: Final = 1_000_000
FILE_BYTES: Final = {"quick": 64 * _MB, "job": 1000 * _MB, "burn-in": 8000 * _MB}
CHECKPOINT_BYTES_MAX: Final = {"quick": 256 * _MB, "job": 4000 * _MB, "burn-in": 64_000 * _MB}

_FLIGHT_OPTIONS: Final = (
    json_option,
    click.option(
        "--dry-run", is_flag=True, help="Print the load and its bounds, and run none of it."
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
    click.option("--no-disk", is_flag=True, help="Leave the local disk out."),
    click.option(
        "--checkpoint-dir",
        type=click.Path(path_type=Path),
        help="Folder of the job's checkpoints: write to that storage, too.",
    ),
    click.option(
        "--checkpoint-size",
        "checkpoint_bytes",
        type=RATE,
        metavar="BYTES",
        help="What this node writes of a checkpoint: 500M, 2G. "
        "[default: the largest file of the newest one]",
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
    click.option("--no-gpu", is_flag=True, help="Leave the GPUs out."),
    click.option(
        "--no-health", is_flag=True, help="Don't watch the node by the agent's rules meanwhile."
    ),
    click.option(
        "--baseline",
        "baselines",
        multiple=True,
        type=click.Path(path_type=Path),
        help="File, or folder of *.baseline.json, with what other nodes reach. May be repeated.",
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
        help="TOML file with the fleet's bounds. [default: /etc/rankmend/preflight.toml if it is there]",
    ),
    click.option(
        "--hold",
        type=click.Choice(["slurm", "controller", "kubernetes"]),
        help="Keep the node out if it fails, and return it if it passes and we took it out: by Slurm's commands, at rankmend's controller, or "
        "there and by its cordon in Kubernetes. Dry without --act.",
    ),
    click.option(
        "--beside-ranks",
        is_flag=True,
        help="Load the node also while its agent knows of ranks on it: they will be slow, and it may seem so.",
    ),
    click.option("--act", is_flag=True, help="Do what --hold says, rather than tell it."),
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
        help="Never have more of a partition's nodes drained by rankmend; one node always may be.",
    ),
    *REACH_OPTIONS,
    click.option(
        "--for",
        "use",
        type=click.Choice(["person", "prolog"]),
        default="person",
        show_default=True,
        help="Slurm's prolog exits with 3 if the node is to be kept out and --act is given, else with 0.",
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

    Exit codes: 0 passed, 1 a check gave no answer or hangs, 2 a check failed, 64 could not be begun, 75 not now
    (too many nodes, or another check or ranks on this one), 130 and 143 stopped by SIGINT and SIGTERM.
    """


@preflight.command()
@_flight_options
def quick(**options: Any) -> None:
    """Check within 60 seconds: for a prolog, or before a job."""
    _fly("quick", None, options)


@preflight.command()
@_flight_options
def job(**options: Any) -> None:
    """Check within 5 minutes: before a job that will run for days."""
    _fly("job", None, options)


@preflight.command("burn-in")
@click.option(
    "--time",
    "time_s",
    type=DURATION,
    help="How long. [default: 4h]",
)
@_flight_options
def burn_in(time_s: float | None, **options: Any) -> None:
    """Load the node for hours: before it enters service, or returns to it."""
    _fly("burn-in", time_s, options)


@preflight.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
def merge(target: Path, sources: tuple[Path, ...]) -> None:
    """Write the baselines of SOURCES, files or folders of *.baseline.json, into the one file TARGET."""
    from agent.preflight import baseline_file

    try:
        merged = baseline_file.load(sources)
        baseline_file.save(target, merged)
    except (RankmendError, OSError) as error:
        fail(str(error), UNCHECKED)
    nodes = {one.node for samples in merged.samples.values() for one in samples}
    echo(f"{target}: {len(merged.samples)} figures by model, of {len(nodes)} nodes")


def _fly(level_name: str, time_s: float | None, options: dict[str, Any]) -> None:
    from detectors.preflight.levels import FlightLevel

    as_json, use = options.pop("as_json"), options.pop("use")
    try:
        code, result, plan = fly(FlightLevel(level_name), time_s, options)
    except (RankmendError, OSError) as error:
        if use == "prolog":  # a typo must not drain one node after the other
            echo(f"rankmend: {error}; node not checked", err=True)
            sys.exit(0)
        fail(str(error), UNCHECKED)
    if result is None:
        print_plan(level_name, plan, as_json=as_json)
        sys.exit(0)
    held = options.get("held", {})
    if use == "prolog" and code < _SIGNALLED:
        code = prolog_code(result, held, acts=options["act"], is_hang_cause=options["hold_hung"])
    if as_json:
        print_json({**result.to_json(), "hold": held, "exit_code": code})
    else:
        print_result(result)
    sys.exit(code)


def fly(
    level: "FlightLevel", time_s: float | None, options: dict[str, Any]
) -> "tuple[int, FlightResult | None, FlightRound]":
    """Run a check and return its exit code, its result (None: a dry run) and its plan."""
    from agent.preflight.children import LoadChildren
    from agent.preflight.policy import read_policy
    from agent.preflight.preparing import give_back, prepare
    from agent.preflight.sole_check import SoleCheck
    from rankmend.packages import Extra, require
    from rankmend.stopping import take_signals

    if not options["no_health"]:
        require(Extra.AGENT, "a pre-flight check (without it: --no-health)")
    began_s = time.monotonic() - _START_S
    bound_s = level.bound_s if time_s is None else time_s
    policy = read_policy(options["policy_path"])
    node = node_name(options["node_name"])
    if "/" in node:  # files are called by it
        raise ConfigError(f"{node!r:.80} can't be a node's name here: it has a slash")
    with take_signals() as stopping, SoleCheck(node) as sole:
        children = LoadChildren(stopping.wake)
        try:
            prepared = prepare(children, _wanted(options, node, bound_s, policy))
            for problem in prepared.problems:
                raise ConfigError(problem)
            plan = _plan(level, options, policy, prepared, node)
            _refuse_short(time_s, plan)
            if options["dry_run"]:
                return 0, None, plan
            if text := _why_not(prepared, policy, is_first=sole.is_first):
                echo(f"rankmend: not begun: {text}", err=True)
                give_back(children, policy, prepared, node)
                return TRY_LATER, _not_begun(node, level, bound_s, text), plan
            result = _run(
                level, bound_s, options, node, prepared, plan, children,
                lambda: stopping.signal_number is not None, began_s,
            )  # fmt: skip
            if stopping.signal_number is None:
                _save(options, result, children)
                left_s = began_s + bound_s - time.monotonic() - SAVE_S
                options["held"] = hold_or_return(
                    _hold_options(options),
                    result,
                    state_folder(options),
                    children,
                    min(HOLD_S_MAX, max(HOLD_S, left_s)),
                )
        finally:
            children.stop()
        give_back(LoadChildren(), policy, prepared, node)
        if stopping.signal_number is not None:
            return stopping.exit_code, result, plan
    return exit_code(result), result, plan


def _why_not(prepared: "FlightPreparation", policy: "PreflightPolicy", *, is_first: bool) -> str:
    """Return why there is to be no load now; empty: there may be."""
    from detectors.wording import names_in_words

    if not is_first:
        return "another check of this node runs, and each would find it slow"
    if prepared.jobs:
        jobs = names_in_words(prepared.jobs)
        return f"ranks of {jobs} run on this node (--beside-ranks loads it all the same)"
    if prepared.is_full:
        return f"{policy.nodes_at_once} nodes are checked already ({policy.slots_folder})"
    return ""


def _refuse_short(time_s: float | None, plan: "FlightRound") -> None:
    from detectors.preflight.levels import HEALTH_S, MARGIN_S, PREPARE_S

    least_s = plan.bound_s + HEALTH_S + MARGIN_S + PREPARE_S
    if time_s is not None and time_s < least_s:
        text = f"one round could take {least_s:.0f} s, with every load at its deadline"
        raise ConfigError(f"--time of {time_s:g} s is too short: {text}")


def _hold_options(options: dict[str, Any]) -> HoldOptions:
    return HoldOptions(
        options.get("hold"),
        options.get("act", False),
        options.get("hold_hung", False),
        options.get("share_max", 0.1),
        options.get("controller"),
        options.get("token_file"),
        options.get("ca_file"),
    )


def prolog_code(
    result: "FlightResult", held: dict[str, Any], *, acts: bool, is_hang_cause: bool
) -> int:
    """Return 3 if jobs are to be kept off: something speaks against the node, `--act` is given and no brake holds."""
    from detectors.preflight.holds import causes_of

    is_unfit = bool(causes_of(result.checks, is_hang_cause=is_hang_cause))
    return UNFIT if is_unfit and acts and held.get("outcome") != "braked" else 0


def exit_code(result: "FlightResult") -> int:
    from detectors.preflight.verdicts import FlightOutcome

    codes = {FlightOutcome.FAILED: _FAILED, FlightOutcome.UNANSWERED: _UNANSWERED}
    return codes.get(result.outcome, 0)


def _wanted(options: dict[str, Any], node: str, bound_s: float, policy: "PreflightPolicy") -> Any:
    from agent.preflight.preparing import WantedFacts

    needs_size = options["checkpoint_dir"] is not None and options["checkpoint_bytes"] is None
    return WantedFacts(
        node,
        bound_s,
        Path("/proc"),
        Path("/sys"),
        dict(os.environ),
        list(options["baselines"]),
        state_folder(options),
        options["checkpoint_dir"] if needs_size else None,
        policy,
        None if options.get("beside_ranks") else _ranks_url(options["config_path"]),
    )


def _ranks_url(config_path: Path | None) -> str:
    from agent import config as configuration
    from rankmend.cli.check_node import agent_address

    config = configuration.load(config_path) if config_path else configuration.AgentConfig()
    return f"http://{agent_address(config)}/api/v1/ranks"


def _plan(
    level: "FlightLevel",
    options: dict[str, Any],
    policy: "PreflightPolicy",
    prepared: "FlightPreparation",
    node: str,
) -> "FlightRound":
    from detectors.preflight.levels import FlightStep, NodeParts, plan_round
    from detectors.preflight.tools import NvidiaTool, runs_of

    gpus = 0 if options["no_gpu"] else prepared.gpus
    storages = _storages(level.value, options, policy, prepared.usual_file_bytes)
    parts = NodeParts(gpus, storages, gpus > 0, prepared.gpu_power_watts)
    tools = {NvidiaTool(name): place for name, place in prepared.tools.items()}
    runs = runs_of(level, tools, gpus) if gpus and options.get("tools") else {}
    steps = [
        FlightStep(tool.value, (), run.limit_s, 0.0, run.words, tool.value)
        for tool, run in runs.items()
    ]
    network = [_network_step(level, options, node)] if options.get("network") else []
    return plan_round(level, parts, policy.ramp_watts_per_s, steps, first=network)


def _network_step(level: "FlightLevel", options: dict[str, Any], node: str) -> "FlightStep":
    """Return the step in which all nodes of the check test the network among themselves. Before all loads: they start together."""
    import msgspec

    from detectors.preflight.levels import FlightLevel, FlightStep
    from rankmend.parts_path import program
    from recovery.fabric.flight_child import NAME, FlightShare

    if level is FlightLevel.QUICK:
        raise ConfigError(
            "--network needs level job or burn-in: nodes wait for each other longer than quick may take"
        )
    shared = options["shared"]
    share = FlightShare(
        node,
        _NETWORK_JOIN_S,
        _NETWORK_S,
        options["rails"],
        None if shared is None else str(shared.absolute()),
        options["nnodes"],
        options["node_rank"],
    )
    words = (sys.executable, *program("recovery.fabric.flight_child"))
    asked = msgspec.json.encode(share).decode()
    return FlightStep(NAME, (), _NETWORK_S + 5.0, program=(*words, asked), needs_others=True)


def _storages(
    level: str, options: dict[str, Any], policy: "PreflightPolicy", usual_bytes: int | None
) -> "tuple[TestedStorage, ...]":
    from detectors.preflight.levels import TestedStorage

    found = []
    if not options["no_disk"]:
        found.append(TestedStorage(str(options["disk"].absolute()), "disk", FILE_BYTES[level]))
    if options["checkpoint_dir"] is not None:
        asked = options["checkpoint_bytes"] or usual_bytes or FILE_BYTES[level]
        size = int(min(asked, CHECKPOINT_BYTES_MAX[level]))
        folder = str(options["checkpoint_dir"].absolute())
        rate = policy.node_storage_bytes_per_s
        found.append(TestedStorage(folder, "checkpoints", size, rate))
    return tuple(found)


def _run(
    level: "FlightLevel",
    bound_s: float,
    options: dict[str, Any],
    node: str,
    prepared: "FlightPreparation",
    plan: "FlightRound",
    children: Any,
    is_stopped: Callable[[], bool],
    began_s: float,
) -> "FlightResult":
    from agent.preflight.flight import Flight, FlightSetup, environment_for_loads
    from detectors.preflight.levels import FlightLevel
    from rankmend.clock import SystemClock

    setup = FlightSetup(
        node,
        level,
        bound_s,
        options["python_path"] or sys.executable,
        environment_for_loads(os.environ),
        prepared.host_model,
        prepared.baseline,
        rounds_max=1_000_000 if level is FlightLevel.BURN_IN else 1,
        gpu_model=prepared.gpu_model,
    )
    watch = None if options["no_health"] else _health(options["config_path"])

    def say(text: str) -> None:
        if level is FlightLevel.BURN_IN:
            echo(f"rankmend: {text}", err=True)

    gpus = 0 if options["no_gpu"] else prepared.gpus
    gpu_watch = _gpu_watch(level.value, gpus) if gpus else None
    flight = Flight(setup, plan, children, SystemClock(), watch, is_stopped, say, gpu_watch)
    return flight.run(began_s, prepared.verdicts)


def _gpu_watch(level: str, gpus: int) -> Callable[[int], Any]:
    def watch(until_end: int) -> Any:
        from agent.preflight.gpu_watch import name_gpus, watch_gpus

        try:
            import pynvml
        except ImportError as error:
            return {"lines": [{"skip": "gpu_clocks", "part": "node", "text": str(error)}]}
        return watch_gpus(pynvml, name_gpus(os.environ, gpus), level, time.monotonic, until_end)

    return watch


def _health(config_path: Path | None) -> Callable[[int], Any]:
    from agent import config as configuration
    from rankmend.cli.check_node import ask_agent

    config = configuration.load(config_path) if config_path else configuration.AgentConfig()

    def watch(until_end: int) -> Any:
        import msgspec

        from agent.daemon.node_agent import NodeAgent
        from agent.preflight.health_watch import watch_health
        from rankmend.clock import SystemClock

        own = msgspec.structs.replace(config, state_dir=None)  # the running agent's, not ours
        ask = partial(ask_agent, config)
        return watch_health(partial(NodeAgent, own), SystemClock(), ask, until_end)

    return watch


def _not_begun(node: str, level: "FlightLevel", bound_s: float, text: str) -> "FlightResult":
    from agent.preflight.result_file import FlightResult
    from detectors.preflight.verdicts import FlightOutcome

    return FlightResult(
        node, level.value, FlightOutcome.NOT_BEGUN, time.time(), 0.0, bound_s, 0, (), note=text
    )


def state_folder(options: dict[str, Any]) -> Path:
    """Return where this node's results are kept."""
    from agent.preflight.result_file import SERVICE_FOLDER

    if options["state"] is not None:
        return Path(options["state"])
    if os.geteuid() == 0:
        return SERVICE_FOLDER
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "rankmend" / "preflight"


def _save(options: dict[str, Any], result: "FlightResult", children: Any) -> None:
    """Keep the result; storage that is full or hangs fails nobody."""
    from agent.preflight.children import ChildEndKind
    from agent.preflight.result_file import keep

    folder = state_folder(options)

    def save(_until_end: int) -> dict[str, Any]:
        try:
            keep(folder, result)
        except RankmendError as error:
            return {"problem": str(error)}
        return {}

    children.start_function("save", save, SAVE_S)
    end = children.wait(["save"])["save"]
    problems = [line["problem"] for line in end.lines() if "problem" in line]
    if end.kind is not ChildEndKind.ENDED:
        problems.append(f"{folder} gave no answer within {SAVE_S:g} s")
    for problem in problems:
        echo(f"rankmend: the result is not kept: {problem}", err=True)
