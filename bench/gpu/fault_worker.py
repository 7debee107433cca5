"""A rank whose kernel misbehaves: ``python -m bench.gpu.fault_worker FAULT``, then one line ``go LIBRARY`` on stdin.

Imports PyTorch first and says ``ready``; only then, on its line, it opens the GPU. It ends as a rank does: by PyTorch's
own exception. LIBRARY is what bench/gpu/misbehave.cu was built to, or ``cupy``.
"""

import ctypes
import sys
import time
from pathlib import Path
from typing import Any

KERNELS = ("read_far", "read_misaligned", "trap_always", "run_forever")
RUNS_S_MAX = 30.0


def main() -> None:
    import torch

    fault = sys.argv[1]
    print("ready", flush=True)
    library = sys.stdin.readline().split()[1]
    data = torch.zeros(1024, device="cuda", dtype=torch.int32)
    torch.cuda.synchronize()
    if fault == "check":
        check(torch)
        return
    if fault == "assert":
        wrong = torch.full((1,), 5000, device="cuda", dtype=torch.int64)
        print(data[wrong].sum().item())
        return
    launch(library, fault, data)
    print("launched", flush=True)
    if fault == "run_forever":
        time.sleep(RUNS_S_MAX)
        return
    torch.cuda.synchronize()


def launch(library: str, kernel: str, data: Any) -> None:
    at, out = data.data_ptr(), data[512:].data_ptr()
    if library == "cupy":
        import cupy

        source = Path(__file__).with_name("misbehave.cu").read_text(encoding="utf-8")
        function = cupy.RawModule(code=source).get_function(kernel)
        function((1,), (1,), (cupy.uint64(at), cupy.uint64(out)))
        return
    call = ctypes.CDLL(library).misbehave
    code = call(KERNELS.index(kernel), ctypes.c_void_p(at), ctypes.c_void_p(out))
    if code != 0:
        raise RuntimeError(f"the kernel was not launched: CUDA error {code}")


def check(torch: Any) -> None:
    """Multiply small integers, which is exact, and say whether GPU and CPU agree."""
    a = torch.arange(256 * 256).reshape(256, 256).remainder(7).float()
    b = a.t().contiguous() - 3
    expected = a @ b
    found = (a.cuda() @ b.cuda()).cpu()
    print("right" if torch.equal(found, expected) else "wrong", flush=True)


if __name__ == "__main__":
    main()
