"""How a cause of slowness is described: the signs that name it, and what supports them.

A sign counts by its deviation from the peers, never by its absolute value. Figures without an
outside source follow one rule: the smallest slowdown that is called slow, 1.1, costs
1 - 1/1.1 = 9 % of the time, and a sign that explains less than half of it (5 %) is no cause.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.finding import Action

LOST_MIN: Final = 0.05
LOST_SOURCE: Final = "half of what a slowdown of 1.1 costs"


class SlowSection(Enum):
    """The part of a step that became slow."""

    COMPUTE = "compute"
    IO = "io"
    COMMUNICATION = "communication"
    UNKNOWN = "unknown"  # the records don't separate the parts, so every cause is possible


class Scope(Enum):
    """What a cause is about, which decides what it is compared with."""

    GPU = "gpu"
    NIC = "nic"
    CGROUP = "cgroup"
    RANK = "rank"
    NODE = "node"


class Directness(Enum):
    """How directly a sign shows lost time; the value is the highest confidence in such a cause.

    The values rank the signs and are not calibrated: seconds that the device or kernel counted for
    this very part rank above a part that runs below its peers, and so on.
    """

    LOST_TIME = 0.9  # seconds during which this part was held
    DEGRADED = 0.8  # the part runs below its peers' rate
    WAITING = 0.7  # tasks on the node wait, perhaps not the rank's
    ERRORS = 0.6  # errors that cause retries
    CIRCUMSTANCE = 0.4  # comes with slowness, perhaps by coincidence


class Statistic(Enum):
    RATE = "rate"  # a counter's, per second
    LEVEL = "level"  # a gauge's median
    HIGHEST = "highest"  # the highest value of a gauge that falls while its part is idle


@dataclass(frozen=True, slots=True)
class Sign:
    metric: str  # as in docs/reference/metrics.md
    statistic: Statistic
    least: float  # the smallest deviation from the peers' median that counts
    what: str  # in words
    unit: str
    source: str  # where `least` comes from
    where: tuple[str, frozenset[str]] | None = None  # label and the values that are meant
    is_low: bool = False  # bad when lower than the peers
    is_share: bool = False  # `least` is a share of the peers' median
    floor: float = 0.0  # and at least this much in the metric's unit, beside a share


@dataclass(frozen=True, slots=True)
class SlowCause:
    name: str
    sections: frozenset[SlowSection]
    scope: Scope
    directness: Directness
    signs: tuple[Sign, ...]
    summary: str
    action: Action
    supports: tuple[Sign, ...] = ()
    implied_by: str = ""  # a cause with the same signs: if that one is found, this one is not named


def clocks_held(reasons: str, what: str) -> Sign:
    return Sign(
        "rankmend_gpu_clocks_event_seconds_total",
        Statistic.RATE,
        LOST_MIN,
        what,
        "s/s",
        LOST_SOURCE,
        ("reason", frozenset(reasons.split())),
    )


def rate(
    metric: str, least: float, what: str, source: str, unit: str = "/s", where: str = ""
) -> Sign:
    label, _equals, values = where.partition("=")
    chosen = (label, frozenset(values.split())) if values else None
    return Sign(metric, Statistic.RATE, least, what, unit, source, chosen)


def pressure(kind: str, what: str) -> Sign:
    return rate(
        "rankmend_pressure_some_seconds_total",
        LOST_MIN,
        what,
        LOST_SOURCE,
        "s/s",
        f"resource={kind}",
    )


IN_COMPUTE: Final = frozenset({SlowSection.COMPUTE})
IN_IO: Final = frozenset({SlowSection.IO})
IN_COMMUNICATION: Final = frozenset({SlowSection.COMMUNICATION})
IN_ANY: Final = frozenset({SlowSection.COMPUTE, SlowSection.IO, SlowSection.COMMUNICATION})
