"""What the checks of a node look at, and what they find."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from detectors.finding import Action, Severity
from detectors.kernel.log_cases import KernelAccount
from detectors.node.checks import Component
from detectors.node.counter_growth import Growth
from detectors.persistence import (
    Persistence,
    Track,
)

Labels = tuple[tuple[str, str], ...]


class Series(Protocol):
    """One sample of a metric, as a collector gives it."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def labels(self) -> Labels: ...


class MetricAnswer(NamedTuple):  # hundreds a second: four times cheaper to make than a dataclass
    """All series of one metric in the newest answer of its collector."""

    collector: str
    at_s: float
    series: Sequence[Series]
    revision: int | None = None  # equal numbers of one collector mean equal series; None: unknown


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest answers of all collectors."""

    readings: Mapping[str, MetricAnswer]  # by metric
    # collectors that are broken, stale or have not answered yet
    silent: AbstractSet[str] = frozenset()
    number: int | None = None  # consecutive for one reader; None: not known what has changed
    changed: AbstractSet[str] = frozenset()  # metrics that are not as in the snapshot before


@dataclass(frozen=True, slots=True)
class CheckLook:
    """One look at one subject, and what it would mean."""

    check: str
    component: Component
    labels: Labels
    collector: str
    at_s: float
    is_bad: bool
    persistence: Persistence
    severity: Severity
    action: Action
    summary: str
    evidence: tuple[str, ...]
    source: str
    reboots_max: int | None = None
    overrules: bool = False  # the driver's own verdict, which overrides actions on this device
    mark: str = ""  # identifies what was seen, if only something new is a bad look
    beside: tuple[str, ...] = ()  # checks that make it worse if active on this node
    beside_action: Action = Action.NONE
    kernel: KernelAccount | None = None  # kernel log findings only: which lines, and when
    is_withdrawn: bool = False  # it turned out harmless: no latch holds it


@dataclass(frozen=True, slots=True)
class HeldFinding:
    """One subject that was bad at least once, with its newest bad look."""

    seen: CheckLook
    track: Track
    started_unix_s: float | None = None  # for people and alerts; None if not active


@dataclass(frozen=True, slots=True)
class NodeState:
    held: dict[str, HeldFinding] = field(default_factory=dict)  # by finding id
    growths: dict[str, Growth] = field(default_factory=dict)  # by check and series
    looked_at_s: dict[str, float] = field(default_factory=dict)  # by check
    collectors: dict[str, str] = field(default_factory=dict)  # metric -> who gives it
    dropped: int = 0  # subjects beyond HELD_MAX: counted, never silently lost


@dataclass(frozen=True, slots=True)
class HitRank:
    job_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """A finding of this node: what is wrong, where, since when, which ranks it affects, what to do."""

    id: str
    check: str
    component: Component
    device: str  # empty: the node itself
    labels: Labels
    severity: Severity
    action: Action
    reason: str  # why this action, if it is not the row's own
    summary: str
    evidence: tuple[str, ...]
    source: str
    since_age_s: float
    started_unix_s: float
    ranks: tuple[HitRank, ...]
    is_flapping: bool
    is_latched: bool
    raises: int
    boots: int
    kernel: KernelAccount | None = None  # if it comes from the kernel log


def finding_id(check: str, labels: Labels) -> str:
    """Return a subject's name, with which people silence and release it."""
    device = "/".join(part for part in (uuid_of(labels), device_of(labels)) if part)
    return f"{check}/{device}" if device else check


def device_of(labels: Labels) -> str:
    """Return the device in a check's labels, without what the GPU's UUID already says."""
    is_gpu = any(name == "uuid" for name, _value in labels)
    skipped = ("uuid", "gpu", "pci_bus_id") if is_gpu else ()
    return "/".join(value for name, value in labels if name not in skipped and value)


def uuid_of(labels: Labels) -> str:
    return next((value for name, value in labels if name == "uuid"), "")
