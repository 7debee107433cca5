"""numpy: `rankmend run --checkpoint-dir ckpt numpy_loop.py --resume {checkpoint}`.

Saves npz files, or with `--kind safetensors` folders of safetensors files.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np

import rankmend

parser = argparse.ArgumentParser()
parser.add_argument("--resume", type=Path)
parser.add_argument("--steps", type=int, default=70)
parser.add_argument("--folder", type=Path, default=Path("ckpt"))
parser.add_argument("--kind", choices=("npz", "safetensors"), default="npz")
options = parser.parse_args()


def save(step):
    options.folder.mkdir(exist_ok=True)
    if options.kind == "npz":
        path = options.folder / f"step_{step}.npz"
        np.savez(path, step=step, weights=weights, momentum=momentum)
        return
    import safetensors.numpy as st

    path = options.folder / f"step_{step}"
    path.mkdir(exist_ok=True)
    st.save_file({"weights": weights}, path / "model.safetensors")
    st.save_file({"momentum": momentum}, path / "optimizer.safetensors")
    st.save_file({"step": np.array([step])}, path / "progress.safetensors")


def load(path):
    if options.kind == "npz":
        with np.load(path) as state:
            return int(state["step"]), state["weights"], state["momentum"]
    import safetensors.numpy as st

    parts = ("model", "optimizer", "progress")
    states = [st.load((path / f"{part}.safetensors").read_bytes()) for part in parts]
    return int(states[2]["step"][0]), states[0]["weights"], states[1]["momentum"]


start, weights, momentum = 0, np.zeros(32), np.zeros(32)
if options.resume:
    start, weights, momentum = load(options.resume)
for step in range(start + 1, options.steps + 1):
    x = np.random.default_rng(step).standard_normal((8, 32))
    error = x @ weights - x.sum(1)
    momentum = 0.9 * momentum + x.T @ error / len(x)
    weights = weights - 0.01 * momentum
    rankmend.step(step)
    if step % 10 == 0:
        save(step)
        saves = sorted(options.folder.glob("step_*"), key=lambda path: int(path.stem[5:]))
        for old in saves[:-2]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
print("final", weights.sum(), flush=True)
