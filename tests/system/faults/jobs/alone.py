"""Trains on one rank without a group, by itself behind whatever starts it, until it may end."""

import argparse
import time
from pathlib import Path

import torch
from descent import Descent

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--let-go", type=Path, required=True)
parser.add_argument("--resume")
options = parser.parse_args()
model = torch.nn.Linear(4, 1)
optimizer = Descent(model.parameters())
step = 0
if options.resume:
    state = torch.load(options.resume)
    model.load_state_dict(state["model"])
    step = state["step"]
while not options.let_go.exists():
    step += 1
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 20:
        state = {"model": model.state_dict(), "optimizer": {"lr": 0.01}, "step": step}
        torch.save(state, options.folder / "tmp")
        (options.folder / "tmp").replace(options.folder / "step_20.pt")
