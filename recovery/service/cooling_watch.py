"""Reads the file of coolant units once in a while, for the messages to people.

A thread of its own: a file on a storage that hangs makes nothing else wait, and then nothing is known of the units.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from detectors.formats.cooling_file import parse_cooling_file
from detectors.parts.cooling import CoolingReading
from rankmend.errors import SourceError
from rankmend.files import read_capped

READ_S: Final = 15.0
BYTES_MAX: Final = 16 << 20

log = logging.getLogger(__name__)


class CoolingWatch:
    def __init__(self, told: Callable[[], str | None]) -> None:
        """``told``: the file in force, None: there is none."""
        self._told = told
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cooling", daemon=True)
        self._is_broken = False
        self.readings: tuple[CoolingReading, ...] = ()  # replaced as a whole

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
            self.readings = parse_cooling_file(read_capped(Path(file), BYTES_MAX, SourceError))
            self._is_broken = False
        except SourceError as error:
            self.readings = ()
            if not self._is_broken:
                log.warning(
                    "cannot read the coolant units", extra={"file": file, "error": str(error)}
                )
            self._is_broken = True

    def _run(self) -> None:
        while True:
            self.read()
            if self._should_stop.wait(READ_S):
                return
