"""Coolant units: are flow, temperature rise and pressure as they should be, and which hot nodes hang on one of them. Pure.

A unit (CDU) feeds one coolant loop of the topology file and has its name. It is held against its own limits where the site gives some, else against the other units. Nodes that are slowed by heat
at the same time and hang on one loop are one finding about that unit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

from detectors.parts.fleet_parts import FleetPart, FleetParts, SharedKind
from detectors.parts.shared_blame import PlacedWorker, explain_shared
from detectors.parts.symptoms import CAUSES_OF, SharedSymptom
from detectors.wording import counted, names_in_words

STALE_S: Final = 600.0  # a unit is read each minute or two
PEERS_MIN: Final = 3  # other units, to say what is usual
# The rise is power / (flow x heat capacity): at 30 % less flow the same power heats the coolant by 43 % more.
SHARE_MIN: Final = 0.7  # of the other units' median flow or pressure
RISE_RATIO: Final = 1.43
RISE_K_MIN: Final = 3.0  # above the others at least: idle racks hardly heat it


class CoolingQuantity(Enum):
    FLOW = "flow"
    RISE = "temperature rise"
    PRESSURE = "pressure"
    LEAK = "leak"
    HEALTH = "health"


@dataclass(frozen=True, slots=True)
class CoolingReading:
    """What a unit tells. None: it doesn't tell that."""

    unit: str
    read_unix_s: float
    flow_liters_per_s: float | None = None
    supply_celsius: float | None = None
    return_celsius: float | None = None
    pressure_pascals: float | None = None  # of the coolant that goes to the racks
    is_leaking: bool | None = None
    health: str = ""  # ok, warning or critical, by its own word
    # The site's own limits.
    flow_liters_per_s_min: float | None = None
    rise_kelvin_max: float | None = None
    pressure_pascals_min: float | None = None

    @property
    def rise_kelvin(self) -> float | None:
        if self.supply_celsius is None or self.return_celsius is None:
            return None
        return self.return_celsius - self.supply_celsius


@dataclass(frozen=True, slots=True)
class CoolingFault:
    quantity: CoolingQuantity
    value: float
    limit: float
    is_of_peers: bool  # the limit follows from the other units

    def __str__(self) -> str:
        if self.quantity is CoolingQuantity.LEAK:
            return "it leaks"
        if self.quantity is CoolingQuantity.HEALTH:
            return "it calls itself critical"
        side = "above" if self.quantity is CoolingQuantity.RISE else "below"
        by = " (by the other units)" if self.is_of_peers else ""
        return f"{self.quantity.value} {_figure(self.quantity, self.value)}, {side} {_figure(self.quantity, self.limit)}{by}"


@dataclass(frozen=True, slots=True)
class CoolingVerdict:
    unit: str
    faults: tuple[CoolingFault, ...]
    is_stale: bool = False  # read too long ago to judge
    reading: CoolingReading | None = None  # None: only the nodes tell of it
    nodes: tuple[str, ...] = ()  # that hang on it
    hot: tuple[str, ...] = ()  # of these, slowed by heat now
    is_named: bool = False  # it is the smallest part that explains the hot nodes

    @property
    def is_bad(self) -> bool:
        return bool(self.faults) or self.is_named

    @property
    def is_broken(self) -> bool:
        """Return whether it harms what hangs on it: nodes are slowed by heat, it leaks, or it calls itself critical."""
        grave = (CoolingQuantity.LEAK, CoolingQuantity.HEALTH)
        return self.is_bad and (bool(self.hot) or any(one.quantity in grave for one in self.faults))

    def in_words(self) -> str:
        """Return one sentence about the unit and what hangs on it."""
        said = [str(one) for one in self.faults]
        if self.hot:
            said.append(
                f"{counted(len(self.hot), 'node')} of {len(self.nodes)} on it slowed by heat ({names_in_words(self.hot)})"
            )
        elif self.faults and self.nodes:
            said.append(f"{counted(len(self.nodes), 'node')} on it")
        if self.is_named and not self.faults and self.reading is not None and not self.is_stale:
            said.append("its own figures are in order")
        if self.is_stale:
            said.append("its newest reading is too old to judge it")
        return f"coolant unit {self.unit}: {'; '.join(said) or 'in order'}"


def judge_cooling(
    readings: Sequence[CoolingReading],
    hot: Collection[str],
    known: Collection[str],
    parts: FleetParts,
    now_unix_s: float,
) -> tuple[CoolingVerdict, ...]:
    """Return a verdict on each unit that is read, and on one that only hot nodes tell of.

    ``hot``: nodes that are slowed by heat now, of all that are ``known``.
    """
    fresh = [one for one in readings if abs(now_unix_s - one.read_unix_s) <= STALE_S]
    workers = [PlacedWorker(node, node) for node in sorted({*known, *hot})]
    blame = explain_shared(workers, hot, parts, CAUSES_OF[SharedSymptom.HEAT])
    named = {one.part.name for one in blame.named if one.part.kind is SharedKind.COOLANT_LOOP}
    by_unit: Mapping[str, CoolingReading] = {one.unit: one for one in readings}
    verdicts = []
    for unit in sorted({*by_unit, *named}):
        reading = by_unit.get(unit)
        nodes = parts.nodes_of.get(FleetPart(SharedKind.COOLANT_LOOP, unit), frozenset())
        is_stale = reading is not None and reading not in fresh
        verdicts.append(
            CoolingVerdict(
                unit,
                () if reading is None or is_stale else _faults(reading, fresh),
                is_stale,
                reading,
                tuple(sorted(nodes)),
                tuple(sorted(nodes & set(hot))),
                unit in named,
            )
        )
    return tuple(verdicts)


def _faults(reading: CoolingReading, fresh: Sequence[CoolingReading]) -> tuple[CoolingFault, ...]:
    others = [one for one in fresh if one.unit != reading.unit]
    found = [
        _too_low(
            CoolingQuantity.FLOW,
            reading.flow_liters_per_s,
            reading.flow_liters_per_s_min,
            [one.flow_liters_per_s for one in others],
        ),
        _too_high(
            reading.rise_kelvin, reading.rise_kelvin_max, [one.rise_kelvin for one in others]
        ),
        _too_low(
            CoolingQuantity.PRESSURE,
            reading.pressure_pascals,
            reading.pressure_pascals_min,
            [one.pressure_pascals for one in others],
        ),
    ]
    if reading.is_leaking:
        found.append(CoolingFault(CoolingQuantity.LEAK, 1.0, 0.0, is_of_peers=False))
    if reading.health == "critical":
        found.append(CoolingFault(CoolingQuantity.HEALTH, 1.0, 0.0, is_of_peers=False))
    return tuple(one for one in found if one is not None)


def _too_low(
    quantity: CoolingQuantity,
    value: float | None,
    own_min: float | None,
    others: Sequence[float | None],
) -> CoolingFault | None:
    limit = own_min
    if limit is None:
        usual = _usual(others)
        limit = None if usual is None else SHARE_MIN * usual
    if value is None or limit is None or value >= limit:
        return None
    return CoolingFault(quantity, value, limit, is_of_peers=own_min is None)


def _too_high(
    value: float | None, own_max: float | None, others: Sequence[float | None]
) -> CoolingFault | None:
    limit = own_max
    if limit is None:
        usual = _usual(others)
        limit = None if usual is None else max(RISE_RATIO * usual, usual + RISE_K_MIN)
    if value is None or limit is None or value <= limit:
        return None
    return CoolingFault(CoolingQuantity.RISE, value, limit, is_of_peers=own_max is None)


def _usual(others: Sequence[float | None]) -> float | None:
    known = [one for one in others if one is not None]
    return median(known) if len(known) >= PEERS_MIN else None


def _figure(quantity: CoolingQuantity, value: float) -> str:
    if quantity is CoolingQuantity.FLOW:
        return f"{value * 60:.3g} l/min"
    return f"{value:.3g} K" if quantity is CoolingQuantity.RISE else f"{value / 1e3:.3g} kPa"
