"""What a node shows of NVIDIA's driver without a call into it: whether to start a child at all.

A child that finds no library has taken 0.1 s of CPU. These files change when a driver is installed or loaded: ldconfig
writes its cache anew, and a module has a folder in sysfs.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

_LIBRARY_CACHE: Final = Path("/etc/ld.so.cache")
_DEVICE: Final = Path("/dev/nvidiactl")


class DriverTraces(NamedTuple):
    has_module: bool
    has_device: bool
    library_cache_ns: int | None  # when the list of libraries was written


def read_traces(sysfs_root: Path) -> DriverTraces:
    """Return the traces: three calls of stat(2)."""
    try:
        written_ns: int | None = os.stat(_LIBRARY_CACHE).st_mtime_ns  # noqa: PTH116 - Path is dear
    except OSError:
        written_ns = None
    module = sysfs_root / "module" / "nvidia"
    return DriverTraces(module.exists(), _DEVICE.exists(), written_ns)
