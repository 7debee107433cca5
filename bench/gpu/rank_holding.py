"""A rank that holds a tensor on the GPU until a file appears: `python rank_holding.py FOLDER BYTES`."""

import os
import sys
import time
from pathlib import Path

import torch

import rankmend

folder, size_bytes = Path(sys.argv[1]), int(sys.argv[2])
held = torch.ones(size_bytes, device="cuda:0", dtype=torch.uint8)
torch.cuda.synchronize()
(folder / f"rank-{os.environ['RANK']}").write_text(str(os.getpid()), encoding="ascii")
end_s, step = time.monotonic() + 60, 0
while not (folder / "stop").exists() and time.monotonic() < end_s:
    step += 1
    rankmend.step(step)
    time.sleep(0.05)
