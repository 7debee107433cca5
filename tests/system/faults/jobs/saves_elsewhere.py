"""Makes a step every 50 ms and saves every 20 steps into a folder that nobody looks in, until told where to and when to end."""

import os
import time
from pathlib import Path

import numpy as np

import rankmend

step = 0
while not Path("enough").exists():
    step += 1
    time.sleep(0.05)
    rankmend.step(step)
    if step % 20 == 0 and os.environ["RANK"] == "0":
        folder = Path("checkpoints" if Path("mended").exists() else "outputs")
        folder.mkdir(exist_ok=True)
        path = folder / f"step_{step}.npz"
        np.savez(path.with_suffix(".tmp.npz"), step=step, weights=np.zeros(1000))
        path.with_suffix(".tmp.npz").rename(path)
