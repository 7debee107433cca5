"""Says what the driver's library allocates in a process that reads the GPUs as the agent's collector does.

Prints one JSON line of MiB (PSS): by how much the process grows when it opens NVML and reads all groups (``nvml``), and
when it asks for the version of CUDA, for which NVML loads libcuda (``libcuda``).
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

import agent.nvml.child  # noqa: F401 - all that the collector imports, before anything is measured
from agent.nvml.children import make_page
from agent.nvml.nvml_calls import CallPage
from agent.nvml.sampler import GpuSampler
from bench.gpu.agent_beside import ROOT, environment, memory_mib

ASK_S_MAX: Final = 30.0
_GROUPS: Final = ("fast", "activity", "medium", "slow")
_ROUNDS: Final = 3


def ask_memory() -> dict[str, float]:
    """Return what such a process says, by part. Raises RuntimeError where it ends without an answer."""
    answer = subprocess.run(
        [sys.executable, "-m", "bench.gpu.nvml_memory"],
        capture_output=True,
        text=True,
        check=False,
        timeout=ASK_S_MAX,
        cwd=ROOT,
        env=environment(),
    )
    if answer.returncode:
        raise RuntimeError(f"a process that only reads the GPU failed: {answer.stderr[-300:]}")
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


def main() -> None:
    import pynvml

    descriptor = make_page()
    sampler = GpuSampler(pynvml, CallPage(descriptor))
    os.close(descriptor)
    before = memory_mib(os.getpid())[0]
    sampler.open(frozenset())
    for _ in range(_ROUNDS):
        for group in _GROUPS:
            for gpu in sampler.gpus:
                sampler.sample(gpu, group)
        for gpu in sampler.gpus:
            sampler.processes(gpu)
        time.sleep(0.1)
    opened = memory_mib(os.getpid())[0]
    with suppress(pynvml.NVMLError):
        pynvml.nvmlSystemGetCudaDriverVersion()
    asked = memory_mib(os.getpid())[0]
    print(json.dumps({"nvml": opened - before, "libcuda": asked - opened}), flush=True)


if __name__ == "__main__":
    main()
