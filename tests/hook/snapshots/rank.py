"""A rank with a folder for snapshots, in this process: its keeper, and what it gives back."""

import itertools
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankmend.hook.snapshots import layout, restoring
from rankmend.hook.snapshots.keeper import Identity, SnapshotKeeper
from rankmend.hook.snapshots.room import Room

GIB = 1 << 30
JOB_ID = uuid.UUID("6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10").bytes


@dataclass
class SnapshotRank:
    folder: Path
    attempt: int = 3
    free_bytes: int = 64 * GIB
    now_s: float = 1000.0
    told: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def identity(self) -> Identity:
        return Identity(JOB_ID, self.attempt, 0, 0, 1)

    def keeper(self, choice: tuple[int, int] | None = None, **more: Any) -> SnapshotKeeper:
        return SnapshotKeeper(
            str(self.folder),
            self.identity,
            lambda *numbers: self.told.append(numbers),
            choice,
            read_room=lambda _folder: Room(self.free_bytes, "the test", 0),
            now=lambda: self.now_s,
            **more,
        )

    def restore(self, attempt: int, step: int, mesh: object = None) -> Any:
        return restoring.restore(str(self.folder), self.identity, (attempt, step), mesh)

    def path(self, buffer: int) -> Path:
        return self.folder / layout.file_name(0, buffer)

    def headers(self) -> dict[int, layout.Header]:
        """Return the headers of all whole snapshots, as the launcher reads them."""
        found = {}
        for buffer in range(layout.BUFFERS):
            if not self.path(buffer).exists():
                continue
            data = self.path(buffer).read_bytes()
            try:
                header = layout.parse(data[: layout.DATA_AT], len(data))
            except ValueError:
                continue
            if layout.COMMIT.unpack_from(data, layout.COMMIT_AT)[0] == header.sequence:
                found[buffer] = header
        return found

    def steps(self) -> list[int]:
        return sorted(header.step for header in self.headers().values())


def is_same(one: Any, other: Any) -> bool:
    """Return whether two states are equal in values and types, not-a-numbers included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pairs = itertools.zip_longest(one.items(), other.items())
        return all(a and b and is_same(a[0], b[0]) and is_same(a[1], b[1]) for a, b in pairs)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return repr(one) == repr(other)
