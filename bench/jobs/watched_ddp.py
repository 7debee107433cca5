"""A job that any launcher starts, with what looks like trouble and is none: a step that compiles, evaluations, saves by one rank.

    watched_ddp.py RANK SIZE MEET DOUBLE WORK REST PAUSES

RANK and SIZE name the launcher's variables, MEET a file where the ranks meet. A rank works for WORK seconds of its own
processor a step, rank DOUBLE (-1: none) twice as long, and then sleeps for REST. With PAUSES above 0 the first steps compile, and
each PAUSES steps all ranks evaluate and rank 0 saves and evaluates alone.
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def work(seconds: float) -> None:
    end_s, values = time.thread_time() + seconds, torch.ones(64, 64)
    while time.thread_time() < end_s:
        values = values * 1.0


def main() -> None:
    torch.set_num_threads(1)
    rank, size = (int(os.environ[name]) for name in sys.argv[1:3])
    meet, double, pauses = sys.argv[3], int(sys.argv[4]), int(sys.argv[7])
    work_s, rest_s = float(sys.argv[5]), float(sys.argv[6])
    dist.init_process_group("gloo", f"file://{meet}", rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(sys.maxsize):
        if pauses and step < 2:
            work(3.0)
        optimizer.zero_grad()
        loss = model(torch.ones(8, 64)).sum()
        work(work_s * (2 if rank == double else 1))
        loss.backward()
        optimizer.step()
        time.sleep(rest_s)
        if pauses and step % pauses == pauses - 1:
            time.sleep(4.0)
            if rank == 0:
                torch.save(model.state_dict(), f"{meet}.pt")
                work(2.0)
            dist.barrier()


if __name__ == "__main__":
    main()
