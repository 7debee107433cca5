"""Makes a step every 50 ms and saves every 40 steps until told to end.

In a checkpoint section, unless its argument is "unmarked".
"""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

import rankmend

checkpoint = rankmend.resume()
step = 0 if checkpoint is None else int(checkpoint.step)
while not Path("enough").exists():
    step += 1
    time.sleep(0.05)
    rankmend.step(step)
    if step % 40 == 0:
        with nullcontext() if "unmarked" in sys.argv else rankmend.section("checkpoint"):
            time.sleep(0.2)
            if os.environ["RANK"] == "0":
                path = Path("checkpoints", f"step_{step}.npz")
                np.savez(path.with_suffix(".tmp.npz"), step=step, weights=np.zeros(1000))
                path.with_suffix(".tmp.npz").rename(path)
