"""Durations, shares and moments in words, for the terminal and the page. Pure."""

from datetime import datetime, timezone


def in_words(seconds: float | None) -> str:
    """Return a duration with three significant figures; a dash for None."""
    if seconds is None:
        return "-"
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f} %"


def gpu_hours(device_s: float | None) -> str:
    return "-" if device_s is None else f"{device_s / 3600:,.4g}"


def moment(unix_s: float) -> str:
    """Return a time in UTC: whoever reads the page may be anywhere."""
    try:
        at = datetime.fromtimestamp(unix_s, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return f"{unix_s:g} s since 1970"
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")
