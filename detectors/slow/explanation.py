"""Why a rank is slow, as a result: the likely causes, what was looked at and what was missing. Pure.

How a cause of slowness is described: the signs that name it, and what supports them.

A sign counts by its deviation from the peers, never by its absolute value. Figures without an
outside source follow one rule: the smallest slowdown that is called slow, 1.1, costs
1 - 1/1.1 = 9 % of the time, and a sign that explains less than half of it (5 %) is no cause.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.finding import Action, Evidence

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


@dataclass(frozen=True, slots=True)
class SlowPlace:
    """What is slow, as far as it is known, and in which part of a step."""

    section: SlowSection = SlowSection.UNKNOWN
    rank: int | None = None
    node: str | None = None
    device: str | None = None
    job_id: str | None = None  # separates the ranks of several jobs on these nodes

    def name(self) -> str:
        where = f" on {self.node}" if self.node else ""
        return f"rank {self.rank}{where}" if self.rank is not None else f"{self.node}"


@dataclass(frozen=True, slots=True)
class SlowPeriod:
    """When it was slow, by the clock that dates the readings; ``onset_s`` is None if always."""

    start_s: float
    end_s: float
    onset_s: float | None = None

    @property
    def slow_from_s(self) -> float:
        return self.start_s if self.onset_s is None else max(self.start_s, self.onset_s)


@dataclass(frozen=True, slots=True)
class LikelyCause:
    cause: str
    scope: Scope
    node: str
    device: str
    summary: str
    action: Action
    confidence: float
    strength: float  # the deviation as a multiple of the sign's figure
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class SlowExplanation:
    """Why one rank is slow; with no causes and nothing missing, hardware shows no reason."""

    accused: SlowPlace
    causes: tuple[LikelyCause, ...]  # the likeliest first
    reason: str  # one sentence for a person
    looked_at: tuple[str, ...]  # causes that could be judged
    missing: tuple[str, ...]  # causes for which nothing was measured
    beside: tuple[str, ...] = ()  # what also deviates but can't slow down this section


def explanation_page(explanation: SlowExplanation) -> dict[str, object]:
    """Return an explanation in the form that `rankmend diagnose ... --json` prints."""
    return {
        "rank": explanation.accused.rank,
        "host": explanation.accused.node,
        "section": explanation.accused.section.value,
        "reason": explanation.reason,
        "causes": [
            {
                "cause": cause.cause,
                "host": cause.node,
                "device": cause.device or None,
                "summary": cause.summary,
                "action": cause.action.value,
                "confidence": round(cause.confidence, 3),
                "evidence": [{"source": line.source, "text": line.text} for line in cause.evidence],
            }
            for cause in explanation.causes
        ],
        "looked_at": list(explanation.looked_at),
        "missing": list(explanation.missing),
        "beside": list(explanation.beside),
    }
