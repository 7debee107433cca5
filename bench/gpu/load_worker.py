"""Works a GPU on command: a process that `bench.gpu.load` starts.

Reads one command a line from stdin: ``gemm N``, ``copy BYTES``, ``hold BYTES``, each until the line ``stop``. Says one JSON
line when it has begun and one when it has stopped. Plain device memory only; changes no setting.
"""

import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any

GEMM_BATCH, COPY_BATCH = 16, 8
MARKS_MAX = 20_000


def main() -> None:
    import torch  # no context yet

    say({"is_ready": True, "torch": torch.__version__})
    while line := sys.stdin.readline():
        name, _space, number = line.strip().partition(" ")
        if name == "stop":
            continue
        try:
            _held.clear()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # what the command before has left
            start = {"gemm": start_gemm, "copy": start_copy, "hold": start_hold}[name]
            run(torch, name, *start(torch, int(number)))
        except Exception as error:  # noqa: BLE001 - told; the next command is tried nevertheless
            say({"error": f"{type(error).__name__}: {error}"[:400]})


def run(torch: Any, name: str, launch: Callable[[], None] | None, work: float) -> None:
    """Launch batches, the next one before the last has ended, until there is a line to read."""
    torch.cuda.synchronize()
    properties = torch.cuda.get_device_properties(0)
    say(
        {
            "began": name,
            "work": work,  # floating-point operations or bytes a batch
            "sms": properties.multi_processor_count,
            "capability": [properties.major, properties.minor],
        }
    )
    marks: list[tuple[float, int]] = []  # CLOCK_MONOTONIC and batches that had ended
    ended: list[Any] = []
    count = 0
    while not select.select([sys.stdin], [], [], 0 if launch else 5)[0]:
        if launch is None:
            continue
        launch()
        event = torch.cuda.Event()
        event.record()
        ended.append(event)
        if len(ended) > 1:
            ended.pop(0).synchronize()
            count += 1
            if len(marks) < MARKS_MAX:
                marks.append((time.monotonic(), count))
    sys.stdin.readline()
    torch.cuda.synchronize()
    say({"stopped": name, "marks": marks})


def start_gemm(torch: Any, size: int) -> tuple[Callable[[], None], float]:
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)

    def launch() -> None:
        for _ in range(GEMM_BATCH):
            torch.mm(a, b, out=out)

    launch()
    return launch, 2.0 * size**3 * GEMM_BATCH


def start_copy(torch: Any, size_bytes: int) -> tuple[Callable[[], None], float]:
    source = torch.ones(size_bytes, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)

    def launch() -> None:
        for _ in range(COPY_BATCH):
            target.copy_(source)

    launch()
    return launch, 2.0 * size_bytes * COPY_BATCH  # each byte is read and written


_held: list[Any] = []


def start_hold(torch: Any, size_bytes: int) -> tuple[None, float]:
    _held[:] = [torch.ones(size_bytes, device="cuda", dtype=torch.uint8)]
    return None, float(size_bytes)


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
