"""Child of `torch_collectives`, under the user's interpreter: standard library and PyTorch only.

Reads its order from standard input and writes the times as JSON. Dies with its parent.
"""

import ctypes
import datetime
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

WARM_UPS = 2
REPEATS = 5
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    here = str(Path(__file__).resolve().parent)  # its modules would hide others' of that name
    sys.path[:] = [entry for entry in sys.path if entry != here]
    order = json.load(sys.stdin)
    if order["backend"] == "gloo":
        os.environ["GLOO_SOCKET_IFNAME"] = order["interface"]
    import torch  # noqa: PLC0415 - NCCL and gloo read the environment when they are loaded
    import torch.distributed as dist  # noqa: PLC0415

    is_gpu = order["backend"] == "nccl"
    if is_gpu:
        torch.cuda.set_device(0)
    host = f"[{order['address']}]" if ":" in order["address"] else order["address"]
    dist.init_process_group(
        order["backend"],
        init_method=f"tcp://{host}:{order['port']}",
        rank=order["rank"],
        world_size=order["count"],
        timeout=datetime.timedelta(seconds=order["limit_s"]),
    )
    device = "cuda" if is_gpu else "cpu"
    found = []
    for size in order["sizes"]:
        data = torch.zeros(
            max(order["count"], size // 4 // order["count"] * order["count"]), device=device
        )
        out = torch.zeros_like(data)
        for name, call in (
            ("all_reduce", lambda: dist.all_reduce(data)),  # noqa: B023
            ("all_to_all", lambda: dist.all_to_all_single(out, data)),  # noqa: B023
        ):
            found.append(
                {
                    "operation": name,
                    "size_bytes": data.numel() * 4,
                    "seconds": measure(call, dist, torch if is_gpu else None),
                }
            )
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measure(call: Any, dist: Any, cuda: Any) -> float:
    times = []
    for number in range(WARM_UPS + REPEATS):
        dist.barrier()
        began_s = time.perf_counter()
        call()
        if cuda is not None:
            cuda.cuda.synchronize()
        if number >= WARM_UPS:
            times.append(time.perf_counter() - began_s)
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    main()
