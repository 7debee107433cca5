"""Reads the snapshot files of a node's ranks. Layout: `rankmend.hook.snapshots.layout`.

The files belong to the job's user, and a rank may write while they are read. So they are read with pread, which
can't kill this process as a mapping of a file that shrinks could, and whatever doesn't fit is an error with the value.
"""

import contextlib
import os
import re
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from rankmend.errors import SourceError
from rankmend.hook.snapshots import layout
from recovery.checkpoints.snapshots.parts import parts_of
from recovery.messages.exchange import PartDigest

NAME: Final = re.compile(r"rank-([0-9]{1,7})\.([0-2])\.snapshot")
COPY_NAME: Final = re.compile(r"rank-([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,19})\.copy")
_HEAD_BYTES: Final = layout.COMMIT_AT + layout.COMMIT.size
_CHUNK_BYTES: Final = 1 << 20  # fits into a processor's cache, so memory is read once


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """What the head of a whole snapshot says. `written_ns`: CLOCK_MONOTONIC of this node."""

    rank: int
    attempt: int
    step: int
    world_size: int
    sequence: int
    size_bytes: int  # of the data and the structure
    written_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Digest:
    """XXH3 in hexadecimal digits: 32 for the whole content, 16 for a part."""

    whole: str
    parts: tuple[PartDigest, ...]


class OpenSnapshot:
    """One snapshot file, open for reading. Owns the descriptor."""

    def __init__(self, path: Path, job_id: uuid.UUID) -> None:
        """Raise OSError where it can't be opened, and SourceError where it is no file of ours."""
        self._path = path
        self._job_id = job_id
        # Not blocking: opening a named pipe would wait for its other end for ever.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self.descriptor = os.open(path, flags)
        try:
            refuse_foreign(path, self.descriptor)
        except SourceError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> "OpenSnapshot":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def read_head(self) -> SnapshotHead | None:
        """Return the head of a whole snapshot; None while it is written, or where nothing was.

        Raise SourceError for a head that can't be: damaged, of another job, or of another rank than the file's name.
        """
        header = self._header()
        if header is None:
            return None
        named = NAME.fullmatch(self._path.name)
        if uuid.UUID(bytes=header.job_id) != self._job_id:
            raise SourceError(f"{self._path}: of job {uuid.UUID(bytes=header.job_id)}")
        if named is None or int(named[1]) != header.rank:
            raise SourceError(f"{self._path}: of rank {header.rank}")
        return SnapshotHead(
            rank=header.rank,
            attempt=header.attempt,
            step=header.step,
            world_size=header.world_size,
            sequence=header.sequence,
            size_bytes=header.data_size + header.structure_size,
            written_ns=header.written_ns,
            inode=os.fstat(self.descriptor).st_ino,
        )

    def whole_digest(self) -> str:
        """Return the digest of data and structure without those of the parts, in half the time or less."""
        header, structure = self._header_and_structure()
        whole = xxhash.xxh3_128()
        for chunk in self._chunks(header.data_at, header.data_size):
            whole.update(chunk)
        whole.update(structure)
        return whole.hexdigest()

    def digest(self) -> Digest:
        """Return the digest of data and structure, and of each part of the state.

        Of a file that is being written it means nothing: `read_head` afterwards tells.
        """
        header, structure = self._header_and_structure()
        try:
            parts = parts_of(structure)
        except SourceError as error:
            raise SourceError(f"{self._path}: {error}") from error
        whole = xxhash.xxh3_128()
        hashers = {part.name: xxhash.xxh3_64() for part in parts}
        owned = sorted((at, size, part.name) for part in parts for at, size in part.pieces)
        cursor = 0
        place = header.data_at
        for chunk in self._chunks(header.data_at, header.data_size):
            whole.update(chunk)
            end = place + len(chunk)
            beyond = cursor
            while beyond < len(owned) and owned[beyond][0] < end:
                at, size, name = owned[beyond]
                if at + size > place:  # else: it has ended, and one before it goes on
                    hashers[name].update(chunk[max(at - place, 0) : at + size - place])
                beyond += 1
                if at + size <= end and cursor == beyond - 1:
                    cursor = beyond
            place = end
        whole.update(structure)
        reported = tuple(PartDigest(name, hasher.hexdigest()) for name, hasher in hashers.items())
        return Digest(whole.hexdigest(), reported)

    def _header_and_structure(self) -> tuple[layout.Header, bytes]:
        header = self._header()
        if header is None:
            raise SourceError(f"{self._path}: rewritten while it was read")
        structure = self._read(header.structure_size, header.structure_at)
        if len(structure) < header.structure_size:
            raise SourceError(f"{self._path}: cut off in its structure")
        return header, structure

    def _header(self) -> layout.Header | None:
        data = self._read(_HEAD_BYTES, 0)
        # An empty file is one that a rank makes; a commit of zero, one that it writes.
        if len(data) < _HEAD_BYTES or not any(data):
            return None
        (commit,) = layout.COMMIT.unpack_from(data, layout.COMMIT_AT)
        if not commit:
            return None
        try:
            header = layout.parse(data, os.fstat(self.descriptor).st_size)
        except ValueError as error:
            raise SourceError(f"{self._path}: {error}") from error
        return header if header.sequence == commit else None

    def _chunks(self, place: int, size: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, size)))
        end = place + size
        while place < end:
            part = buffer[: min(len(buffer), end - place)]
            count = os.preadv(self.descriptor, [part], place)
            if not count:
                raise SourceError(f"{self._path}: cut off at {place} bytes")
            yield part[:count]
            place += count

    def _read(self, size: int, place: int) -> bytes:
        try:
            return os.pread(self.descriptor, size, place)
        except OSError as error:
            raise SourceError(f"cannot read {self._path}: {error.strerror}") from error


def refuse_foreign(path: Path, descriptor: int) -> None:
    """Raise SourceError for what is no regular file of this user."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{path}: not a regular file (mode {found.st_mode:o})")
    if found.st_uid != os.geteuid():
        raise SourceError(f"{path} belongs to uid {found.st_uid}, not to {os.geteuid()}")


def copy_paths(folder: Path) -> list[Path]:
    """Return the copies of other nodes' snapshots in a folder, by name; none where it can't be read."""
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if COPY_NAME.fullmatch(path.name))
    return []


def snapshot_paths(folder: Path) -> list[Path]:
    """Return the snapshot files of a folder, by name; none where it can't be read."""
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name))
    return []
