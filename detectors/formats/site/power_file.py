"""The file of power feeds, which a site's monitoring writes, or `rankmend check power --redfish`.

{"format": "rankmend-power-1", "feeds": [{"feed": "pdu-a7", "read_unix_s": 1764154800, "power_watts": 41200,
 "load_ratio": 0.86, "is_tripped": false, "power_watts_max": 45000}]}
"""

import math
from collections.abc import Sequence
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
