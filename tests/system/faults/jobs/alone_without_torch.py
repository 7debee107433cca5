"""Trains on one rank behind whatever starts it, until it may end: alone_without_torch.py LET_GO."""

import sys
import time
from pathlib import Path

import rankmend

step = 0
while not Path(sys.argv[1]).exists():
    step += 1
    time.sleep(0.02)
    rankmend.step(step)
