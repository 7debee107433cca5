"""A job whose ranks each save their own part of the state, as sharded frameworks do.

    dcp   step-N/__R_0.distcp of each rank, and .metadata last, by rank 0
    nvrx  session/R/iter_N_R_local.pt of each rank, renamed once it is whole; older ones are removed

The result depends on every step of every rank's part.
"""

import argparse
import io
import json
import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "examples" / "digits"))
from ring import Ring

import rankmend

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--layout", choices=("dcp", "nvrx"), required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--until", type=Path, help="ends once this file is there")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--last-save", type=int, default=1_000_000, help="none after this step")
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--stuck", metavar="RANK:STEP", help="the first attempt's save that hangs")
    return parser.parse_args()


def part_of(layout: str, folder: Path, step: int) -> Path:
    """Return this rank's part of the checkpoint of a step."""
    if layout == "dcp":
        return folder / f"__{RANK}_0.distcp"
    return folder / str(RANK) / f"iter_{step:07}_{RANK}_local.pt"


def load(layout: str) -> tuple[int, np.ndarray]:
    chosen = rankmend.resume()
    if chosen is None:
        return 0, np.full(64, RANK + 1, np.float32)
    step = chosen.step
    assert step is not None, "both layouts tell it"
    with np.load(part_of(layout, Path(chosen.path), step), allow_pickle=False) as file:
        assert int(file["step"]) == step
        return step, file["state"]


def save(layout: str, root: Path, step: int, state: np.ndarray, ring: Ring, stuck: str) -> None:
    folder = root / f"step-{step}" if layout == "dcp" else root / "session"
    path = part_of(layout, folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    np.savez(stream, step=step, state=state)
    dirty = path.with_name(path.name.replace("_local.pt", "_local.dirty.pt"))
    dirty.write_bytes(stream.getvalue())
    if stuck == f"{RANK}:{step}" and os.environ["RANKMEND_ATTEMPT"] == "1":
        time.sleep(3600)
    is_published = rankmend.may_publish(path)
    if is_published:
        dirty.replace(path)
    published = np.full(1, is_published, np.float32)
    ring.all_reduce(published)
    if published[0] < WORLD:  # who may not publish is being replaced: what is older is needed
        return
    if layout == "nvrx":
        for old in path.parent.glob(f"iter_*_{RANK}_local.pt"):
            if old.name < path.name:
                old.unlink()
    elif RANK == 0:
        names = [f"__{rank}_0.distcp" for rank in range(WORLD)]
        (folder / ".metadata").write_bytes(pickle.dumps({"storage": names}, protocol=4))


def main() -> None:
    arguments = read_arguments()
    step, state = load(arguments.layout)
    shared = np.zeros(65, np.float32)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with Ring(rank=RANK, world_size=WORLD, address=address, port=port, timeout_s=60.0) as ring:
        is_last = False
        while not is_last:
            step += 1
            time.sleep(arguments.step_s)
            is_over = arguments.until is not None and RANK == 0 and arguments.until.exists()
            shared = np.append(state * (RANK + 1) + step, float(is_over)).astype(np.float32)
            ring.all_reduce(shared)
            state = ((state + shared[:64]) % 1000).astype(np.float32)
            rankmend.step(step)
            is_last = step >= arguments.steps or shared[64] > 0
            if step % arguments.every == 0 and step <= arguments.last_save:
                save(arguments.layout, arguments.checkpoint_dir, step, state, ring, arguments.stuck)
    if RANK == 0:
        arguments.result.write_text(json.dumps({"step": step, "state": state.tolist()}))


main()
