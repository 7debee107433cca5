"""The results of a fabric test: for the command, stored by node, and as metrics for node_exporter's textfile collector."""

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from detectors.fabric.collisions import PathPlan
from detectors.fabric.fabric_verdict import FabricOutcome, FabricVerdict
from detectors.fabric.network import Network, Reading
from rankmend.errors import SourceError, StorageError
from rankmend.files import read_capped, replace_file, write_output
from recovery.lab.fabric.fabric_messages import PortRates, Transport

REPORT_BYTES_MAX: Final = 256 << 20  # all pairs of 1,024 nodes are 1 M readings of some 150 bytes
KEPT_MAX: Final = 200  # reports in the history
_NAME: Final = re.compile(r"fabric-(\d{1,12})-\d+\.json")


class CollectiveFigure(msgspec.Struct, frozen=True):
    operation: str
    size_bytes: int
    seconds: float  # the slowest rank's median
    bus_bytes_per_s: float  # as nccl-tests defines it
    expected_s: float | None = None  # by the cost model
    preferred_s: float | None = None  # the same, with the nodes in the order that the model prefers


class PathTrial(msgspec.Struct, frozen=True):
    """Flows side by side, before and after source ports were planned."""

    plan: PathPlan
    before_bytes_per_s: tuple[float, ...]  # of each flow
    after_bytes_per_s: tuple[float, ...]


class RunningFlow(msgspec.Struct, frozen=True):
    """A flow of a program that ran anyway."""

    name: str  # sender -> receiver
    protocol: str  # tcp or udp (RoCE)
    program: str
    source_port: int
    bytes_per_s: float | None  # None: queue pairs are not counted one by one


class RunningFlows(msgspec.Struct, frozen=True):
    """Flows of running programs, and the links that some of them share. ``plan``: None where no path is known."""

    flows: tuple[RunningFlow, ...]
    plan: PathPlan | None
    untraced: tuple[str, ...]  # flows whose path nobody told
    reasons: tuple[str, ...]  # why traces could not be made
    unpaired: int  # queue pairs whose other end is not known, or not for certain
    ports: tuple[tuple[str, PortRates], ...]  # by node


class FabricReport(msgspec.Struct, frozen=True):
    kind: str
    at_unix_s: float
    network: Network
    readings: tuple[Reading, ...] = ()
    verdict: FabricVerdict | None = None
    total_bytes_per_s: float | None = None  # of ring, bisect and all-to-all: all flows at once
    collectives: tuple[CollectiveFigure, ...] = ()
    preferred_order: tuple[str, ...] = ()  # of nodes, for a ring or a pipeline
    paths: PathTrial | None = None
    running: RunningFlows | None = None
    absent: tuple[str, ...] = ()  # nodes that did not tell what they measured
    problems: tuple[str, ...] = ()
    transport: Transport = Transport.TCP
    transport_reason: str = ""  # why this one, where that is not plain
    unmeasured: tuple[str, ...] = ()  # nodes that answered, but none of their tests gave a reading


class FabricNodeRecord(msgspec.Struct, frozen=True):
    """One node in one report of the history."""

    at_unix_s: float
    kind: str
    sends_bytes_per_s: float | None
    receives_bytes_per_s: float | None
    usual_bytes_per_s: float | None
    accused: tuple[str, ...]
    transport: Transport = Transport.TCP


def keep(report: FabricReport, folder: Path) -> Path:
    """Write the report into the history, and remove the oldest beyond `KEPT_MAX`. Raises StorageError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error
    path = folder / f"fabric-{int(report.at_unix_s)}-{time.monotonic_ns() % 10**9}.json"
    replace_file(path, msgspec.json.encode(report), StorageError, durable=False)
    for old in _files(folder)[:-KEPT_MAX]:
        with contextlib.suppress(OSError):
            old.unlink(missing_ok=True)
    return path


def read_report(path: Path) -> FabricReport:
    body = read_capped(path, REPORT_BYTES_MAX, SourceError)
    try:
        return msgspec.json.decode(body, type=FabricReport)
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError) as error:
        raise SourceError(f"{path} is not a report of rankmend fabric: {error}") from error


def history(folder: Path, node: str) -> tuple[tuple[FabricNodeRecord, ...], tuple[str, ...]]:
    """Return what the kept reports say of a node, oldest first, and why reports can't be read."""
    found, broken = [], []
    for path in _files(folder):
        try:
            report = read_report(path)
        except SourceError as error:
            broken.append(str(error))
            continue
        if node in report.network.nodes:
            found.append(_record(report, report.network.nodes.index(node)))
    return tuple(found), tuple(broken)


def node_rates(report: FabricReport) -> Mapping[int, tuple[float | None, float | None]]:
    """Return the median rate at which each node sends and receives, in bytes/s."""
    sends: dict[int, list[float]] = {}
    receives: dict[int, list[float]] = {}
    for reading in report.readings:
        sends.setdefault(reading.sender, []).append(reading.bytes_per_s)
        receives.setdefault(reading.receiver, []).append(reading.bytes_per_s)
    return {
        node: (_median(sends.get(node)), _median(receives.get(node)))
        for node in range(len(report.network.nodes))
    }


def _record(report: FabricReport, node: int) -> FabricNodeRecord:
    name = report.network.nodes[node]
    sends, receives = node_rates(report)[node]
    parts = report.verdict.parts if report.verdict is not None else ()
    return FabricNodeRecord(
        report.at_unix_s,
        report.kind,
        sends,
        receives,
        report.verdict.usual_bytes_per_s if report.verdict is not None else None,
        tuple(f"{part.kind.value} {part.name}" for part in parts if name in part.nodes),
        report.transport,
    )


def _median(values: list[float] | None) -> float | None:
    return median(values) if values else None


def _files(folder: Path) -> list[Path]:
    try:
        names = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SourceError(f"cannot list {folder}: {error.strerror}") from error
    return sorted(names, key=lambda path: (int(_NAME.fullmatch(path.name)[1]), path.name))  # type: ignore[index]


@dataclass(frozen=True, slots=True)
class FabricFamily:
    name: str
    meaning: str
    labels: tuple[str, ...] = ()

    def declare(self, registry: CollectorRegistry) -> Gauge:
        return Gauge(self.name, self.meaning, self.labels, registry=registry)


_AT: Final = FabricFamily(
    "rankmend_fabric_test_timestamp_seconds", "When the test ended.", ("kind", "transport")
)
_RATE: Final = FabricFamily(
    "rankmend_fabric_node_rate_bytes_per_second",
    "Median rate of a node in the test.",
    ("peer_node", "direction", "transport"),
)
_USUAL: Final = FabricFamily(
    "rankmend_fabric_usual_rate_bytes_per_second", "Rate that most tests reached.", ("transport",)
)
_CLEAR: Final = FabricFamily(
    "rankmend_fabric_verdict_clear",
    "0: slow tests that no part explains, or too few nodes.",
)
_SLOW: Final = FabricFamily(
    "rankmend_fabric_slow_part_delay_ratio",
    "Time that a byte takes through a part found slow, against the usual.",
    ("part", "name"),
)
_BUS: Final = FabricFamily(
    "rankmend_fabric_bus_bandwidth_bytes_per_second",
    "Bus bandwidth of a collective, as nccl-tests defines it.",
    ("operation", "size_bytes"),
)
FAMILIES: Final = (_AT, _RATE, _USUAL, _CLEAR, _SLOW, _BUS)


def write_metrics(report: FabricReport, path: Path) -> None:
    """Replace the file that node_exporter's textfile collector reads. Raises StorageError."""
    write_output(path, generate_latest(_registry(report)), StorageError)


def _registry(report: FabricReport) -> CollectorRegistry:
    registry, transport = CollectorRegistry(), report.transport.value
    _AT.declare(registry).labels(report.kind, transport).set(report.at_unix_s)
    rates = _RATE.declare(registry)
    for node, (sends, receives) in node_rates(report).items():
        for direction, value in (("sends", sends), ("receives", receives)):
            if value is not None:
                rates.labels(report.network.nodes[node], direction, transport).set(value)
    if report.verdict is not None:
        _USUAL.declare(registry).labels(transport).set(report.verdict.usual_bytes_per_s)
        is_clear = report.verdict.outcome is not FabricOutcome.UNCLEAR
        _CLEAR.declare(registry).set(is_clear)
        slow = _SLOW.declare(registry)
        for part in report.verdict.parts:
            slow.labels(part.kind.value, part.name).set(part.delay_ratio)
    bus = _BUS.declare(registry)
    for collective in report.collectives:
        bus.labels(collective.operation, str(collective.size_bytes)).set(collective.bus_bytes_per_s)
    return registry
