"""Trains a classifier of handwritten digits with PyTorch DDP on gloo.

    python examples/digits/prepare.py digits.npz
    rankmend run --standalone --nproc-per-node 4 --checkpoint-dir checkpoints \\
        examples/digits_torch/train.py --data digits.npz --checkpoint-dir checkpoints

Ends with equal bits whether it was interrupted or not: batches follow from the seed and the
step, and `find_unused_parameters=True` keeps DDP from rebuilding its gradient buckets after
the first step, which would add in another order in a process that was just resumed.
"""

import os

# DDP warns that find_unused_parameters costs time here; it buys equal bits
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import argparse
import datetime
import hashlib
import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankmend

PIXELS = 64
DIGITS = 10
KEPT_CHECKPOINTS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    data: Path
    checkpoint_dir: Path
    result: Path | None  # where rank 0 writes what came out, as JSON
    steps: int
    batch: int  # images a step, over all ranks
    hidden: int  # width of the two hidden layers
    learning_rate: float
    momentum: float
    seed: int
    checkpoint_every: int
    print_every: int
    timeout_s: float  # for another rank, at most


def read_settings() -> Settings:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with DDP.")
    parser.add_argument("--data", type=Path, required=True, help="file that prepare.py wrote")
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-every", type=int, default=25)
    parser.add_argument("--print-every", type=int, default=25)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    return Settings(**vars(parser.parse_args()))


def build_model(settings: Settings) -> nn.Module:
    torch.manual_seed(settings.seed)
    return nn.Sequential(
        nn.Linear(PIXELS, settings.hidden),
        nn.ReLU(),
        nn.Linear(settings.hidden, settings.hidden),
        nn.ReLU(),
        nn.Linear(settings.hidden, DIGITS),
    )


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint whole or not at all, and drop the oldest ones."""
    path = folder / f"step-{step:08d}.pt"
    temporary = folder / f".{path.name}.{os.getpid()}"
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    if not rankmend.may_publish(path):  # a newer attempt of this job is running: not ours to write
        temporary.unlink()
        return
    temporary.replace(path)
    for old in sorted(folder.glob("step-*.pt"))[:-KEPT_CHECKPOINTS]:
        old.unlink()


def load(path: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Read a checkpoint into model and optimizer and return its step."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def batch_indices(settings: Settings, step: int, images: int) -> np.ndarray:
    """Return which images this step trains on, over all ranks."""
    generator = np.random.default_rng((settings.seed, step))
    return generator.choice(images, settings.batch, replace=False)


def sha256(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


class StopFlag:
    """Set by SIGTERM: save at the end of a step and leave."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, _number: int, _frame: object) -> None:
        self.is_set = True


def train(settings: Settings, rank: int, world_size: int) -> None:
    """Train to the last step, or to the one at which all ranks agree to stop."""
    stop = StopFlag()
    chosen = rankmend.resume()
    with np.load(settings.data, allow_pickle=False) as data:
        images, labels, test_images, test_labels = (
            torch.from_numpy(data[name])
            for name in ("train_images", "train_labels", "test_images", "test_labels")
        )
    model = build_model(settings)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.learning_rate, momentum=settings.momentum
    )
    step = 0 if chosen is None else load(chosen.path, model, optimizer)
    replica = DistributedDataParallel(model, find_unused_parameters=True)
    told = torch.zeros(2)  # loss and stop flag, in one sum: all ranks see the same flag
    while step < settings.steps and not told[1]:
        step += 1
        with rankmend.section("io"):
            mine = batch_indices(settings, step, len(labels))[rank::world_size]
            batch_images, batch_labels = images[mine], labels[mine]
        with rankmend.section("compute"):  # DDP sums gradients while it computes them
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(replica(batch_images), batch_labels)
            loss.backward()
            optimizer.step()
        with rankmend.section("communication"):
            told[0], told[1] = loss.detach() / world_size, float(stop.is_set)
            dist.all_reduce(told)
        rankmend.step(step)
        if rank != 0:
            continue
        is_last = step == settings.steps or bool(told[1])
        if is_last or step % settings.checkpoint_every == 0:
            with rankmend.section("checkpoint"):
                save(settings.checkpoint_dir, step, model, optimizer)
        if is_last or step % settings.print_every == 0:
            print(f"step {step:4d}  loss {told[0]:.6f}", flush=True)
    if rank == 0:
        with torch.no_grad():
            right = (model(test_images).argmax(dim=1) == test_labels).float()
        result = {
            "step": step,
            "accuracy_ratio": float(right.mean()),
            "sha256": sha256(model),
        }
        print(f"step {step}: accuracy {result['accuracy_ratio']:.4f}, sha256 {result['sha256']}")
        if settings.result is not None:
            settings.result.write_text(json.dumps(result) + "\n", encoding="ascii")


def main() -> None:
    settings = read_settings()
    settings.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the ranks share the cores, and the order of sums stays the same
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=settings.timeout_s))
    train(settings, dist.get_rank(), dist.get_world_size())
    # A gloo group waits for its threads with the GIL held when it is destroyed, and the thread of
    # the last sum needs the GIL to let go of it: with torch 2.13, 1 of 10 runs hung here.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
