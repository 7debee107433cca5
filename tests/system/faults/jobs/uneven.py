"""Ranks in step that mostly sleep, and whose own part of a step can be made longer from outside.

A file FAULTS/RANK (or FAULTS/all) holds "SECTION SECONDS": so much longer that rank sleeps in that
section of every step, for as long as the file is there. Compute is work for a processor besides.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "examples" / "digits"))
from ring import Ring

import rankmend


def read_faults(folder: Path, rank: int) -> dict[str, float]:
    faults: dict[str, float] = {}
    for name in (str(rank), "all"):
        try:
            section, _space, seconds = (folder / name).read_text().partition(" ")
            faults[section] = float(seconds)
        except (OSError, ValueError):
            continue
    return faults


def work(work_s: float) -> None:
    """Take so much time of a processor, however long that lasts."""
    end_s = time.thread_time() + work_s
    while time.thread_time() < end_s:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=Path, required=True)
    parser.add_argument("--work-s", type=float, default=0.008)
    arguments = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with Ring(
        rank=rank,
        world_size=world_size,
        address=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]),
        timeout_s=60.0,
    ) as ring:
        step = 0
        while not (arguments.faults / "stop").exists() or step % 50:
            step += 1
            faults = read_faults(arguments.faults, rank)
            with rankmend.section("io"):
                time.sleep(0.01 + faults.get("io", 0.0))
            with rankmend.section("compute"):
                work(arguments.work_s)
                time.sleep(0.02 + faults.get("compute", 0.0))
            with rankmend.section("communication"):
                time.sleep(faults.get("communication", 0.0))
                with rankmend.section("wait"):
                    ring.all_reduce(np.ones(8, np.float32))
            rankmend.step(step)


main()
