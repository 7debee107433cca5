"""Bytes, packets, errors and drops of each network device, through psutil.

Source: <root>/net/dev, proc(5). Devices of containers (veth and the like) are left out: they
        come and go with each container and would be series without end.
Cost:   0.1 ms a run; no privilege.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from agent.metrics import Family, Metric, counter
from rankmend.errors import NoSourceError, SourceError

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


class NetworkCollector:
    name = "network"
    interval_s = 1.0

    def __init__(self, procfs_root: Path) -> None:
        self._path = procfs_root / "net" / "dev"
        psutil.PROCFS_PATH = str(procfs_root)

    def collect(self) -> Iterator[Metric]:
        if not self._path.exists():
            raise NoSourceError(f"no network devices at {self._path}")
        try:
            devices = psutil.net_io_counters(pernic=True, nowrap=False)
        except (OSError, ValueError, LookupError) as error:
            raise SourceError(f"cannot read {self._path}") from error
        for device, io in sorted(devices.items()):
            if _IGNORED_DEVICES.fullmatch(device):
                continue
            labels = (("device", device),)
            for name, value in (
                ("receive_bytes", io.bytes_recv),
                ("receive_packets", io.packets_recv),
                ("receive_errors", io.errin),
                ("receive_drops", io.dropin),
                ("transmit_bytes", io.bytes_sent),
                ("transmit_packets", io.packets_sent),
                ("transmit_errors", io.errout),
                ("transmit_drops", io.dropout),
            ):
                yield Metric(f"rankmend_network_{name}_total", value, labels)
