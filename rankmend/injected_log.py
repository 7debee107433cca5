"""Lines that `rankmend inject` tells the agent as if the kernel had printed them: one file, which root alone may write.

    4,SEQUENCE,MICROSECONDS,-;TEXT        as /dev/kmsg gives a record

An agent reads it only where its configuration says so (`injected_kernel_log`). Once the file is gone, so is the fault.
"""

import os
import stat
import time
from pathlib import Path
from typing import Final

from rankmend.errors import SourceError
from rankmend.files import read_if_there, replace_file
from rankmend.own_folder import make_private

INJECTED_LOG: Final = Path("/run/rankmend-inject/kernel-log")
BYTES_MAX: Final = 65_536


def write_injected(path: Path, text: str, injection_id: str) -> None:
    """Write one record, and the injection that it is of."""
    make_private(path.parent, SourceError)
    path.parent.chmod(0o755)
    at_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    body = f"4,1,{at_us},-;{text} [{injection_id}]\n"
    replace_file(path, body.encode("ascii", "replace"), SourceError, mode=0o644, durable=False)


def read_injected(path: Path) -> tuple[bytes, ...]:
    """Return the records that stand; none where the file is not there. Raise SourceError for one that others may write."""

    def check(found: os.stat_result) -> None:
        is_closed = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o022
        if not is_closed or found.st_uid not in (0, os.geteuid()):
            raise SourceError(f"{path} belongs to uid {found.st_uid}, or others may write to it")

    data = read_if_there(path, BYTES_MAX, SourceError, follow_link=False, check=check)
    return () if data is None else tuple(line for line in data.split(b"\n") if line)
