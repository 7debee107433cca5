"""What a sample of a GPU costs, group by group and call by call."""

import statistics
import time
from typing import Final

from bench.gpu.load import Workers
from bench.gpu.rows import Trial
from bench.gpu.watch import GROUPS, Watched

IDLE_SAMPLES: Final = {"fast": 40, "medium": 5, "slow": 3, "activity": 5}
BUSY_SAMPLES: Final = {"fast": 20, "medium": 4, "slow": 2, "activity": 4}
SAMPLE_S_MAX: Final = 1.0  # the agent's interval


def try_idle_cost(trial: Trial, watched: Watched) -> None:
    """Time each group while the GPU does nothing."""
    _measure(trial, watched, IDLE_SAMPLES, limit_s=4.0)


def try_busy_cost(trial: Trial, watched: Watched, workers: Workers) -> None:
    """Time each group while the GPU multiplies matrices."""
    with workers.get().running("gemm", 8192):
        time.sleep(0.5)
        _measure(trial, watched, BUSY_SAMPLES, limit_s=3.0)


def _measure(trial: Trial, watched: Watched, samples: dict[str, int], limit_s: float) -> None:
    for group in GROUPS:
        watched.values(group)  # the first one learns what is not supported
    watched.page.seconds.clear()
    for group, count in samples.items():
        taken_s, end_s = [], time.monotonic() + limit_s / len(samples)
        while len(taken_s) < count and (not taken_s or time.monotonic() < end_s):
            began_s = time.perf_counter()
            watched.values(group)
            taken_s.append(time.perf_counter() - began_s)
        trial.figure(f"{group}_median_ms", 1e3 * statistics.median(taken_s))
        trial.figure(f"{group}_max_ms", 1e3 * max(taken_s))
        longest = f"{group} took {max(taken_s):.2f} s, longer than the interval"
        trial.check(max(taken_s) < SAMPLE_S_MAX, longest)
    name, longest_s = watched.page.slowest()
    trial.figure("slowest_call", name)
    trial.figure("slowest_call_ms", 1e3 * longest_s)
    began_s = time.perf_counter()
    watched.sampler.processes(watched.gpu)
    trial.figure("processes_ms", 1e3 * (time.perf_counter() - began_s))
