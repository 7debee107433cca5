"""`rankmend fabric`: active tests of the network between the nodes of an allocation."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli.options import (
    NAME,
    examples,
    fail,
    find_state,
    json_option,
    print_json,
    state_option,
    to_plain,
)
from rankmend.cli.output import echo, echo_exact
from rankmend.cli.units import DURATION
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from recovery.lab.fabric.fabric_report import FabricReport

_USAGE: Final = 2
_FOUND: Final = 3  # exit code where a part is slow
_KINDS: Final = ("find", "pairs", "ring", "bisect", "all-to-all", "collectives", "paths", "flows")
_file = click.Path(dir_okay=False, path_type=Path)


@click.group()
def fabric() -> None:
    """Test the network between nodes: the slow part, bandwidth, paths that collide."""


@fabric.command(
    epilog="""\b
Examples:
  srun --ntasks-per-node=1 rankmend fabric test find
  srun --ntasks-per-node=1 rankmend fabric test pairs --topology topology.conf --plot map.svg
  rankmend fabric test collectives --nnodes 4 --node-rank 0 --rdzv-endpoint n0:29400 --token-file t
  rankmend fabric test paths --ports 32
  srun --ntasks-per-node=1 rankmend fabric test find --rail mlx5_0 --rail mlx5_1 --transport rdma
  srun --overlap --jobid 4711 --ntasks-per-node=1 rankmend fabric test flows
"""
)
@click.argument("kind", type=click.Choice(_KINDS))
@click.option("--nnodes", type=int, help="Nodes that take part.  [default: Slurm's, or WORLD_SIZE]")
@click.option("--node-rank", type=int, help="Number of this node.  [default: Slurm's, or RANK]")
@click.option(
    "--rdzv-endpoint",
    "endpoint",
    metavar="HOST:PORT",
    help="Where the first node listens.  [default: MASTER_ADDR and MASTER_PORT]",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    envvar="RANKMEND_TOKEN_FILE",
    help="File with a secret that all nodes share.",
)
@click.option(
    "--shared",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Private folder that all nodes see, instead of address and secret.",
)
@click.option(
    "--rail",
    "rails",
    multiple=True,
    metavar="NAME",
    help="Interface or RDMA device (mlx5_0, mlx5_0:2) to test. Repeatable.",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "tcp", "rdma"]),
    default="auto",
    show_default=True,
    help="Send over TCP, or over RDMA with ib_write_bw; auto: RDMA if every node can.",
)
@click.option(
    "--topology", type=_file, metavar="FILE", help="Leaf switches: see `rankmend fabric topology`."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.05, 30),
    default=1.0,
    show_default=True,
    help="How long each test sends, each way; how long flows watches.",
)
@click.option(
    "--timeout",
    "limit_s",
    type=DURATION,
    default="10m",
    show_default=True,
    help="Time limit of the test.",
)
@click.option(
    "--join-timeout",
    "join_s",
    type=DURATION,
    default="1m",
    show_default=True,
    help="Wait this long for nodes.",
)
@click.option(
    "--backend",
    type=click.Choice(["gloo", "nccl"]),
    default="gloo",
    show_default=True,
    help="For collectives.",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    type=click.IntRange(4096, 1 << 34),
    metavar="BYTES",
    help="Size of a collective. Repeatable.  [default: 1 MiB, 16 MiB]",
)
@click.option(
    "--python",
    type=_file,
    metavar="PATH",
    help="Interpreter with PyTorch, for collectives.  [default: rankmend's own]",
)
@click.option(
    "--flows",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Flows of each pair, for paths.",
)
@click.option(
    "--ports",
    type=click.IntRange(2, 64),
    default=16,
    show_default=True,
    help="Source ports to try, for paths and flows.",
)
@click.option("--plot", type=_file, metavar="FILE", help="Write a heat map (needs matplotlib).")
@click.option(
    "--metrics-file",
    type=_file,
    metavar="FILE",
    help="Write metrics, as node_exporter's textfile collector reads them.",
)
@state_option
@json_option
def test(
    kind: str,
    as_json: bool,
    plot: Path | None,
    metrics_file: Path | None,
    state_dir: Path | None,
    **options: Any,
) -> None:
    """Test the network. Start the same command on each node of an allocation, once per node.

    find names a slow node, NIC, rail or switch in at most 2 log2 N rounds of disjoint pairs; pairs also finds a slow link or
    path, in N - 1 rounds. ring, bisect and all-to-all load all nodes at once. collectives runs all-reduce and all-to-all
    under PyTorch. paths shows flows that share an uplink, and source ports that spread them. flows
    shows the same for running programs, without sending load.

    The first node prints the result and exits with 3 if a part is slow, 2 if the test could not be done, 130 or 143 after SIGINT or
    SIGTERM. Nothing is changed on any node.
    """
    from rankmend.node import node_name
    from rankmend.signals import StoppedError, raising_signals

    try:
        with raising_signals():
            pyplot = _load_pyplot() if plot else None
            report = _run(kind, node_name(), options)
    except RankmendError as error:
        fail(str(error), _USAGE)
    except StoppedError as error:
        with contextlib.suppress(OSError):  # the terminal may be gone
            echo(f"rankmend: {error}", err=True)
        os._exit(error.exit_code)  # no thread that still traces or waits makes the end later
    if report is None:
        return
    is_written = _write(report, state_dir, metrics_file, plot, pyplot)
    _print_report(report, as_json=as_json)
    if report.verdict is not None and report.verdict.parts:
        sys.exit(_FOUND)
    if not is_written:
        sys.exit(_USAGE)


@fabric.command(
    epilog="""\b
Examples:
  rankmend fabric topology --slurm /etc/slurm/topology.conf -o topology.json
  ibnetdiscover > ib.txt; rankmend fabric topology --ibnetdiscover ib.txt -o topology.json
  rankmend fabric topology --slurm /etc/slurm/topology.conf --site racks.toml -o topology.json
  for n in n1 n2; do ssh $n lldpctl -f json > $n.json; done; rankmend fabric topology --lldp n1.json --lldp n2.json
  srun --ntasks-per-node=1 --output=pages/%N rankmend agent --once; rankmend fabric topology --pages pages/ -o topology.json
"""
)
@click.option(
    "--lldp",
    "lldp",
    multiple=True,
    type=_file,
    metavar="FILE",
    help="Output of `lldpctl -f json`, in a file named after its node. Repeatable.",
)
@click.option(
    "--ibnetdiscover",
    "ib",
    multiple=True,
    type=_file,
    metavar="FILE",
    help="Output of ibnetdiscover. Repeatable.",
)
@click.option(
    "--slurm",
    "slurm",
    multiple=True,
    type=_file,
    metavar="FILE",
    help="Slurm's topology.conf or topology.yaml, or what `scontrol show topology` prints. Repeatable.",
)
@click.option(
    "--site",
    "site",
    multiple=True,
    type=_file,
    metavar="FILE",
    help="The site's file of racks, power feeds and coolant loops (TOML). Repeatable.",
)
@click.option(
    "--pages",
    "pages",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Metrics pages of nodes' agents, one file per node, named after the node, folders of "
    "these, or answers from Prometheus: give rails and "
    "NVLink domains. Repeatable.",
)
@click.option(
    "--result",
    "results",
    multiple=True,
    type=_file,
    metavar="FILE",
    help="Saved result of a test: groups nodes by round trip if nothing better is known. "
    "Repeatable.",
)
@click.option(
    "-o",
    "--output",
    "target",
    type=_file,
    metavar="FILE",
    help="Write it here.  [default: standard output]",
)
def topology(
    lldp: tuple[Path, ...],
    ib: tuple[Path, ...],
    slurm: tuple[Path, ...],
    site: tuple[Path, ...],
    pages: tuple[Path, ...],
    results: tuple[Path, ...],
    target: Path | None,
) -> None:
    """Write one topology file from all sources: each edge with its origin and confidence.

    Commands with --topology read it. If sources disagree on a node's leaf switch, the most reliable
    one wins: the subnet manager and LLDP before a file that a person wrote, round trips last. It
    prints disagreements about a port's switch, about a node's rails compared with nodes built
    alike, between a port's rail and that of its switch, and between a node's NVLink domain and
    that of its block.
    """
    from detectors.network_topology import contradictions, encode_topology, merge
    from detectors.parts.nvlink_domains import find_chassis, find_domains, find_strays
    from detectors.parts.rails import find_crossed, find_layouts
    from rankmend.cli.checks.check_fleet import list_pages
    from recovery.lab.fabric.topology_sources import read_pages, read_sources

    try:
        facts = read_pages(list_pages(pages))
        layouts, doubts = find_layouts(facts)
        domains, split = find_domains(facts)
        chassis, scattered = find_chassis(facts)
        edges, blocks = read_sources(lldp, ib, slurm, results, site)
        found = merge(edges, layouts, domains, blocks, chassis)
        if not (found.edges or layouts or blocks):
            fail(
                "no source names a switch, block, rack or NIC: give --lldp, --ibnetdiscover, --slurm, --site, --pages or --result",
                _USAGE,
            )
        body = encode_topology(found)
        if target is not None:
            from rankmend.errors import StorageError
            from rankmend.files import write_output

            write_output(target, body + b"\n", StorageError)
    except (RankmendError, OSError) as error:
        fail(str(error), _USAGE)
    if target is None:
        echo_exact(body.decode())
    for item, other in contradictions(found):
        echo(
            f"rankmend: {item.below} {item.port}: {item.origin.value} says {item.above}, {other.origin.value} says {other.above}",
            err=True,
        )
    said = [doubt.in_words() for doubt in doubts]
    said += [item.in_words() for item in split]
    said += [item.in_words() for item in scattered]
    said += [cable.in_words() for cable in find_crossed(found)]
    said += [stray.in_words() for stray in find_strays(found)]
    for words in said:
        echo(f"rankmend: {words}", err=True)


@fabric.command(
    epilog="""\b
Examples:
  rankmend fabric blame --topology topology.json node3 node7 node12
  rankmend fabric blame --topology topology.json --among node[1-16] --by heat node3 node4
  rankmend fabric blame --topology topology.json --by network node[1-14]/mlx5_3
"""
)
@click.argument("nodes", nargs=-1, required=True)
@click.option(
    "--topology",
    type=_file,
    required=True,
    metavar="FILE",
    help="The file of `rankmend fabric topology`.",
)
@click.option(
    "--among",
    metavar="NODES",
    help="All nodes that could have failed, as a host list.  [default: all of the topology]",
)
@click.option(
    "--by",
    type=click.Choice(["anything", "network", "heat", "power"]),
    default="anything",
    show_default=True,
    help="What kind of fault it is: leaves out parts that can't cause it.",
)
@json_option
def blame(
    nodes: tuple[str, ...], topology: Path, among: str | None, by: str, as_json: bool
) -> None:
    """Name the smallest part that explains why NODES (host lists) failed or slowed down together.

    Parts are leaf switches and switches above them, NVLink domains, Slurm's blocks, chassis, racks,
    power feeds and coolant loops. If two explain it equally well, none is named. With /NIC after a host
    list, only these NICs are bad and each NIC of a rail counts separately; parts are then also
    nodes and rails.

    Exit codes: 0 a part is named, 1 none is, 2 the topology can't be read.
    """
    from detectors.formats.site.host_list import expand_hosts
    from detectors.formats.site.slurm_topology import parse_parts
    from detectors.parts.shared_blame import BadPlace, BlameEnd, explain_shared, find_workers
    from detectors.parts.symptoms import CAUSES_OF, SharedSymptom

    try:
        parts = parse_parts(_read_topology(topology))
        known = expand_hosts(among) if among else parts.nodes
        bad = [
            BadPlace(node, nic)
            for hosts, _slash, nic in (listed.partition("/") for listed in nodes)
            for node in expand_hosts(hosts)
        ]
        strange = sorted({item.node for item in bad} - set(known))
        if strange:
            fail(f"{strange[0]} is not in {'--among' if among else 'the topology'}", _USAGE)
        workers, hit = find_workers(bad, known, parts)
    except RankmendError as error:
        fail(str(error), _USAGE)
    found = explain_shared(workers, hit, parts, CAUSES_OF[SharedSymptom(by)])
    if as_json:
        print_json({**to_plain(found), "words": found.in_words()})
    else:
        noun = "NIC" if any(worker.nic for worker in workers) else "node"
        echo(found.in_words(noun) or f"one {noun} shares nothing")
    sys.exit(0 if found.end is BlameEnd.NAMED else 1)


@fabric.command(epilog=examples("rankmend fabric show fabric/result.json"))
@click.argument("file", type=_file)
@click.option("--plot", type=_file, metavar="FILE", help="Write a heat map (needs matplotlib).")
@json_option
def show(file: Path, as_json: bool, plot: Path | None) -> None:
    """Show a saved result again: FILE is in the state folder, below fabric."""
    from recovery.lab.fabric.fabric_report import read_report

    try:
        pyplot = _load_pyplot() if plot else None
        report = read_report(file)
    except RankmendError as error:
        fail(str(error), _USAGE)
    is_drawn = _draw(report, plot, pyplot)
    _print_report(report, as_json=as_json)
    if not is_drawn:
        sys.exit(_USAGE)


@fabric.command(epilog=examples("rankmend fabric history gpu-17"))
@click.argument("node", type=NAME)
@state_option
@json_option
def history(node: str, as_json: bool, state_dir: Path | None) -> None:
    """Show what earlier tests measured on a node, oldest first."""
    from recovery.lab.fabric import fabric_report

    try:
        found, broken = fabric_report.history(find_state(state_dir) / "fabric", node)
    except RankmendError as error:
        fail(str(error), _USAGE)
    for problem in broken:
        echo(f"rankmend: left out: {problem}", err=True)
    if as_json:
        import msgspec

        print_json([msgspec.to_builtins(item) for item in found])
        return
    if not found:
        fail(f"no test of {node} is kept here (the first node of a test keeps its results)")
    from rankmend.cli.labs.fabric_tables import show_history

    show_history(node, found)


def _run(kind: str, node: str, options: Mapping[str, Any]) -> "FabricReport | None":
    """Take part; return the report on the first node."""
    from recovery.lab.fabric.fabric_messages import TransportWish
    from recovery.lab.fabric.fabric_options import FabricKind, FabricOptions
    from recovery.lab.fabric.fabric_place import find_place
    from recovery.lab.fabric.fabric_test import run_fabric_test

    place = find_place(
        os.environ,
        nnodes=options["nnodes"],
        node_rank=options["node_rank"],
        endpoint=options["endpoint"],
        token_file=options["token_file"],
        shared=options["shared"],
    )
    if place is None:
        return None  # another process of this node takes part
    wanted = FabricOptions(
        FabricKind(kind),
        seconds=options["seconds"],
        join_s=options["join_s"],
        limit_s=options["limit_s"],
        rails=options["rails"],
        leaf_of=_read_leaves(options["topology"]),
        sizes_bytes=options["sizes"] or FabricOptions(FabricKind.FIND).sizes_bytes,
        backend=options["backend"],
        python=options["python"] or Path(sys.executable),
        flows=options["flows"],
        ports=options["ports"],
        transport=TransportWish(options["transport"]),
    )
    found = run_fabric_test(place, node, wanted)
    return found.report


def _read_leaves(path: Path | None) -> dict[str, str]:
    from detectors.formats.site.slurm_topology import parse_topology

    return {} if path is None else parse_topology(_read_topology(path))


def _read_topology(path: Path) -> bytes:
    from detectors.network_topology import BYTES_MAX
    from rankmend.errors import SourceError
    from rankmend.files import read_capped

    return read_capped(path, BYTES_MAX, SourceError)


def _print_report(report: "FabricReport", *, as_json: bool) -> None:
    if as_json:
        import msgspec

        echo_exact(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        return
    from rankmend.cli.labs.fabric_tables import show_report

    show_report(report)
    for problem in report.problems:
        echo(f"rankmend: {problem}", err=True)


def _write(
    report: "FabricReport",
    state_dir: Path | None,
    metrics_file: Path | None,
    plot: Path | None,
    pyplot: Any,
) -> bool:
    """Keep the result and write what else was requested; return whether all was. It is shown all the same, so a test is never in vain."""
    from recovery.lab.fabric.fabric_report import keep, write_metrics

    written = [
        _try("the result is not kept", lambda: keep(report, find_state(state_dir) / "fabric")),
        metrics_file is None
        or _try("no metrics are written", lambda: write_metrics(report, metrics_file)),
        _draw(report, plot, pyplot),
    ]
    return all(written)


def _draw(report: "FabricReport", plot: Path | None, pyplot: Any) -> bool:
    if plot is None:
        return True
    from rankmend.cli.labs.fabric_plot import write_heat_map

    return _try(f"no heat map in {plot}", lambda: write_heat_map(plot, pyplot, report))


def _try(failure: str, write: Callable[[], object]) -> bool:
    """Return whether something could be written; if not, say so."""
    try:
        write()
    except (RankmendError, ValueError) as error:
        echo(f"rankmend: {failure}: {error}", err=True)
        return False
    return True


def _load_pyplot() -> Any:
    from importlib import import_module

    from rankmend.packages import Extra, require

    require(Extra.PLOT, "--plot")
    import_module("matplotlib").use("Agg")
    return import_module("matplotlib.pyplot")
