"""The file of power feeds, which a site's monitoring writes, or `rankmend check power --redfish`.

{"format": "rankmend-power-1", "feeds": [{"feed": "pdu-a7", "read_unix_s": 1764154800, "power_watts": 41200,
 "load_ratio": 0.86, "is_tripped": false, "power_watts_max": 45000}]}
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from detectors.formats.redfish import (
    BmcHealth,
    BmcPart,
    BmcReading,
    HealthLevel,
    Item,
    ReadingKind,
)
from detectors.formats.site.unit_file import UnitFile, worst_health
from detectors.parts.cooling import CoolingReading
from detectors.parts.power_feeds import PowerReading

POWER_FILE: Final = UnitFile("rankmend-power-1", "feeds", "power feed", PowerReading)


def power_of_redfish(feed: str, items: Sequence[Item], now_unix_s: float) -> PowerReading:
    """Return one feed's reading from what its PDU tells: the mains circuits' powers add up, of their loads the highest counts."""
    values: dict[ReadingKind, list[float]] = {}
    for item in items:
        if isinstance(item, BmcReading) and math.isfinite(item.value):
            values.setdefault(item.kind, []).append(item.value)
    powers = values.get(ReadingKind.MAINS_POWER)
    breakers = [
        item.level is HealthLevel.CRITICAL
        for item in items
        if isinstance(item, BmcHealth) and item.part is BmcPart.BREAKER
    ]
    return PowerReading(
        feed,
        now_unix_s,
        power_watts=math.fsum(powers) if powers else None,
        load_ratio=max(values.get(ReadingKind.MAINS_LOAD, ()), default=None),
        is_tripped=any(breakers) if breakers else None,
        health=worst_health(items, (BmcPart.POWER_EQUIPMENT, BmcPart.CIRCUIT)),
    )


# The file of coolant units, which a site's monitoring writes, or `rankmend check cooling --redfish`.
# {"format": "rankmend-cooling-1", "units": [{"unit": "cdu-3", "read_unix_s": 1764154800, "flow_liters_per_s": 6.2, "supply_celsius":
# 32.1, "return_celsius": 44.0, "pressure_pascals": 210000, "flow_liters_per_s_min": 5.0}]}


COOLING_FILE: Final = UnitFile("rankmend-cooling-1", "units", "coolant unit", CoolingReading)


def cooling_of_redfish(unit: str, items: Sequence[Item], now_unix_s: float) -> CoolingReading:
    """Return one unit's reading from what its BMC tells: of the side of the racks (secondary) where it tells both.

    Flows of several connectors add up, temperatures are their mean, of pressures the lowest counts.
    """
    values: dict[ReadingKind, list[tuple[str, float]]] = {}
    for item in items:
        if isinstance(item, BmcReading) and math.isfinite(item.value):
            values.setdefault(item.kind, []).append((item.sensor, item.value))

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
        health=worst_health(items, (BmcPart.COOLING_UNIT, BmcPart.PUMP, BmcPart.COOLANT)),
    )
