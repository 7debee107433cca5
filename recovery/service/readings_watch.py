"""Reads a file of coolant units or power feeds once in a while, for the messages to people.

A thread of its own: a file on a storage that hangs makes nothing else wait, and then nothing is known of what it tells.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from rankmend.errors import SourceError
from rankmend.files import read_capped

READ_S: Final = 15.0
BYTES_MAX: Final = 16 << 20

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class ReadingsWatch(Generic[_T]):
    def __init__(
        self, what: str, told: Callable[[], str | None], parse: Callable[[bytes], tuple[_T, ...]]
    ) -> None:
        """``what`` the file is of, in the plural; ``told``: the file in force, None: there is none."""
        self._what = what
        self._told = told
        self._parse = parse
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._is_broken = False
        self.readings: tuple[_T, ...] = ()  # replaced as a whole

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()

    def read(self) -> None:
        """Read the file; one that can't be read leaves nothing known, and is logged once."""
        file = self._told()
        if file is None:
            self.readings = ()
            return
        try:
            self.readings = self._parse(read_capped(Path(file), BYTES_MAX, SourceError))
            self._is_broken = False
        except SourceError as error:
            self.readings = ()
            if not self._is_broken:
                log.warning(
                    "cannot read the site's file",
                    extra={"of": self._what, "file": file, "error": str(error)},
                )
            self._is_broken = True

    def _run(self) -> None:
        while True:
            self.read()
            if self._should_stop.wait(READ_S):
                return
