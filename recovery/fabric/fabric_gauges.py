"""Metrics of a fabric test, in a file as node_exporter's textfile collector reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from detectors.fabric.fabric_verdict import FabricOutcome
from rankmend.errors import StorageError
from rankmend.files import write_output
from recovery.fabric.fabric_report import FabricReport, node_rates


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
    """Replace the file. Raises StorageError."""
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
    for one in report.collectives:
        bus.labels(one.operation, str(one.size_bytes)).set(one.bus_bytes_per_s)
    return registry
