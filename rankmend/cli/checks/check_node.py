"""`rankmend check node`: is this node fit for a job? For people and scripts; for Slurm: `check_node_slurm`."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli import output
from rankmend.cli.checks.check_node_slurm import SLURM_S, NodeCommand, check_for_slurm
from rankmend.cli.options import examples, fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.cli.units import DurationBetween
from rankmend.errors import RankmendError
from rankmend.printable import duration

if TYPE_CHECKING:
    from agent.config import AgentConfig

UNCHECKED: Final = 64  # EX_USAGE in sysexits.h, as in `check log`: neither good nor bad
COLLECT_S_MAX: Final = 1.5  # per sweep; a scan makes two with a pause between, 4 s in all
COLLECT_FOR_SLURM_S_MAX: Final = 1.0  # leaves a second for Slurm's commands
TIMEOUT_S: Final = 4.5  # with the start of Python, a check for Slurm takes less than 5 s
BETWEEN_S: Final = 1.0
ASK_S_MAX: Final = 1.0
PAGE_BYTES_MAX: Final = 16_000_000
AGE_S_MAX: Final = 15.0  # an older verdict of the agent doesn't count
_WARNING, _CRITICAL = 1, 2
_STYLES: Final = {"critical": "bold red", "warning": "yellow", "info": "dim"}


@click.command(
    cls=NodeCommand, epilog=examples("rankmend check node", "rankmend check node --json")
)
@json_option
@click.option(
    "--for",
    "use",
    type=click.Choice(["person", "prolog", "epilog", "health"]),
    default="person",
    show_default=True,
    help="Who runs the check. Slurm's prolog and epilog exit with 3 only for faults that must keep jobs off this node; "
    "its health check drains the node and exits with 0.",
)
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="The agent's TOML file."
)
@click.option("--scan", is_flag=True, help="Check now, without asking this node's agent.")
@click.option(
    "--procfs",
    type=click.Path(),
    metavar="FOLDER",
    help="Folder to read instead of /proc; implies --scan.",
)
@click.option(
    "--sysfs",
    type=click.Path(),
    metavar="FOLDER",
    help="Folder to read instead of /sys; implies --scan.",
)
@click.option("--release", metavar="FINDING", help="Clear a latched finding in the agent.")
@click.option(
    "--timeout",
    "timeout_s",
    type=DurationBetween(SLURM_S + 0.5, 60),
    default=f"{TIMEOUT_S:g}s",
    show_default=True,
    help="Time limit of a check for Slurm, even if something hangs.",
)
@click.option(
    "--drain-share",
    "share_max",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Largest share of a partition's nodes that rankmend may have drained; "
    "one node always may be. [default: 0.1]",
)
@click.option(
    "--drain-unanswered",
    is_flag=True,
    help="For Slurm, also drain the node if a check gives no answer.",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="Log of drains. [default: /var/log/rankmend/node-actions.jsonl for root]",
)
def node(
    as_json: bool,
    use: str,
    config_path: Path | None,
    scan: bool,
    procfs: str | None,
    sysfs: str | None,
    release: str | None,
    timeout_s: float,
    share_max: float | None,
    drain_unanswered: bool,
    log: Path | None,
) -> None:
    """Check this node once, in less than 5 seconds.

    Asks this node's agent, which knows how long each fault has lasted. If no agent runs, checks
    twice within a second, which misses faults that only show over time.

    Exit codes: 0 no findings, 1 warnings or something could not be checked, 2 critical findings,
    64 wrong usage. With --for prolog or epilog: 3 if jobs must be kept off this node, else 0; with
    --for health: 0.
    """

    def make_page(collect_s_max: float = COLLECT_S_MAX) -> dict[str, Any]:
        config = _configured(config_path, procfs, sysfs)
        page = None if scan or procfs or sysfs else ask_agent(config)
        return _scan(config, collect_s_max) if page is None else page

    if use != "person":
        from agent.slurm.drain import SHARE_MAX
        from agent.slurm.fitness import Use

        check_for_slurm(
            Use(use),
            lambda: make_page(COLLECT_FOR_SLURM_S_MAX),
            as_json=as_json,
            timeout_s=timeout_s,
            share_max=SHARE_MAX if share_max is None else share_max,
            is_hang_obstacle=drain_unanswered,
            log=log,
        )
    try:
        if release is not None:
            _release(_configured(config_path, procfs, sysfs), release)
            return
        page = make_page()
    except RankmendError as error:
        fail(str(error), UNCHECKED)
    if as_json:
        print_json({**page, "exit_code": exit_code(page)})
    else:
        _print_table(page)
    sys.exit(exit_code(page))


def exit_code(page: dict[str, Any]) -> int:
    """Return the worst severity that is not silenced; a check that could not run is a warning."""
    received = {found["severity"] for found in page["findings"] if not found["is_silenced"]}
    if "critical" in received:
        return _CRITICAL
    return _WARNING if "warning" in received or page["silent"] or page["blocked"] else 0


def _configured(path: Path | None, procfs: str | None, sysfs: str | None) -> "AgentConfig":
    from agent import config as configuration

    base = configuration.load(path) if path else configuration.AgentConfig()
    return configuration.override(base, procfs=procfs, sysfs=sysfs)


def _release(config: "AgentConfig", finding_id: str) -> None:
    from agent.config import SERVICE_STATE_DIR
    from agent.findings.journal import ask_release
    from rankmend.errors import ConfigError

    folder = Path(config.state_dir) if config.state_dir else SERVICE_STATE_DIR
    if not folder.is_dir():
        raise ConfigError(f"--release needs the agent's --config with its state_dir: no {folder}")
    ask_release(folder / "findings", finding_id)
    echo(f"{finding_id}: released; the finding ends after the next good checks")


def agent_address(config: "AgentConfig") -> str:
    """Return where the agent of this node is asked: HOST:PORT."""
    from agent.page.http_server import parse_address

    host, port = parse_address(config.listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - to ask, not to listen
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ask_agent(config: "AgentConfig") -> dict[str, Any] | None:
    """Return the page of this node's agent, or None if no agent answers in time."""
    import json

    from rankmend.agent_page import read_agent
    from rankmend.errors import SourceError

    address = agent_address(config)
    try:
        url = f"http://{address}/api/v1/findings"
        page = json.loads(read_agent(url, bytes_max=PAGE_BYTES_MAX, timeout_s=ASK_S_MAX))
        is_fresh = page["age_s"] <= AGE_S_MAX and page["looks"] > 0
        return {**page, "asked": f"the agent at {address}"} if is_fresh else None
    except (SourceError, ValueError, KeyError, TypeError):
        return None


def _scan(config: "AgentConfig", collect_s_max: float) -> dict[str, Any]:
    """Run every check twice, a second apart, and return the result in the form of the agent's page."""
    import logging

    import msgspec

    from agent.daemon.node_agent import NodeAgent
    from rankmend.clock import SystemClock
    from rankmend.packages import Extra, require

    require(Extra.AGENT, "a scan of this node")

    logging.disable(logging.ERROR)  # the table reports it
    clock = SystemClock()
    config = msgspec.structs.replace(config, state_dir=None)  # the running agent's, not ours
    agent = NodeAgent(config, clock)
    agent.findings.scan_only()
    try:
        began_s = clock.now_s()
        agent.collect_once(collect_s_max)
        time.sleep(max(0.0, began_s + BETWEEN_S - clock.now_s()))
        agent.collect_once(collect_s_max)
        return {**agent.findings.page(clock.now_s()), "asked": "a scan of one second"}
    finally:
        agent.stop()


def _print_table(page: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from detectors.wording import counted

    console = output.console()
    if page["findings"]:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("severity", no_wrap=True)
        table.add_column("what", ratio=1, overflow="fold")
        table.add_column("since", no_wrap=True)
        table.add_column("ranks", overflow="fold")
        table.add_column("action", no_wrap=True)
        for found in page["findings"]:
            reason = [Text(found["reason"])] if found["reason"] else []
            what = Group(Text(found["summary"]), *reason, Text(found["id"], style="dim"))
            severity = "silenced" if found["is_silenced"] else found["severity"]
            table.add_row(
                Text(severity, style=_STYLES.get(severity, "dim")),
                what,
                Text(duration(found["since_age_s"])),
                Text(", ".join(str(rank["rank"]) for rank in found["ranks"]) or "-"),
                Text(found["action"].replace("_", " ")),
            )
        console.print(table)
    verdict = f"{page['node']}: {counted(len(page['findings']), 'finding')}, {counted(page['checks'], 'check')}, by {page['asked']}"
    console.print(Text(verdict), soft_wrap=True)
    for label, names in (("no answer from", page["silent"]), ("not checked", page["blocked"])):
        if names:
            console.print(Text(f"{label}: {', '.join(names)}", style="yellow"), soft_wrap=True)
