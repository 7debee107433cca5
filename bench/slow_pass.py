"""How long a slow-rank pass over a whole job takes, how it grows, and what memory it needs.

    .venv/bin/python bench/slow_pass.py [--json FILE]

Each size runs in a process of its own: one slow rank (1.2 x from the middle on) among ranks
that vary by 3 %, in groups of equal work. The pass that is timed is `find_suspects`: ratios to
the peers, screening all ranks, and the close look at those that stand out.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from yardstick import measure_yardstick

SIZES = ((1_000, 60), (10_000, 60), (100_000, 60), (100_000, 600))
GROUP_RANKS = 1_000
REPEATS = 5
TARGET_MS = 100.0  # at 100,000 ranks x 60 steps


def measure(ranks: int, steps: int) -> dict[str, float]:
    """Return milliseconds (best and median of repeats) and the peak memory above the input."""
    import numpy as np

    from detectors.slow.suspects import find_suspects

    random = np.random.default_rng(1)
    seconds = 0.1 * np.exp(0.03 * random.standard_normal((ranks, steps), dtype=np.float32))
    culprit = ranks // 3
    seconds[culprit, steps // 2 :] *= 1.2
    size = min(GROUP_RANKS, ranks)
    groups = [np.arange(start, start + size) for start in range(0, ranks, size)]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took_ms, cpu_ms = [], []
    for _repeat in range(REPEATS):
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        found = find_suspects(seconds, groups, does_same_work=True)
        took_ms.append((time.perf_counter() - start_s) * 1e3)
        cpu_ms.append((time.process_time() - start_cpu_s) * 1e3)
        assert [suspect.row for suspect in found] == [culprit], found
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "ranks": ranks,
        "steps": steps,
        "matrix_mb": seconds.nbytes / 1e6,
        "best_ms": min(took_ms),
        "median_ms": sorted(took_ms)[REPEATS // 2],
        "cpu_ms": min(cpu_ms),  # what a quiet machine would take: one thread, no waiting
        "extra_mb": (peak_kib - before_kib) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    rows = []
    print("   ranks  steps  matrix MB  best ms  median ms  CPU ms  extra MB")
    for ranks, steps in SIZES:
        command = [sys.executable, __file__, "--one", str(ranks), str(steps)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        row = json.loads(out.stdout)
        rows.append(row)
        print(
            f"{row['ranks']:>8}  {row['steps']:>5}  {row['matrix_mb']:>9.1f}  {row['best_ms']:>7.1f}"
            f"  {row['median_ms']:>9.1f}  {row['cpu_ms']:>6.1f}  {row['extra_mb']:>8.0f}"
        )
    yardstick = measure_yardstick()
    print(yardstick)
    if options.json:
        told = {"yardstick": yardstick.as_dict(), "rows": rows}
        options.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if rows[2]["cpu_ms"] > TARGET_MS:
        sys.exit(f"100,000 ranks x 60 steps took more than {TARGET_MS:.0f} ms of CPU time")


if __name__ == "__main__":
    main()
