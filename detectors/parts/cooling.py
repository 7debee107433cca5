"""Coolant units: are flow, temperature rise and pressure as they should be, and which hot nodes hang on one of them. Pure.

A unit (CDU) feeds one coolant loop of the topology file and has its name. It is held against its own limits where the site gives some, else against the other units.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from detectors.parts.fleet_parts import FleetParts
from detectors.parts.site_units import (
    COOLANT_UNIT,
    UnitFault,
    UnitQuantity,
    UnitVerdict,
    judge_units,
)

PEERS_MIN: Final = 3  # other units, to say what is usual
# The rise is power / (flow x heat capacity): at 30 % less flow the same power heats the coolant by 43 % more.
SHARE_MIN: Final = 0.7  # of the other units' median flow or pressure
RISE_RATIO: Final = 1.43
RISE_K_MIN: Final = 3.0  # above the others at least: idle racks hardly heat it


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
    def name(self) -> str:
        return self.unit

    @property
    def rise_kelvin(self) -> float | None:
        if self.supply_celsius is None or self.return_celsius is None:
            return None
        return self.return_celsius - self.supply_celsius

    def in_words(self) -> str:
        return ""  # what is usual depends on the other units


def judge_cooling(
    readings: Sequence[CoolingReading],
    hot: Collection[str],
    known: Collection[str],
    parts: FleetParts,
    now_unix_s: float,
) -> tuple[UnitVerdict, ...]:
    """Return a verdict on each unit that is read, and on one that only hot nodes tell of.

    ``hot``: nodes that are slowed by heat now, of all that are ``known``.
    """
    return judge_units(COOLANT_UNIT, readings, _faults, hot, known, parts, now_unix_s)


def _faults(reading: CoolingReading, fresh: Sequence[CoolingReading]) -> tuple[UnitFault, ...]:
    others = [item for item in fresh if item.unit != reading.unit]
    found = [
        _too_low(
            UnitQuantity.FLOW,
            reading.flow_liters_per_s,
            reading.flow_liters_per_s_min,
            [other.flow_liters_per_s for other in others],
        ),
        _too_high(
            reading.rise_kelvin, reading.rise_kelvin_max, [other.rise_kelvin for other in others]
        ),
        _too_low(
            UnitQuantity.PRESSURE,
            reading.pressure_pascals,
            reading.pressure_pascals_min,
            [other.pressure_pascals for other in others],
        ),
    ]
    if reading.is_leaking:
        found.append(UnitFault(UnitQuantity.LEAK, is_of_peers=False))
    if reading.health == "critical":
        found.append(UnitFault(UnitQuantity.HEALTH, is_of_peers=False))
    return tuple(item for item in found if item is not None)


def _too_low(
    quantity: UnitQuantity,
    value: float | None,
    own_min: float | None,
    others: Sequence[float | None],
) -> UnitFault | None:
    limit = own_min
    if limit is None:
        usual = _usual(others)
        limit = None if usual is None else SHARE_MIN * usual
    if value is None or limit is None or value >= limit:
        return None
    return UnitFault(quantity, value, limit, is_of_peers=own_min is None)


def _too_high(
    value: float | None, own_max: float | None, others: Sequence[float | None]
) -> UnitFault | None:
    limit = own_max
    if limit is None:
        usual = _usual(others)
        limit = None if usual is None else max(RISE_RATIO * usual, usual + RISE_K_MIN)
    if value is None or limit is None or value <= limit:
        return None
    return UnitFault(UnitQuantity.RISE, value, limit, is_of_peers=own_max is None)


def _usual(others: Sequence[float | None]) -> float | None:
    known = [other for other in others if other is not None]
    return median(known) if len(known) >= PEERS_MIN else None
