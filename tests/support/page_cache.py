"""What the page cache holds of a file, and what it is made to hold."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


def drop_cached(path: Path) -> None:
    """Write the file out and take it out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def bring_cached(path: Path, parts: Iterable[tuple[int, int]]) -> None:
    """Read these parts (offset, bytes) through the page cache, and nothing beside them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for offset, count in parts:
            os.pread(descriptor, count, offset)
    finally:
        os.close(descriptor)


def cached_bytes(path: Path) -> int:
    """Return how much of the file is in the page cache, in whole pages."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY)
    states = (ctypes.c_ubyte * -(-size_bytes // PAGE))()
    first = ctypes.c_char.from_buffer(mapped)
    address = ctypes.c_void_p(ctypes.addressof(first))
    if _LIBC.mincore(address, ctypes.c_size_t(size_bytes), states):
        raise OSError(ctypes.get_errno(), "mincore")
    del first
    mapped.close()
    return PAGE * sum(state & 1 for state in states)


def needs_direct_reads(folder: Path) -> None:
    """Skip the test where the file system has no O_DIRECT, or does not tell what is cached."""
    path = folder / "direct"
    path.write_bytes(bytes(PAGE))
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        os.preadv(descriptor, [mmap.mmap(-1, PAGE)], 0)
        with path.open("rb") as file:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        pass
    except OSError as error:
        pytest.skip(f"no direct reads in {folder}: {error.strerror}")
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        path.unlink()
