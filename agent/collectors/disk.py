"""How full the local file systems are, and what the disks have read and written.

Source: statvfs(3) of each mount in <root>/self/mounts on a file system that <root>/filesystems
        lists as one on a device (so never a network file system), <root>/diskstats
        (Linux Documentation/admin-guide/iostats.rst). Partitions, loop and RAM disks are left out.
Cost:   0.3 ms a run. statvfs can hang with the disk; only this collector then hangs with it.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import psutil

from agent.metrics import Metric
from rankmend.errors import NoSourceError, SourceError

# as node_exporter's diskstats collector leaves them out by default
_IGNORED_DEVICES = re.compile(r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]+|nvme\d+n\d+p)\d+")


class Usage(Protocol):
    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


class DiskCollector:
    name = "disk"
    interval_s = 10.0

    def __init__(
        self, procfs_root: Path, usage_of: Callable[[str], Usage] = psutil.disk_usage
    ) -> None:
        self._root = procfs_root
        self._usage_of = usage_of
        psutil.PROCFS_PATH = str(procfs_root)

    def collect(self) -> Iterator[Metric]:
        if not (self._root / "diskstats").exists():
            raise NoSourceError(f"no disk statistics at {self._root / 'diskstats'}")
        try:
            partitions = psutil.disk_partitions(all=False)
            counters = psutil.disk_io_counters(perdisk=True, nowrap=False)
        except (OSError, ValueError, LookupError, NotImplementedError) as error:
            raise SourceError(f"cannot read the disks' figures under {self._root}") from error
        mounts: dict[str, str] = {}
        for partition in sorted(partitions, key=lambda found: len(found.mountpoint)):
            mounts.setdefault(partition.device, partition.mountpoint)  # once, however often bound
        for device, mount in sorted(mounts.items()):
            yield from self._read_usage(device, mount)
        for device, io in sorted(counters.items()):
            if _IGNORED_DEVICES.fullmatch(device):
                continue
            labels = (("device", device),)
            yield Metric("rankmend_disk_read_bytes_total", io.read_bytes, labels)
            yield Metric("rankmend_disk_written_bytes_total", io.write_bytes, labels)
            yield Metric("rankmend_disk_reads_total", io.read_count, labels)
            yield Metric("rankmend_disk_writes_total", io.write_count, labels)
            yield Metric("rankmend_disk_busy_seconds_total", io.busy_time / 1000, labels)

    def _read_usage(self, device: str, mount: str) -> Iterator[Metric]:
        labels = (("device", device), ("mount", mount))
        try:
            usage = self._usage_of(mount)
        except OSError:
            yield Metric("rankmend_disk_usage_success", 0, labels)
            return
        yield Metric("rankmend_disk_usage_success", 1, labels)
        yield Metric("rankmend_disk_size_bytes", usage.total, labels)
        yield Metric("rankmend_disk_available_bytes", usage.free, labels)
