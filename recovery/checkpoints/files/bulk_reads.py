"""Reads a file to its end, and leaves the page cache to training as long as nobody waits.

What is in the page cache comes from there. The rest comes past it (O_DIRECT), which takes a fraction of
the processor time and pushes nothing out. Once somebody waits, everything goes through the cache: the
ranks that restore read the same bytes next. So it does where the file system can't say what is
cached (RWF_NOWAIT) or refuses O_DIRECT, as tmpfs, FUSE and NFS do.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import threading
from typing import Final

from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.digests import BLOCK_BYTES

CHUNK_BYTES: Final = 1 << 20  # of a read through the cache
BUFFER_BYTES: Final = BLOCK_BYTES  # of a read past it: the kernel reads nothing ahead then
ALIGNED_BYTES: Final = 4096  # at least a page and a block of the disk, as O_DIRECT asks for
_HUGE_BYTES: Final = 2 << 20  # of x86-64 and of arm64 with pages of 4 KiB
_AHEAD_BYTES: Final = 8 << 20

_LIBC: Final = ctypes.CDLL(None)
_spare = threading.local()  # a thread that hangs in a read keeps the buffer of that read


class BulkReads:
    """Reads of one open file, whose offsets only grow. It owns the flags of the descriptor."""

    def __init__(self, descriptor: int, size_bytes: int, deadline: Deadline) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._deadline = deadline
        self._flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        self._probe = bytearray(1)
        self._expects_all = False
        self._fetched = 0  # requested ahead
        self.was_cached = False  # what was read last, as far as its first page tells
        self._is_direct = not deadline.is_awaited and hasattr(os, "RWF_NOWAIT")  # not in old musl
        # a look into the cache must bring no more than one page there
        order = os.POSIX_FADV_RANDOM if self._is_direct else os.POSIX_FADV_SEQUENTIAL
        _advise(descriptor, 0, 0, order)
        _advise(descriptor, 0, 0, os.POSIX_FADV_NOREUSE)  # training's pages stay in the cache

    def expect_all(self, at: int) -> None:
        """Have the storage send the whole file from here, always a little ahead of what is read."""
        self._expects_all = True
        if not self._is_direct:
            self._fetch_ahead(at)

    def count_at(self, at: int) -> int:
        """Return how many bytes should be read here at once: to the next limit of such reads."""
        if self._is_direct and self._deadline.is_awaited:
            self._go_through_cache()
        count = BUFFER_BYTES if self._is_direct else CHUNK_BYTES
        return min(count - at % count, self._size_bytes - at)

    def read(self, buffer: memoryview, at: int, count: int) -> int:
        """Read up to ``count`` bytes into the buffer and return how many; 0 at the end of the file.

        The buffer has room for ``count`` rounded up to whole pages.
        """
        self.was_cached = self._is_direct and at % ALIGNED_BYTES == 0 and self._is_cached(at)
        self.was_cached &= self._is_direct  # else it can't be known
        if self._is_direct and at % ALIGNED_BYTES == 0 and not self.was_cached:
            room = buffer[: -(-count // ALIGNED_BYTES) * ALIGNED_BYTES]
            try:
                return min(self._read_directly(room, at), count)
            except OSError:  # a plain read works, or says why not
                self._go_through_cache()
        if not self._is_direct and self._expects_all and at + _AHEAD_BYTES >= self._fetched:
            self._fetch_ahead(at)
        return os.preadv(self._descriptor, [buffer[: min(count, CHUNK_BYTES)]], at)

    def _is_cached(self, at: int) -> bool:
        """Return whether the page at this offset should come from the page cache.

        A read that must not wait starts to fetch a missing page, and succeeds where a fast disk sends it
        in time: mincore comes first. It answers owners and writers of the file alone.
        """
        if not _is_resident(self._descriptor, at):
            return False
        try:
            os.preadv(self._descriptor, [self._probe], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # this file system can't say
            self._go_through_cache()
        return True

    def _read_directly(self, room: memoryview, at: int) -> int:
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags | os.O_DIRECT)
        try:
            count = os.preadv(self._descriptor, [room], at)
        finally:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags)
        # the look into the cache has brought this page there
        _advise(self._descriptor, at, ALIGNED_BYTES, os.POSIX_FADV_DONTNEED)
        return count

    def _go_through_cache(self) -> None:
        self._is_direct = False
        _advise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def _fetch_ahead(self, at: int) -> None:
        """Ask for the next bytes now; the kernel's own read-ahead begins small in each file."""
        begin = max(at, self._fetched)
        end = min(at + 2 * _AHEAD_BYTES, self._size_bytes)
        if end > begin:
            _advise(self._descriptor, begin, end - begin, os.POSIX_FADV_WILLNEED)
            self._fetched = end


def _is_resident(descriptor: int, at: int) -> bool:
    """Return whether mincore finds this page in memory; true also where it can't be asked."""
    try:
        mapped = mmap.mmap(descriptor, ALIGNED_BYTES, access=mmap.ACCESS_COPY, offset=at)
    except (OSError, ValueError):  # FUSE without mappings, the file has shrunk, larger pages
        return True
    first = ctypes.c_char.from_buffer(mapped)
    state = ctypes.c_ubyte()
    failed = _LIBC.mincore(ctypes.byref(first), ctypes.c_size_t(1), ctypes.byref(state))
    del first
    mapped.close()
    return bool(failed or state.value & 1)


def take_buffer() -> memoryview:
    """Return `BUFFER_BYTES` at the beginning of a page; one for each thread is used again and again."""
    buffer: memoryview | None = getattr(_spare, "buffer", None)
    _spare.buffer = None
    return _map_buffer() if buffer is None else buffer


def _map_buffer() -> memoryview:
    """Return new memory in huge pages, where there are some.

    The kernel and the disk then handle a read in a few large pieces: a third of the processor time.
    """
    mapped = mmap.mmap(-1, BUFFER_BYTES + _HUGE_BYTES, flags=mmap.MAP_PRIVATE)
    with contextlib.suppress(OSError):  # a kernel without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(mapped)) % _HUGE_BYTES
    return memoryview(mapped)[begin : begin + BUFFER_BYTES]


def give_back(buffer: memoryview) -> None:
    _spare.buffer = buffer


def _advise(descriptor: int, offset: int, count: int, advice: int) -> None:
    with contextlib.suppress(OSError):  # not every file system takes advice
        os.posix_fadvise(descriptor, offset, count, advice)
