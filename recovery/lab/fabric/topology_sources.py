"""Reads the sources of a topology file: outputs of LLDP and ibnetdiscover, Slurm's file, the site's own, kept results of tests, pages of agents."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from detectors.formats.site.ibnetdiscover import parse_ibnetdiscover
from detectors.formats.site.lldp import parse_lldp
from detectors.formats.site.node_pages import read_node_pages
from detectors.formats.site.site_parts import parse_site_parts
from detectors.formats.site.slurm_topology import parse_network
from detectors.network_topology import NodeBlock, TopologyEdge, cluster_by_latency
from detectors.parts.node_facts import NodeFacts
from rankmend.errors import SourceError
from rankmend.files import read_capped
from recovery.lab.fabric.fabric_report import FabricReport, read_report

BYTES_MAX: Final = 256 << 20
_Parsed = TypeVar("_Parsed")


def read_sources(
    lldp: Sequence[Path],
    ibnetdiscover: Sequence[Path],
    slurm: Sequence[Path],
    results: Sequence[Path],
    site: Sequence[Path] = (),
) -> tuple[list[tuple[TopologyEdge, ...]], list[NodeBlock]]:
    """Return the edges of each file, and the blocks of all. Raises SourceError that names the file."""
    found = []
    blocks: list[NodeBlock] = []
    for path in lldp:
        found.append(
            _named(path, lambda path: parse_lldp(path.name.partition(".")[0], _read(path)))
        )
    for path in ibnetdiscover:
        found.append(
            _named(path, lambda path: parse_ibnetdiscover(_read(path).decode("utf-8", "replace")))
        )
    for path in slurm:
        reported = _named(path, lambda path: parse_network(_read(path)))
        found.append(reported.edges)
        blocks += reported.blocks
    for path in site:
        found.append(_named(path, lambda path: parse_site_parts(_read(path))))
    for path in results:
        found.append(latency_edges(read_report(path)))
    return found, blocks


def read_pages(paths: Sequence[Path]) -> list[NodeFacts]:
    """Return what each node's page tells, or an answer of Prometheus of many. Raises SourceError that names the file."""
    found: dict[str, NodeFacts] = {}
    for path in paths:
        for item in _named(path, _read_page):
            if found.setdefault(item.node, item) is not item:
                raise SourceError(f"{path}: node {item.node} is listed twice")
    return list(found.values())


def _read_page(path: Path) -> list[NodeFacts]:
    text = _read(path).decode("utf-8", "replace")
    return read_node_pages(path.name.partition(".")[0], text)


def latency_edges(report: FabricReport) -> tuple[TopologyEdge, ...]:
    """Return the groups of nodes that round trips show: of each pair, the shortest counts."""
    shortest: dict[tuple[int, int], float] = {}
    for reading in report.readings:
        if reading.latency_s is not None:
            pair = min(reading.sender, reading.receiver), max(reading.sender, reading.receiver)
            shortest[pair] = min(reading.latency_s, shortest.get(pair, reading.latency_s))
    return cluster_by_latency(report.network.nodes, shortest)


def _named(path: Path, parse: Callable[[Path], _Parsed]) -> _Parsed:
    try:
        return parse(path)
    except SourceError as error:
        raise error if str(path) in str(error) else SourceError(f"{path}: {error}") from error


def _read(path: Path) -> bytes:
    return read_capped(path, BYTES_MAX, SourceError)
