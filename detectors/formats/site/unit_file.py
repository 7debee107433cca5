"""A file of a site's units, such as coolant units or power feeds: JSON that the site's monitoring writes, or `rankmend check` by Redfish."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from detectors.formats.redfish import BmcHealth, BmcPart, HealthLevel, Item
from detectors.parts.site_units import UnitReading
from rankmend.errors import SourceError
from rankmend.printable import is_printable

UNITS_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 128  # as in the topology file

_Reading = TypeVar("_Reading", bound=UnitReading)


class UnitFile(Generic[_Reading]):
    """The format of one kind of file: {"format": ..., LISTED: [readings]}."""

    def __init__(self, format_name: str, listed: str, noun: str, reading: type[_Reading]) -> None:
        """``listed``: the name of the list; ``noun``: what one reading is of."""
        self._format = format_name
        self._listed = listed
        self._noun = noun
        self._page: Any = msgspec.defstruct(
            "UnitPage",
            [("format", str), (listed, tuple[reading, ...])],  # type: ignore[valid-type]
            frozen=True,
            forbid_unknown_fields=True,
        )

    def parse(self, body: bytes) -> tuple[_Reading, ...]:
        """Return the readings of a file; raise SourceError that says what is wrong with it."""
        try:
            page = msgspec.json.decode(body, type=self._page)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SourceError(f"not a file of {self._noun}s: {error}") from error
        readings: tuple[_Reading, ...] = getattr(page, self._listed)
        if page.format != self._format or len(readings) > UNITS_MAX:
            raise SourceError(
                f"file of {self._noun}s of format {page.format!r:.40} with {len(readings)} {self._listed}: want {self._format}, at most {UNITS_MAX}"
            )
        for name, count in Counter(reading.name for reading in readings).items():
            if count > 1:
                raise SourceError(f"a file of {self._noun}s names {name!r:.80} {count} times")
            if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not is_printable(name):
                raise SourceError(
                    f"a file of {self._noun}s names {name!r:.80}: a name has 1 to {NAME_CHARACTERS_MAX} printable characters"
                )
        return readings

    def encode(self, readings: Iterable[_Reading]) -> bytes:
        page = self._page(self._format, tuple(sorted(readings, key=lambda reading: reading.name)))
        return msgspec.json.format(msgspec.json.encode(page), indent=1)


def worst_health(items: Sequence[Item], parts: Collection[BmcPart]) -> str:
    """Return the worst health that these parts say of themselves: ok, warning or critical; empty: none says."""
    levels = [item.level for item in items if isinstance(item, BmcHealth) and item.part in parts]
    return HealthLevel(max(level.value for level in levels)).name.lower() if levels else ""
