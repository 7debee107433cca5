"""An unchanged DDP script, in whose first attempt rank 1 loops for ever between two steps.

torch_loop.py TIMEOUT_S     time-out of the process group
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LOOP_STEP, STEPS = 12, 24


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[1])))
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        while is_first and step == LOOP_STEP and dist.get_rank() == 1:
            time.sleep(0.01)  # as one that waits for data: a processor is nobody's claim here
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
