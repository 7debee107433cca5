"""What `rankmend watch env` costs the start of a Python program that is no rank, and of a rank before PyTorch.

    python bench/watch_start.py [--pairs 300] [--python /usr/bin/python3]

A pair starts the same empty program with and without the variables, in alternating order. The figure is the median of the
differences of all pairs: what else the machine does hits both halves alike.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rankmend.watch.hook_folder import make_hook_folder

TASK = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
LIMIT_MS = 5.0


def time_start_ms(python: str, environment: dict[str, str]) -> float:
    began_s = time.perf_counter()
    subprocess.run([python, "-c", "pass"], env=environment, check=True)
    return (time.perf_counter() - began_s) * 1e3


def measure(python: str, hook: Path, rank: dict[str, str], pairs: int) -> tuple[float, float]:
    """Return the median start without, and the median difference, in milliseconds."""
    plain = {"PATH": os.environ["PATH"], **rank}
    watched = {**plain, "PYTHONPATH": str(hook), "RANKMEND_WATCH": "1"}
    starts, differences = [], []
    for number in range(pairs):
        order = (plain, watched) if number % 2 else (watched, plain)
        times = [time_start_ms(python, environment) for environment in order]
        without, with_hook = times if number % 2 else reversed(times)
        starts.append(without)
        differences.append(with_hook - without)
    return statistics.median(starts), statistics.median(differences)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--python", default=sys.executable, help="the interpreter to start")
    options = parser.parse_args()
    is_within = True
    with tempfile.TemporaryDirectory() as folder:
        hook = Path(folder) / "hook"
        make_hook_folder(hook)
        print(f"{options.python}, {options.pairs} pairs, {os.cpu_count()} CPUs")
        for name, rank in (("no rank", {}), ("rank before PyTorch", TASK)):
            start_ms, more_ms = measure(options.python, hook, rank, options.pairs)
            is_within = is_within and more_ms < LIMIT_MS
            print(f"{name:20} {start_ms:6.1f} ms without, {more_ms:+.2f} ms with")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
