"""Pressure stall information: how long tasks have waited for CPU, memory and io.

Source: <root>/pressure/{cpu,memory,io}, Linux Documentation/accounting/psi.rst. Totals are
        microseconds since boot.
Cost:   three small reads through kept descriptors; no privilege.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, counter, gauge
from agent.sources.kept_files import KeptFiles
from rankmend.errors import NoSourceError, SourceError

_RESOURCES = ("cpu", "io", "memory")

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "pressure_success",
        "",
        ("resource",),
        "1 when the kernel's file for cpu, memory or io could be understood, 0 when not.",
    ),
    counter(
        "pressure_some_seconds",
        "seconds",
        ("resource",),
        "Time during which at least one task waited for cpu, memory or io.",
    ),
    counter(
        "pressure_full_seconds",
        "seconds",
        ("resource",),
        "Time during which all tasks waited for it at once.",
    ),
)


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
        self._files = KeptFiles()
        self._made: dict[str, tuple[str, tuple[Metric, ...]]] = {}  # by resource, with its text

    def collect(self) -> Iterator[Metric]:
        if not self._made and not self._root.is_dir():
            raise NoSourceError(f"no {self._root}: a kernel before 4.20 or without CONFIG_PSI")
        self._files.begin_run()
        problems = []
        for resource in _RESOURCES:
            try:
                text = self._files.read(f"{self._root}/{resource}")
                made = self._made.get(resource)
                if made is None or made[0] != text:
                    made = self._made[resource] = (text, _metrics(resource, text))
            except NoSourceError as error:  # EOPNOTSUPP too
                self._made.pop(resource, None)
                problems.append(error)
                continue
            except SourceError:
                yield Metric("rankmend_pressure_success", 0, (("resource", resource),))
                continue
            yield from made[1]
        if len(problems) == len(_RESOURCES):
            raise NoSourceError("pressure accounting is off: boot with psi=1") from problems[0]


def _metrics(resource: str, text: str) -> tuple[Metric, ...]:
    labels = (("resource", resource),)
    return (
        Metric("rankmend_pressure_success", 1, labels),
        *(
            Metric(f"rankmend_pressure_{kind}_seconds_total", stalled_s, labels)
            for kind, stalled_s in parse_pressure(text).items()
        ),
    )
