"""What the ranks of a checkpoint folder's job keep in the memory of this machine: `rankmend checkpoints`."""

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rankmend.errors import RankmendError
from rankmend.own_folder import find_own_folder
from recovery.checkpoints.marks import BESIDE
from recovery.checkpoints.snapshots.leftovers import FOLDER
from recovery.checkpoints.snapshots.listing import list_held
from recovery.launcher.ownership.claim import FolderClaim
from recovery.launcher.ownership.claim_folder import ClaimFolder
from recovery.messages.exchange import HeldSnapshot


class HeldVerdict(Enum):
    WHOLE = "whole"
    PARTIAL = "partial"  # parts are missing here; other nodes may hold them
    OTHER_WORLD_SIZE = "other world size"  # than that of the newest attempt with a snapshot


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """All parts of one step on this machine."""

    job: str  # name
    attempt: int
    step: int
    world_size: int
    ranks: tuple[int, ...]
    size_bytes: int
    age_s: float  # of its oldest part
    verdict: HeldVerdict


def find_snapshots(folder: Path, root: Path, now_s: float) -> tuple[SnapshotRow, ...]:
    """Return what the job that owns a checkpoint folder keeps in memory here, the newest step first.

    ``root``: where this user's runtime folders are; ``now_s``: monotonic.
    """
    claim = owner_of(folder)
    if claim is None:
        return ()
    try:
        job_id = uuid.UUID(claim.job_id)
        own = find_own_folder(root)
    except (ValueError, RankmendError):
        return ()
    # Several nodes of a job may be on one machine: each has a folder of its own.
    runtimes = [own / str(job_id), *sorted(own.glob(f"{job_id}@*"))]
    held = [snapshot for path in runtimes for snapshot in list_held(path / FOLDER, job_id, now_s)]
    return tuple(rows_of(claim.name, held))


def rows_of(job: str, held: Sequence[HeldSnapshot]) -> list[SnapshotRow]:
    """Return one row for each step, the newest first. Pure."""
    steps: dict[tuple[int, int], list[HeldSnapshot]] = {}
    for snapshot in held:
        steps.setdefault((snapshot.step, snapshot.attempt), []).append(snapshot)
    newest = max(held, key=lambda snapshot: snapshot.attempt, default=None)
    return [
        SnapshotRow(
            job=job,
            attempt=attempt,
            step=step,
            world_size=parts[0].world_size,
            ranks=tuple(sorted({part.rank for part in parts})),
            size_bytes=sum(part.size_bytes for part in parts),
            age_s=max(part.age_s for part in parts),
            verdict=_judge(parts, newest.world_size if newest else 0),
        )
        for (step, attempt), parts in sorted(steps.items(), reverse=True)
    ]


def newest_whole(rows: Iterable[SnapshotRow]) -> SnapshotRow | None:
    """Return the snapshot that a restart would go on from, if no checkpoint is newer."""
    return next((row for row in rows if row.verdict is HeldVerdict.WHOLE), None)


def _judge(parts: Sequence[HeldSnapshot], world_size: int) -> HeldVerdict:
    if any(part.world_size != world_size for part in parts):
        return HeldVerdict.OTHER_WORLD_SIZE
    is_whole = len({part.rank for part in parts}) == world_size
    return HeldVerdict.WHOLE if is_whole else HeldVerdict.PARTIAL


def owner_of(folder: Path) -> FolderClaim | None:
    """Return the claim of the job that saves to the folder; None where there is none, or it came with a copy."""
    absolute = folder.absolute()
    with contextlib.suppress(OSError, RankmendError):
        found = ClaimFolder(absolute / BESIDE).newest()
        if found is not None and found.claim is not None:
            original = Path(found.claim.folder)
            is_copy = original.is_dir() and not original.samefile(absolute)
            return None if is_copy else found.claim
    return None
