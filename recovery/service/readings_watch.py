"""Reads a file of coolant units or power feeds once in a while, for the messages to people.

A thread of its own: a file on a storage that hangs makes nothing else wait. Then what it told last grows old, and people are told.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from rankmend.clock import Clock
from rankmend.errors import SourceError
from rankmend.files import read_capped
from recovery.people.site_troubles import SiteFile

READ_S: Final = 15.0
SILENT_S: Final = 60.0  # storage that gives no answer for so long tells nothing
BYTES_MAX: Final = 16 << 20

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class ReadingsWatch(Generic[_T]):
    def __init__(
        self,
        what: str,
        told: Callable[[], str | None],
        parse: Callable[[bytes], tuple[_T, ...]],
        clock: Clock,
    ) -> None:
        """``what`` the file is of, in the plural; ``told``: the file in force, None: there is none."""
        self._what = what
        self._told = told
        self._parse = parse
        self._clock = clock
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._newest: SiteFile[_T] = SiteFile()  # replaced as a whole
        self._begun: tuple[str, float] | None = None  # the file that is being read, and since when

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()

    def newest(self) -> SiteFile[_T]:
        """Return what the file told last. For any thread."""
        newest, begun = self._newest, self._begun
        if begun is None or self._clock.now_s() - begun[1] <= SILENT_S:
            return newest
        path = begun[0]
        kept = newest.readings if newest.path == path else ()
        return SiteFile(path, kept, f"{path} gives no answer")

    def read(self) -> None:
        """Read the file; one that can't be read leaves nothing known, and is logged once."""
        path, before = self._told(), self._newest
        if path is None:
            self._newest = SiteFile()
            return
        self._begun = (path, self._clock.now_s())
        try:
            body = read_capped(Path(path), BYTES_MAX, SourceError)
            self._newest = SiteFile(path, self._parse(body))
        except SourceError as error:
            text = str(error)
            problem = text if path in text else f"{path}: {text}"
            self._newest = SiteFile(path, problem=problem)
            if not before.problem:
                log.warning(
                    "cannot read the site's file",
                    extra={"of": self._what, "file": path, "error": text},
                )
        finally:
            self._begun = None

    def _run(self) -> None:
        while True:
            self.read()
            if self._should_stop.wait(READ_S):
                return
