"""`rankmend check fleet` and `check lemons`: who differs from the others, and who fails again and again."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli import output
from rankmend.cli.options import fail, json_option, print_json, state_option
from rankmend.cli.output import echo
from rankmend.cli.sources.controller_options import Access, controller_options
from rankmend.cli.sources.reader import reading
from rankmend.cli.times import say_time
from rankmend.errors import RankmendError, SourceError
from rankmend.files import read_capped
from rankmend.printable import printable

if TYPE_CHECKING:
    from detectors.node.fleet_drift import Drift
    from detectors.node.job_libraries import MixedJob, RankLibrary
    from detectors.node.lemons import Lemon
    from recovery.api import wire

UNREADABLE: Final = 64  # as in `check log`
PAGES_MAX: Final = 20_000
_PAGE_BYTES_MAX: Final = 16_000_000
_VERSION: Final = "rankmend_version_info"
_RANK: Final = "rankmend_rank_info"
_NCCL: Final = "rankmend_rank_nccl_info"


@click.command(
    epilog="""\b
Example: save the page of each node's agent (rankmend agent --once, or its /metrics), then compare:
  for n in $(cat nodes); do curl -sf http://$n:9476/metrics >pages/$n; done
  rankmend check fleet pages/
"""
)
@click.argument("pages", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def fleet(pages: tuple[Path, ...], as_json: bool) -> None:
    """Show which nodes differ from the others in driver, firmware, kernel, BIOS, IOMMU, ACS or NCCL.

    PAGES are metrics pages of nodes' agents, one file per node, named after the node, or folders of
    these. For running jobs, also checks that all ranks of a job have loaded the same NCCL.

    Exit codes: 0 all alike, 1 some differ, 64 could not be read.
    """
    from detectors.node.fleet_drift import find_drift
    from detectors.node.job_libraries import find_mixed_jobs

    versions: dict[str, dict[str, str]] = {}
    libraries: list[RankLibrary] = []
    try:
        for path in list_pages(pages):
            versions[path.stem], reported = read_node(path)
            libraries += reported
    except (RankmendError, OSError) as error:
        fail(str(error), UNREADABLE)
    drifts, mixed = find_drift(versions), find_mixed_jobs(libraries)
    if as_json:
        print_json({"nodes": len(versions), "drift": drifts, "mixed_jobs": mixed})
    else:
        _print_drift(drifts, mixed, len(versions))
    sys.exit(1 if drifts or mixed else 0)


def list_pages(paths: tuple[Path, ...]) -> list[Path]:
    found = []
    for path in paths:
        found += sorted(path.iterdir()) if path.is_dir() else [path]
    if len(found) > PAGES_MAX:
        raise SourceError(f"{len(found)} pages: at most {PAGES_MAX}")
    return found


def read_node(path: Path) -> "tuple[dict[str, str], list[RankLibrary]]":
    """Return the versions on a metrics page by component, of a component with several devices all of them, and what its ranks have loaded."""
    from detectors.formats.page_samples import read_samples
    from detectors.node.job_libraries import RankLibrary

    page = read_capped(path, _PAGE_BYTES_MAX, SourceError).decode("utf-8", "replace")
    found: dict[str, set[str]] = {}
    ranks: dict[tuple[str, str], dict[str, str]] = {}
    libraries: dict[tuple[str, str], set[str]] = {}
    for metric, said, value in read_samples(page, (_VERSION, _RANK, _NCCL)):
        if value != 1:
            continue
        labels = {name: printable(text) for name, text in said.items()}
        version, rank = (
            labels.get("version", ""),
            (labels.get("job_id", ""), labels.get("rank", "")),
        )
        if metric == _RANK:
            ranks[rank] = labels
        elif metric == _NCCL:
            libraries.setdefault(rank, set()).add(version)
        elif "component" in labels:
            found.setdefault(labels["component"], set()).add(version)
    if not found:
        raise SourceError(f"{path} names no version: it is not a metrics page of an agent")
    reported = [
        RankLibrary(
            node=path.stem,
            job_id=rank[0],
            job_name=ranks.get(rank, {}).get("job_name", ""),
            attempt=_number(ranks.get(rank, {}).get("attempt", "")),
            rank=_number(rank[1]),
            versions=tuple(sorted(versions)),
        )
        for rank, versions in libraries.items()
    ]
    return {component: ", ".join(sorted(some)) for component, some in found.items()}, reported


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else 0


def _print_drift(drifts: "list[Drift]", mixed: "list[MixedJob]", nodes: int) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from detectors.wording import counted, names_in_words

    console = output.console()
    if drifts:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("component", no_wrap=True)
        table.add_column("most have", overflow="fold")
        table.add_column("others", ratio=1, overflow="fold")
        for drift in drifts:
            others = [f"{node} {version}" for node, version in drift.others]
            if drift.usual is None:
                others = [f"{version} on {count}" for version, count in drift.counts]
            table.add_row(
                Text(drift.component),
                Text(drift.usual or "no majority"),
                Text(names_in_words(others)),
            )
        console.print(table)
    for job in mixed:
        echo(job.in_words())
    console.print(
        Text(f"{counted(nodes, 'node')}, {counted(len(drifts) + len(mixed), 'difference')}")
    )


@click.command(
    epilog="""\b
Examples:
  rankmend check lemons --controller https://controller.example:9477
  rankmend check lemons --days 7 --min 2 --json
  rankmend check lemons --policy policy.toml
"""
)
@click.option(
    "--days",
    type=click.FloatRange(0.1, 3650),
    help="Days to look back.  [default: the policy's, 28]",
)
@click.option(
    "--min",
    "faults_min",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="List nodes with at least this many faults.",
)
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show which limit of [lemons] in this policy each node has reached.",
)
@state_option
@controller_options
@json_option
def lemons(
    days: float | None,
    faults_min: int,
    policy_file: Path | None,
    state_dir: Path | None,
    access: Access,
    as_json: bool,
) -> None:
    """List nodes that fail repeatedly, with their faults by kind.

    Counts the incidents in the journals that blame a node or something on it. Keeps no node out of service, even
    with --policy: the controller does that, by its own policy.

    Exit codes: 0 there are none, 1 there are some.
    """
    from collections import Counter

    from detectors.node.lemons import BlamedNode, find_lemons
    from recovery.controller.cluster.charge_verdict import find_over
    from recovery.controller.cluster.cluster_limits_file import read_policy_file

    try:
        rules = read_policy_file(policy_file).cluster.lemons
    except RankmendError as error:
        fail(str(error), UNREADABLE)
    days = rules.days if days is None else days

    with reading(access, state_dir) as reader:
        faults = [
            BlamedNode(node, incident.cause, incident.opened_unix_s, incident.job_id, kind)
            for incident in reader.incidents(None)
            for node, kind in _counted(incident)
        ]
    found = find_lemons(faults, time.time(), days, faults_min)
    over = {lemon.node: find_over(Counter(dict(lemon.kinds)), rules) for lemon in found}
    if as_json:
        more = {} if policy_file is None else {"over": over}
        print_json({"days": days, "min": faults_min, "lemons": found, **more})
    else:
        said = {
            node: item.in_words(days) if item is not None else "-" for node, item in over.items()
        }
        _print_lemons(found, days, faults_min, said if policy_file is not None else {})
    sys.exit(1 if found else 0)


def _print_lemons(found: "list[Lemon]", days: float, faults_min: int, over: dict[str, str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not found:
        echo(f"no node has {faults_min} faults within {days:g} days")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("node", "faults", "by kind", "newest", *(["over the limit"] if over else [])):
        table.add_column(name, overflow="fold")
    for item in found:
        kinds = ", ".join(f"{count} {kind}" for kind, count in item.kinds)
        newest = say_time(item.newest_unix_s)
        more = [Text(over[item.node])] if over else []
        table.add_row(Text(item.node), str(item.faults), Text(kinds), newest, *more)
    output.console().print(table)


def _counted(incident: "wire.IncidentView") -> "list[tuple[str, str]]":
    """Return the nodes against which an incident counts, each with what it shows; in an older journal those it blames."""
    from detectors.finding import Blame

    if incident.charges or incident.blamed_before:
        return [(charge.node, charge.kind) for charge in incident.charges if charge.counts]
    return [(incident.node, "")] if incident.blame == Blame.RANK.value else []
