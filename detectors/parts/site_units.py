"""Units of a site that supply several nodes, as coolant units and power feeds do: are their figures as they should be, and which nodes that they harm hang on one of them. Pure.

A unit has the name of its loop or feed in the topology file. Nodes that are slowed at the same time and hang on one unit are one finding about that unit. What each kind of unit
tells, and against which limits it is held, is in `detectors.parts.cooling` and `detectors.parts.power_feeds`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeVar

from detectors.parts.fleet_parts import FleetPart, FleetParts, SharedKind
from detectors.parts.shared_blame import PlacedWorker, explain_shared
from detectors.parts.symptoms import CAUSES_OF, SharedSymptom
from detectors.wording import counted, names_in_words

STALE_S: Final = 600.0  # a unit is read each minute or two


@dataclass(frozen=True, slots=True)
class UnitKind:
    name: str
    noun: str
    part: SharedKind  # what such a unit is in the topology
    symptom: SharedSymptom  # of the nodes that it harms
    harm: str  # the same in words


COOLANT_UNIT: Final = UnitKind(
    "cooling", "coolant unit", SharedKind.COOLANT_LOOP, SharedSymptom.HEAT, "slowed by heat"
)
POWER_FEED: Final = UnitKind(
    "power", "power feed", SharedKind.POWER_FEED, SharedSymptom.POWER, "short of power"
)


class UnitQuantity(Enum):
    FLOW = "flow"
    RISE = "temperature rise"
    PRESSURE = "pressure"
    LEAK = "leak"
    POWER = "power"
    LOAD = "load"
    BREAKER = "breaker"
    HEALTH = "health"


_TOO_LOW: Final = (UnitQuantity.FLOW, UnitQuantity.PRESSURE)  # the others may be too high
# What harms the nodes whatever its figures are.
_GRAVE: Final = {
    UnitQuantity.LEAK: "it leaks",
    UnitQuantity.BREAKER: "a breaker has tripped",
    UnitQuantity.HEALTH: "it calls itself critical",
}


class UnitReading(Protocol):
    """What a unit told at one time."""

    @property
    def name(self) -> str: ...

    @property
    def read_unix_s(self) -> float: ...

    def in_words(self) -> str:
        """Return its figures for a sentence; empty: they say nothing by themselves."""
        ...


Reading = TypeVar("Reading", bound=UnitReading)


@dataclass(frozen=True, slots=True)
class UnitFault:
    quantity: UnitQuantity
    value: float = 1.0
    limit: float = 0.0
    is_of_peers: bool | None = (
        None  # the limit follows from the other units; None: of this kind it never does
    )

    def __str__(self) -> str:
        if self.quantity in _GRAVE:
            return _GRAVE[self.quantity]
        side = "below" if self.quantity in _TOO_LOW else "above"
        by = " (by the other units)" if self.is_of_peers else ""
        limit = figure(self.quantity, self.limit)
        return f"{_SUBJECT.get(self.quantity, '')}{figure(self.quantity, self.value)}, {side} {limit}{by}"


# Power and load speak for themselves: "47 kW", "load 86%".
_SUBJECT: Final = {
    item: f"{item.value} " for item in (UnitQuantity.FLOW, UnitQuantity.RISE, UnitQuantity.PRESSURE)
}


@dataclass(frozen=True, slots=True)
class UnitVerdict:
    kind: UnitKind
    unit: str
    faults: tuple[UnitFault, ...] = ()
    is_stale: bool = False  # read too long ago to judge
    reading: UnitReading | None = None  # None: only the nodes tell of it
    nodes: tuple[str, ...] = ()  # that hang on it
    harmed: tuple[str, ...] = ()  # of these, by the kind's symptom now
    is_named: bool = False  # it is the smallest part that explains these

    @property
    def is_bad(self) -> bool:
        return bool(self.faults) or self.is_named

    @property
    def is_broken(self) -> bool:
        """Return whether it harms what hangs on it: nodes are slowed by it, it leaks, has tripped or calls itself critical."""
        return self.is_bad and (
            bool(self.harmed) or any(fault.quantity in _GRAVE for fault in self.faults)
        )

    def in_words(self) -> str:
        """Return one sentence about the unit and what hangs on it."""
        said = [str(fault) for fault in self.faults]
        if self.harmed:
            said.append(
                f"{counted(len(self.harmed), 'node')} of {len(self.nodes)} on it {self.kind.harm} ({names_in_words(self.harmed)})"
            )
        elif self.faults and self.nodes:
            said.append(f"{counted(len(self.nodes), 'node')} on it")
        if self.is_named and not self.faults and self.reading is not None and not self.is_stale:
            reported = self.reading.in_words()
            said.append("its own figures are in order" + (f" ({reported})" if reported else ""))
        if self.is_stale:
            said.append("its newest reading is too old to judge it")
        return f"{self.kind.noun} {self.unit}: {'; '.join(said) or 'in order'}"


def judge_units(
    kind: UnitKind,
    readings: Sequence[Reading],
    find_faults: Callable[[Reading, Sequence[Reading]], tuple[UnitFault, ...]],
    harmed: Collection[str],
    known: Collection[str],
    parts: FleetParts,
    now_unix_s: float,
) -> tuple[UnitVerdict, ...]:
    """Return a verdict on each unit that is read, and on one that only harmed nodes tell of.

    ``find_faults`` gets a reading and all that are fresh. ``harmed``: nodes with the kind's symptom now, of all that are ``known``.
    """
    by_name: Mapping[str, Reading] = {reading.name: reading for reading in readings}
    fresh = {
        reading.name: reading
        for reading in by_name.values()
        if abs(now_unix_s - reading.read_unix_s) <= STALE_S
    }
    workers = [PlacedWorker(node, node) for node in sorted({*known, *harmed})]
    blame = explain_shared(workers, harmed, parts, CAUSES_OF[kind.symptom])
    named = {item.part.name for item in blame.named if item.part.kind is kind.part}
    verdicts = []
    for unit in sorted({*by_name, *named}):
        nodes = parts.nodes_of.get(FleetPart(kind.part, unit), frozenset())
        verdicts.append(
            UnitVerdict(
                kind,
                unit,
                find_faults(fresh[unit], list(fresh.values())) if unit in fresh else (),
                unit in by_name and unit not in fresh,
                by_name.get(unit),
                tuple(sorted(nodes)),
                tuple(sorted(nodes & set(harmed))),
                unit in named,
            )
        )
    return tuple(verdicts)


def figure(quantity: UnitQuantity, value: float) -> str:
    """Return a figure in the unit in which people speak of it."""
    if quantity is UnitQuantity.FLOW:
        return f"{value * 60:.3g} l/min"
    if quantity is UnitQuantity.RISE:
        return f"{value:.3g} K"
    if quantity is UnitQuantity.PRESSURE:
        return f"{value / 1e3:.3g} kPa"
    return f"{value / 1e3:.4g} kW" if quantity is UnitQuantity.POWER else f"load {value:.0%}"
