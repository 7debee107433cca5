"""Reads and writes of the disks, through psutil. How full they are: collectors/mounts.py.

Source: <root>/diskstats, Linux Documentation/admin-guide/iostats.rst. Partitions, loop and RAM
        disks are left out.
Cost:   0.2 ms a run.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from agent.metrics import Family, Metric, counter, gauge
from rankmend.errors import NoSourceError, SourceError

# as node_exporter's diskstats collector leaves them out by default
_IGNORED_DEVICES = re.compile(r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]+|nvme\d+n\d+p)\d+")

_DISK: Final = ("device", "mount")
FAMILIES: Final[tuple[Family, ...]] = (
    gauge("disk_size_bytes", "bytes", _DISK, "Size of a mounted file system on a disk."),
    gauge("disk_available_bytes", "bytes", _DISK, "Space left for ordinary users."),
    gauge("disk_inodes", "", _DISK, "Files that it can hold; no series where not limited."),
    gauge("disk_inodes_available", "", _DISK, "Files that ordinary users can still make."),
    gauge(
        "disk_usage_success",
        "",
        _DISK,
        "1 when the file system answered how full it is, 0 when it failed.",
    ),
    counter("disk_read_bytes", "bytes", ("device",), "Read from the disk since boot."),
    counter("disk_written_bytes", "bytes", ("device",), "Written to the disk since boot."),
    counter("disk_reads", "", ("device",), "Finished reads since boot."),
    counter("disk_writes", "", ("device",), "Finished writes since boot."),
    counter(
        "disk_busy_seconds",
        "seconds",
        ("device",),
        "Time during which the disk had something to do.",
    ),
    counter(
        "disk_read_seconds",
        "seconds",
        ("device",),
        "Time that finished reads took; over the reads it is their mean latency.",
    ),
    counter(
        "disk_write_seconds",
        "seconds",
        ("device",),
        "Time that finished writes took; over the writes it is their mean latency.",
    ),
)


class DiskCollector:
    name = "disk"
    interval_s = 10.0

    def __init__(self, procfs_root: Path) -> None:
        self._root = procfs_root
        psutil.PROCFS_PATH = str(procfs_root)

    def collect(self) -> Iterator[Metric]:
        if not (self._root / "diskstats").exists():
            raise NoSourceError(f"no disk statistics at {self._root / 'diskstats'}")
        try:
            counters = psutil.disk_io_counters(perdisk=True, nowrap=False)
        except (OSError, ValueError, LookupError, NotImplementedError) as error:
            raise SourceError(f"cannot read the disks' figures under {self._root}") from error
        for device, io in sorted(counters.items()):
            if _IGNORED_DEVICES.fullmatch(device):
                continue
            labels = (("device", device),)
            yield Metric("rankmend_disk_read_bytes_total", io.read_bytes, labels)
            yield Metric("rankmend_disk_written_bytes_total", io.write_bytes, labels)
            yield Metric("rankmend_disk_reads_total", io.read_count, labels)
            yield Metric("rankmend_disk_writes_total", io.write_count, labels)
            yield Metric("rankmend_disk_read_seconds_total", io.read_time / 1000, labels)
            yield Metric("rankmend_disk_write_seconds_total", io.write_time / 1000, labels)
            yield Metric("rankmend_disk_busy_seconds_total", io.busy_time / 1000, labels)
