"""The job of bench/jobs/ddp.py on a GPU that all ranks share: DDP on gloo, since NCCL wants a GPU for each rank.

Each rank takes BENCH_BALLAST of the GPU's memory (a ratio), so that a successor gets none where a dead rank's memory isn't
freed. It logs what was free when it came, in MiB, and breaks its CUDA context where the file `fault-RANK` appears in the folder.
"""

import argparse
import os
import sys
import time
from pathlib import Path

STARTED_NS = time.monotonic_ns()  # before torch is imported

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ddp import BATCH, CHECKPOINT_EVERY, STEPS_MAX, WIDTH, restore, save  # noqa: E402

from bench.gpu.bad_kernel import write_to_nowhere  # noqa: E402

DEVICE = torch.device(os.environ.get("BENCH_DEVICE", "cuda:0"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    rank = int(os.environ["RANK"])
    fault = folder / f"fault-{rank}"
    with (folder / "log" / f"rank-{rank}-{os.getpid()}").open(
        "w", buffering=1, encoding="ascii"
    ) as log:
        log.write(f"started {STARTED_NS} 0\n")
        log.write(f"imported {time.monotonic_ns()} 0\n")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        ballast = take_memory(log)
        log.write(f"context {time.monotonic_ns()} 0\n")
        dist.init_process_group("gloo")
        log.write(f"connected {time.monotonic_ns()} 0\n")
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        model.to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        checkpoints = folder / "checkpoints"
        step = restore(checkpoints, model, optimizer)
        log.write(f"restored {time.monotonic_ns()} {step}\n")
        replica = DistributedDataParallel(model)
        inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank)).to(DEVICE)
        while step < STEPS_MAX:
            optimizer.zero_grad()
            loss = replica(inputs).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
            step += 1
            log.write(f"step {time.monotonic_ns()} {step}\n")
            if rank == 0 and step % CHECKPOINT_EVERY == 0:
                save(checkpoints, step, model, optimizer)
            if fault.exists():
                fault.unlink()
                write_to_nowhere()
                loss.item()  # raises, and so does every later call: the error sticks to the context
    del ballast


def take_memory(log) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Log the GPU memory that is free, and take this rank's ballast of it."""
    if DEVICE.type == "cpu":
        return torch.empty(0)
    free_bytes, total_bytes = torch.cuda.mem_get_info(DEVICE)
    log.write(f"free {time.monotonic_ns()} {free_bytes >> 20}\n")
    size = int(total_bytes * float(os.environ.get("BENCH_BALLAST", "0")))
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)


if __name__ == "__main__":
    main()
