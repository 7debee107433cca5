"""Turns values into HTML: Jinja2 with every text escaped, bounded, and free of characters that turn text around."""

import time
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from detectors.wording import counted, moment, rank_ranges
from rankmend.errors import ConfigError
from rankmend.printable import duration, printable
from recovery.accounting.goodput.time_words import gpu_hours, share
from recovery.console.incident import loss_of
from recovery.console.journal_page import kind_words
from recovery.console.views.state_words import is_unread, standing_word, use_of, word_of

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES: Final = Path(__file__).parent / "templates"
_TEXT_MAX: Final = 2_000  # characters of one text on a page
_NAME_MAX: Final = 120


@cache
def environment() -> "Environment":
    """Return the templates; raises ConfigError where Jinja2 is missing."""
    try:
        from jinja2 import (  # noqa: PLC0415 - only the console needs it, and no start of anything else
            Environment,
            FileSystemLoader,
            StrictUndefined,
        )
    except ImportError as error:
        raise ConfigError(
            "the console needs Jinja2, which is not installed: pip install jinja2"
        ) from error
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_tame,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "span": _span,
        "counted": counted,
        "share": share,
        "hours": gpu_hours,
        "moment": moment,
        "clock": _clock,
        "ago": lambda unix_s: _age(time.time() - unix_s),
        "age": _age,
        "name": _name,
        "kind": kind_words,
        "ranges": rank_ranges,
        "word": lambda state: word_of(str(state)).replace("_", " "),
        "use": use_of,
        "standing": standing_word,
        "loss": loss_of,
        "restarts": lambda job: (
            job.restarts if job.restarts_in_all is None else job.restarts_in_all
        ),
        "unread": is_unread,
        "known": lambda value, job: "not known" if is_unread(job) else value,
        "running": running_clock,
        "spaced": lambda text: str(text).replace("_", " "),
    }
    return made


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)


def _tame(value: object) -> object:
    """Make a text from outside safe to show. Text that is markup of ours is left as it is."""
    if type(value) is not str:
        return value
    text = value if len(value) <= _TEXT_MAX else value[:_TEXT_MAX] + "\N{HORIZONTAL ELLIPSIS}"
    return printable(text)


def _name(value: object) -> str:
    text = str(value)
    return text if len(text) <= _NAME_MAX else text[:_NAME_MAX] + "\N{HORIZONTAL ELLIPSIS}"


def _clock(unix_s: float) -> str:
    """Return the time of the day in UTC."""
    try:
        return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{unix_s:g} s"


def _span(seconds: float | None) -> str:
    """Return a duration; MTTR has phases of less than a millisecond."""
    return (
        f"{seconds * 1e3:.3g} ms"
        if seconds is not None and 0 < seconds < 0.1
        else duration(seconds)
    )


def running_clock(seconds: float) -> str:
    """Return a time that runs, to the second: static/live.js counts on in the same words."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _age(seconds: float) -> str:
    """Return how long ago something was, no finer than people care for."""
    return "just now" if seconds < 1.5 else f"{duration(round(seconds))} ago"
