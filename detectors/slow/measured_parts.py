"""Readings of hardware by metric, part and time, and the value that a part had in a period. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import median

from detectors.slow.explanation import Sign, SlowPeriod, Statistic
from detectors.slow.hardware_reading import HardwareReading

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
    for reading in readings:
        if not window.start_s <= reading.at_s <= window.end_s or not isfinite(reading.value):
            continue
        series = table[reading.metric][reading.node, reading.device][reading.labels]
        points = series.inside if reading.at_s >= window.slow_from_s else series.before
        points.append((reading.at_s, reading.value))
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
