"""Counts the frames of a write-ahead log of SQLite: how many there are, and how many are sound."""

import os
import struct
from pathlib import Path

from rankmend.errors import JournalError


def count_wal_frames(path: Path) -> int:
    """Return how many frames of the current cycle, whole or not, the write-ahead log holds up to its last commit.

    Form: sqlite.org/fileformat2.html section 4. A frame belongs to the current cycle when it
    carries the two salts of the file's header, and ends a transaction when it says how large the
    database then is. Where SQLite finds fewer, a commit is torn. What follows the last commit was
    never acknowledged: a disk was full, or the writer died.
    """
    try:
        with path.with_name(path.name + "-wal").open("rb") as wal:
            header = wal.read(32)
            if len(header) < 32:
                return 0
            page_size, salts = struct.unpack_from(">I", header, 8)[0], header[16:24]
            if not 512 <= page_size <= 65536:
                return 0
            frames = committed = 0
            while True:
                frame = wal.read(24)
                if len(frame) < 24 or frame[8:16] != salts:
                    return committed
                frames += 1
                if frame[4:8] != bytes(4):
                    committed = frames
                wal.seek(page_size, os.SEEK_CUR)
    except OSError:
        return 0


def open_index(path: Path) -> int:
    """Return a descriptor of the log's index, to be closed only after every connection of this process to the database.

    Closing any descriptor of a file drops all POSIX locks that the process holds on it, those of SQLite, too. The next
    reader would then take itself for the only one and cut the index off, under this process's mapping of it: SIGBUS.
    """
    try:
        return os.open(path.with_name(path.name + "-shm"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise JournalError(f"cannot read the index of {path}'s log: {error.strerror}") from error


def count_sound_frames(index: int) -> int:
    """Return how many frames SQLite found to be whole and committed when it opened the log.

    Its index (sqlite.org/walformat.html, mxFrame) tells; a checkpoint would, too, but not on a full disk.
    """
    header = os.pread(index, 20, 0)
    return int(struct.unpack_from("=I", header, 16)[0]) if len(header) == 20 else 0
