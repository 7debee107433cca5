"""A plain script that begins from the newest checkpoint that it finds, whatever it is given."""

import os
import sys
import time
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1


def load_checkpoint() -> tuple[int, np.ndarray]:
    found = sorted(folder.glob("step-*.npz"))
    if not found:
        return 0, np.ones(4)
    with np.load(found[-1]) as file:
        return int(file["step"]), file["state"]


step, state = load_checkpoint()
while step < 60:
    step += 1
    state = state * 1.01 + step
    time.sleep(0.01)
    if step % 10 == 0:
        new = folder / ".new.npz"
        names = {"weights": state} if step == 40 else {"state": state}
        np.savez(new, step=step, **names)
        new.replace(folder / f"step-{step}.npz")
    if attempt == 1 and step == 45:
        os.kill(os.getpid(), 9)
