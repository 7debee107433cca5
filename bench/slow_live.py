"""How often the live slow-rank watch is wrong, how soon it is right, and what a look costs.

    .venv/bin/python bench/slow_live.py [--jobs 100] [--json]

Simulated synchronous jobs (tests/detectors/slow/test_live.py): healthy ones of half an hour each for false
alarms, then slow ranks of several factors for recall and delay. Beside it two baselines on the
same steps: a rank below 0.75 of the fastest one's pace (in the manner of NVRx), and a single step
above 1.1 times the median. Last, one look at 100,000 ranks.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
from yardstick import measure_yardstick

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from detectors.persistence import Persistence, Track, look
from detectors.slow.live import SlowLive, Steps
from recovery.controller.job.watch.slow_ranks import RULES

STEP_S = 0.2
HEALTHY_STEPS = 6_000
SLOW_STEPS = 150
SIZES = (2, 8, 64)
NOISE = 0.03
FACTORS = (1.15, 1.25, 1.5, 2.5)


class Sim:
    """One job, its watch and the two baselines."""

    def __init__(self, size: int, seed: int, rules: Persistence = RULES) -> None:
        self.size, self.rules = size, rules
        self.random = np.random.default_rng(seed)
        self.live = SlowLive(size)
        self.totals = np.zeros((size, 4))
        self.step, self.now_s = 0, 0.0
        self.tracks: dict[int, Track] = {}
        self.alarms: list[tuple[int, int]] = []  # rank, step
        self.fastest: list[tuple[int, int]] = []
        self.single: list[tuple[int, int]] = []
        self.window: list[np.ndarray] = []

    def run(self, steps: int, slow: int | None = None, factor: float = 1.0) -> None:
        for _ in range(steps):
            self.step += 1
            own = 0.9 * STEP_S * np.exp(NOISE * self.random.standard_normal(self.size))
            if slow is not None:
                own[slow] *= factor
            end_s = float(own.max()) + 0.1 * STEP_S
            self.totals[:, :2] += (end_s - own)[:, None]
            self.now_s += end_s
            every = np.ones(self.size, dtype=np.int64)
            ranks = np.arange(self.size)
            told = Steps(
                ranks, every * self.step, every * self.step, every * end_s, self.totals.copy()
            )
            self.live.add_steps(told)
            self.judge()
            self.single += [(int(r), self.step) for r in np.flatnonzero(own > 1.1 * np.median(own))]
            self.window.append(own)
            if len(self.window) == 50:  # NVRx scores over a report interval
                means = np.mean(self.window, axis=0)
                self.fastest += [
                    (int(r), self.step) for r in np.flatnonzero(means.min() / means < 0.75)
                ]
                self.window.clear()

    def judge(self) -> None:
        active = frozenset(rank for rank, track in self.tracks.items() if track.is_active)
        seen = self.live.look(self.now_s, active)
        if seen is None:
            return
        slow = {one.rank for one in seen.slow}
        for rank in slow | self.tracks.keys():
            track = look(self.tracks.get(rank), self.rules, is_bad=rank in slow, at_s=self.now_s)
            assert track is not None
            if track.is_active and rank not in active:
                self.alarms.append((rank, self.step))
            self.tracks[rank] = track


def measure(jobs: int) -> dict[str, object]:
    false = {"watch": 0, "fastest-rank ratio 0.75": 0, "single step above 1.1": 0}
    days = 0.0
    for size in SIZES:
        for seed in range(jobs // len(SIZES)):
            sim = Sim(size, seed)
            sim.run(HEALTHY_STEPS)
            days += sim.now_s / 86_400 * max(1, size // 8)
            for name, alarms in zip(false, (sim.alarms, sim.fastest, sim.single), strict=True):
                false[name] += len({rank for rank, _step in alarms})
    recall = {}
    for factor in FACTORS:
        right, wrong, delays = 0, 0, []
        baselines = {"fastest-rank ratio 0.75": 0, "single step above 1.1": 0}
        runs = [(size, seed) for size in (2, 8, 64, 512) for seed in range(10)]
        for size, seed in runs:
            sim = Sim(size, 1000 + seed)
            sim.run(100)
            sim.run(SLOW_STEPS, slow=seed % size, factor=factor)
            named = {rank for rank, _step in sim.alarms}
            right += named == {seed % size}
            wrong += bool(named - {seed % size})
            for name, alarms in zip(baselines, (sim.fastest, sim.single), strict=True):
                baselines[name] += {rank for rank, _step in alarms} == {seed % size}
            delays += [step - 100 for rank, step in sim.alarms if rank == seed % size]
        delay = float(np.median(delays)) if delays else None
        recall[str(factor)] = {
            "right": right,
            "wrong": wrong,
            "of": len(runs),
            "delay_steps": delay,
            "baselines_right": baselines,
        }
    return {"node_days": round(days, 2), "false_alarms": false, "slow": recall, **measure_look()}


def measure_look(size: int = 100_000) -> dict[str, object]:
    """Return milliseconds of taking in one step and of one look, and the memory of it all."""
    sim = Sim(size, 1)
    takes, looks = [], []
    for step in range(1, 41):
        own = 0.9 * STEP_S * np.exp(NOISE * sim.random.standard_normal(size))
        sim.totals[:, :2] += (1.3 * STEP_S - own)[:, None]
        every = np.ones(size, dtype=np.int64)
        told = Steps(np.arange(size), every * step, every * step, every * 0.26, sim.totals.copy())
        start_s = time.perf_counter()
        sim.live.add_steps(told)
        takes.append(time.perf_counter() - start_s)
        start_s = time.perf_counter()
        if sim.live.look(step * 0.26) is not None:
            looks.append(time.perf_counter() - start_s)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "take_ms": round(1e3 * float(np.median(takes)), 1),
        "look_ms": round(1e3 * float(np.median(looks)), 1),
        "peak_mib": round(peak_mib),
        "yardstick": measure_yardstick().as_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.jobs)
    print(json.dumps(result, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
