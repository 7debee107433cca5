"""The file of power feeds: a line of JSON that a site's monitoring writes, or `rankmend check power --redfish`.

{"format": "rankmend-power-1", "feeds": [{"feed": "pdu-a7", "read_unix_s": 1764154800, "power_watts": 41200,
 "load_ratio": 0.86, "is_tripped": false, "power_watts_max": 45000}]}
"""

import math
from collections.abc import Iterable, Sequence
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
from detectors.parts.power_feeds import PowerReading
from rankmend.errors import SourceError

FEEDS_MAX: Final = 10_000
FORMAT: Final = "rankmend-power-1"


class _PowerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    feeds: tuple[PowerReading, ...]


def parse_power_file(body: bytes) -> tuple[PowerReading, ...]:
    """Return the readings of a file; raise SourceError that says what is wrong with it."""
    try:
        told = msgspec.json.decode(body, type=_PowerFile)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SourceError(f"not a file of power feeds: {error}") from error
    if told.format != FORMAT or len(told.feeds) > FEEDS_MAX:
        raise SourceError(
            f"file of power feeds of format {told.format!r:.40} with {len(told.feeds)} feeds: want {FORMAT}, at most {FEEDS_MAX}"
        )
    names = [one.feed for one in told.feeds]
    if len(set(names)) < len(names) or not all(names):
        raise SourceError("a file of power feeds names each feed once")
    return told.feeds


def encode_power_file(feeds: Sequence[PowerReading]) -> bytes:
    page = _PowerFile(FORMAT, tuple(sorted(feeds, key=lambda one: one.feed)))
    return msgspec.json.format(msgspec.json.encode(page), indent=1)


def power_of_redfish(feed: str, items: Iterable[Item], now_unix_s: float) -> PowerReading:
    """Return one feed's reading from what its PDU tells: the mains circuits' powers add up, of their loads the highest counts."""
    powers, loads = [], []
    breakers: list[bool] = []
    worst: HealthLevel | None = None
    for item in items:
        if isinstance(item, BmcReading) and math.isfinite(item.value):
            if item.kind is ReadingKind.MAINS_POWER:
                powers.append(item.value)
            elif item.kind is ReadingKind.MAINS_LOAD:
                loads.append(item.value)
        elif isinstance(item, BmcHealth):
            if item.part is BmcPart.BREAKER:
                breakers.append(item.level is HealthLevel.CRITICAL)
            elif item.part in (BmcPart.POWER_EQUIPMENT, BmcPart.CIRCUIT):
                worst = item.level if worst is None else max(worst, item.level, key=lambda one: one.value)  # fmt: skip
    return PowerReading(
        feed,
        now_unix_s,
        power_watts=math.fsum(powers) if powers else None,
        load_ratio=max(loads, default=None),
        is_tripped=any(breakers) if breakers else None,
        health="" if worst is None else worst.name.lower(),
    )
