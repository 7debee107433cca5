"""The job of bench/restart.py and bench/recovery: DDP on gloo, about 4 MB of parameters, and a log of its steps.

Knows no launcher: it reads what torchrun sets and goes on from the newest checkpoint in its
folder. Each process writes `EVENT MONOTONIC_NS STEP` lines to a file of its own; the monotonic
clock is one for all processes of a machine.
"""

import argparse
import os
import sys
import time
from pathlib import Path

STARTED_NS = time.monotonic_ns()  # before torch is imported
# The benchmark's own tests rest after each step, and import no compiler.
LIGHT_REST_S = float(os.environ.get("BENCH_LIGHT_REST_S", "0"))
if LIGHT_REST_S:
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/system/faults/jobs"))
    import without_compiler  # noqa: F401

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

WIDTH = 704  # 2 x (704^2 + 704) parameters of 4 bytes: 4 MB
BATCH = 64
CHECKPOINT_EVERY = int(os.environ.get("BENCH_SAVE_EVERY", "10"))
FILLER_BYTES = int(
    os.environ.get("BENCH_FILLER_BYTES", "0")
)  # of a checkpoint: every rank loads it
ONLY_SAVE_AT = int(os.environ.get("BENCH_ONLY_SAVE_AT", "0"))  # 0: at each CHECKPOINT_EVERY
STEPS_MAX = 100_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    rank = int(os.environ["RANK"])
    log_path = folder / "log" / f"rank-{rank}-{os.getpid()}"
    with log_path.open("w", buffering=1, encoding="ascii") as log:
        log.write(f"started {STARTED_NS} 0\n")
        log.write(f"imported {time.monotonic_ns()} 0\n")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group("gloo")
        log.write(f"connected {time.monotonic_ns()} 0\n")
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        checkpoints = folder / "checkpoints"
        step = restore(checkpoints, model, optimizer)
        log.write(f"restored {time.monotonic_ns()} {step}\n")
        replica = DistributedDataParallel(model)
        inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))
        while step < STEPS_MAX:
            optimizer.zero_grad()
            replica(inputs).square().mean().backward()
            optimizer.step()
            time.sleep(LIGHT_REST_S)
            step += 1
            log.write(f"step {time.monotonic_ns()} {step}\n")
            is_due = step == ONLY_SAVE_AT if ONLY_SAVE_AT else step % CHECKPOINT_EVERY == 0
            if rank == 0 and is_due:
                save(checkpoints, step, model, optimizer)
                log.write(f"saved {time.monotonic_ns()} {step}\n")


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    path = folder / f"step-{step:08d}.pt"
    temporary = path.with_suffix(".tmp")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if FILLER_BYTES:
        state["filler"] = torch.zeros(FILLER_BYTES, dtype=torch.uint8)
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in sorted(folder.glob("step-*.pt"))[:-3]:
        old.unlink()


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    path = max(folder.glob("step-*.pt"), default=None)
    if path is None:
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    main()
