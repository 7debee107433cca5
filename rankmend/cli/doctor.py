"""`rankmend doctor`: what this host has and lacks, what is lost without it, and the line that fixes it."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli import output
from rankmend.cli.options import examples, json_option, print_json, state_option
from rankmend.cli.output import echo
from rankmend.cli.units import DurationBetween
from rankmend.errors import SourceError
from rankmend.node import node_name
from rankmend.version import RANKMEND_VERSION

if TYPE_CHECKING:
    from agent.doctor.node_agent import AgentSetup
    from agent.doctor.places import Places
    from detectors.doctor.check import CheckResult
    from detectors.doctor.table import FactGroup

TIMEOUT_S: Final = 10.0  # NVML opens 8 GPUs without persistence mode in some 5 to 8 s
# What hangs in a driver can't be killed: so many may be left behind, and no more are started.
SLOT_FOLDER: Final = Path("/run/rankmend-checks/doctor")
PARTS: Final = (
    *("gpu", "rdma", "sensors", "kernel", "limits", "clock", "slurm", "container"),
    *("agent", "controller", "certificates", "storage", "python", "kubernetes"),
)
_STYLES: Final = {
    "ok": "green",
    "lacking": "yellow",
    "broken": "bold red",
    "unknown": "magenta",
    "hidden": "dim",
    "not_applicable": "dim",
}
AGENT_CONFIG: Final = Path("/etc/rankmend/agent.toml")
CONTROLLER_CONFIG: Final = Path("/etc/rankmend/controller/controller.toml")
_path = click.Path(path_type=Path)


def _in_pod(path: Path) -> Path:
    """Return where a configuration is that has not been named: elsewhere in the pods of deploy/kubernetes."""
    if "RANKMEND_POD_PART" in os.environ and path in (AGENT_CONFIG, CONTROLLER_CONFIG):
        return Path("/config", path.name)
    return path


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the command line names."""

    procfs: Path
    sysfs: Path
    agent_config: Path
    controller_config: Path
    urls: tuple[str, ...]
    token_file: Path | None
    ca_file: Path | None
    state_dir: Path | None
    checkpoint_dir: Path | None
    python: str | None

    @property
    def is_live(self) -> bool:
        return (self.procfs, self.sysfs) == (Path("/proc"), Path("/sys"))


@click.command(epilog=examples("rankmend doctor", "rankmend doctor gpu --json"))
@click.argument("parts", nargs=-1, type=click.Choice(PARTS), metavar="[PART]...")
@json_option
@click.option("--all", "is_all", is_flag=True, help="Also show what this host does not need.")
@click.option("--checkpoint-dir", type=_path, metavar="DIR", help="Also check this folder.")
@state_option
@click.option(
    "--controller",
    metavar="URL[,URL]",
    envvar="RANKMEND_CONTROLLER",
    help="Also check this controller.  [env: RANKMEND_CONTROLLER; default: the agent's]",
)
@click.option(
    "--token-file", type=_path, envvar="RANKMEND_TOKEN_FILE", help="File with your token."
)
@click.option(
    "--ca-file", type=_path, envvar="RANKMEND_CA_FILE", help="CA of the controller's certificate."
)
@click.option(
    "--python", metavar="PATH", help="Interpreter of the ranks. [default: rankmend's own]"
)
@click.option(
    "--config",
    "agent_config",
    type=_path,
    default=AGENT_CONFIG,
    show_default=True,
    help="The agent's configuration.",
)
@click.option(
    "--controller-config",
    type=_path,
    default=CONTROLLER_CONFIG,
    show_default=True,
    help="The configuration of a controller on this host.",
)
@click.option(
    "--procfs", type=_path, default=Path("/proc"), help="Folder to read instead of /proc."
)
@click.option("--sysfs", type=_path, default=Path("/sys"), help="Folder to read instead of /sys.")
@click.option(
    "--timeout",
    "timeout_s",
    type=DurationBetween(1, 120),
    default=f"{TIMEOUT_S:g}s",
    show_default=True,
    help="Time limit, even if a check hangs.",
)
def doctor(
    parts: tuple[str, ...],
    as_json: bool,
    is_all: bool,
    controller: str | None,
    timeout_s: float,
    **named: Any,
) -> None:
    """Show what this host has and lacks for rankmend, and how to fix it.

    Changes nothing, needs no root, and ends by --timeout even if a driver or a mount hangs. PART limits it to gpu,
    rdma, sensors, kernel, limits, clock, slurm, container, agent, controller, certificates, storage, python or kubernetes.

    Exit codes: 0 nothing is missing as far as this user can see, 1 something is missing or could not be checked, 2 something is
    broken or the command line is wrong.
    """
    from detectors.doctor.check import exit_code

    for name in ("agent_config", "controller_config"):
        named[name] = _in_pod(named[name])
    urls = tuple(url.strip() for url in (controller or "").split(",") if url.strip())
    results = examine(_Wanted(urls=urls, **named), parts, timeout_s)
    code = exit_code(results)
    if as_json:
        print_json(
            {
                "node": node_name(),
                "version": RANKMEND_VERSION,
                "exit_code": code,
                "is_root": os.geteuid() == 0,
                "checks": [_plain(result) for result in results],
            }
        )
    else:
        _print_results(results, is_all=is_all)
    sys.exit(code)


def examine(wanted: _Wanted, parts: Sequence[str], timeout_s: float) -> "list[CheckResult]":
    """Return the results of the checks of these parts, of all without any; each group in a child of its own."""
    from detectors.doctor.check import all_alike, not_applicable, unknown
    from detectors.doctor.table import CHECKS
    from rankmend.child_call import call_in_children

    groups = [
        group
        for group, checks in CHECKS.items()
        if not parts or any(check.part.value in parts for check in checks)
    ]
    live = [group for group in groups if wanted.is_live or group in _of_a_tree()]
    readers = _readers(wanted)
    _import_for_all(wanted)
    answers = call_in_children(
        {group.value: partial(_examine_group, group, readers[group]) for group in live},
        timeout_s,
        SLOT_FOLDER if os.geteuid() == 0 else None,
    )
    results: list[CheckResult] = []
    for group in groups:
        answer = answers.get(group.value)
        if group not in live:
            results += all_alike(CHECKS[group], not_applicable("belongs to another host"))
        elif isinstance(answer, SourceError):
            results += all_alike(CHECKS[group], unknown(f"not checked: {answer}", _hint(answer)))
        else:
            results += [_result_of(row) for row in answer or ()]
    return [result for result in results if not parts or result.part.value in parts]


def _hint(error: SourceError) -> str:
    from rankmend.child_call import ChildSilentError

    if isinstance(error, ChildSilentError):
        return "ps -eo pid,stat,wchan:30,args | awk '$2 ~ /D/'  # what hangs in a driver or mount; or give --timeout"
    return "rankmend doctor python"


def _of_a_tree() -> "frozenset[FactGroup]":
    from detectors.doctor.table import FactGroup

    return frozenset((FactGroup.GPU, FactGroup.RDMA, FactGroup.HOST))


def _import_for_all(wanted: _Wanted) -> None:
    """Import what most children would import for themselves, also the modules that read a configuration which is there.

    They come from the folder that this module came from. A configuration that somebody has named may lie on a mount that hangs: it
    is not looked at here. What can't be imported is for the children to report.
    """
    modules = {
        AGENT_CONFIG: (wanted.agent_config, "agent.config"),
        CONTROLLER_CONFIG: (wanted.controller_config, "recovery.service.controller_config"),
    }
    for module in ("logging", "agent.doctor.node_agent", "recovery.local.doctor.folders"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for shipped, (path, module) in modules.items():
        with contextlib.suppress(ImportError, OSError):
            if path in (shipped, _in_pod(shipped)) and path.exists():
                importlib.import_module(module)


def _examine_group(group: "FactGroup", read: Callable[[], Any]) -> list[dict[str, Any]]:
    """Run in the child: read the facts and judge them."""
    import logging

    from detectors.doctor.check import judge
    from detectors.doctor.table import CHECKS

    logging.disable(logging.CRITICAL)
    return [_plain(result) for result in judge(CHECKS[group], read())]


def _readers(wanted: _Wanted) -> "Mapping[FactGroup, Callable[[], Any]]":
    """Return by group what reads its facts. Imports happen in the children: one may hang or miss a package."""
    from detectors.doctor.table import FactGroup

    return {
        FactGroup.GPU: partial(_read_gpu, wanted),
        FactGroup.RDMA: partial(_read_rdma, wanted),
        FactGroup.HOST: partial(_read_host, wanted),
        FactGroup.LIMITS: _read_limits,
        FactGroup.SLURM: partial(_read_slurm, wanted),
        FactGroup.AGENT: partial(_read_agent, wanted),
        FactGroup.CONTROLLER: partial(_read_controller, wanted),
        FactGroup.CERTIFICATES: partial(_read_certificates, wanted),
        FactGroup.STORAGE: partial(_read_storage, wanted),
        FactGroup.PYTHON: partial(_read_python, wanted),
        FactGroup.KUBERNETES: partial(_read_pod, wanted),
    }


def _places(wanted: _Wanted) -> "Places":
    from agent.doctor.places import Places

    return Places(wanted.procfs, wanted.sysfs, environment=dict(os.environ), is_live=wanted.is_live)


def _agent_setup(wanted: _Wanted) -> "AgentSetup":
    """Return what the agent's configuration says, or what an agent without any does."""
    from agent.doctor.node_agent import AgentSetup, load_setup

    return load_setup(wanted.agent_config)[0] or AgentSetup()


def _read_gpu(wanted: _Wanted) -> Any:
    from agent.collectors.services import Systemctl
    from agent.doctor.gpu import read_gpu
    from agent.doctor.node_agent import ask_agents_acs

    if not wanted.is_live:
        return read_gpu(_places(wanted))
    agent = _agent_setup(wanted)
    return read_gpu(
        _places(wanted),
        agent.gpus,
        Systemctl(),
        ask_acs=partial(ask_agents_acs, agent),
    )


def _read_rdma(wanted: _Wanted) -> Any:
    from agent.doctor.rdma import read_rdma

    excluded = _agent_setup(wanted).nics_left_out if wanted.is_live else ()
    return read_rdma(_places(wanted), excluded)


def _read_host(wanted: _Wanted) -> Any:
    from agent.doctor.host import read_host

    return read_host(_places(wanted))


def _read_limits() -> Any:
    from recovery.local.doctor.limits import read_limits

    return read_limits()


def _read_slurm(wanted: _Wanted) -> Any:
    from agent.doctor.slurm import read_slurm

    return read_slurm(_places(wanted), _agent_setup(wanted).node)


def _read_agent(wanted: _Wanted) -> Any:
    from agent.doctor.node_agent import read_agent_facts
    from agent.doctor.places import find_container
    from recovery.local.doctor.folders import look_at_state

    places = _places(wanted)
    return read_agent_facts(
        places,
        wanted.agent_config,
        partial(look_at_state, is_others=True),
        is_in_container=bool(find_container(places)),
    )


def _read_controller(wanted: _Wanted) -> Any:
    from recovery.local.doctor.controller import read_controller

    urls, token_file, ca_file = wanted.urls, wanted.token_file, wanted.ca_file
    agent = _agent_setup(wanted)
    is_agents = not urls and agent.controller is not None
    if is_agents and agent.controller is not None:
        urls, token_file = (agent.controller,), None
        ca_file = Path(agent.alerts_ca_file) if agent.alerts_ca_file else ca_file
    return read_controller(urls, token_file, ca_file, wanted.controller_config, is_agents=is_agents)


def _read_certificates(wanted: _Wanted) -> Any:
    from recovery.local.doctor.certificates import files_of, read_certificates
    from recovery.local.doctor.controller import load_config

    agent = _agent_setup(wanted)
    certificates, keys = list(agent.certificates), list(agent.keys)
    if wanted.ca_file is not None:
        certificates.append(str(wanted.ca_file))
    controller, _state, _error = load_config(wanted.controller_config)
    if controller is not None:
        more_certificates, more_keys = files_of(controller)
        certificates += more_certificates
        keys += more_keys
    return read_certificates(certificates, keys)


def _read_storage(wanted: _Wanted) -> Any:
    from recovery.local.doctor.folders import read_storage

    return read_storage(os.environ, wanted.state_dir, wanted.checkpoint_dir)


def _read_python(wanted: _Wanted) -> Any:
    from agent.doctor.pci import count_gpus
    from recovery.local.doctor.python import read_python

    return read_python(wanted.python, count_gpus(wanted.sysfs))


def _read_pod(wanted: _Wanted) -> Any:
    from agent.doctor.pod import read_pod
    from recovery.local.doctor.controller import load_config

    pods_file = _agent_setup(wanted).kubelet_checkpoint
    config, _state, _error = load_config(wanted.controller_config)
    state_dir = kubernetes = None
    if config is not None:
        state_dir, limits = Path(config.state_dir), config.kubernetes
        kubernetes = (limits.kubeconfig, limits.context) if limits.enabled else None
    return read_pod(_places(wanted), Path(pods_file) if pods_file else None, state_dir, kubernetes)


def _plain(result: "CheckResult") -> dict[str, Any]:
    return {**asdict(result), "part": result.part.value, "outcome": result.outcome.value}


def _result_of(row: dict[str, Any]) -> "CheckResult":
    from detectors.doctor.check import CheckResult, HostOutcome, HostPart

    return CheckResult(
        **{**row, "part": HostPart(row["part"]), "outcome": HostOutcome(row["outcome"])}
    )


def _lines_of(result: "CheckResult") -> list[tuple[str, str]]:
    """Return what a row says, line by line, each with its style."""
    lines = [(f"{result.what}: {result.found}", "")]
    if result.lost:
        lines.append((f"lost: {result.lost}", "dim"))
    if result.mend:
        lines.append((f"fix: {result.mend}", "bold"))
    return lines


def _print_results(results: "Sequence[CheckResult]", *, is_all: bool) -> None:
    from detectors.doctor.check import HostOutcome

    shown = [
        result for result in results if is_all or result.outcome is not HostOutcome.NOT_APPLICABLE
    ]
    try:
        _print_table(shown)
    except ImportError:  # rich is missing: one of the things that this command is for
        for item in shown:
            for text, _style in _lines_of(item):
                echo(f"{item.outcome.value} {item.part.value} {text}")
    counts = [
        f"{count} {outcome.value.replace('_', ' ')}"
        for outcome in HostOutcome
        if (count := sum(result.outcome is outcome for result in results))
    ]
    echo(", ".join(counts) + ("; --all shows every row" if len(shown) < len(results) else ""))
    hidden = dict.fromkeys(
        f"{result.what}: {result.as_root}" for result in results if result.as_root
    )
    if hidden and os.geteuid() != 0:
        echo(f"as root: {'; '.join(hidden)}")


def _print_table(results: "Sequence[CheckResult]") -> None:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    table.add_column("part", no_wrap=True)
    table.add_column("what", ratio=1, overflow="fold")
    for result in results:
        outcome = result.outcome.value
        table.add_row(
            Text(outcome.replace("_", " "), style=_STYLES[outcome]),
            Text(result.part.value),
            Group(*(Text(text, style=style) for text, style in _lines_of(result))),
        )
    if results:
        output.console().print(table)
