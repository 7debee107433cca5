"""What timing collectives and data loading costs an unchanged PyTorch script.

    .venv/bin/python bench/collectives.py [--rounds 30] [--json] [--stand-in]

One process with a gloo group of its own, so that a collective takes as long as its own code: the
same calls with the hook's wrappers and with the functions they wrap, in turn, median of the
rounds' differences. Then calls a step and the share of a 100 ms step for DDP and for what FSDP
does with a model of 48 layers (two gathers and one scatter a layer, each waited for).
--stand-in: the group says that it is NCCL's, and a stand-in takes the place of CUDA's events. So it
measures the hook's own code for a GPU, without what the driver takes to record and read an event.
"""

import argparse
import json
import os
import statistics
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

from rankmend.hook import layout
from rankmend.progress import RankIdentity, create

CALLS = 300
STEP_MS = 100.0
GOAL = 0.01
LAYERS = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stand-in", action="store_true", help="for a GPU and NCCL")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        file = Path(folder) / "rank0"
        os.close(create(file, RankIdentity(uuid.uuid4(), 1, 0, 0, 1)))
        os.environ[layout.ENV_PROGRESS_FILE] = str(file)
        costs = measure(arguments.rounds, Path(folder), arguments.stand_in)
    us = {name: ns / 1e3 for name, ns in costs.items()}
    ddp_us = us["backward"] + us["broadcast of buffers"] + us["next batch"]
    fsdp_us = 3 * LAYERS * us["all_reduce"] + us["next batch"]
    steps = {"DDP": (3, ddp_us), "FSDP, 48 layers": (3 * LAYERS + 1, fsdp_us)}
    if arguments.json:
        print(json.dumps({"us_a_call": us, "us_a_step": {k: v[1] for k, v in steps.items()}}))
        return
    for name, cost_us in us.items():
        print(f"{name:22}{cost_us:8.2f} us a call")
    for name, (calls, cost_us) in steps.items():
        share = cost_us / (STEP_MS * 1e3)
        verdict = "met" if share <= GOAL else "missed"
        print(
            f"{name:22}{calls:5} calls a step, {cost_us:7.1f} us: {share:.3%} of 100 ms ({verdict})"
        )


class Event:
    """Stands in for a CUDA event that each stream has passed at once."""

    def __init__(self, enable_timing: bool) -> None:
        pass

    def record(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: object) -> float:  # noqa: ARG002
        return 0.1


def stand_in() -> None:
    import torch
    from torch._C._distributed_c10d import ProcessGroup

    ProcessGroup._get_backend_name = lambda _self: "nccl"  # type: ignore[method-assign, attr-defined]
    ProcessGroup._device_types = [torch.device("cuda")]  # type: ignore[assignment, attr-defined]
    torch.cuda.is_initialized = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.Event = Event  # type: ignore[misc, assignment]


def measure(rounds: int, folder: Path, is_stand_in: bool) -> dict[str, float]:
    import torch
    import torch.distributed as dist

    import rankmend
    from rankmend.hook import gloo_threads, torch_sections

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    if is_stand_in:
        stand_in()
    rankmend.step(1)  # before it nothing is timed
    tensor, weight = torch.ones(1), torch.ones(1, requires_grad=True)
    loader = iter(torch.utils.data.DataLoader([0] * 10_000_000, batch_size=None))
    replica = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(1))
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_reduce, later": lambda: dist.all_reduce(tensor, async_op=True).wait(),
        "backward": lambda: (weight * 2).backward(),  # noqa: PLW0108 - a new graph each time
        "broadcast of buffers": replica._sync_buffers,
        "next batch": lambda: next(loader),
    }
    plain = places()
    torch_sections.Installer().look()
    wrapped = places()
    assert all(plain[place] is not wrapped[place] for place in plain), "everything is wrapped"
    differences: dict[str, list[float]] = {name: [] for name in calls}
    for _round in range(rounds):
        for name, call in calls.items():
            set_places(plain)
            without_ns = time_calls(call)
            set_places(wrapped)
            differences[name].append((time_calls(call) - without_ns) / CALLS)
    gloo_threads.let_go()
    dist.destroy_process_group()
    return {name: statistics.median(values) for name, values in differences.items()}


def places() -> dict[tuple[object, str], object]:
    """Return what stands now in each place that is wrapped for the calls below."""
    import torch
    from torch._C._distributed_c10d import ProcessGroup, Work
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    owners: list[tuple[object, str]] = [
        (Work, "wait"),
        (ProcessGroup, "allreduce"),
        (torch.autograd, "_engine_run_backward"),
        (DistributedDataParallel, "_distributed_broadcast_coalesced"),
        (_BaseDataLoaderIter, "__next__"),
    ]
    return {(owner, name): vars(owner)[name] for owner, name in owners}


def set_places(values: dict[tuple[object, str], object]) -> None:
    for (owner, name), value in values.items():
        setattr(owner, name, value)


def time_calls(call: Callable[[], object]) -> int:
    start = perf_counter_ns()
    for _ in range(CALLS):
        call()
    return perf_counter_ns() - start


if __name__ == "__main__":
    main()
