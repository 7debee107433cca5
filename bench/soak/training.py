"""The training job of the soak: a softmax classifier by SGD over all ranks, whose result is known to the bit.

    training.py FOLDER CHECKPOINTS STEP_S

Sums go round a ring in the order of the ranks, and a batch follows from the step and the rank, so a run that makes each step once ends with
the same parameters, however often it was interrupted (`replay`). It trains until FOLDER/end is there: rank 0 sees that, and the sum
tells all ranks, so that all end after the same step. FOLDER/result.json says which, and the digest of the parameters.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by numpy's BLAS: the ranks share the cores

import numpy as np

import rankmend

FEATURES: Final = 32
CLASSES: Final = 10
IMAGES: Final = 16  # of one rank's part of a batch
RATE: Final = np.float32(0.01)
CHECKPOINT_EVERY: Final = 20
SNAPSHOT_EVERY: Final = 10
KEPT: Final = 5  # checkpoints
_SIZE: Final = FEATURES * CLASSES
_TIMEOUT_S: Final = 600.0
_TRUTH: Final = np.random.default_rng(1).standard_normal((FEATURES, CLASSES)).astype(np.float32)


def gradients(parameters: Any, rank: int, step: int) -> Any:
    """Return what one rank adds in one step."""
    images = np.random.default_rng((7, step, rank)).standard_normal((IMAGES, FEATURES), np.float32)
    labels = (images @ _TRUTH).argmax(axis=1)
    scores = images @ parameters
    scores -= scores.max(axis=1, keepdims=True)
    error = np.exp(scores)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(IMAGES), labels] -= 1
    return images.T @ error


def begin() -> Any:
    return np.zeros((FEATURES, CLASSES), np.float32)


def digest(parameters: Any) -> str:
    return hashlib.sha256(parameters.tobytes()).hexdigest()


def replay(world_size: int, steps: int) -> str:
    """Return the digest of the parameters after so many steps of which each was made once."""
    parameters = begin()
    for step in range(1, steps + 1):
        total = gradients(parameters, 0, step)
        for rank in range(1, world_size):
            total = total + gradients(parameters, rank, step)
        parameters -= RATE * total
    return digest(parameters)


def _save(folder: Path, step: int, parameters: Any) -> None:
    path = folder / f"step-{step:08d}.npz"
    beside = folder / f".{path.name}.{os.getpid()}"
    with beside.open("wb") as file:
        np.savez(file, step=step, parameters=parameters)
        file.flush()
        os.fsync(file.fileno())
    if not rankmend.may_publish(path):  # type: ignore[attr-defined]
        beside.unlink()
        return
    beside.replace(path)
    for old in sorted(folder.glob("step-*.npz"))[:-KEPT]:
        old.unlink()


def _resume() -> tuple[int, Any]:
    chosen = rankmend.resume()  # type: ignore[attr-defined]
    kept = rankmend.restore()  # type: ignore[attr-defined]
    if kept is not None:
        return int(kept.step), kept.state["parameters"]
    if chosen is None:
        return 0, begin()
    with np.load(chosen.path, allow_pickle=False) as file:
        return int(file["step"]), file["parameters"]


def main(folder: Path, checkpoints: Path, step_s: float) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "digits"))
    from ring import Ring  # type: ignore[import-not-found]

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    step, parameters = _resume()
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    with Ring(rank, world_size, *place, timeout_s=_TIMEOUT_S) as ring:
        shared = np.zeros(_SIZE + 1, np.float32)
        while not shared[-1]:
            step += 1
            with rankmend.section("compute"):  # type: ignore[attr-defined]
                time.sleep(step_s)
                shared[:-1] = gradients(parameters, rank, step).reshape(-1)
                shared[-1] = rank == 0 and (folder / "end").exists()
            with rankmend.section("communication"):  # type: ignore[attr-defined]
                ring.all_reduce(shared)
            parameters -= RATE * shared[:-1].reshape(FEATURES, CLASSES)
            rankmend.step(step)  # type: ignore[attr-defined]
            if step % SNAPSHOT_EVERY == 0:
                rankmend.snapshot(step, {"parameters": parameters})  # type: ignore[attr-defined]
            if rank == 0 and step % CHECKPOINT_EVERY == 0:
                with rankmend.section("checkpoint"):  # type: ignore[attr-defined]
                    _save(checkpoints, step, parameters)
    if rank == 0:
        (folder / "result.json").write_text(
            json.dumps({"step": step, "sha256": digest(parameters)})
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
