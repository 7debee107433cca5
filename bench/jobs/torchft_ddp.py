"""The job of bench/recovery for torchft, whose Manager belongs in the script: else that of ddp.py.

Each rank is a replica group of its own. When one dies, the others discard the step and go on without it until it is back
and has fetched their state. Such steps are logged as `reduced`.
"""

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import ddp  # beside this file; notes the time before it imports torch
import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

GROUP_TIMEOUT = timedelta(
    seconds=5
)  # gloo's; survivors that aren't neighbours of the dead rank wait for it


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    rank, ranks = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    log_path = folder / "log" / f"rank-{rank}-{os.getpid()}"
    with log_path.open("w", buffering=1, encoding="ascii") as log:
        log.write(f"started {ddp.STARTED_NS} 0\n")
        log.write(f"imported {time.monotonic_ns()} 0\n")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(ddp.WIDTH, ddp.WIDTH), nn.ReLU(), nn.Linear(ddp.WIDTH, ddp.WIDTH)
        )
        sgd = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def load(state: dict[str, dict[str, object]]) -> None:
            model.load_state_dict(state["model"])
            sgd.load_state_dict(state["optimizer"])

        manager = Manager(
            pg=ProcessGroupGloo(timeout=GROUP_TIMEOUT),
            min_replica_size=1,
            load_state_dict=load,
            state_dict=lambda: {"model": model.state_dict(), "optimizer": sgd.state_dict()},
            replica_id=f"bench_{rank}",
        )
        log.write(f"connected {time.monotonic_ns()} 0\n")
        replica = DistributedDataParallel(manager, model)
        optimizer = Optimizer(manager, sgd)
        inputs = torch.randn(ddp.BATCH, ddp.WIDTH, generator=torch.Generator().manual_seed(rank))
        log.write(f"restored {time.monotonic_ns()} 0\n")
        while manager.current_step() < ddp.STEPS_MAX:
            before = manager.current_step()
            optimizer.zero_grad()
            replica(inputs).square().mean().backward()
            optimizer.step()
            step = manager.current_step()
            if step == before:
                continue  # discarded
            name = "step" if manager.num_participants() == ranks else "reduced"
            log.write(f"{name} {time.monotonic_ns()} {step}\n")
            if rank == 0 and step % ddp.CHECKPOINT_EVERY == 0:
                ddp.save(folder / "checkpoints", step, model, sgd)


if __name__ == "__main__":
    main()
