"""Bounded, read-only access to one regular file that nobody vouches for."""

import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from rankmend.errors import RankmendError
from recovery.checkpoints.deadline import Deadline

CHUNK_BYTES: Final = 1 << 20
_WINDOW_BYTES: Final = 1 << 16

# path, inode, size, mtime_ns: equal signatures mean equal bytes
Signature = tuple[str, int, int, int]


class DefectError(RankmendError):
    """The candidate can't be restored; the message is the reason for a person."""


class ChangedError(DefectError):
    """The file is not the one that was listed: somebody writes it."""


def signature_of(path: str, status: os.stat_result) -> Signature:
    return (path, status.st_ino, status.st_size, status.st_mtime_ns)


def explain(error: OSError) -> str:
    """Return why a file could not be read, for a verdict."""
    if isinstance(error, FileNotFoundError):
        return "vanished while it was checked"
    return f"can't be read: {error.strerror or error}"


class FileReader:
    """One open file. Every read checks the deadline; small reads come out of a window."""

    def __init__(self, path: str, deadline: Deadline) -> None:
        deadline.check()
        self.path = path
        self._deadline = deadline
        # O_NONBLOCK: opening a FIFO must not wait for its writer
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(path, flags)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise DefectError("not a regular file")
        self.size_bytes = status.st_size
        self.signature = signature_of(path, status)
        self._window = b""
        self._window_at = 0

    def __enter__(self) -> "FileReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def check_unchanged(self, signature: Signature) -> None:
        """Raise unless the file still is the one with this signature."""
        if signature_of(self.path, os.fstat(self._descriptor)) != signature:
            raise ChangedError("changed while it was read")

    def read(self, offset: int, count: int) -> bytes:
        """Return exactly ``count`` bytes, or raise: the file ends before."""
        if offset < 0 or count < 0 or offset + count > self.size_bytes:
            raise DefectError(
                f"truncated: {count} bytes at {offset} are outside its {self.size_bytes}"
            )
        begin = offset - self._window_at
        if begin < 0 or begin + count > len(self._window):
            self._window = self._pread(offset, max(count, _WINDOW_BYTES))
            self._window_at = offset
            begin = 0
        data = self._window[begin : begin + count]
        if len(data) < count:
            raise ChangedError("changed while it was read")
        return data

    def chunks(self, offset: int, count: int) -> Iterator[bytes]:
        """Yield the bytes piece by piece: a member may be larger than memory."""
        if count <= _WINDOW_BYTES:
            yield self.read(offset, count)
            return
        if offset + count > self.size_bytes:
            raise DefectError(
                f"truncated: {count} bytes at {offset} are outside its {self.size_bytes}"
            )
        end = offset + count
        while offset < end:
            data = self._pread(offset, min(CHUNK_BYTES, end - offset))
            if not data:
                raise ChangedError("changed while it was read")
            yield data
            offset += len(data)

    def check_deadline(self) -> None:
        self._deadline.check()

    def _pread(self, offset: int, count: int) -> bytes:
        """Read up to ``count`` bytes; fewer only at the end of the file."""
        parts = []
        while count > 0:
            self._deadline.check()
            part = os.pread(self._descriptor, min(count, CHUNK_BYTES), offset)
            if not part:
                break
            self._deadline.count(len(part))
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
