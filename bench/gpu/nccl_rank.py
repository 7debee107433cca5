"""A rank of a small group that does what it is told: python -m bench.gpu.nccl_rank DEVICE STORE RANK SIZE TIMEOUT_S.

Tells a JSON line for each thing done. Commands, a line each: stick (what follows does not end), end.
"""

import json
import os
import re
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.gpu.device import Cpu, Gpu
from rankmend.hook.nccl import find_versions

STUCK_MS = 25_000.0
LATE_MS = 12_000.0  # of the rank that runs into its time-out
TURNS = 5
TIMED_BYTES = 1 << 30


def main() -> None:
    name, store, rank, size, timeout_s = sys.argv[1:6]
    device: Any = Cpu() if name == "cpu" else Gpu(off_ratio_max=1e9)
    torch = device.torch
    import torch.distributed as dist

    dist.init_process_group(
        device.backend,
        init_method=f"file://{store}",
        rank=int(rank),
        world_size=int(size),
        timeout=timedelta(seconds=float(timeout_s)),
    )
    if name == "cpu":
        threading.Thread(target=_stand_in_for_pipe, daemon=True).start()
    tensor = torch.ones(1024, device=name)
    for _ in range(TURNS):
        dist.all_reduce(tensor)
    device.synchronize()
    began_s = time.monotonic()
    loaded = find_versions()
    loaded_ms = round((time.monotonic() - began_s) * 1e3, 3)
    told = {"nccl": _version(torch, name), "library": _library()}
    tell("running", value=float(tensor[0]), loaded=loaded, loaded_ms=loaded_ms, **told)
    if size == "1":
        tell("timed", ms=_time(device))
    device.spin(1.0)  # what spins is made before it is needed
    device.synchronize()
    for line in sys.stdin:
        if line.strip() != "stick":
            break
        work = None
        if name == "cuda" and size == "1":
            device.spin(LATE_MS if float(timeout_s) < LATE_MS / 1000 else STUCK_MS)
        if rank == "0":
            work = dist.all_reduce(tensor, async_op=True)
        tell("stuck", entered=work is not None)
        if name == "cpu" and timeout_s == "5":
            raise RuntimeError(
                "Watchdog caught collective operation timeout: ran before timing out"
            )
        if timeout_s == "5" and work is not None:
            device.synchronize()  # until the watchdog ends this process
    os._exit(0)


def tell(what: str, **more: object) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


def _time(device: Any) -> list[float]:
    """Return the stream's milliseconds of each of some large collectives."""
    torch = device.torch
    count = TIMED_BYTES if device.name == "cuda" else 1 << 20
    source = torch.ones(count, dtype=torch.uint8, device=device.name)
    target = torch.empty_like(source)
    found = []
    for _ in range(TURNS):
        device.synchronize()
        device.spin(5.0)  # so that the device and not the host sets the pace
        begin = device.mark()
        torch.distributed.all_gather_into_tensor(target, source)
        found.append(device.ms_between(begin, device.mark()))
    return found


def _version(torch: Any, name: str) -> str:
    return ".".join(map(str, torch.cuda.nccl.version())) if name == "cuda" else ""


def _library() -> str:
    """Return the path of the NCCL library that this process has loaded, or ""."""
    found = re.search(r"/\S*libnccl\S*", Path("/proc/self/maps").read_text())
    return found[0] if found else ""


def _stand_in_for_pipe() -> None:
    """Answer at NCCL's pipe as its monitor does, where there is no NCCL."""
    from torch._C import _distributed_c10d as c10d

    rank = os.environ["RANK"]
    pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        try:
            is_asked = bool(os.read(descriptor, 64))
        except BlockingIOError:
            is_asked = False
        if is_asked:
            Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank).write_bytes(c10d._dump_fr_trace())
        time.sleep(0.05)


if __name__ == "__main__":
    main()
