"""Readings of hardware by metric, part and time, and the value that a part had in a period. Pure.

Samples of hardware metrics, as `detectors.slow.causes` and `detectors.slow.odd_nodes` read them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Final

from detectors.slow.explanation import Sign, SlowPeriod, Statistic

# Waiting time of a rank's main thread. It includes waiting because the CPU quota is used up: the
# thread stays on the run queue (kernel/sched/stats.h, sched_info_enqueue).
RUN_QUEUE: Final = "rankmend_rank_run_queue_seconds_total"


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """One sample of one series of a node.

    One clock dates all samples of one diagnosis: Prometheus's, or the collector's.
    """

    node: str
    metric: str  # as in docs/reference/metrics.md
    value: float
    at_s: float
    device: str = ""  # UUID of a GPU, name of a NIC, disk or cgroup; empty: the node itself
    labels: tuple[tuple[str, str], ...] = ()  # the others: reason, kind, port ...


def reading_of(
    metric: str, labels: Mapping[str, str], value: float, at_s: float, node: str
) -> HardwareReading:
    """Return a reading of a series; its device is the first one that the labels name."""
    named = next((name for name in ("uuid", "device", "cgroup") if labels.get(name)), None)
    if metric == RUN_QUEUE:  # the part is the rank, and its own labels stay
        named = "device"
        part = f"rank {labels.get('rank', '')} of {labels.get('job_id', '')[:8]}"
        labels = {**labels, named: part}
    return HardwareReading(
        node=node,
        metric=metric,
        value=value,
        at_s=at_s,
        device=labels[named] if named else "",
        labels=tuple(sorted((key, text) for key, text in labels.items() if key != named)),
    )


Part = tuple[str, str]  # node and device
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class PartSeries:
    before: list[tuple[float, float]] = field(default_factory=list)  # time and value
    inside: list[tuple[float, float]] = field(default_factory=list)


SeriesOfParts = dict[Part, dict[Labels, PartSeries]]


def tabulate(readings: Iterable[HardwareReading], window: SlowPeriod) -> dict[str, SeriesOfParts]:
    table: dict[str, SeriesOfParts] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(PartSeries))
    )
    for one in readings:
        if not window.start_s <= one.at_s <= window.end_s or not isfinite(one.value):
            continue
        series = table[one.metric][one.node, one.device][one.labels]
        points = series.inside if one.at_s >= window.slow_from_s else series.before
        points.append((one.at_s, one.value))
    for parts in table.values():
        for by_labels in parts.values():
            for series in by_labels.values():
                series.before.sort()
                series.inside.sort()
    return table


def _measure(points: Sequence[tuple[float, float]], statistic: Statistic) -> float | None:
    """Return the statistic of one series; a counter that falls was reset."""
    if statistic is Statistic.LEVEL:
        return median(value for _at, value in points) if points else None
    if statistic is Statistic.HIGHEST:
        return max((value for _at, value in points), default=None)
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None
    values = [value for _at, value in points]
    grown = sum(after - before if after >= before else after for before, after in pairwise(values))
    return grown / (points[-1][0] - points[0][0])


def value_of_part(
    by_labels: dict[Labels, PartSeries], sign: Sign, *, is_inside: bool
) -> float | None:
    """Return a part's value: the sum of its counters, or its worst gauge."""
    values = []
    for labels, series in by_labels.items():
        if sign.where is not None and dict(labels).get(sign.where[0]) not in sign.where[1]:
            continue
        measured = _measure(series.inside if is_inside else series.before, sign.statistic)
        if measured is not None:
            values.append(measured)
    if not values:
        return None
    if sign.statistic is Statistic.RATE:
        return sum(values)
    return min(values) if sign.is_low else max(values)
