"""What a long-running process makes of certificates and tokens, made anew once these files are renewed.

certbot, cert-manager and Kubernetes replace files, or the link that leads to them, and tell nobody; certificate and key
follow each other, so that for a moment they don't belong together. What can't be used changes nothing: what was made
before stays in force, and each later look tries again.
"""

import logging
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, Generic, TypeVar

from rankmend.errors import RankmendError

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0  # between two looks of a server; a client looks before each message
_NOT_USED: Final = "renewed files are not used; the old ones stay in force"

Marks = tuple[tuple[int, ...] | None, ...]

_T = TypeVar("_T")


def marks_of(files: Sequence[str]) -> Marks:
    """Return what differs once one of these files has changed, also behind a link. Reads none of them."""
    return tuple(_mark(file) for file in files)


def _mark(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - a name as the configuration has it
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Renewed(Generic[_T]):
    """A value made of files. The first making raises what ``make`` raises; a later one logs it, once."""

    def __init__(self, files: Sequence[str], make: Callable[[], _T]) -> None:
        self._files = tuple(files)
        self._make = make
        self._marks = marks_of(self._files)  # before they are read
        self._value = make()
        self._told = ""  # why the renewed files are not used
        self._lock = Lock()

    @property
    def files(self) -> tuple[str, ...]:
        return self._files

    @property
    def value(self) -> _T:
        return self._value

    def look(self) -> _T:
        """Return the value, made anew where the files have changed."""
        with self._lock:
            marks = marks_of(self._files)
            if marks == self._marks:
                return self._value
            fields = {"files": ", ".join(self._files)}
            try:
                value = self._make()
            except RankmendError as error:
                if self._told != str(error):
                    self._told = str(error)
                    fields["error"] = self._told
                    log.error(_NOT_USED, extra=fields)  # noqa: TRY400
                return self._value
            self._value, self._marks, self._told = value, marks, ""
            log.info("renewed files are in force", extra=fields)
            return value
