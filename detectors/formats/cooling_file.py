"""The file of coolant units: a line of JSON that a site's monitoring writes, or `rankmend check cooling --redfish`.

{"format": "rankmend-cooling-1", "units": [{"unit": "cdu-3", "read_unix_s": 1764154800, "flow_liters_per_s": 6.2,
 "supply_celsius": 32.1, "return_celsius": 44.0, "pressure_pascals": 210000, "flow_liters_per_s_min": 5.0}]}
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

import msgspec

from detectors.formats.redfish import (
    BmcHealth,
    BmcPart,
    BmcReading,
    HealthLevel,
    Item,
    ReadingKind,
)
from detectors.parts.cooling import CoolingReading
from rankmend.errors import SourceError

UNITS_MAX: Final = 10_000
FORMAT: Final = "rankmend-cooling-1"
_HEALTHS: Final = {
    HealthLevel.OK: "ok",
    HealthLevel.WARNING: "warning",
    HealthLevel.CRITICAL: "critical",
}


class _CoolingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    units: tuple[CoolingReading, ...]


def parse_cooling_file(body: bytes) -> tuple[CoolingReading, ...]:
    """Return the readings of a file; raise SourceError that says what is wrong with it."""
    try:
        told = msgspec.json.decode(body, type=_CoolingFile)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SourceError(f"not a file of coolant units: {error}") from error
    if told.format != FORMAT or len(told.units) > UNITS_MAX:
        raise SourceError(
            f"file of coolant units of format {told.format!r:.40} with {len(told.units)} units: want {FORMAT}, at most {UNITS_MAX}"
        )
    names = [one.unit for one in told.units]
    if len(set(names)) < len(names) or not all(names):
        raise SourceError("a file of coolant units names each unit once")
    return told.units


def encode_cooling_file(units: Sequence[CoolingReading]) -> bytes:
    page = _CoolingFile(FORMAT, tuple(sorted(units, key=lambda one: one.unit)))
    return msgspec.json.format(msgspec.json.encode(page), indent=1)


def reading_of_redfish(unit: str, items: Iterable[Item], now_unix_s: float) -> CoolingReading:
    """Return one unit's reading from what its BMC tells: of the side of the racks (secondary) where it tells both.

    Flows of several connectors add up, temperatures are their mean, of pressures the lowest counts.
    """
    values: dict[ReadingKind, list[tuple[str, float]]] = {}
    worst: HealthLevel | None = None
    for item in items:
        if isinstance(item, BmcReading) and math.isfinite(item.value):
            values.setdefault(item.kind, []).append((item.sensor, item.value))
        elif isinstance(item, BmcHealth) and item.part in (
            *(BmcPart.COOLING_UNIT, BmcPart.PUMP, BmcPart.COOLANT),
        ):
            worst = item.level if worst is None else max(worst, item.level, key=lambda one: one.value)  # fmt: skip

    def own(kind: ReadingKind) -> list[float]:
        found = values.get(kind, [])
        second = [value for sensor, value in found if sensor.startswith("secondary")]
        return second or [value for sensor, value in found if not sensor.startswith("primary")]

    flows, supplies = own(ReadingKind.COOLANT_FLOW), own(ReadingKind.COOLANT_SUPPLY)
    returns, pressures = own(ReadingKind.COOLANT_RETURN), own(ReadingKind.COOLANT_PRESSURE)
    leaks = [value for _sensor, value in values.get(ReadingKind.LEAK, [])]
    return CoolingReading(
        unit,
        now_unix_s,
        flow_liters_per_s=math.fsum(flows) if flows else None,
        supply_celsius=fmean(supplies) if supplies else None,
        return_celsius=fmean(returns) if returns else None,
        pressure_pascals=min(pressures, default=None),
        is_leaking=any(value >= HealthLevel.CRITICAL.value for value in leaks) if leaks else None,
        health="" if worst is None else _HEALTHS[worst],
    )
