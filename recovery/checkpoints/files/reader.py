"""Bounded, read-only access to one regular file that nobody vouches for."""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol

import xxhash

from rankmend.errors import RankmendError
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.digests import BLOCK_BYTES, new_digest
from recovery.checkpoints.files.bulk_reads import CHUNK_BYTES, BulkReads, give_back, take_buffer
from recovery.messages.candidates import HeldPart

_WINDOW_BYTES: Final = 1 << 16

# path, inode, size, mtime_ns: equal signatures mean equal bytes
Signature = tuple[str, int, int, int]

# What was listed is not there any more, or another file: a rotation, a save, an old NFS cache.
_ELUSIVE: Final = frozenset({errno.ENOENT, errno.ESTALE})


class DefectError(RankmendError):
    """The candidate can't be restored; the message is the reason for a person."""


class SumError(DefectError):
    """Bytes that were read contradict the checksum or the digest that was kept of them."""


class PartsMissingError(DefectError):
    """Not all parts are here. Those that are were read; the others may lie on other nodes' disks."""

    def __init__(self, reason: str, parts: tuple[HeldPart, ...]) -> None:
        super().__init__(reason)
        self.parts = parts


class ChangedError(DefectError):
    """The file is not the one that was listed: somebody writes it."""


def signature_of(path: str, status: os.stat_result) -> Signature:
    return (path, status.st_ino, status.st_size, status.st_mtime_ns)


def is_elusive(error: OSError) -> bool:
    """Return whether the file was gone or replaced between the listing and the read."""
    return error.errno in _ELUSIVE


def explain(error: OSError) -> str:
    """Return why a file could not be read, for a verdict."""
    if isinstance(error, FileNotFoundError):
        return "vanished while it was checked"
    return f"can't be read: {error.strerror or error}"


class ReadProgress:
    """How far one file was read to its end. The next reader of the same file goes on there.

    It holds the running digests, and of a zip archive the running CRC (`recovery.checkpoints.files.archive`).
    It is good for a file of one signature alone: who keeps it compares path, inode, size and time.
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.is_structure_whole = False  # all but the content was checked: names, sizes, places
        self.end = 0  # everything before it has its digest
        self.hash: xxhash.xxh3_64 | None = None  # of the block that `end` lies in
        self.digests: list[bytes] = []
        self.members = 0  # of a zip: so many were checked
        self.member: MemberProgress | None = None  # and of the next one a part

    @property
    def unread_bytes(self) -> int:
        return self.signature[2] - self.end


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """A zip member of which the first bytes were read."""

    packed_bytes: int = 0
    size_bytes: int = 0
    crc: int = 0
    inflater: Any = None  # zlib's, of a deflated member: a copy that nothing else moves on


class ReadsBeside(Protocol):
    """What reads a file on in another process."""

    def read_on(self, progress: ReadProgress, descriptor: int, deadline: Deadline) -> None:
        """Move the progress, which ends with a block, on as far as it comes; raise UnfinishedError when the time is over."""
        ...


class FileReader:
    """One open file. Every read checks the deadline; small reads come out of a window.

    ``is_whole``: the file will be read to its end, in order. Each byte then comes from the storage
    once, and the digest of each block is taken on the way. ``progress``: where an earlier reader of it
    was cut short. ``content``: the deadline of what is read after `begin_content`. ``beside``: another process that may read
    a part of it.
    """

    def __init__(
        self,
        path: str,
        deadline: Deadline,
        *,
        is_whole: bool = False,
        progress: ReadProgress | None = None,
        content: Deadline | None = None,
        beside: ReadsBeside | None = None,
    ) -> None:
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
        self.progress = progress or ReadProgress(self.signature)
        self._content = content or deadline
        self._beside = beside
        self._tape = _Tape(self, self._descriptor, deadline) if is_whole else None

    def __enter__(self) -> "FileReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
        if self._tape is not None:
            self._tape.close()

    def check_unchanged(self, signature: Signature) -> None:
        """Raise unless the file still is the one with this signature."""
        if signature_of(self.path, os.fstat(self._descriptor)) != signature:
            raise ChangedError("changed while it was read")

    def read(self, offset: int, count: int) -> bytes:
        """Return exactly ``count`` bytes, or raise: the file ends before."""
        self._check_inside(offset, count)
        if self._tape is not None and (view := self._tape.at(offset, count)) is not None:
            return bytes(view)
        begin = offset - self._window_at
        if begin < 0 or begin + count > len(self._window):
            # zip directories are read from the end: then the window ends with what is requested
            back = max(0, _WINDOW_BYTES - count) if begin < 0 else 0
            last = self.size_bytes - _WINDOW_BYTES
            self._window_at = max(0, min(offset - back, last))
            begin = offset - self._window_at
            window_bytes = min(_WINDOW_BYTES, self.size_bytes - self._window_at)
            self._window = self._pread(self._window_at, max(begin + count, window_bytes))
        data = self._window[begin : begin + count]
        if len(data) < count:
            raise ChangedError("changed while it was read")
        return data

    def chunks(self, offset: int, count: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes piece by piece: a member may be larger than memory.

        A piece is good until the next one is requested.
        """
        self._check_inside(offset, count)
        end = offset + count
        while offset < end:
            piece: bytes | memoryview | None = None
            most = end - offset
            if self._tape is not None:
                piece = self._tape.at_most(offset, most)
                if piece is None and offset < self._tape.end:  # on the tape of an earlier reader
                    most = min(most, self._tape.end - offset)
            if piece is None and most <= _WINDOW_BYTES:
                piece = self.read(offset, most)
            if piece is None:
                piece = self._pread(offset, min(CHUNK_BYTES, most))
            if not piece:
                raise ChangedError("changed while it was read")
            yield piece
            offset += len(piece)

    def begin_content(self) -> None:
        """Say that the structure is whole, and read from now on by the deadline of the content."""
        self.progress.is_structure_whole = True
        self._deadline = self._content
        if self._tape is not None:
            self._tape.bind(self._content)
        self._deadline.check()

    def read_on_beside(self) -> None:
        """Have another process check the members of this archive as far as it comes, and go on there."""
        if self._beside is not None and self._tape is not None and self._deadline.rate_bytes_per_s:
            self._tape.finish_block()
            self._beside.read_on(self.progress, self._descriptor, self._deadline)
            self._tape.go_on()

    def expect_all(self) -> None:
        """Have the storage send the whole file, always a little ahead of what is read."""
        if self._tape is not None:
            self._tape.expect_all()

    @property
    def expects_all(self) -> bool:
        """Return whether the whole file will be read, whatever is read of it now."""
        return self._tape is not None and self._tape.expects_all

    @property
    def unread_bytes(self) -> int:
        """Return how much `digests` has yet to read."""
        return self.size_bytes - (0 if self._tape is None else self._tape.end)

    def digests(self) -> bytes:
        """Return the digests of all blocks, after reading what is left; for a whole reader."""
        assert self._tape is not None, "only a whole reader takes digests"
        return self._tape.finish()

    def check_deadline(self) -> None:
        self._deadline.check()

    def _check_inside(self, offset: int, count: int) -> None:
        if offset < 0 or count < 0 or offset + count > self.size_bytes:
            raise DefectError(
                f"truncated: {count} bytes at {offset} are outside its {self.size_bytes}"
            )

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


class _Tape:
    """Reads a file once, chunk after chunk into one buffer, and takes the digests of its blocks.

    It moves on when somebody asks for what comes next; what lies behind it or far ahead is not its.
    """

    def __init__(self, reader: FileReader, descriptor: int, deadline: Deadline) -> None:
        self._size_bytes = reader.size_bytes
        self._deadline = deadline
        self._reads = BulkReads(descriptor, reader.size_bytes, deadline)
        self._buffer = take_buffer()
        self._progress = reader.progress
        self._begin = self.end = self._progress.end  # of the chunk in the buffer, in the file
        self._hash = self._progress.hash or new_digest()
        self._digests = self._progress.digests
        self.expects_all = False

    def bind(self, deadline: Deadline) -> None:
        """Read by this deadline from now on."""
        self._deadline = deadline

    def close(self) -> None:
        give_back(self._buffer)

    def expect_all(self) -> None:
        self.expects_all = True
        self._reads.expect_all(self.end)

    def at(self, offset: int, count: int) -> memoryview | None:
        """Return exactly these bytes, or None where they are not in one chunk or not to come next."""
        view = self.at_most(offset, count)
        return view if view is not None and len(view) == count else None

    def at_most(self, offset: int, count: int) -> memoryview | None:
        """Return the first of these bytes, as many as one chunk has; None as `at`."""
        next_bytes = min(self._reads.count_at(self.end), _WINDOW_BYTES)
        if self.end <= offset < self.end + next_bytes:  # no further: a zip is read from its end
            self._advance()
        if not self._begin <= offset < self.end:
            return None
        begin = offset - self._begin
        return self._buffer[begin : min(begin + count, self.end - self._begin)]

    def finish_block(self) -> None:
        """Read to the end of the block, or of the file."""
        while self.end % BLOCK_BYTES and self.end < self._size_bytes:
            self._advance()

    def go_on(self) -> None:
        """Go on where the progress is now: somebody else has moved it."""
        if self._progress.end > self.end:
            self._begin = self.end = self._progress.end
            self._hash = new_digest()

    def finish(self) -> bytes:
        while self.end < self._size_bytes:
            self._advance()
        if self.end % BLOCK_BYTES:
            self._take_digest()
        return b"".join(self._digests)

    def _advance(self) -> None:
        begin = at = self.end
        end = begin + self._reads.count_at(begin)
        while at < end:
            self._deadline.check()
            count = self._reads.read(self._buffer[at - begin :], at, end - at)
            if count == 0:
                raise ChangedError("changed while it was read")
            self._deadline.count(count, is_cached=self._reads.was_cached)
            at += count
        self._begin, self.end = begin, end
        self._hash.update(self._buffer[: end - begin])
        if end % BLOCK_BYTES == 0:
            self._take_digest()
        self._progress.hash, self._progress.end = self._hash, end

    def _take_digest(self) -> None:
        self._digests.append(self._hash.digest())
        self._hash = new_digest()
