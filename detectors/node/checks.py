"""A check of the node: which value of which metric is a finding. `detectors.node.check_table` reads them."""

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from detectors.finding import Action, Severity
from detectors.persistence import Persistence

Labels = tuple[tuple[str, str], ...]
MEANT_MAX: Final = (
    4096  # per check; a node of 16 GPUs with 18 links each has 1,700 series of one metric
)

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}

SCAN_LOOKS: Final = 2  # of a scan, a second apart


class Component(Enum):
    """What kind of thing a finding is about; says which ranks it hits."""

    GPU = "gpu"
    NIC = "nic"
    SENSOR = "sensor"
    DISK = "disk"
    MEMORY = "memory"
    CPU = "cpu"
    HOST = "host"
    RANK = "rank"
    AGENT = "agent"


class Measure(Enum):
    VALUE = "value"
    INCREASE = "increase"  # a counter's, over the window
    RATE = "rate"  # the same, per second


class Combine(Enum):
    NONE = ""
    RATIO = "/"
    DIFFERENCE = "-"


class Comparison(Enum):
    ABOVE = ">"
    AT_LEAST = ">="
    BELOW = "<"
    AT_MOST = "<="
    EQUAL = "=="
    UNEQUAL = "!="

    @property
    def holds(self) -> Callable[[float, float], bool]:
        """The comparison of a value with a limit."""
        return _OPERATORS[self._value_]


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of what is measured with a number or with another metric of the same device."""

    text: str
    measure: Measure
    combine: Combine
    other: str | None
    comparison: Comparison
    limit: float | str  # str: the metric that holds it


@dataclass(frozen=True, slots=True)
class CheckGuard:
    """What must hold for the same device before a check applies."""

    text: str
    metric: str
    comparison: Comparison
    limit: float


@dataclass(frozen=True, slots=True)
class Check:
    """One parsed row."""

    name: str
    component: Component
    metric: str
    condition: Condition
    guards: tuple[CheckGuard, ...]
    where: tuple[tuple[str, re.Pattern[str]], ...]
    by: tuple[str, ...]  # labels that make one finding
    window_s: float
    counts_from_zero: bool
    persistence: Persistence
    severity: Severity
    action: Action
    reboots_max: int | None
    overrules: bool
    summary: str
    source: str
    event: str = ""  # the row of kernel_log.csv that gives severity and action
    beside: tuple[str, ...] = ()  # checks that change the action to `beside_action` if active
    beside_action: Action = Action.NONE
    metrics: tuple[str, ...] = field(init=False)  # all metrics that this check reads, its own first
    # It can't turn bad with time alone: a value that stays, or no growth of a counter that is compared as it is.
    may_stand_still: bool = field(init=False)
    # A memory of `means`: hundreds of series are asked about each second, always with the same answer.
    _meant: dict[Labels, bool] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = [self.metric, *(guard.metric for guard in self.guards)]
        names += [self.condition.other] if self.condition.other else []
        names += [self.condition.limit] if isinstance(self.condition.limit, str) else []
        metrics = tuple(dict.fromkeys(names))
        object.__setattr__(self, "metrics", metrics)
        is_value = self.condition.measure is Measure.VALUE
        object.__setattr__(self, "may_stand_still", is_value or not self.condition.other)
        object.__setattr__(self, "_meant", {})

    def means(self, labels: Labels) -> bool:
        """Return whether this check is about the series with these labels."""
        if not self.where:
            return True
        is_meant = self._meant.get(labels)
        if is_meant is None:
            if len(self._meant) >= MEANT_MAX:  # series come and go
                self._meant.clear()
            is_meant = self._meant[labels] = all(
                pattern.fullmatch(value) is not None
                for label, pattern in self.where
                for name, value in labels
                if name == label
            )
        return is_meant

    def reads(self, metric: str, labels: Labels) -> bool:
        """Return whether this check reads the series, as its own or beside it."""
        return metric in self.metrics and (metric != self.metric or self.means(labels))

    @property
    def needs_time(self) -> bool:
        """Return whether one look isn't enough, as with a counter's growth from an unknown start."""
        return self.condition.measure is not Measure.VALUE and not self.counts_from_zero


def for_one_scan(checks: Iterable[Check], looks: int = SCAN_LOOKS) -> tuple[Check, ...]:
    """Return the checks that a scan of so many looks can make.

    A check that asks for more looks is at most a warning about now: nobody has seen that its fault lasts. A link in training and
    a GPU that registers after a boot look like broken ones for a moment. What needs time, such as the growth of a counter whose past is not known,
    is left out.
    """
    return tuple(_in_scan(check, looks) for check in checks if not check.needs_time)


def _in_scan(check: Check, looks: int) -> Check:
    wanted = check.persistence.bad_looks
    least = wanted if wanted <= looks else SCAN_LOOKS
    check = replace(check, persistence=replace(check.persistence, bad_looks=least, of_looks=least))
    if wanted <= looks or check.severity is not Severity.CRITICAL:
        return check
    return replace(
        check, severity=Severity.WARNING, action=Action.WATCH, summary=f"now: {check.summary}"
    )
