"""Power feeds: is the load within what each may carry, and which nodes that are slowed or lost for power hang on one of them. Pure.

A feed (a PDU, a busway, a row's breaker) has the name of its power feed in the topology file. It is held against its own limits; feeds differ by what hangs on them, so that others tell nothing of it.
Nodes that are slowed for power at the same time and hang on one feed are one finding about that feed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.parts.fleet_parts import FleetPart, FleetParts, SharedKind
from detectors.parts.shared_blame import PlacedWorker, explain_shared
from detectors.parts.symptoms import CAUSES_OF, SharedSymptom
from detectors.wording import counted, names_in_words

STALE_S: Final = 600.0  # a feed is read each minute or two
# Of what its breaker is rated for. Above it a breaker opens within minutes to hours (IEC 60898-1: no trip within 1 h at 1.13 times, a trip
# within 1 h at 1.45 times). A site that may load it less, as NEC 210.20(A) has it for loads that last (0.8), says so.
LOAD_RATIO_MAX: Final = 1.0


class PowerQuantity(Enum):
    POWER = "power"
    LOAD = "load"
    BREAKER = "breaker"
    HEALTH = "health"


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


@dataclass(frozen=True, slots=True)
class PowerFault:
    quantity: PowerQuantity
    value: float
    limit: float

    def __str__(self) -> str:
        if self.quantity is PowerQuantity.BREAKER:
            return "a breaker has tripped"
        if self.quantity is PowerQuantity.HEALTH:
            return "it calls itself critical"
        return f"{_figure(self.quantity, self.value)}, above {_figure(self.quantity, self.limit)}"


@dataclass(frozen=True, slots=True)
class PowerVerdict:
    feed: str
    faults: tuple[PowerFault, ...]
    is_stale: bool = False  # read too long ago to judge
    reading: PowerReading | None = None  # None: only the nodes tell of it
    nodes: tuple[str, ...] = ()  # that hang on it
    short: tuple[str, ...] = ()  # of these, slowed or lost for power now
    is_named: bool = False  # it is the smallest part that explains these

    @property
    def is_bad(self) -> bool:
        return bool(self.faults) or self.is_named

    @property
    def is_broken(self) -> bool:
        """Return whether it harms what hangs on it: nodes are short of power, a breaker has tripped, or it calls itself critical."""
        grave = (PowerQuantity.BREAKER, PowerQuantity.HEALTH)
        return self.is_bad and (
            bool(self.short) or any(one.quantity in grave for one in self.faults)
        )

    def in_words(self) -> str:
        """Return one sentence about the feed and what hangs on it."""
        said = [str(one) for one in self.faults]
        if self.short:
            said.append(
                f"{counted(len(self.short), 'node')} of {len(self.nodes)} on it short of power ({names_in_words(self.short)})"
            )
        elif self.faults and self.nodes:
            said.append(f"{counted(len(self.nodes), 'node')} on it")
        if self.is_named and not self.faults and self.reading is not None and not self.is_stale:
            said.append(f"its own figures are in order{_told(self.reading)}")
        if self.is_stale:
            said.append("its newest reading is too old to judge it")
        return f"power feed {self.feed}: {'; '.join(said) or 'in order'}"


def judge_power(
    readings: Sequence[PowerReading],
    short: Collection[str],
    known: Collection[str],
    parts: FleetParts,
    now_unix_s: float,
) -> tuple[PowerVerdict, ...]:
    """Return a verdict on each feed that is read, and on one that only nodes without enough power tell of.

    ``short``: nodes that are slowed for power now or have lost a supply, of all that are ``known``.
    """
    workers = [PlacedWorker(node, node) for node in sorted({*known, *short})]
    blame = explain_shared(workers, short, parts, CAUSES_OF[SharedSymptom.POWER])
    named = {one.part.name for one in blame.named if one.part.kind is SharedKind.POWER_FEED}
    by_feed: Mapping[str, PowerReading] = {one.feed: one for one in readings}
    verdicts = []
    for feed in sorted({*by_feed, *named}):
        reading = by_feed.get(feed)
        nodes = parts.nodes_of.get(FleetPart(SharedKind.POWER_FEED, feed), frozenset())
        is_stale = reading is not None and abs(now_unix_s - reading.read_unix_s) > STALE_S
        verdicts.append(
            PowerVerdict(
                feed,
                () if reading is None or is_stale else _faults(reading),
                is_stale,
                reading,
                tuple(sorted(nodes)),
                tuple(sorted(nodes & set(short))),
                feed in named,
            )
        )
    return tuple(verdicts)


def _faults(reading: PowerReading) -> tuple[PowerFault, ...]:
    found = []
    load_max = LOAD_RATIO_MAX if reading.load_ratio_max is None else reading.load_ratio_max
    for quantity, value, limit in (
        (PowerQuantity.POWER, reading.power_watts, reading.power_watts_max),
        (PowerQuantity.LOAD, reading.load_ratio, load_max),
    ):
        if value is not None and limit is not None and value > limit:
            found.append(PowerFault(quantity, value, limit))
    if reading.is_tripped:
        found.append(PowerFault(PowerQuantity.BREAKER, 1.0, 0.0))
    if reading.health == "critical":
        found.append(PowerFault(PowerQuantity.HEALTH, 1.0, 0.0))
    return tuple(found)


def _told(reading: PowerReading) -> str:
    said = (
        [] if reading.power_watts is None else [_figure(PowerQuantity.POWER, reading.power_watts)]
    )
    if reading.load_ratio is not None:
        said.append(_figure(PowerQuantity.LOAD, reading.load_ratio))
    return f" ({', '.join(said)})" if said else ""


def _figure(quantity: PowerQuantity, value: float) -> str:
    return f"{value / 1e3:.4g} kW" if quantity is PowerQuantity.POWER else f"load {value:.0%}"
