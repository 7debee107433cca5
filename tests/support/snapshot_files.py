"""Writes snapshot files as a rank does, from bytes, and the claim of their job on its checkpoint folder."""

import os
import uuid
from pathlib import Path

from rankmend.hook.snapshots import layout
from recovery.checkpoints.marks import BESIDE
from recovery.launcher.ownership.claim import FolderClaim, OwnerKind
from recovery.launcher.ownership.claim_folder import ClaimFolder

EMPTY = b'{"version":1,"tensors":[],"blobs":[],"state":{"m":{}}}'
JOB_ID = uuid.UUID("0c1d6a52-0000-4000-8000-000000000001")


def write_snapshot(
    folder: Path,
    data: bytes = b"weights",
    *,
    rank: int = 0,
    buffer: int = 0,
    attempt: int = 1,
    step: int = 10,
    sequence: int = 1,
    world_size: int = 2,
    job_id: uuid.UUID = JOB_ID,
    is_whole: bool = True,
    structure: bytes = EMPTY,
) -> Path:
    """Write one of a rank's files in place, and return its path."""
    path = folder / layout.file_name(rank, buffer)
    at = layout.DATA_AT + len(data)
    header = layout.Header(
        job_id=job_id.bytes,
        attempt=attempt,
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        step=step,
        sequence=sequence,
        data_at=layout.DATA_AT,
        data_size=len(data),
        structure_at=at,
        structure_size=len(structure),
        written_ns=1_000_000_000,
    )
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, at + len(structure))
        os.pwrite(descriptor, layout.COMMIT.pack(0), layout.COMMIT_AT)
        os.pwrite(descriptor, header.pack(), layout.HEADER_AT)
        os.pwrite(descriptor, data, layout.DATA_AT)
        os.pwrite(descriptor, structure, at)
        if is_whole:
            os.pwrite(descriptor, layout.COMMIT.pack(sequence), layout.COMMIT_AT)
    finally:
        os.close(descriptor)
    return path


def claim(folder: Path, job_id: str = str(JOB_ID)) -> None:
    (folder / BESIDE).mkdir(parents=True, exist_ok=True)
    made = FolderClaim(
        generation=1,
        token="t",
        kind=OwnerKind.LAUNCHER,
        owner="o",
        name="llama",
        job_id=job_id,
        folder=str(folder),
        host="h",
        machine="m",
        uid=os.getuid(),
        pid=1,
        start_ticks=1,
        pid_namespace=1,
        time_namespace=1,
        boot_id="b",
        started_unix_s=1.0,
    )
    assert ClaimFolder(folder / BESIDE).make(made)
