"""FSDP2 with distributed checkpoints: `rankmend run --checkpoint-dir ckpt fsdp2.py --resume {checkpoint}`.

`--snapshot-every 5` also keeps each fifth step in host memory: each rank its own shards, without gathering.
"""

import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

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
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
start = 0
restored = rankmend.restore(mesh)  # None, unless the newest state is in memory
if restored:
    state, start = restored.state, restored.step
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    rankmend.set_random_states(state["random"])
    del restored, state
elif options.resume:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=options.resume)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    start = state["step"]
for step in range(start + 1, options.steps + 1):
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(step * 100 + rank))
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
    optimizer.step()
    if options.snapshot_every and step % options.snapshot_every == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": rankmend.random_states(),
        }
        rankmend.snapshot(step, state)
    if step % 10 == 0:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": step}
        dcp.save(state, checkpoint_id=options.folder / f"step_{step}")
        if rank == 0:
            steps = sorted(options.folder.glob("step_*"), key=lambda path: int(path.name[5:]))
            for old in steps[:-2]:
                shutil.rmtree(old)
weights, _moments = get_state_dict(model, optimizer)
total = sum(value.full_tensor().double().sum().item() for value in weights.values())
if rank == 0:
    print("final", total, flush=True)
dist.destroy_process_group()
