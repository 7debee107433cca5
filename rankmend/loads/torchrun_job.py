"""The job of `rankmend drill` under torchrun: ranks of PyTorch on gloo, whose result tells each lost or repeated step.

    torchrun_job.py FOLDER STEPS EVERY STEP_S START_S SAVE_S

The state is whole numbers, as in `rankmend.loads.drill_job`; an optimizer steps beside it, so that the ranks are watched. Rank 0 finds
the newest checkpoint that is whole, and gives its state to the others. After the first step of an attempt the ranks wait for
FOLDER/begun, or with its number begun-ATTEMPT, for START_S at most. Each
rank tells in FOLDER/rank-R.json what it does. The last step waits for FOLDER/let-go.
"""

import datetime
import json
import os
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, Optional, Tuple

PRIME = 2_147_483_647  # of rankmend.loads.drill_job, which a job of another launcher can't import
_PATIENCE = datetime.timedelta(seconds=600)


def _share(state: int, rank: int, step: int) -> int:
    return (state * (rank + 3) + step * 7919 + rank) % PRIME


def _load(checkpoints: Path) -> Tuple[int, int]:
    import numpy as np

    for path in sorted(checkpoints.glob("step-*.npz"), reverse=True):
        try:
            with np.load(path, allow_pickle=False) as file:
                return int(file["step"]), int(file["state"][0])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            continue  # torn
    return 0, 1


def _save(checkpoints: Path, step: int, state: int, save_s: float) -> None:
    import numpy as np

    beside = checkpoints / f".step-{step:08d}.{os.getpid()}.tmp"
    with beside.open("wb") as file:
        np.savez(file, step=step, state=np.full(512, state, np.int64))
        time.sleep(save_s)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(checkpoints / f"step-{step:08d}.npz")


def _number(name: str) -> int:
    return int(os.environ.get(name) or 0)


def _descend(optimizer: Any, _closure: Any = None) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.data.sub_(parameter.grad, alpha=0.01)


def _make_optimizer(parameters: Any) -> Any:
    """Return one that doesn't import the compiler, as the first use of PyTorch's own does: two CPU-seconds a rank."""
    import torch

    plain = torch.optim.Optimizer.add_param_group
    methods = {"step": _descend, "add_param_group": getattr(plain, "__wrapped__", plain)}
    descent: Any = type("Descent", (torch.optim.Optimizer,), methods)
    return descent(parameters, {})


def main(
    folder: Path, steps: int, every: int, step_s: float, start_s: float, save_s: float
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = _number("RANK")
    attempt = _number("SLURM_RESTART_COUNT") + _number("TORCHELASTIC_RESTART_COUNT")
    checkpoints, reported = folder / "checkpoints", folder / f"rank-{rank}.json"

    def tell(step: Optional[int], section: str = "compute") -> None:
        beside = folder / f".rank-{rank}.{os.getpid()}"
        body = {"attempt": attempt, "pid": os.getpid(), "step": step, "section": section}
        beside.write_text(json.dumps(body))
        beside.rename(reported)

    # Each attempt meets anew: by torchrun's own store gloo finds addresses of the attempt before, and fails.
    meet = f"file://{folder}/meet-{attempt}"
    size = _number("WORLD_SIZE")
    dist.init_process_group("gloo", meet, _PATIENCE, rank=rank, world_size=size)
    weights = torch.nn.Linear(4, 1)
    optimizer = _make_optimizer(weights.parameters())
    begin = torch.tensor(_load(checkpoints) if rank == 0 else (0, 0), dtype=torch.int64)
    dist.broadcast(begin, 0)
    step, state = begin.tolist()
    is_first = True
    while step < steps:
        while step == steps - 1 and not (folder / "let-go").exists():
            time.sleep(0.02)
        step += 1
        time.sleep(step_s)
        total = torch.tensor([_share(state, rank, step)], dtype=torch.int64)
        dist.all_reduce(total)
        state = int(total) % PRIME
        weights(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        if is_first:
            is_first = False
            tell(None)
            may_go_on = (folder / "begun", folder / f"begun-{attempt}")
            until_s = time.monotonic() + start_s
            while time.monotonic() < until_s and not any(path.exists() for path in may_go_on):
                time.sleep(0.02)
        tell(step)
        if step % every == 0:
            if rank == 0:
                tell(step, "checkpoint")
                _save(checkpoints, step, state, save_s)
            dist.barrier()
    if rank == 0:
        (folder / "result.json").write_text(json.dumps({"step": step, "state": state}))
    dist.barrier()
    time.sleep(0.5)  # gloo's threads let go of the last collective: else this may hang
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *map(float, sys.argv[4:7]))
