"""What this node knows of its ranks' snapshots without reading them: the heads of the files, and what ranks tell. Changes nothing."""

import contextlib
import uuid
from pathlib import Path

from rankmend.errors import SourceError
from rankmend.progress import RankSnapshots
from recovery.checkpoints.snapshots.files import OpenSnapshot, snapshot_paths
from recovery.messages.exchange import HeldSnapshot, KeptSnapshots


def list_held(folder: Path, job_id: uuid.UUID, now_s: float) -> tuple[HeldSnapshot, ...]:
    """Return the whole snapshots in a folder, without digests; what can't be read is no snapshot.

    ``now_s``: monotonic seconds of this node.
    """
    found = []
    for path in snapshot_paths(folder):
        with contextlib.suppress(OSError, SourceError), OpenSnapshot(path, job_id) as file:
            head = file.read_head()
            if head is not None:
                found.append(
                    HeldSnapshot(
                        rank=head.rank,
                        attempt=head.attempt,
                        step=head.step,
                        world_size=head.world_size,
                        size_bytes=head.size_bytes,
                        digest="",
                        age_s=max(0.0, now_s - head.written_ns / 1e9),
                        sequence=head.sequence,
                    )
                )
    return tuple(found)


def kept_of(reported: RankSnapshots | None) -> KeptSnapshots | None:
    """Return what a rank's progress file holds about its snapshots, as reports have it."""
    if reported is None:
        return None
    return KeptSnapshots(reported.count, reported.refused, reported.stalled_s, reported.level)
