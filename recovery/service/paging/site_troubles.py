"""What is wrong with a site's coolant units and power feeds, and with the files that tell of them. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final, Generic, TypeVar

from detectors.finding import Severity
from detectors.parts.site_units import COOLANT_UNIT, POWER_FEED, STALE_S, UnitKind, UnitVerdict
from detectors.wording import counted, names_in_words
from recovery.service.paging.trouble import FINDING, NODES_MAX, PresentTrouble

# What such troubles are about; after the first two, a colon and the unit's name.
UNIT_ALERTS: Final = {COOLANT_UNIT: "RankmendCoolingUnit", POWER_FEED: "RankmendPowerFeed"}
SITE_READINGS: Final = "RankmendSiteReadings"
_READINGS_KEY: Final = "site-readings"

_Reading_co = TypeVar("_Reading_co", covariant=True)


@dataclass(frozen=True, slots=True)
class SiteFile(Generic[_Reading_co]):
    """What a file of units told when it was last read."""

    path: str = ""  # empty: the configuration names none
    readings: Sequence[_Reading_co] = ()
    problem: str = ""  # why it tells nothing


def unit_troubles(
    verdicts: Iterable[UnitVerdict], now_unix_s: float, since_unix_s: Mapping[str, float]
) -> Iterator[PresentTrouble]:
    """Return one trouble for each coolant unit or power feed that is not in order, with the nodes that hang on it.

    ``since_unix_s``: since when each is known, by its key.
    """
    for verdict in verdicts:
        if verdict.is_bad:
            key = f"{verdict.kind.name}-{verdict.unit}"
            yield PresentTrouble(
                key=key,
                kind=FINDING,
                severity=Severity.CRITICAL if verdict.harmed else Severity.WARNING,
                what=verdict.in_words(),
                since_unix_s=since_unix_s.get(key, now_unix_s),
                nodes=(verdict.harmed or verdict.nodes)[:NODES_MAX],
                need=f"inspect the {verdict.kind.noun}",
                command="rankmend status --nodes",
                gpus_idle=0,
                is_lasting=False,
                runbook="rankmendfinding",
                about=f"{UNIT_ALERTS[verdict.kind]}:{verdict.unit}",
            )


def readings_troubles(
    verdicts: Sequence[UnitVerdict],
    files: Mapping[UnitKind, SiteFile[object]],
    now_unix_s: float,
    since_unix_s: Mapping[str, float],
) -> Iterator[PresentTrouble]:
    """Return one trouble for all units without a fresh reading and all files that can't be read: one program writes them, or one person looks after all."""
    said: dict[UnitKind, str] = {}
    for kind, file in files.items():
        stale = [verdict.unit for verdict in verdicts if verdict.kind == kind and verdict.is_stale]
        if file.problem:
            said[kind] = f"nothing is known of {kind.noun}s: {file.problem}"
        elif stale:
            count = counted(len(stale), kind.noun)
            said[kind] = f"no reading of {count} ({names_in_words(stale)}) in the last {STALE_S / 60:.0f} min"  # fmt: skip
    if said:
        first = next(iter(said))
        yield PresentTrouble(
            key=_READINGS_KEY,
            kind=FINDING,
            severity=Severity.WARNING,
            what="; ".join(said.values()),
            since_unix_s=since_unix_s.get(_READINGS_KEY, now_unix_s),
            need="restore the readings",
            command=f"rankmend check {first.name} {quote(files[first].path)}",
            gpus_idle=0,
            is_lasting=False,
            runbook=SITE_READINGS.lower(),
            about=SITE_READINGS,
        )
