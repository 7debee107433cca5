"""A rank whose kernel misbehaves: ``python -m bench.gpu.fault_worker FAULT``, then one line ``go`` on stdin.

Imports PyTorch first and says ``ready``; only then, on its line, it opens the GPU. It ends as a rank does: by PyTorch's
own exception. The kernels are in bench/gpu/misbehave.ptx.
"""

import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu.ptx_kernel import PtxKernel

KERNELS = Path(__file__).with_name("misbehave.ptx")
RUNS_S_MAX = 30.0
REFUSED = 77  # the exit code where the driver doesn't take the kernel, as without its compiler


def main() -> None:
    import torch

    fault = sys.argv[1]
    print("ready", flush=True)
    sys.stdin.readline()
    data = torch.zeros(1024, device="cuda", dtype=torch.int32)
    torch.cuda.synchronize()
    if fault == "check":
        check(torch)
        return
    if fault == "assert":
        wrong = torch.full((1,), 5000, device="cuda", dtype=torch.int64)
        print(data[wrong].sum().item())
        return
    launch(fault, data)
    print("launched", flush=True)
    if fault == "run_forever":
        time.sleep(RUNS_S_MAX)
        return
    torch.cuda.synchronize()


def launch(kernel: str, data: Any) -> None:
    """Launch a kernel on the default stream, with the tensor and a place in it; exit where the driver doesn't take it."""
    try:
        found = PtxKernel(KERNELS.read_bytes(), kernel.encode())
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)
    found.launch(data.data_ptr(), data[512:].data_ptr())


def check(torch: Any) -> None:
    """Multiply small integers, which is exact, and say whether GPU and CPU agree."""
    a = torch.arange(256 * 256).reshape(256, 256).remainder(7).float()
    b = a.t().contiguous() - 3
    expected = a @ b
    found = (a.cuda() @ b.cuda()).cpu()
    print("right" if torch.equal(found, expected) else "wrong", flush=True)


if __name__ == "__main__":
    main()
