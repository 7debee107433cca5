"""Readings of host metrics as one table: nodes, times and the quantities that are compared. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.slow.hardware_reading import HardwareReading
from rankmend.errors import SourceError

Matrix = NDArray[np.float64]
NODES_MAX: Final = 4_096
CELLS_MAX: Final = 20_000_000  # nodes x times of one metric: 160 MB
GAP_S_MAX: Final = 120.0  # gaps up to four scrapes of 30 s are filled with the nearest sample


class Merge(Enum):
    """How a node's series are merged into one."""

    SUM = "sum"
    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is compared, computed from the agent's metrics; the order is the priority."""

    name: str
    metric: str
    merge: Merge
    is_rate: bool = False
    where: tuple[str, frozenset[str]] | None = None
    least: float = 0.0  # a deviation below this means nothing, in the metric's unit
    share: float | None = None  # nor one below this share of the peers' level; None: the default


_BUSY: Final = frozenset({"user", "nice", "system", "irq", "softirq", "steal"})


# Minder's order: pause frames, CPU, GPU duty, power, activity (here the clock), NVLink; PCIe,
# NIC and storage are ours. Of several GPUs the lowest speaks: one of eight moves a mean by an eighth.
QUANTITIES: Final = (
    Quantity(
        "pause_frames",
        "rankmend_ethernet_priority_pause_frames_total",
        Merge.SUM,
        is_rate=True,
        where=("direction", frozenset({"transmit"})),
        least=100.0,
    ),
    Quantity(
        "cpu_busy",
        "rankmend_host_cpu_seconds_total",
        Merge.SUM,
        is_rate=True,
        where=("mode", _BUSY),
        least=0.5,
    ),
    Quantity("gpu_duty", "rankmend_gpu_utilization_ratio", Merge.LOWEST, least=0.1),
    Quantity("gpu_power", "rankmend_gpu_power_watts", Merge.LOWEST, least=30.0),
    Quantity(
        "gpu_clock",
        "rankmend_gpu_clock_hertz",
        Merge.LOWEST,
        where=("clock", frozenset({"sm"})),
        share=0.05,
    ),
    Quantity("pcie_width", "rankmend_gpu_pcie_width_lanes", Merge.LOWEST, least=1.0, share=0.0),
    Quantity(
        "nvlink_bytes",
        "rankmend_gpu_nvlink_transmit_bytes_total",
        Merge.SUM,
        is_rate=True,
        least=1e6,
    ),
    Quantity("nic_bytes", "rankmend_nic_transmit_bytes_total", Merge.SUM, is_rate=True, least=1e6),
    Quantity(
        "storage_wait",
        "rankmend_pressure_some_seconds_total",
        Merge.SUM,
        is_rate=True,
        where=("resource", frozenset({"io"})),
        least=0.05,
        share=0.0,
    ),
)
METRICS: Final = frozenset(quantity.metric for quantity in QUANTITIES)
SELECTIONS: Final = {quantity.metric: quantity.where for quantity in QUANTITIES}


@dataclass(frozen=True, slots=True, eq=False)
class HostTable:
    """Values by node and time for each quantity; NaN where there is no sample."""

    nodes: tuple[str, ...]
    times_s: Matrix  # ascending, one step apart
    values: Mapping[str, Matrix]  # name of the quantity -> nodes x times


def table_of(readings: Iterable[HardwareReading]) -> HostTable:
    """Return the quantities of all nodes, on one grid of times, out of the agent's metrics."""
    wanted = {quantity.metric for quantity in QUANTITIES}
    series: dict[str, dict[tuple[str, str, tuple[tuple[str, str], ...]], list[tuple[float, float]]]]
    series = defaultdict(lambda: defaultdict(list))
    spacings: list[float] = []
    for reading in readings:
        if reading.metric in wanted and np.isfinite(reading.value):
            series[reading.metric][reading.node, reading.device, reading.labels].append(
                (reading.at_s, reading.value)
            )
    for by_key in series.values():
        for points in by_key.values():
            points.sort()
            spacings += [b[0] - a[0] for a, b in pairwise(points)][:16]
    nodes = sorted({key[0] for by_key in series.values() for key in by_key})
    spacings = [spacing for spacing in spacings if spacing > 0]
    if not nodes or not spacings:
        raise SourceError(
            "no metric of a node has two samples (docs/reference/metrics.md names the metrics)"
        )
    step_s = float(np.median(spacings))
    ends = [points[end][0] for by in series.values() for points in by.values() for end in (0, -1)]
    first_s, count = min(ends), round((max(ends) - min(ends)) / step_s) + 1
    if len(nodes) > NODES_MAX or len(nodes) * count > CELLS_MAX:
        raise SourceError(f"{len(nodes)} nodes x {count} times: more than {CELLS_MAX} values")
    row_of = {node: row for row, node in enumerate(nodes)}
    values = {}
    for quantity in QUANTITIES:
        merged = np.full((len(nodes), count), np.nan)
        for (node, _device, labels), points in series.get(quantity.metric, {}).items():
            if quantity.where and dict(labels).get(quantity.where[0]) not in quantity.where[1]:
                continue
            line = _on_grid(points, first_s, step_s, count, is_rate=quantity.is_rate)
            row = merged[row_of[node]]
            both = np.isfinite(row) & np.isfinite(line)
            combined = {
                Merge.SUM: row + line,
                Merge.LOWEST: np.minimum(row, line),
                Merge.HIGHEST: np.maximum(row, line),
            }[quantity.merge]
            merged[row_of[node]] = np.where(both, combined, np.where(np.isfinite(row), row, line))
        if np.isfinite(merged).any():
            values[quantity.name] = merged
    times_s = first_s + step_s * np.arange(count, dtype=np.float64)
    return HostTable(tuple(nodes), times_s, values)


def _on_grid(
    points: Sequence[tuple[float, float]],
    first_s: float,
    step_s: float,
    count: int,
    *,
    is_rate: bool,
) -> Matrix:
    at_s, value = np.array(points).T
    if is_rate:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.diff(value) / np.diff(at_s)
        at_s = at_s[1:]
        value = np.where(value >= 0, value, np.nan)  # the counter was reset
    line = np.full(count, np.nan)
    places = np.clip(np.rint((at_s - first_s) / step_s).astype(np.intp), 0, count - 1)
    line[places] = value
    return line
