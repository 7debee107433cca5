"""Asks ranks to leave a snapshot while it is copied, and as long as the copies are the newest. Layout: `rankmend.hook.snapshots.layout`."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from rankmend.errors import SourceError
from rankmend.hook.snapshots import layout
from recovery.checkpoints.snapshots.files import refuse_foreign
from recovery.messages.exchange import SnapshotPoint

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def ask_to_keep(folder: Path, ranks: Iterable[int], from_step: int, until_ns: int) -> None:
    """Have these ranks leave their first snapshot from a step on, until a time of CLOCK_MONOTONIC in nanoseconds.

    A rank that keeps none, or one file only, is not queried.
    """
    words = layout.KEEP.pack(min(max(from_step, 0), layout.STEP_MAX) + 1, until_ns)
    _write_all(folder, ranks, words, layout.KEEP_AT)


def ask_to_leave_copied(
    folder: Path, ranks: Iterable[int], point: SnapshotPoint, until_ns: int
) -> None:
    """Have these ranks leave the snapshot of which all ranks have copies, until a time or until a later one is named."""
    words = layout.COPIED.pack(point.attempt, min(point.step, layout.STEP_MAX) + 1, until_ns)
    _write_all(folder, ranks, words, layout.COPIED_AT)


def _write_all(folder: Path, ranks: Iterable[int], words: bytes, place: int) -> None:
    for rank in ranks:
        for buffer in range(layout.BUFFERS):
            path = folder / layout.file_name(rank, buffer)
            with contextlib.suppress(OSError, SourceError):
                _write(path, words, place)


def _write(path: Path, words: bytes, place: int) -> None:
    descriptor = os.open(path, _FLAGS)
    try:
        refuse_foreign(path, descriptor)
        if os.fstat(descriptor).st_size >= layout.DATA_AT:  # else a rank is just making it
            os.pwrite(descriptor, words, place)
    finally:
        os.close(descriptor)
