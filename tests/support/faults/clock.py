"""A wall clock that jumps."""

from pathlib import Path

from tests.support.faults.fault import Fault

_FAKETIME = "faketime/libfaketimeMT.so.1"  # the one for programs with threads


def faketime_library() -> Path | None:
    """Return where Debian's package faketime keeps its library; None where it is not installed."""
    return next(iter(sorted(Path("/usr/lib").glob(f"*/{_FAKETIME}"))), None)


class FakeClock:
    """The wall clock of the processes that are started with `environment`; it can jump while they run.

    CLOCK_MONOTONIC stays true, as it does on a machine whose wall clock is set.
    """

    def __init__(self, file: Path) -> None:
        library = faketime_library()
        if library is None:
            raise FileNotFoundError("libfaketime is not installed (Debian: faketime)")
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",  # read the file at each look at the clock, not every 10 s
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self._set(0)

    def jump(self, offset_s: float) -> Fault:
        """Set the clock this far from the true one, until the end."""
        fault = Fault(f"clock of {self._file.name} off by {offset_s} s", lambda: self._set(0))
        self._set(offset_s)
        return fault

    def _set(self, offset_s: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+f}\n", encoding="ascii")
        new.replace(self._file)  # a reader sees the old or the new, never half
