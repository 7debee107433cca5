"""Ranks that save a folder every five steps; in the second attempt rank 0 deletes what the others have yet to read.

``--patient``: they begin to read only once the folder is there again. Else they read at once, and fail.
"""

import argparse
import os
import shutil
import time
from pathlib import Path

import numpy as np

import rankmend

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--patient", action="store_true")
options = parser.parse_args()
rank, attempt = int(os.environ["RANK"]), int(os.environ["RANKMEND_ATTEMPT"])
world_size = int(os.environ["WORLD_SIZE"])


def wait_for(path: Path) -> None:
    until_s = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > until_s:
            raise SystemExit(f"{path} never came")
        time.sleep(0.01)


def load() -> int:
    found = rankmend.resume()
    if found is None:
        return 0
    path, deleted = Path(found.path), options.folder / f"deleted-{attempt}"
    if rank == 0:
        step = int(np.load(path / "rank0.npz")["step"])
        if attempt == 2:
            shutil.rmtree(path)
            deleted.touch()
        return step
    if attempt == 2:
        wait_for(deleted)
    if attempt == 2 and options.patient:
        wait_for(path)
    return int(np.load(path / f"rank{rank}.npz")["step"])


def save(step: int) -> None:
    final, new = options.folder / f"step-{step}", options.folder / f"step-{step}.tmp"
    new.mkdir(exist_ok=True)
    np.savez(new / f"rank{rank}.npz", step=step)
    if rank == 0:
        for other in range(1, world_size):
            wait_for(new / f"rank{other}.npz")
        time.sleep(0.05)  # for the others to close their files
        (new / "COMMIT").write_text("1")
        new.rename(final)
    else:
        wait_for(final)


for step in range(load() + 1, 21):
    time.sleep(0.01)
    rankmend.step(step)
    if attempt == 1 and step == 12:
        raise SystemExit(1)
    if step % 5 == 0:
        save(step)
