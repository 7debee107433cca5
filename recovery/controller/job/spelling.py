"""Names that resemble an unknown one. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final

NEAR_MAX: Final = 5
_ALIKE_MIN: Final = 0.6  # difflib's own default: one digit of gpu-17 is 0.83, one word of two 0.5
_PATTERN: Final = frozenset("*?[")


def near(wanted: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names most similar to ``wanted``, the nearest first."""
    names = sorted(set(known))
    short = _short(wanted)
    same_host = [name for name in names if _short(name) == short]  # gpu-17 and GPU-17.example.org
    by_short = {_short(name): name for name in names}
    alike = get_close_matches(short, by_short, NEAR_MAX, _ALIKE_MIN)
    return tuple(dict.fromkeys([*same_host, *(by_short[name] for name in alike)]))[:NEAR_MAX]


def find_unknown(wanted: Iterable[str], known: Iterable[str]) -> str | None:
    """Return the first name that is not known, or pattern that matches no known name; or None."""
    names = set(known)
    for item in wanted:
        if item in names:
            continue
        is_pattern = bool(_PATTERN & set(item))
        if not (is_pattern and any(fnmatchcase(name, item) for name in names)):
            return item
    return None


def say_unknown(what: str, wanted: str, known: Iterable[str]) -> str:
    """Return that ``wanted`` does not exist, with similar names."""
    names = near(wanted, known)
    like = f"; similar names: {', '.join(names)}" if names else ""
    return f"no {what} {wanted!r}{like}"


def _short(name: str) -> str:
    return name.casefold().partition(".")[0]
