"""What the disks have read and written, through psutil. How full they are: collectors/mounts.py.

Source: <root>/diskstats, Linux Documentation/admin-guide/iostats.rst. Partitions, loop and RAM
        disks are left out.
Cost:   0.2 ms a run.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from agent.metrics import Metric
from rankmend.errors import NoSourceError, SourceError

# as node_exporter's diskstats collector leaves them out by default
_IGNORED_DEVICES = re.compile(r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]+|nvme\d+n\d+p)\d+")


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
