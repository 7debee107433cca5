"""Copies of other nodes' snapshots in this node's memory: `rank-<R>.<attempt>.<step>.copy`, laid out as a snapshot is.

A copy is written under another name, and gets its own once its digest is right. The space between a snapshot's head and
its data, which is empty otherwise, says what the digest is and from which node the copy came: so a copier that was killed
finds its copies again.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from rankmend.errors import SourceError
from rankmend.hook.snapshots import layout, room
from recovery.checkpoints.snapshots.copies.copy_messages import SnapshotDigest
from recovery.checkpoints.snapshots.copies.peer_wire import CHUNK_BYTES, PeerFaultError
from recovery.checkpoints.snapshots.files import COPY_NAME, refuse_foreign
from recovery.messages.exchange import CopyFault

SUFFIX_NEW: Final = ".fetch"
_NOTE_AT: Final = 1024
_NOTE_BYTES: Final = layout.DATA_AT - _NOTE_AT
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL
_STEP_BYTES: Final = 64 << 20  # of an allocation


class Note(msgspec.Struct):
    """What a copy says of itself."""

    snapshot: SnapshotDigest
    node: str


@dataclass(frozen=True, slots=True)
class HeldCopy:
    path: Path
    snapshot: SnapshotDigest
    node: str
    world_size: int


class ReadSnapshot:
    """A whole snapshot or copy, open for reading. Owns the descriptor."""

    def __init__(self, path: Path, snapshot: SnapshotDigest, job_id: uuid.UUID) -> None:
        """Raise PeerFaultError where this snapshot isn't there."""
        try:
            self.descriptor = os.open(path, _READ)
        except OSError as error:
            raise PeerFaultError(CopyFault.MISSING, f"{path}: {error.strerror}") from error
        try:
            refuse_foreign(path, self.descriptor)
            self.header = self._read_header(path)
            head = (self.header.attempt, self.header.rank, self.header.step)
            if head != (snapshot.attempt, snapshot.rank, snapshot.step):
                raise PeerFaultError(CopyFault.CHANGED, f"{path} holds another snapshot")
            if uuid.UUID(bytes=self.header.job_id) != job_id:
                raise PeerFaultError(CopyFault.MISSING, f"{path}: of another job")
            size = self.header.data_size + self.header.structure_size
            if size != snapshot.size_bytes or self.header.data_at != layout.DATA_AT:
                raise PeerFaultError(CopyFault.CHANGED, f"{path} has {size} bytes")
        except BaseException as error:
            os.close(self.descriptor)
            if isinstance(error, SourceError):
                raise PeerFaultError(CopyFault.MISSING, str(error)) from error
            raise

    def __enter__(self) -> "ReadSnapshot":
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.descriptor)

    def _read_header(self, path: Path) -> layout.Header:
        data = os.pread(self.descriptor, layout.DATA_AT, 0)
        try:
            header: layout.Header = layout.parse(data, os.fstat(self.descriptor).st_size)
        except ValueError as error:
            raise PeerFaultError(CopyFault.CHANGED, f"{path}: {error}") from error
        (commit,) = layout.COMMIT.unpack_from(data, layout.COMMIT_AT)
        if commit != header.sequence:
            raise PeerFaultError(CopyFault.CHANGED, f"{path} is being written")
        return header

    def chunks(self) -> Iterator[memoryview]:
        """Yield the content: data, then structure. Raises PeerFaultError where the file is cut off."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        header = self.header
        for begin, size in content_places(header):
            place, end = begin, begin + size
            while place < end:
                count = os.preadv(self.descriptor, [buffer[: min(CHUNK_BYTES, end - place)]], place)
                if not count:
                    raise PeerFaultError(CopyFault.CHANGED, f"cut off at {place} bytes")
                yield buffer[:count]
                place += count

    def is_same(self) -> bool:
        """Return whether nothing has been written since it was opened."""
        try:
            return self._read_header(Path()) == self.header
        except (PeerFaultError, OSError):
            return False


class NewCopy:
    """A file that is being filled. Removed unless it is committed."""

    def __init__(
        self,
        path: Path,
        head: bytes,
        snapshot: SnapshotDigest,
        job_id: uuid.UUID,
        rank: int | None = None,
    ) -> None:
        """Raise PeerFaultError for a head that is not this snapshot's, or where there is no room.

        ``rank``: whose the file is to be, if not the snapshot's: the content is the same, and the head names another rank.
        """
        self._path = path
        self._new = path.with_name(path.name + SUFFIX_NEW)
        self._snapshot = snapshot
        self.header = check_head(head, snapshot, job_id)
        if rank is not None:
            self.header = self.header._replace(rank=rank)
        self._digest = xxhash.xxh3_128()
        self._places = content_places(self.header)
        self._written = 0
        size = self.header.end
        try:
            found = room.read(str(path.parent))
            free = found.free_bytes - room.reserve(found.total_bytes)
            if free < size:
                text = f"{size} bytes, and {max(free, 0)} are free ({found.limited_by} limits it)"
                raise PeerFaultError(CopyFault.FULL, text)
            self._new.unlink(missing_ok=True)
            self.descriptor = os.open(self._new, _WRITE, 0o600)
        except OSError as error:
            raise PeerFaultError(CopyFault.FULL, f"{self._new}: {error.strerror}") from error
        try:
            os.ftruncate(self.descriptor, size)
            for at in range(0, size, _STEP_BYTES):
                os.posix_fallocate(self.descriptor, at, min(_STEP_BYTES, size - at))
        except OSError as error:
            self.close()
            raise PeerFaultError(CopyFault.FULL, f"{self._new}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "NewCopy":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.descriptor)
        self._new.unlink(missing_ok=True)

    def fill(self, receive: Callable[[memoryview], None]) -> None:
        """Take all of the content from ``receive``, which fills a chunk."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        for place, size in self._places:
            for at in range(0, size, CHUNK_BYTES):
                chunk = buffer[: min(CHUNK_BYTES, size - at)]
                receive(chunk)
                self._digest.update(chunk)
                os.pwrite(self.descriptor, chunk, place + at)

    def commit(self, node: str) -> HeldCopy:
        """Give the file its name. Raises PeerFaultError where its digest is wrong."""
        found = self._digest.hexdigest()
        if found != self._snapshot.digest:
            text = f"its digest is {found} instead of {self._snapshot.digest}"
            raise PeerFaultError(CopyFault.DAMAGED, text)
        # Its time is of another machine's clock.
        head = self.header._replace(written_ns=time.monotonic_ns()).pack()
        note = msgspec.json.encode(Note(self._snapshot, node))
        os.pwrite(self.descriptor, head, layout.HEADER_AT)
        os.pwrite(self.descriptor, note.ljust(_NOTE_BYTES), _NOTE_AT)
        os.pwrite(self.descriptor, layout.COMMIT.pack(self.header.sequence), layout.COMMIT_AT)
        self._new.rename(self._path)
        return HeldCopy(self._path, self._snapshot, node, self.header.world_size)


def content_places(header: layout.Header) -> tuple[tuple[int, int], ...]:
    """Return place and size of data and structure."""
    return (
        (header.data_at, header.data_size),
        (header.structure_at, header.structure_size),
    )


def check_head(head: bytes, snapshot: SnapshotDigest, job_id: uuid.UUID) -> layout.Header:
    """Return the header of a file that is to come. Raises PeerFaultError for one that is not this snapshot's."""
    try:
        header: layout.Header = layout.parse(
            head, layout.DATA_AT + 2 * snapshot.size_bytes + layout.DATA_AT
        )
    except ValueError as error:
        raise PeerFaultError(CopyFault.REFUSED, f"{snapshot}: {error}") from error
    size = header.data_size + header.structure_size
    is_its = (header.attempt, header.rank, header.step, size) == (
        *(snapshot.attempt, snapshot.rank, snapshot.step, snapshot.size_bytes),
    )
    is_its &= uuid.UUID(bytes=header.job_id) == job_id
    is_its &= header.data_at == layout.DATA_AT
    is_its &= header.structure_at == header.data_at + header.data_size
    if not is_its:
        raise PeerFaultError(CopyFault.REFUSED, f"not the head of {snapshot}: {header}")
    return header


def copy_name(snapshot: SnapshotDigest) -> str:
    return f"rank-{snapshot.rank}.{snapshot.attempt}.{snapshot.step}.copy"


def find_copies(folder: Path, job_id: uuid.UUID) -> Iterator[HeldCopy]:
    """Yield the whole copies of a folder, and remove whatever else lies there."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            found = _read_copy(path, job_id) if COPY_NAME.fullmatch(path.name) else None
            if found is not None:
                yield found
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


def _read_copy(path: Path, job_id: uuid.UUID) -> HeldCopy | None:
    try:
        descriptor = os.open(path, _READ)
        try:
            refuse_foreign(path, descriptor)
            text = os.pread(descriptor, _NOTE_BYTES, _NOTE_AT)
        finally:
            os.close(descriptor)
        note = msgspec.json.decode(text.rstrip(b" \0"), type=Note)
        with ReadSnapshot(path, note.snapshot, job_id) as file:
            digest = xxhash.xxh3_128()
            for chunk in file.chunks():
                digest.update(chunk)
            if digest.hexdigest() != note.snapshot.digest or copy_name(note.snapshot) != path.name:
                return None
            return HeldCopy(path, note.snapshot, note.node, file.header.world_size)
    except (OSError, SourceError, PeerFaultError, msgspec.MsgspecError):
        return None
