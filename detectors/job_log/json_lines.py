"""A job's lines out of a collector's JSON: Docker's json-file, fluentd, Cloud Logging, journalctl -o json, Python's JSON loggers. Pure.

Each line of such a file is an object that has a text, which may be a whole traceback. The lines of that text take its
place; `number_of` gives back the file's own numbers.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from detectors.formats.journal_fields import journal_text

_HEAD_LINES: Final = 20
_SHARE_MIN: Final = 0.6
_TEXT_LINES_MAX: Final = 2_000  # of one object
# In the order in which they are looked for. Source: Docker, fluentd; google.cloud.logging; journald.export-format;
# python-json-logger, structlog, loguru.
_TEXTS: Final = ("log", "textPayload", "message", "MESSAGE", "msg", "text", "event")
_ERRORS: Final = ("exc_info", "exception", "stack_trace", "stack_info", "traceback")


class JobLines:
    """Yields the lines that programs wrote; those of a file without JSON as they are."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        source = iter(lines)
        head = list(islice(source, _HEAD_LINES))
        said = [line for line in head if line.strip()]
        count = sum(line.lstrip()[:1] == b"{" and bool(_texts_of(line)) for line in said)
        self._is_json = bool(said) and count >= _SHARE_MIN * len(said)
        self._lines: Iterator[bytes] = chain(head, source)
        # Where the numbers of lines begin to differ: the number given, and how many more were given than read.
        self._starts: list[int] = [0]
        self._more: list[int] = [0]

    def __iter__(self) -> Iterator[bytes]:
        return self._unwrapped() if self._is_json else self._lines

    def number_of(self, given: int) -> int:
        """Return the number of the file's line that a line with the number ``given`` stands in."""
        place = bisect_right(self._starts, given) - 1
        return given - self._more[place]

    def _unwrapped(self) -> Iterator[bytes]:
        given = more = 0
        for line in self._lines:
            texts = _texts_of(line) or [line]
            for place, text in enumerate(texts):
                given += 1
                if place:
                    more += 1
                    self._starts.append(given)
                    self._more.append(more)
                yield text


def _texts_of(line: bytes) -> list[bytes]:
    """Return the lines of an object's text; empty: it is no such object."""
    if line.lstrip()[:1] != b"{":
        return []
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return []
    payload = found.get("jsonPayload")
    row = {**payload, **found} if isinstance(payload, dict) else found
    if isinstance(row.get("MESSAGE"), list):
        row["MESSAGE"] = journal_text(row["MESSAGE"])
    texts = [row[key] for key in _TEXTS if isinstance(row.get(key), str)][:1]
    texts += [row[key] for key in _ERRORS if isinstance(row.get(key), str)]
    lines = "\n".join(text.rstrip("\n") for text in texts).split("\n") if texts else []
    return [part.encode("utf-8", "surrogatepass") for part in lines[:_TEXT_LINES_MAX]]
