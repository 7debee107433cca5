"""Files that are read in bulk beside a training, and what their reads give."""

from pathlib import Path

import numpy as np
import xxhash

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.digests import BLOCK_BYTES
from recovery.checkpoints.files.reader import FileReader

BLOCK = BLOCK_BYTES
SIZE_BYTES = 2 * BLOCK + 12_345


def beside_training() -> Deadline:
    """Return the deadline of a read that no rank waits for."""
    return Deadline(SystemClock(), 600, is_awaited=False)


def save(path: Path, size_bytes: int = SIZE_BYTES) -> Path:
    path.write_bytes(np.random.default_rng(5).bytes(size_bytes))
    return path


def digests_of(path: Path) -> bytes:
    data = path.read_bytes()
    blocks = (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))
    return b"".join(xxhash.xxh3_64(block).digest() for block in blocks)


def read_digests(path: Path, deadline: Deadline) -> bytes:
    with FileReader(str(path), deadline, is_whole=True) as reader:
        reader.expect_all()
        return reader.digests()
