"""Bytes, packets, errors and drops of each network device.

Source: <root>/net/dev, proc(5). Devices of containers (veth and the like) are left out: they
        come and go with each container and would be series without end.
Cost:   0.05 ms a run through a kept descriptor; no privilege.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.collectors.host import FILE_BYTES_MAX, parse_number
from agent.metrics import Family, Metric, counter
from agent.sources.kept_files import KeptFiles
from rankmend.errors import SourceError

_IGNORED_DEVICES = re.compile(r"(veth|cali|lxc|tap|vnet|ifb).*")

FAMILIES: Final[tuple[Family, ...]] = (
    *(
        counter(f"network_{way}_{what}", unit, ("device",), f"{text} since the device came up.")
        for way, verb in (("receive", "received"), ("transmit", "sent"))
        for what, unit, text in (
            ("bytes", "bytes", f"Bytes {verb}"),
            ("packets", "", f"Packets {verb}"),
            ("errors", "", f"Packets not {verb} because of errors"),
            ("drops", "", f"Packets dropped instead of being {verb}"),
        )
    ),
)


_SERIES: Final = (  # metric, place in a line of net/dev
    *(
        (f"rankmend_network_{way}_{what}_total", first + place)
        for way, first in (("receive", 0), ("transmit", 8))
        for place, what in enumerate(("bytes", "packets", "errors", "drops"))
    ),
)
_FIELDS: Final = 16


def parse_devices(text: str) -> dict[str, str]:
    """Return the counters of each device as they are written, without devices of containers."""
    devices = {}
    for line in text.splitlines()[2:]:  # after two lines of headings
        name, colon, counters = line.rpartition(":")  # an alias has a colon in its name
        if not colon:
            raise SourceError(f"line of net/dev is not '<device>: <counters>': {line[:80]!r}")
        name = name.strip()
        if _IGNORED_DEVICES.fullmatch(name) is None:
            devices[name] = counters
    return devices


class NetworkCollector:
    name = "network"
    interval_s = 1.0

    def __init__(self, procfs_root: Path) -> None:
        self._path = str(procfs_root / "net" / "dev")
        self._files = KeptFiles(bytes_max=FILE_BYTES_MAX)
        self._made: dict[str, tuple[str, tuple[Metric, ...]]] = {}  # by device, with its text

    def collect(self) -> Iterator[Metric]:
        self._files.begin_run()
        devices = parse_devices(self._files.read(self._path))
        before, self._made = self._made, {}
        for device, text in sorted(devices.items()):
            made = before.get(device)
            if made is None or made[0] != text:  # idle devices are the many
                made = (text, _metrics(device, text))
            self._made[device] = made
            yield from made[1]


def _metrics(device: str, text: str) -> tuple[Metric, ...]:
    fields = text.split()
    if len(fields) < _FIELDS:
        raise SourceError(f"net/dev has {len(fields)} counters of {device}")
    labels = (("device", device),)
    return tuple(Metric(name, parse_number(fields[place]), labels) for name, place in _SERIES)
