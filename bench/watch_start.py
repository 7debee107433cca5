"""What `rankmend watch env` costs the start of a Python program that is no rank, and of a rank before PyTorch.

    python bench/watch_start.py [--pairs 300] [--python /usr/bin/python3 [--compiled /usr/bin/python3]]

A pair starts the same empty program with and without the variables, in alternating order. The figure is the median of the
differences of all pairs: what else the machine does hits both halves alike.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rankmend.watch.hook_folder import make_hook_folder

TASK = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
LIMIT_MS = 5.0


def time_start_ms(python: str, environment: dict[str, str]) -> tuple[float, float]:
    """Return the wall time and the processor time of one start."""
    began_s = time.perf_counter()
    pid = os.posix_spawn(python, [python, "-c", "pass"], environment)
    _pid, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{python} ended with status {status}")
    return (time.perf_counter() - began_s) * 1e3, (used.ru_utime + used.ru_stime) * 1e3


def measure(python: str, hook: Path, rank: dict[str, str], pairs: int) -> list[tuple[float, float]]:
    """Return for wall and processor time the median start without, and the median difference, in milliseconds."""
    plain = {"PATH": os.environ["PATH"], **rank}
    watched = {**plain, "PYTHONPATH": str(hook), "RANKMEND_WATCH": "1"}
    without, with_hook = [], []
    for number in range(pairs):
        if number % 2:
            without.append(time_start_ms(python, plain))
        with_hook.append(time_start_ms(python, watched))
        if not number % 2:
            without.append(time_start_ms(python, plain))
    return [
        (
            statistics.median(start[kind] for start in without),
            statistics.median(b[kind] - a[kind] for a, b in zip(without, with_hook, strict=True)),
        )
        for kind in (0, 1)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--python", default=sys.executable, help="the interpreter to start")
    parser.add_argument(
        "--compiled", default=[], action="append", help="as --python of `rankmend watch env`"
    )
    options = parser.parse_args()
    is_within = True
    with tempfile.TemporaryDirectory() as folder:
        hook = Path(folder) / "hook"
        make_hook_folder(hook, [Path(python) for python in options.compiled])
        print(f"{options.python}, {options.pairs} pairs, {os.cpu_count()} CPUs")
        for name, rank in (("no rank", {}), ("rank before PyTorch", TASK)):
            for kind, (start_ms, more_ms) in zip(
                ("wall", "CPU"), measure(options.python, hook, rank, options.pairs), strict=True
            ):
                is_within = is_within and more_ms < LIMIT_MS
                print(f"{name:20} {kind:4} {start_ms:6.1f} ms without, {more_ms:+.2f} ms with")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
