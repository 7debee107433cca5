"""Snapshots of a state on a GPU: bytes, speed, stall, and what a kill in mid-copy leaves."""

import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu.device import Gpu
from bench.gpu.own_rank import OwnRank
from bench.gpu.rows import Telling
from bench.gpu.snapshot_kills import KILLS, try_kills
from bench.gpu.snapshot_speed import RATIO_MAX, Speed
from bench.gpu.snapshot_state import try_bits, try_capture, try_update

LIMIT_S = 100.0
AIM_S = 50.0
CLAIMS: dict[str, str] = {
    "bits": "Every type and layout of tensor on the GPU comes back with its bits and its ties, and so does an optimizer's state.",
    "update": "What the script changes in place right after a snapshot is not in the snapshot.",
    "capture": "A snapshot asked for while a CUDA graph is captured is skipped with a warning, and the graph is unharmed.",
    "register": "The driver pins the shared-memory file of a snapshot (cudaHostRegister).",
    "speed_1gb": f"A snapshot of 1 GB takes the stream at most {RATIO_MAX:g} times as long as a plain copy into pinned memory.",
    "restore": "A snapshot of 1 GB comes back to the GPU with its bits.",
    "stall": "A snapshot stops the host for less than a tenth of its copy; the stream waits for the copy, and not at all where it is taken on another stream.",
    "kill": f"Of {KILLS} ranks killed in mid-copy each leaves a whole older snapshot, and none that is torn.",
    "speed_20gb": f"A snapshot of 20 GB (or of what fits) takes the stream at most {RATIO_MAX:g} times as long as a plain copy.",
}


def run(telling: Telling, device: Any = None) -> None:
    """Try the rows. ``device``: stands in for the GPU where this code is tried without one."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rankmend-gpu-") as name:
        device = device or Gpu()
        rank = OwnRank(device, Path(name))
        speed = Speed(rank)
        with telling.row("bits") as trial:
            try_bits(trial, rank)
        with telling.row("update") as trial:
            try_update(trial, rank)
        with telling.row("capture") as trial:
            try_capture(trial, rank)
        with telling.row("speed_1gb") as trial:
            speed.compare(trial, 1_000_000_000)
        with telling.row("register") as trial:
            speed.register(trial)
        with telling.row("restore") as trial:
            speed.restore(trial)
        with telling.row("stall") as trial:
            speed.stall(trial)
        speed.end()
        with telling.row("kill") as trial:
            try_kills(trial, device.name, Path(name))
        with telling.row("speed_20gb") as trial:
            speed.compare_large(trial, 20_000_000_000, began_s + AIM_S)
