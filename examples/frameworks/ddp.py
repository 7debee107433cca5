"""Plain DistributedDataParallel: `rankmend run --checkpoint-dir ckpt ddp.py --resume {checkpoint}`.

`--snapshot-every 5` also keeps each fifth step in host memory.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rankmend

parser = argparse.ArgumentParser()
parser.add_argument("--resume")
parser.add_argument("--steps", type=int, default=70)
parser.add_argument("--snapshot-every", type=int, default=0, help="steps; 0: none")
parser.add_argument("--folder", type=Path, default=Path("ckpt"))
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
start = 0
restored = rankmend.restore()  # None, unless the newest state is in memory
if restored or options.resume:
    state = restored.state if restored else torch.load(options.resume)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
    if restored:
        rankmend.set_random_states(state["random"])
    del restored, state
for step in range(start + 1, options.steps + 1):
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(step * 100 + rank))
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
    optimizer.step()
    if options.snapshot_every and step % options.snapshot_every == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": rankmend.random_states(),
            "step": step,
        }
        rankmend.snapshot(step, state)
    if step % 10 == 0 and rank == 0:
        options.folder.mkdir(exist_ok=True)
        path = options.folder / f"step_{step}.pt"
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
        }
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(path)  # a file with this name is always whole
        for old in sorted(options.folder.glob("step_*.pt"), key=lambda one: int(one.stem[5:]))[:-2]:
            old.unlink()
if rank == 0:
    print("final", model.module.weight.double().sum().item(), flush=True)
dist.destroy_process_group()
