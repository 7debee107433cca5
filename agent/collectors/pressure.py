"""Pressure stall information: how long tasks have waited for CPU, memory and io.

Source: <root>/pressure/{cpu,memory,io}, Linux Documentation/accounting/psi.rst. Totals are
        microseconds since boot.
Cost:   three small reads; no privilege.
"""

import errno
from collections.abc import Iterator
from pathlib import Path

from agent.metrics import Metric
from rankmend.errors import NoSourceError, SourceError

_RESOURCES = ("cpu", "io", "memory")


def parse_pressure(text: str) -> dict[str, float]:
    """Return the stalled seconds by kind (some, full) in the text of a pressure file."""
    stalled_s = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        name, _, total = rest.rpartition(" ")[2].partition("=")
        if kind not in ("some", "full") or name != "total" or not _is_decimal(total):
            raise SourceError(f"pressure line is not 'some|full avg10=... total=<us>': {line!r}")
        stalled_s[kind] = int(total) / 1e6
    if "some" not in stalled_s:
        raise SourceError(f"pressure file has no 'some' line: {text[:80]!r}")
    return stalled_s


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20  # a 64-bit number


class PressureCollector:
    name = "pressure"
    interval_s = 1.0

    def __init__(self, procfs_root: Path) -> None:
        self._root = procfs_root / "pressure"

    def collect(self) -> Iterator[Metric]:
        if not self._root.is_dir():
            raise NoSourceError(f"no {self._root}: a kernel before 4.20 or without CONFIG_PSI")
        for resource in _RESOURCES:
            for kind, stalled_s in parse_pressure(self._read(resource)).items():
                name = f"rankmend_pressure_{kind}_seconds_total"
                yield Metric(name, stalled_s, (("resource", resource),))

    def _read(self, resource: str) -> str:
        path = self._root / resource
        try:
            return path.read_text(encoding="ascii")
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise NoSourceError("pressure accounting is off: boot with psi=1") from error
            raise SourceError(f"cannot read {path}") from error
        except UnicodeDecodeError as error:
            raise SourceError(f"{path} is no text") from error
