"""Replaces every text that is written for people, and leaves all else as it is.

Decisions rest on fields: whoever rewords a sentence must not change what a job does. `PROSE` names
the fields of records, messages, alerts and commands that hold such text. What a rank printed is among
them: its launcher has read what it means, and reports that beside it.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

Words = Callable[[str], str]
_T = TypeVar("_T")

PROSE: Final = frozenset(
    {
        "reason",
        "summary",
        "signature",
        "text",
        "source",
        "result",
        "note",
        "notes",
        "launch_error",
        "progress_error",
        "message",
        "traceback",
        "last_lines",
        "line",
    }
)
FINDER_ERROR: Final = ("Found", "error")


def as_length(text: str) -> str:
    return str(len(text))


def in_other_words(text: str) -> str:
    """Return another text for each: the letters of the one from behind, in a frame."""
    return f"<{text[::-1].swapcase()}>" if text else text


def reword(value: _T, words: Words) -> _T:
    """Return the value with all text for people replaced."""
    result: Any = _reword(value, words)
    return result  # type: ignore[no-any-return]


def without_words(value: object) -> object:
    """Return what is left of the value without text for people, for comparison."""
    return _reword(value, lambda _text: "")


def is_prose(owner: type, name: str) -> bool:
    return name in PROSE or (owner.__name__, name) == FINDER_ERROR


def _reword(value: Any, words: Words) -> Any:
    if isinstance(value, tuple):
        return tuple(_reword(one, words) for one in value)
    if not is_dataclass(value) or isinstance(value, (type, Enum)):
        return value
    changes = {}
    for name, is_text in _fields_of(type(value)):
        before = getattr(value, name)
        after = _replace_text(before, words) if is_text else _reword(before, words)
        if after is not before:
            changes[name] = after
    return replace(value, **changes) if changes else value


@cache
def _fields_of(owner: type) -> tuple[tuple[str, bool], ...]:
    return tuple((one.name, is_prose(owner, one.name)) for one in fields(owner))


def _replace_text(value: Any, words: Words) -> Any:
    if isinstance(value, str):
        return words(value)
    if isinstance(value, tuple):
        return tuple(_replace_text(one, words) for one in value)
    return value
