"""Faults of a file system: no byte free, or too few for what is written."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

from recovery.lab.inject.acts.storage import write_until_full
from tests.support.faults.fault import Fault

_FILL_BYTES_MAX = 1 << 30  # a larger file system belongs to this machine, not to a test
FILL_NAME = ".filled-by-a-test"


def fill(folder: Path) -> Fault:
    """Fill the file system of a folder up to the last byte; a small one made for the test, or it is refused."""
    size = os.statvfs(folder)
    free_bytes = size.f_bfree * size.f_frsize
    if folder.stat().st_dev == Path("/").stat().st_dev or free_bytes > _FILL_BYTES_MAX:
        raise ValueError(f"refused to fill {folder}: {free_bytes} bytes free, not a disk of a test")
    file = folder / FILL_NAME
    fault = Fault(f"{folder} full", lambda: file.unlink(missing_ok=True))
    try:
        write_until_full(file)
    except BaseException:
        fault.end()
        raise
    return fault


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a disk of this size on a new folder. Needs root.

    With `leave_one_page`, a write of more than 4 KiB is a *short* write: it returns how much it took,
    and no error.
    """
    folder.mkdir()
    size = f"size={size_bytes}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def leave_one_page(folder: Path) -> Fault:
    """Fill a small file system up to its last page of 4 KiB."""
    fault = fill(folder)
    file = folder / FILL_NAME
    os.truncate(file, file.stat().st_size - 4096)
    return fault


@contextlib.contextmanager
def short_writes(file_bytes_max: int) -> Iterator[None]:
    """Let no file of this process grow beyond this size: the write that crosses it is short, the next one fails.

    The same as `leave_one_page` for any user and any file system (setrlimit(2), RLIMIT_FSIZE).
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lose(folder: Path) -> Fault:
    """Take a folder away with all that is in it; the end of the fault brings it back.

    What has come in its place by then is put beside it, with ``.later`` behind its name.
    """
    away = folder.with_name(f"{folder.name}.lost")
    folder.rename(away)

    def bring_back() -> None:
        if folder.exists():
            folder.rename(folder.with_name(f"{folder.name}.later"))
        away.rename(folder)

    return Fault(f"{folder} lost", bring_back)
