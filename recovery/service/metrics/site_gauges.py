"""The controller's series of the site's coolant units and power feeds; a collector of `prometheus_client`.

A figure is shown while its reading is fresh, and nothing of a unit that has left the file: no series stands still. What stays of a
stale reading is its age, which grows. The state is the newest verdict's, and so there is one of a unit that only nodes tell of.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from detectors.parts.site_units import (
    COOLANT_UNIT,
    POWER_FEED,
    STALE_S,
    UnitKind,
    UnitReading,
    UnitVerdict,
)
from recovery.service.pager import SiteView
from recovery.service.paging.site_troubles import SiteFile

# Of each kind, the first by name: 100,000 GPUs in racks of 72 with two feeds each have 2,800 feeds.
SHOWN_MAX: Final = 4096
VERDICT_S_MAX: Final = 60.0  # there is a new one each second, or the deciding thread is stuck
_PREFIX: Final = "rankmend_controller"
_HEALTH_IDS: Final = {"ok": 0, "warning": 1, "critical": 2}


class SiteUnitState(Enum):
    """What the controller calls a unit; the values are those of the metric."""

    IN_ORDER = 0
    NOT_IN_ORDER = 1
    BROKEN = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    meaning: str
    tell: Callable[[Any], float | None]


@dataclass(frozen=True, slots=True)
class _Shown:
    """The series of one kind of unit."""

    kind: UnitKind
    name: str  # with which those of a unit begin
    label: str  # whose value is the unit's name
    figures: tuple[_Figure, ...]


def _health(reading: Any) -> float | None:
    return _HEALTH_IDS.get(reading.health)


_KINDS: Final = (
    _Shown(
        COOLANT_UNIT,
        f"{_PREFIX}_coolant_unit",
        "unit",
        (
            _Figure(
                "flow_liters_per_second", "Flow of the coolant", lambda item: item.flow_liters_per_s
            ),
            _Figure(
                "supply_celsius",
                "Temperature of the coolant that goes to the racks",
                lambda item: item.supply_celsius,
            ),
            _Figure(
                "return_celsius",
                "Temperature of the coolant that comes back",
                lambda item: item.return_celsius,
            ),
            _Figure(
                "rise_kelvin", "What the racks heat the coolant by", lambda item: item.rise_kelvin
            ),
            _Figure(
                "pressure_pascals",
                "Pressure of the coolant that goes to the racks",
                lambda item: item.pressure_pascals,
            ),
            _Figure("leaking", "1 if it says that it leaks, else 0", lambda item: item.is_leaking),
            _Figure(
                "health_id", "Its health by its own word: 0 OK, 1 warning, 2 critical", _health
            ),
        ),
    ),
    _Shown(
        POWER_FEED,
        f"{_PREFIX}_power_feed",
        "feed",
        (
            _Figure("watts", "Power that the feed carries", lambda item: item.power_watts),
            _Figure(
                "load_ratio",
                "Highest current of its circuits, of what these are rated for",
                lambda item: item.load_ratio,
            ),
            _Figure("tripped", "1 if a breaker has tripped, else 0", lambda item: item.is_tripped),
            _Figure(
                "health_id", "Its health by its own word: 0 OK, 1 warning, 2 critical", _health
            ),
        ),
    ),
)


class SiteGauges:
    def __init__(self) -> None:
        self._view = SiteView()
        self._now_unix_s = 0.0

    def note(self, view: SiteView, now_unix_s: float) -> None:
        """Take what is to be shown."""
        self._view, self._now_unix_s = view, now_unix_s

    def collect(self) -> Iterator[Metric]:
        view, now_unix_s = self._view, self._now_unix_s
        files: dict[UnitKind, SiteFile[Any]] = {
            COOLANT_UNIT: view.site.cooling,
            POWER_FEED: view.site.power,
        }
        verdicts = view.verdicts if view.judged_s_ago <= VERDICT_S_MAX else ()
        for shown in _KINDS:
            yield from _of_kind(shown, files[shown.kind].readings, verdicts, now_unix_s)
        yield from _of_files(files.items())


def _of_kind(
    shown: _Shown,
    readings: Sequence[UnitReading],
    verdicts: Sequence[UnitVerdict],
    now_unix_s: float,
) -> Iterator[Metric]:
    reported = sorted(readings, key=lambda reading: reading.name)[:SHOWN_MAX]
    fresh = [reading for reading in reported if abs(now_unix_s - reading.read_unix_s) <= STALE_S]

    def family(name: str, meaning: str) -> GaugeMetricFamily:
        text = f"{meaning}. By {shown.label}, as the site's file names it."
        return GaugeMetricFamily(f"{shown.name}_{name}", text, labels=(shown.label,))

    for figure in shown.figures:
        made = family(figure.name, figure.meaning)
        for item in fresh:
            value = figure.tell(item)
            if value is not None:
                made.add_metric((item.name,), value)
        yield made
    age = family(
        "reading_age_seconds",
        f"Time since it was read. Its figures are shown up to {STALE_S:.0f} s",
    )
    for reading in reported:
        age.add_metric((reading.name,), now_unix_s - reading.read_unix_s)
    yield age
    state = family(
        "state_id",
        "What the controller calls it: 0 in order, 1 not in order, 2 broken (harms nodes, leaks, has tripped or calls itself critical), 3 not known (its reading is too old)",
    )
    present = {reading.name for reading in reported}
    judged = (item for item in verdicts if item.kind == shown.kind)
    # Of those that only nodes tell of there is no reading: they are in no file.
    for verdict in [item for item in judged if item.reading is None or item.unit in present][
        :SHOWN_MAX
    ]:
        state.add_metric((verdict.unit,), _state_of(verdict).value)
    yield state


def _of_files(files: Iterable[tuple[UnitKind, SiteFile[Any]]]) -> Iterator[Metric]:
    success = GaugeMetricFamily(
        f"{_PREFIX}_site_file_success",
        "1 if the site's file of units could be read, 0 if not, by kind: cooling, power. No series without such a file.",
        labels=("kind",),
    )
    units = GaugeMetricFamily(
        f"{_PREFIX}_site_units",
        f"Units in the site's file, by kind: cooling, power. Of each kind at most {SHOWN_MAX} have series.",
        labels=("kind",),
    )
    for kind, file in files:
        if file.path:
            success.add_metric((kind.name,), not file.problem)
            units.add_metric((kind.name,), len(file.readings))
    yield from (success, units)


def _state_of(verdict: UnitVerdict) -> SiteUnitState:
    if verdict.is_broken:
        return SiteUnitState.BROKEN
    if verdict.is_bad:
        return SiteUnitState.NOT_IN_ORDER
    return SiteUnitState.UNKNOWN if verdict.is_stale else SiteUnitState.IN_ORDER
