"""Power feeds: is the load within what each may carry, and which nodes that are slowed or lost for power hang on one of them. Pure.

A feed (a PDU, a busway, a row's breaker) has the name of its power feed in the topology file. It is held against its own limits; feeds differ by what hangs on them, so that others tell nothing of it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from detectors.parts.fleet_parts import FleetParts
from detectors.parts.site_units import (
    POWER_FEED,
    UnitFault,
    UnitQuantity,
    UnitVerdict,
    figure,
    judge_units,
)

# Of what its breaker is rated for. Above it a breaker opens within minutes to hours (IEC 60898-1: no trip within 1 h at 1.13 times, a trip
# within 1 h at 1.45 times). A site that may load it less, as NEC 210.20(A) has it for loads that last (0.8), says so.
LOAD_RATIO_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class PowerReading:
    """What a feed tells. None: it doesn't tell that."""

    feed: str
    read_unix_s: float
    power_watts: float | None = None
    load_ratio: float | None = (
        None  # the highest current of its circuits, of what these are rated for
    )
    is_tripped: bool | None = None  # a breaker of it
    health: str = ""  # ok, warning or critical, by its own word
    # The site's own limits.
    power_watts_max: float | None = None
    load_ratio_max: float | None = None

    @property
    def name(self) -> str:
        return self.feed

    def in_words(self) -> str:
        figures = (
            (UnitQuantity.POWER, self.power_watts),
            (UnitQuantity.LOAD, self.load_ratio),
        )
        return ", ".join(figure(what, value) for what, value in figures if value is not None)


def judge_power(
    readings: Sequence[PowerReading],
    short: Collection[str],
    known: Collection[str],
    parts: FleetParts,
    now_unix_s: float,
) -> tuple[UnitVerdict, ...]:
    """Return a verdict on each feed that is read, and on one that only nodes without enough power tell of.

    ``short``: nodes that are slowed for power now or have lost a supply, of all that are ``known``.
    """
    return judge_units(POWER_FEED, readings, _faults, short, known, parts, now_unix_s)


def _faults(reading: PowerReading, _fresh: Sequence[PowerReading]) -> tuple[UnitFault, ...]:
    found = []
    load_max = LOAD_RATIO_MAX if reading.load_ratio_max is None else reading.load_ratio_max
    for quantity, value, limit in (
        (UnitQuantity.POWER, reading.power_watts, reading.power_watts_max),
        (UnitQuantity.LOAD, reading.load_ratio, load_max),
    ):
        if value is not None and limit is not None and value > limit:
            found.append(UnitFault(quantity, value, limit))
    if reading.is_tripped:
        found.append(UnitFault(UnitQuantity.BREAKER))
    if reading.health == "critical":
        found.append(UnitFault(UnitQuantity.HEALTH))
    return tuple(found)
