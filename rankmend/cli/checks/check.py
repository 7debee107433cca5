"""`rankmend check`: one-shot checks for people, scripts and prologs.

Exit codes: 0 no findings, 1 warnings, 2 critical findings, 64 could not be checked.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from rankmend.cli import output
from rankmend.cli.options import examples, fail, json_option, print_json
from rankmend.cli.suggestions import SuggestingGroup
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from detectors.kernel.event_groups import KernelLogState
    from detectors.kernel.event_policy import PolicyTable
    from detectors.kernel.log_cases import KernelFinding

UNREADABLE = 64  # EX_USAGE in sysexits.h: neither good nor bad
_NOTHING, _WARNING, _CRITICAL = 0, 1, 2

# Sub-command: its module and function, imported when called.
_OTHERS: dict[str, tuple[str, str]] = {
    "cooling": ("rankmend.cli.checks.check_cooling", "cooling"),
    "power": ("rankmend.cli.checks.check_power", "power"),
    "fleet": ("rankmend.cli.checks.check_fleet", "fleet"),
    "lemons": ("rankmend.cli.checks.check_fleet", "lemons"),
    "part": ("rankmend.cli.checks.check_parts", "part"),
    "parts": ("rankmend.cli.checks.check_parts", "parts"),
    "node": ("rankmend.cli.checks.check_node", "node"),
    "table": ("rankmend.cli.checks.check_table", "table"),
}

_KINDS = {"kernel": "", "fabric_manager": "the fabric manager's log, "}
_STYLES = {"critical": "bold red", "warning": "yellow", "info": "dim"}


class _CheckGroup(SuggestingGroup):
    """Defines `log` itself and imports the other checks when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_OTHERS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OTHERS:
            module, attribute = _OTHERS[cmd_name]
            command = getattr(import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_CheckGroup)
def check() -> None:
    """Check this node, a recorded log, or the fleet, once.

    Exit codes: 0 no findings, 1 warnings, 2 critical findings, 64 could not be checked.
    """


@check.command(epilog=examples("rankmend check log /var/log/kern.log"))
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="CSV file with your site's own rows: table,code,name,severity,action,hardware,source,meaning.",
)
@click.option(
    "--trust-user",
    is_flag=True,
    help="Trust lines that a process wrote to the kernel log (for tests).",
)
def log(file: Path, as_json: bool, policy: Path | None, trust_user: bool) -> None:
    """Find faults in a recorded kernel log.

    FILE is the output of dmesg (with any options), journalctl -k (also with -o json), a syslog file, a
    copy of /dev/kmsg, or the log of NVIDIA's fabric manager, plain or compressed with gzip, xz or bzip2; - reads standard input.
    """
    from agent.findings.policy_files import load_policy
    from detectors.kernel.event_groups import KernelLogState
    from detectors.kernel.left_out import LITERALS as LEFT_OUT
    from detectors.kernel.log import parse_log
    from detectors.kernel.log_verdict import judge
    from detectors.kernel.rules.matcher import LITERALS
    from rankmend.cli.checks.compressed_log import Sieve

    try:
        rows = load_policy(policy)
    except RankmendError as error:
        fail(str(error), UNREADABLE)
    state = KernelLogState(trusts_user=trust_user)
    sieve = Sieve((*LITERALS, *LEFT_OUT), keeps_all=lambda: state.kind is None, skip=state.skip)
    name = "standard input" if str(file) == "-" else str(file)
    try:
        with _open(file) as stream:
            state.feed_all(parse_log(sieve.lines_of(stream)))
    except OSError as error:
        fail(f"cannot read {name}: {error.strerror or error}", UNREADABLE)
    except ValueError as error:
        fail(f"cannot read {name}: {error}", UNREADABLE)
    findings = judge(state.groups(), rows)
    if state.is_no_log:
        fail(
            f"{name}: no line has the form of a kernel log, so nothing was judged. Give the output of dmesg or journalctl -k, "
            "a syslog file, a copy of /dev/kmsg or the fabric manager's own log",
            UNREADABLE,
        )
    if as_json:
        print_json(_report(name, state, findings))
    else:
        _print_table(name, state, findings, rows)
    code = _exit_code(findings)
    is_unknown = state.missed or state.quoted or state.lost
    sys.exit(UNREADABLE if code == _NOTHING and is_unknown else code)


def _open(file: Path) -> BinaryIO:
    return sys.stdin.buffer if str(file) == "-" else file.open("rb")


def _exit_code(findings: "tuple[KernelFinding, ...]") -> int:
    severities = {finding.severity.value for finding in findings}
    if "critical" in severities:
        return _CRITICAL
    return _WARNING if "warning" in severities else _NOTHING


def _report(
    name: str, state: "KernelLogState", findings: "tuple[KernelFinding, ...]"
) -> dict[str, Any]:
    return {
        "file": name,
        "kind": state.kind.value if state.kind else None,
        "records": state.records,
        "events": state.events,
        "untrusted": state.untrusted,
        "missed": state.missed,
        "quoted": state.quoted,
        "lost": state.lost,
        "suppressed": state.suppressed,
        "suppressed_services": state.suppressed_services,
        "findings": [_finding_json(finding) for finding in findings],
    }


def _finding_json(finding: "KernelFinding") -> dict[str, Any]:
    from dataclasses import asdict

    from detectors.kernel.log_cases import account_of

    return {
        **asdict(account_of(finding)),
        "name": finding.name,
        "meaning": finding.meaning,
        "severity": finding.severity.value,
        "action": finding.action.value,
        "blames_hardware": finding.blames_hardware,
        "pid": finding.last.pid,
        "process": finding.last.process,
        "cgroup": finding.last.cgroup,
        "reason": finding.reason,
        "evidence": list(dict.fromkeys((finding.first.text, finding.last.text))),
    }


def _print_table(
    name: str,
    state: "KernelLogState",
    findings: "tuple[KernelFinding, ...]",
    rows: "PolicyTable",
) -> None:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from detectors.kernel.event_policy import policy_of
    from detectors.wording import counted

    console = output.console()
    if findings:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("severity", no_wrap=True)
        table.add_column("what", ratio=1, overflow="fold")
        table.add_column("where", overflow="fold")
        table.add_column("count", justify="right", no_wrap=True)
        table.add_column("action", no_wrap=True)
        for finding in findings:
            what = [Text(_what(finding)), Text(_when(finding), style="dim")]
            if finding.reason != policy_of(rows, finding.kind, finding.code).source:
                what.append(Text(finding.reason))  # another verdict than the table's
            table.add_row(
                Text(finding.severity.value, style=_STYLES[finding.severity.value]),
                Group(*what),
                Text(finding.device or "node"),
                str(finding.count),
                finding.action.value.replace("_", " "),
            )
        console.print(table)
    kind = _KINDS[state.kind.value] if state.kind else ""
    summary = f"{name}: {kind}{state.records} records, {state.events} events"
    if state.untrusted:
        summary += f", {state.untrusted} more ignored: a process wrote them, not the kernel"
    if state.missed:
        summary += (
            f", {counted(state.missed, 'line')} with an XID not judged: their form is not known"
        )
    if state.quoted:
        summary += (
            f", {counted(state.quoted, 'line')} of a container not judged: whether the kernel wrote them is not "
            "known. Give the kernel's own log"
        )
    if state.lost:
        summary += (
            f", {counted(state.lost, 'message')} missing by the log's own words: a fault among them is not known. "
            "Give the node's dmesg"
        )
    if state.suppressed:
        summary += f", {counted(state.suppressed, 'message')} left out by the kernel's rate limits"
    if state.suppressed_services:
        summary += (
            f", {counted(state.suppressed_services, 'message')} of services left out by journald's rate limits, which none of the "
            "kernel's are under"
        )
    console.print(Text(summary), soft_wrap=True)


def _what(finding: "KernelFinding") -> str:
    if finding.code is not None:
        return f"{finding.kind.value.upper()} {finding.code}: {finding.meaning}"
    detail = f" ({', '.join(finding.sub_codes[:4])})" if finding.sub_codes else ""
    return f"{finding.meaning}{detail}"


def _when(finding: "KernelFinding") -> str:
    first, last = finding.first.when, finding.last.when
    if not first:
        return "the log has no timestamps"
    return first if first == last else f"{first} to {last}"
