"""A small DDP job on gloo whose parameters depend on every step of every rank, and whose last rank saves late.

Rank 0 ends at once after the last step. The last rank uses the store a while after that, as a long save does.
With --saves-at SIGNAL it saves and leaves at the end of the step in which a rank gets that signal, as scripts for preemption do.
"""

import argparse
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):  # else `undisturbed` is imported
    import without_compiler  # noqa: F401

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import rankmend

STEPS = 100


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Inputs(Dataset[torch.Tensor]):
    """One batch for each number."""

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(16, 8, generator=torch.Generator().manual_seed(number))


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()


def undisturbed(steps: int = STEPS) -> dict[str, torch.Tensor]:
    """Return what two ranks come to, computed by one process: half of each gradient is exact in binary."""
    model, optimizer = make()
    inputs = Inputs()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        for rank in range(2):
            (loss_of(model, inputs[step * 2 + rank]) / 2).backward()
        optimizer.step()
    return model.state_dict()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument(
        "--workers", default="", help="how each rank's start that load data: fork+spawn,fork+fork"
    )
    parser.add_argument("--let-go", type=Path, help="make the last step once this file is there")
    parser.add_argument("--saves-at", default="", help="signals, such as SIGTERM,SIGUSR1")
    arguments = parser.parse_args()
    asked = torch.zeros(1)
    for name in filter(None, arguments.saves_at.split(",")):
        signal.signal(signal.Signals[name], lambda *_: asked.fill_(1))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    torch.set_num_threads(1)
    model, optimizer = make()
    done = 0
    if (chosen := rankmend.resume()) is not None:
        saved = torch.load(chosen.path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    replica = DistributedDataParallel(model)
    steps = range(done + 1, arguments.steps + 1)
    contexts = arguments.workers.split(",")[rank].split("+") if arguments.workers else [None]
    loaders = [  # of the same batches
        DataLoader(
            Inputs(),
            batch_size=None,
            sampler=[step * world_size + rank for step in steps],
            num_workers=0 if context is None else 1,
            multiprocessing_context=context,
        )
        for context in contexts
    ]
    for step, inputs, *same in zip(steps, *loaders, strict=True):
        assert all(torch.equal(inputs, other) for other in same)
        time.sleep(arguments.step_s)
        while step == steps[-1] and arguments.let_go is not None and not arguments.let_go.exists():
            time.sleep(0.01)
        optimizer.zero_grad()
        loss_of(replica, inputs).backward()
        optimizer.step()
        rankmend.step(step)
        if arguments.saves_at:
            stops = asked.clone()
            dist.all_reduce(stops, dist.ReduceOp.MAX)
            if stops.item():
                if rank == 0:
                    save(arguments.checkpoint_dir, step, model, optimizer)
                dist.barrier()
                print(f"preempted: saved at {step}", flush=True)
                os._exit(0)
        if rank == 0 and step % arguments.every == 0:
            save(arguments.checkpoint_dir, step, model, optimizer)
    if rank == world_size - 1:
        time.sleep(1)  # the long save
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=10),
        )
        store.set("saved", "late")
        assert store.get("saved") == b"late"
        publish(arguments.result, model.state_dict())
    os._exit(0)  # a gloo group that is destroyed at once can hang (torch 2.13: 1 of 10 runs)


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    publish(folder / f"step-{step:08d}.pt", state)


def publish(path: Path, body: object) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    torch.save(body, temporary)
    if rankmend.may_publish(path):
        temporary.replace(path)


if __name__ == "__main__":
    main()
