"""A PyTorch job that knows nothing of rankmend, made uneven as uneven.py is."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTS = Path(sys.argv[1])


def fault(section: str, rank: int) -> float:
    try:
        told, _space, seconds = (FAULTS / str(rank)).read_text().partition(" ")
        return float(seconds) if told == section else 0.0
    except (OSError, ValueError):
        return 0.0


class Samples(torch.utils.data.IterableDataset):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self):
        while not (FAULTS / "stop").exists():
            time.sleep(0.01 + fault("io", self.rank))
            yield torch.randn(8, 32)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in torch.utils.data.DataLoader(Samples(rank), batch_size=None):
        optimizer.zero_grad()
        loss = replica(batch).square().mean()
        time.sleep(0.02 + fault("compute", rank))
        loss.backward()
        optimizer.step()


main()
