"""Trains a small network with PyTorch: an ordinary script that knows nothing of rankmend.

    rankmend run --standalone --nproc-per-node 2 examples/unchanged/train.py --folder run

It reads what torchrun sets, saves into a folder and goes on from what lies there, as many
scripts do. `rankmend run` sees its steps all the same, through PyTorch's optimizer hook.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def newest(folder: Path) -> Path | None:
    return max(folder.glob("epoch-*.pt"), default=None)


def save(folder: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    path = folder / f"epoch-{epoch:04d}.pt"
    temporary = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=10)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first_epoch = 0
    if (path := newest(arguments.folder)) is not None:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = int(path.stem.removeprefix("epoch-")) + 1
    replica = model
    if world_size > 1:
        dist.init_process_group("gloo")
        replica = DistributedDataParallel(model)

    for epoch in range(first_epoch, arguments.epochs):
        for step in range(arguments.steps_per_epoch):
            generator = torch.Generator().manual_seed((epoch * 1000 + step) * world_size + rank)
            inputs = torch.randn(64, 32, generator=generator)
            loss = (replica(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            save(arguments.folder, epoch, model, optimizer)
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    if world_size > 1:
        time.sleep(
            0.1
        )  # a gloo group that is destroyed at once can hang (torch 2.13: 1 of 10 runs)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
