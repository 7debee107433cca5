"""A gloo job of several ranks that times its snapshots beside plain copies and `async_save` of the same state.

Every rank holds its share of the state (BENCH_MEGABYTES over all ranks) in 20 tensors, which change in each step. Every
BENCH_EVERY steps it does one of the three, in turns. It logs a JSON line for each: what, step, seconds; and one for each
restore. Ends when BENCH_UNTIL exists.
"""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import rankmend

TENSORS = 20


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    folder, until = Path(os.environ["BENCH_FOLDER"]), Path(os.environ["BENCH_UNTIL"])
    every, step_s = int(os.environ["BENCH_EVERY"]), float(os.environ["BENCH_STEP_S"])
    kinds = os.environ["BENCH_KINDS"].split(",")
    each = int(float(os.environ["BENCH_MEGABYTES"]) * 1e6 / ranks / TENSORS / 4)
    state = {f"layer{number}": torch.zeros(each) for number in range(TENSORS)}
    plain = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    log = (folder / f"rank{rank}.jsonl").open("a", buffering=1)

    def tell(what: str, step: int, took_s: float) -> None:
        log.write(json.dumps({"what": what, "step": step, "s": took_s}) + "\n")

    step = 0
    began_s = time.perf_counter()
    restored = rankmend.restore()
    if restored is not None:
        step = restored.step
        for name, tensor in restored.state["model"].items():
            state[name].copy_(tensor)
        tell("restore", step, time.perf_counter() - began_s)
        del restored
    whose = {"rank": rank} if os.environ.get("BENCH_APART") else {}
    is_over = torch.zeros(1)
    saving: Any = None
    while not is_over.item():
        step += 1
        with rankmend.section("compute"):
            time.sleep(step_s)
            state[f"layer{step % TENSORS}"].add_(1)
        is_over.fill_(float(until.exists()))
        with rankmend.section("communication"):
            dist.all_reduce(is_over)
        rankmend.step(step)
        if step % every:
            continue
        kind = kinds[step // every % len(kinds)]
        began_s = time.perf_counter()
        if kind == "copy":
            for name, tensor in state.items():
                plain[name].copy_(tensor)
        elif kind == "snapshot":
            assert rankmend.snapshot(step, {"model": state, **whose})
        elif kind == "async_save":
            saving = dcp.async_save({"model": state}, checkpoint_id=str(folder / "dcp"))
        tell(kind, step, time.perf_counter() - began_s)
        if saving is not None:
            saving.result()
            saving = None
            dist.barrier()
            if rank == 0:
                shutil.rmtree(folder / "dcp", ignore_errors=True)
    dist.destroy_process_group()


main()
