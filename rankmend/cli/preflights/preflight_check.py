"""One pre-flight check of this node: what is asked of it, its plan, its run, and what is kept of it."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankmend.cli.output import echo
from rankmend.cli.preflights.preflight_holds import HOLD_S, HOLD_S_MAX, HoldOptions, hold_or_return
from rankmend.errors import ConfigError, RankmendError
from rankmend.node import node_name

if TYPE_CHECKING:
    from agent.preflight.policy import PreflightPolicy
    from agent.preflight.preparing import FlightPreparation
    from agent.preflight.result_file import FlightResult
    from detectors.preflight.levels import FlightLevel, FlightRound, FlightStep, TestedStorage

TRY_LATER: Final = 75  # EX_TEMPFAIL
_UNANSWERED, _FAILED = 1, 2
_NETWORK_S: Final = 55.0  # 20 rounds of 1,024 nodes, and until they are all there
_NETWORK_JOIN_S: Final = 25.0
SAVE_S: Final = 1.5  # for the state folder's storage
_START_S: Final = 1.0  # of the bound, for what Python took until here
LOCAL_DISK: Final = Path("/var/tmp")  # noqa: S108 - files there have no name; it is on a disk, which /tmp often isn't
_MB: Final = 1_000_000
FILE_BYTES: Final = {"quick": 64 * _MB, "job": 1000 * _MB, "burn-in": 8000 * _MB}
CHECKPOINT_BYTES_MAX: Final = {"quick": 256 * _MB, "job": 4000 * _MB, "burn-in": 64_000 * _MB}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What is asked of a check; meanings in rankmend/cli/preflights/preflight.py."""

    dry_run: bool = False
    python_path: str | None = None
    disk: Path = LOCAL_DISK
    no_disk: bool = False
    checkpoint_dir: Path | None = None
    checkpoint_bytes: float | None = None
    tools: bool = False
    network: bool = False
    shared: Path | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    rails: tuple[str, ...] = ()
    no_gpu: bool = False
    no_health: bool = False
    baselines: tuple[Path, ...] = ()
    state: Path | None = None
    node_name: str | None = None
    policy_path: Path | None = None
    hold: str | None = None  # where
    beside_ranks: bool = False
    act: bool = False
    hold_hung: bool = False
    share_max: float = 0.1
    controller: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    config_path: Path | None = None


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """What came of a check."""

    exit_code: int
    result: "FlightResult | None"  # None: a dry run
    plan: "FlightRound"
    held: dict[str, Any] = field(default_factory=dict)  # what `--hold` did, for JSON


def check_this_node(level: "FlightLevel", time_s: float | None, options: CheckOptions) -> NodeCheck:
    """Run a check and return what came of it.

    Raises RankmendError or OSError where it can't be begun as asked.
    """
    from agent.preflight.children import LoadChildren
    from agent.preflight.policy import read_policy
    from agent.preflight.preparing import give_back, prepare
    from agent.preflight.sole_check import SoleCheck
    from rankmend.packages import Extra, require
    from rankmend.signals import take_signals

    if not options.no_health:
        require(Extra.AGENT, "a pre-flight check (without it: --no-health)")
    began_s = time.monotonic() - _START_S
    bound_s = level.bound_s if time_s is None else time_s
    policy = read_policy(options.policy_path)
    node = node_name(options.node_name)
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
            if options.dry_run:
                return NodeCheck(0, None, plan)
            if text := _why_not(prepared, policy, is_first=sole.is_first):
                echo(f"rankmend: not started: {text}", err=True)
                give_back(children, policy, prepared, node)
                return NodeCheck(TRY_LATER, _not_begun(node, level, bound_s, text), plan)
            result = _run(
                level, bound_s, options, node, prepared, plan, children,
                lambda: stopping.signal_number is not None, began_s,
            )  # fmt: skip
            held: dict[str, Any] = {}
            if stopping.signal_number is None:
                _save(options, result, children)
                left_s = began_s + bound_s - time.monotonic() - SAVE_S
                held = hold_or_return(
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
            return NodeCheck(stopping.exit_code, result, plan, held)
    return NodeCheck(exit_code(result), result, plan, held)


def _why_not(prepared: "FlightPreparation", policy: "PreflightPolicy", *, is_first: bool) -> str:
    """Return why there is to be no load now; empty: there may be."""
    from detectors.wording import names_in_words

    if not is_first:
        return "another check of this node runs, and each would find it slow"
    if prepared.jobs:
        jobs = names_in_words(prepared.jobs)
        return f"ranks of {jobs} run on this node (--beside-ranks loads it anyway)"
    if prepared.is_full:
        return f"{policy.nodes_at_once} nodes are checked already ({policy.slots_folder})"
    return ""


def _refuse_short(time_s: float | None, plan: "FlightRound") -> None:
    from detectors.preflight.levels import HEALTH_S, MARGIN_S, PREPARE_S

    least_s = plan.bound_s + HEALTH_S + MARGIN_S + PREPARE_S
    if time_s is not None and time_s < least_s:
        text = f"one round could take {least_s:.0f} s, with every load at its deadline"
        raise ConfigError(f"--time of {time_s:g} s is too short: {text}")


def _hold_options(options: CheckOptions) -> HoldOptions:
    return HoldOptions(
        options.hold,
        options.act,
        options.hold_hung,
        options.share_max,
        options.controller,
        options.token_file,
        options.ca_file,
    )


def exit_code(result: "FlightResult") -> int:
    from detectors.preflight.verdicts import FlightOutcome

    codes = {FlightOutcome.FAILED: _FAILED, FlightOutcome.UNANSWERED: _UNANSWERED}
    return codes.get(result.outcome, 0)


def _wanted(options: CheckOptions, node: str, bound_s: float, policy: "PreflightPolicy") -> Any:
    from agent.preflight.preparing import WantedFacts

    needs_size = options.checkpoint_dir is not None and options.checkpoint_bytes is None
    return WantedFacts(
        node,
        bound_s,
        Path("/proc"),
        Path("/sys"),
        dict(os.environ),
        list(options.baselines),
        state_folder(options),
        options.checkpoint_dir if needs_size else None,
        policy,
        None if options.beside_ranks else _ranks_url(options.config_path),
    )


def _ranks_url(config_path: Path | None) -> str:
    from agent import config as configuration
    from rankmend.cli.checks.check_node import agent_address

    config = configuration.load(config_path) if config_path else configuration.AgentConfig()
    return f"http://{agent_address(config)}/api/v1/ranks"


def _plan(
    level: "FlightLevel",
    options: CheckOptions,
    policy: "PreflightPolicy",
    prepared: "FlightPreparation",
    node: str,
) -> "FlightRound":
    from detectors.preflight.levels import FlightStep, NodeParts, plan_round
    from detectors.preflight.tools import NvidiaTool, runs_of

    gpus = 0 if options.no_gpu else prepared.gpus
    storages = _storages(level.value, options, policy, prepared.usual_file_bytes)
    parts = NodeParts(gpus, storages, gpus > 0, prepared.gpu_power_watts)
    tools = {NvidiaTool(name): place for name, place in prepared.tools.items()}
    runs = runs_of(level, tools, gpus) if gpus and options.tools else {}
    steps = [
        FlightStep(tool.value, (), run.limit_s, 0.0, run.words, tool.value)
        for tool, run in runs.items()
    ]
    network = [_network_step(level, options, node)] if options.network else []
    return plan_round(level, parts, policy.ramp_watts_per_s, steps, first=network)


def _network_step(level: "FlightLevel", options: CheckOptions, node: str) -> "FlightStep":
    """Return the step in which all nodes of the check test the network among themselves. Before all loads: they start together."""
    import msgspec

    from detectors.preflight.levels import FlightLevel, FlightStep
    from rankmend.parts_path import program
    from recovery.lab.fabric.flight_child import NAME, FlightShare

    if level is FlightLevel.QUICK:
        raise ConfigError(
            "--network needs level job or burn-in: nodes wait for each other longer than quick may take"
        )
    shared = options.shared
    share = FlightShare(
        node,
        _NETWORK_JOIN_S,
        _NETWORK_S,
        options.rails,
        None if shared is None else str(shared.absolute()),
        options.nnodes,
        options.node_rank,
    )
    words = (sys.executable, *program("recovery.lab.fabric.flight_child"))
    requested = msgspec.json.encode(share).decode()
    return FlightStep(NAME, (), _NETWORK_S + 5.0, program=(*words, requested), needs_others=True)


def _storages(
    level: str, options: CheckOptions, policy: "PreflightPolicy", usual_bytes: int | None
) -> "tuple[TestedStorage, ...]":
    from detectors.preflight.levels import TestedStorage

    found = []
    if not options.no_disk:
        found.append(TestedStorage(str(options.disk.absolute()), "disk", FILE_BYTES[level]))
    if options.checkpoint_dir is not None:
        requested = options.checkpoint_bytes or usual_bytes or FILE_BYTES[level]
        size = int(min(requested, CHECKPOINT_BYTES_MAX[level]))
        folder = str(options.checkpoint_dir.absolute())
        rate = policy.node_storage_bytes_per_s
        found.append(TestedStorage(folder, "checkpoints", size, rate))
    return tuple(found)


def _run(
    level: "FlightLevel",
    bound_s: float,
    options: CheckOptions,
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
        options.python_path or sys.executable,
        environment_for_loads(os.environ),
        prepared.host_model,
        prepared.baseline,
        rounds_max=1_000_000 if level is FlightLevel.BURN_IN else 1,
        gpu_model=prepared.gpu_model,
    )
    watch = None if options.no_health else _health(options.config_path)

    def say(text: str) -> None:
        if level is FlightLevel.BURN_IN:
            echo(f"rankmend: {text}", err=True)

    gpus = 0 if options.no_gpu else prepared.gpus
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
    from rankmend.cli.checks.check_node import ask_agent

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


def state_folder(options: CheckOptions) -> Path:
    """Return where this node's results are kept."""
    from agent.preflight.result_file import SERVICE_FOLDER

    if options.state is not None:
        return Path(options.state)
    if os.geteuid() == 0:
        return SERVICE_FOLDER
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "rankmend" / "preflight"


def _save(options: CheckOptions, result: "FlightResult", children: Any) -> None:
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
