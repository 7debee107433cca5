"""Times as people type and read them, shown with their zone."""

import re
import time
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final, NamedTuple

import click

from rankmend.cli.units import DURATION

_OFFSET: Final = r"Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d"
_FORM: Final = (
    r"(?:(?P<day>\d{4}-\d{2}-\d{2})[T ])?(?P<time>\d{2}:\d{2}(?::\d{2})?)\s*"
    rf"(?P<zone>{_OFFSET})?"
)


class TimeOfDay(NamedTuple):
    """A time as typed. No day means today; no zone means the option's, or this machine's."""

    day: str
    time: str
    zone: str

    def unix_s(self, zone: tzinfo | None, now_unix_s: float) -> float:
        """Return it in unix seconds; ``zone`` applies if none was typed, None is this machine's."""
        known = _zone_of(self.zone) if self.zone else zone
        today = datetime.fromtimestamp(now_unix_s, tz=timezone.utc).astimezone(known)
        at = datetime.fromisoformat(f"{self.day or today.date().isoformat()}T{self.time}")
        # without a zone, astimezone uses this machine's, summer time included
        return (at.replace(tzinfo=known) if known is not None else at.astimezone()).timestamp()


class TimeParameter(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3
    """``2026-12-01T08:00+01:00``, ``2026-12-01 08:00Z``, or ``08:00``."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> TimeOfDay:
        if isinstance(value, TimeOfDay):
            return value
        found = re.fullmatch(_FORM, str(value).strip())
        day, time = ("", "") if found is None else (found["day"] or "", found["time"])
        try:
            datetime.fromisoformat(f"{day or '2000-01-01'}T{time}")
        except ValueError:
            found = None
        if found is None:
            self.fail(
                f"{value!r:.80} is not a time: write 2026-12-01T08:00, or 08:00 for today, with or "
                "without a zone (Z, +01:00)",
                param,
                ctx,
            )
        return TimeOfDay(day, time, found["zone"] or "")


class ZoneParameter(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3
    """``UTC``, ``Europe/Berlin`` or ``+01:00``."""

    name = "zone"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tzinfo:
        if isinstance(value, tzinfo):
            return value
        text = str(value)
        if re.fullmatch(_OFFSET, text):
            return _zone_of(text)
        from zoneinfo import ZoneInfo

        try:
            return ZoneInfo(text)
        except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
            known = "UTC, Europe/Berlin, +01:00"
            self.fail(
                f"{text!r:.80} is not a time zone that this machine knows; examples: {known}",
                param,
                ctx,
            )


class SinceParameter(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3
    """A duration before now (``7d``), or a time (``2026-12-01T08:00``)."""

    name = "duration or time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> "float | TimeOfDay":
        text = str(value).strip()
        if text[-1:] in "smhd" or text.replace(".", "", 1).isdigit():
            return DURATION.convert(text, param, ctx)
        try:
            return TimeParameter().convert(text, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{text!r:.80} is neither a duration (7d, 12h) nor a time (2026-12-01T08:00, or 08:00 for today)",
                param,
                ctx,
            )


SINCE: Final = SinceParameter()


def begin_of(since: "float | TimeOfDay | None") -> float | None:
    """Return the moment that ``--since`` names, in unix seconds; None: it was not given."""
    if since is None:
        return None
    now_unix_s = time.time()
    return since.unix_s(None, now_unix_s) if isinstance(since, TimeOfDay) else now_unix_s - since


def say_time(unix_s: float, zone: tzinfo | None = None) -> str:
    """Return a time with its zone; without ``zone``, in this machine's."""
    try:
        at = datetime.fromtimestamp(unix_s, tz=timezone.utc).astimezone(zone)
    except (
        OverflowError,
        ValueError,
        OSError,
    ):  # outside the calendar, from a journal that others wrote
        return f"{unix_s:g} s since 1970"
    return f"{at:%Y-%m-%d %H:%M %Z}"


def _zone_of(text: str) -> timezone:
    if text == "Z":
        return timezone.utc
    away = timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    return timezone(-away if text[0] == "-" else away)
