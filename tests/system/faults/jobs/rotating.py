"""Two ranks that save a folder every five steps; in the second attempt rank 0 deletes what rank 1 has yet to read.

``--patient``: rank 1 begins to read only once the folder is there again. Else it reads at once, and fails.
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
    return int(np.load(path / "rank1.npz")["step"])


def save(step: int) -> None:
    final, new = options.folder / f"step-{step}", options.folder / f"step-{step}.tmp"
    new.mkdir(exist_ok=True)
    np.savez(new / f"rank{rank}.npz", step=step)
    if rank == 0:
        wait_for(new / "rank1.npz")
        time.sleep(0.05)  # for rank 1 to close its file
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
