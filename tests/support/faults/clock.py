"""A wall clock that jumps."""

import shutil
import struct
import subprocess
from pathlib import Path

from tests.support.eventually import DEADLINE_S
from tests.support.faults.fault import Fault

SOURCE = Path(__file__).with_name("wall_clock.c")
WHY_NOT = "" if shutil.which("cc") else "no C compiler (cc) for a wall clock that jumps"


class FakeClock:
    """The wall clock of the processes that are started with `environment`; it can jump while they run.

    CLOCK_MONOTONIC stays true, as it does on a machine whose wall clock is set.
    """

    def __init__(self, file: Path) -> None:
        """``file`` holds the offset. The library that applies it is built beside it."""
        library = file.with_name("wall_clock.so")
        if not library.exists():
            new = file.with_name(f"{file.name}.so")
            command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(new), str(SOURCE), "-ldl"]
            subprocess.run(command, check=True, timeout=DEADLINE_S)
            new.replace(library)
        self._file = file
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "RANKMEND_TEST_CLOCK": str(file)}

    def jump(self, offset_s: float) -> Fault:
        """Set the clock this far from the true one, until the end."""
        fault = Fault(f"clock of {self._file.name} off by {offset_s} s", lambda: self._set(0))
        self._set(offset_s)
        return fault

    def _set(self, offset_s: float) -> None:
        with self._file.open("r+b") as file:  # in place: processes have it mapped
            file.write(struct.pack("<q", round(offset_s * 1e9)))
