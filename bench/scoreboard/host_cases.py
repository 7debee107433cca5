"""Jobs with a fault on one node, as host metrics show it: for the scoreboard and the tests.

Shapes from the failure taxonomy: a process that stops (CPU and GPU duty fall), a GPU that slows down
(clock and power fall), a NIC that sends pause frames, a PCIe link that lost lanes, storage that hangs.
All nodes share the job's rhythm (steps, checkpoints); each has a level of its own and noise.
"""

from collections.abc import Mapping

import numpy as np

from detectors.slow.host_table import HostTable

# quantity -> usual level, spread between nodes, noise of a sample (shares of the level)
LEVELS: Mapping[str, tuple[float, float, float]] = {
    "pause_frames": (20.0, 0.5, 0.5),
    "cpu_busy": (24.0, 0.03, 0.05),
    "gpu_duty": (0.96, 0.005, 0.01),
    "gpu_power": (620.0, 0.02, 0.02),
    "gpu_clock": (1.75e9, 0.005, 0.005),
    "pcie_width": (16.0, 0.0, 0.0),
    "nvlink_bytes": (2e11, 0.01, 0.03),
    "nic_bytes": (3e10, 0.01, 0.05),
    "storage_wait": (0.01, 0.3, 0.5),
}
# fault -> what it does to each quantity: factor, and what is added
FAULTS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "cpu drop": {"cpu_busy": (0.3, 0.0), "gpu_duty": (0.5, 0.0), "gpu_power": (0.5, 0.0)},
    "pause frames": {"pause_frames": (1.0, 5_000.0), "nic_bytes": (0.9, 0.0)},
    "gpu slowdown": {"gpu_clock": (0.7, 0.0), "gpu_power": (0.65, 0.0)},
    "gpu duty drop": {"gpu_duty": (0.6, 0.0)},
    "pcie downgrade": {"pcie_width": (0.5, 0.0)},
    "storage hang": {"storage_wait": (1.0, 0.6)},
}


def host_job(
    seed: int,
    nodes: int,
    *,
    minutes: float = 30.0,
    step_s: float = 15.0,
    noise: float = 1.0,
    fault: str | None = None,
    rows: tuple[int, ...] = (),
    onset_s: float = 900.0,
    end_s: float = np.inf,
    missing: float = 0.0,
) -> HostTable:
    """Return the host metrics of a job; ``noise`` multiplies all noise."""
    random = np.random.default_rng(seed)
    times_s = 1.7e9 + step_s * np.arange(int(minutes * 60 / step_s))
    passed_s = times_s - times_s[0]
    # A checkpoint every 10 min, at which every node rests for 30 s, and a slow drift of all.
    rhythm = np.where(passed_s % 600 < 30, 0.4, 1.0)
    rhythm = rhythm * np.exp(np.cumsum(0.002 * random.standard_normal(len(times_s))))
    is_faulty = (passed_s >= onset_s) & (passed_s < end_s)
    values = {}
    for name, (level, spread, jitter) in LEVELS.items():
        own = level * np.exp(spread * random.standard_normal((nodes, 1)))
        shared = 1.0 if name in ("pcie_width", "gpu_clock") else rhythm
        matrix = (
            own * shared * np.exp(noise * jitter * random.standard_normal((nodes, len(times_s))))
        )
        factor, added = FAULTS[fault].get(name, (1.0, 0.0)) if fault else (1.0, 0.0)
        for row in rows:
            matrix[row, is_faulty] = matrix[row, is_faulty] * factor + added
        matrix[random.random(matrix.shape) < missing] = np.nan
        values[name] = matrix
    return HostTable(tuple(f"n{row}" for row in range(nodes)), times_s, values)
