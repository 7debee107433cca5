"""What a metric is: a family with its name, type, unit, labels and meaning, and one sample of it.

Each collector declares its families in `FAMILIES` of its own module; `agent/assembly/families.py` lists all.
Names: rankmend_<subject>_<quantity>_<unit>[_total], base units. Device series carry device
labels only, rank series ``job_id`` and ``rank``; the rest is joined from an info metric.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

MOUNT_LABELS: Final = ("mount", "type")
SENSOR_LABELS: Final = ("device", "sensor")
PORT_LABELS: Final = ("device", "port")
RANK_LABELS: Final = ("job_id", "rank")


class MetricType(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


class Metric(NamedTuple):  # thousands a second: half as dear as a dataclass, compared in C
    """One sample: the name of a declared family and its labels, in the order of the family."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    type: MetricType
    unit: str  # empty: a plain number
    labels: tuple[str, ...]
    help: str


def counter(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    """Return a counter of the agent: ``rankmend_NAME_total``."""
    return Family(f"rankmend_{name}_total", MetricType.COUNTER, unit, labels, text)


def gauge(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    """Return a gauge of the agent: ``rankmend_NAME``."""
    return Family(f"rankmend_{name}", MetricType.GAUGE, unit, labels, text)


def markdown_table(families: Iterable[Family]) -> str:
    """Return families as the documentation lists them."""
    rows = ["| metric | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(
            f"| `{family.name}` | {family.type.value} | {family.unit} | {labels} | {family.help} |"
        )
    return "\n".join(rows) + "\n"
