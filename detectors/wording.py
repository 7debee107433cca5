"""Counts, lists and times in sentences for people: bounded, with how many were left out. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from itertools import groupby
from typing import Final

NAMES_SHOWN_MAX: Final = 8
_RANKS_SHOWN_MAX: Final = 16


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return how many there are: `1 rank`, `2 ranks`. ``plural``: where it does not end in s alone."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Return ranks in words: "rank 2", "ranks 0, 1 and 3"."""
    ordered = sorted(ranks)
    shown = [str(rank) for rank in ordered[:_RANKS_SHOWN_MAX]]
    if len(ordered) > _RANKS_SHOWN_MAX:
        shown.append(f"{len(ordered) - _RANKS_SHOWN_MAX} more")
    if len(shown) == 1:
        return f"rank {shown[0]}"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def moment(unix_s: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return a time in UTC: whoever reads it may be anywhere. One outside the calendar stays a number."""
    try:
        return datetime.fromtimestamp(unix_s, tz=timezone.utc).strftime(form)
    except (OverflowError, OSError, ValueError):
        return f"{unix_s:g} s since 1970"


def rank_ranges(ranks: Iterable[int]) -> str:
    """Return ranks in short form, for a table: 0-7, 12; a dash for none."""
    parts = []
    for _gap, run in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        block = [rank for _place, rank in run]
        parts.append(str(block[0]) if len(block) == 1 else f"{block[0]}-{block[-1]}")
    return ", ".join(parts) or "-"


def names_in_words(names: Sequence[str], shown_max: int = NAMES_SHOWN_MAX) -> str:
    """Return names in words: "a, b and 3 more"."""
    more = f" and {len(names) - shown_max} more" if len(names) > shown_max else ""
    return ", ".join(names[:shown_max]) + more


def reasons_in_words(reasons: Sequence[str], shown_max: int = NAMES_SHOWN_MAX) -> str:
    """Return reasons in words: "a: silent; b: drained; and 3 more"."""
    more = f"; and {len(reasons) - shown_max} more" if len(reasons) > shown_max else ""
    return "; ".join(reasons[:shown_max]) + more
