"""Numbers with a unit on the command line: durations in seconds, rates in bytes per second."""

from collections.abc import Mapping
from typing import Any, Final

import click

_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class _WithUnit(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3
    """A number, or a number with a unit as its last letter. The value is in the base unit."""

    def __init__(
        self, name: str, units: Mapping[str, float], end: float, examples: str, *, takes_zero: bool
    ) -> None:
        self.name = name
        self._units = units
        self._end = end
        self._examples = examples
        self._takes_zero = takes_zero

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip()
        unit = self._units.get(text[-1:], 0)
        try:
            number = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < self._end or (number == 0 and not self._takes_zero):
            self.fail(f"{text!r} is not a {self.name} such as {self._examples}", param, ctx)
        return number


class DurationBetween(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3
    """A duration within bounds, written as all durations are: 90, 90s, 30m."""

    name = "duration"

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = least_s
        self._most_s = most_s

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found_s = WAIT.convert(value, param, ctx)
        if not self._least_s <= found_s <= self._most_s:
            self.fail(
                f"{value} is not within {self._least_s:g} s and {self._most_s:g} s", param, ctx
            )
        return found_s


DURATION: Final = _WithUnit("duration", _SECONDS, 1e9, "90, 90s, 30m or 12h", takes_zero=False)
WAIT: Final = _WithUnit("duration", _SECONDS, 1e9, "15, 15s, 1m or 0", takes_zero=True)
RATE: Final = _WithUnit("rate", _BYTES, 1e15, "200M, 1.5G or 0", takes_zero=True)
