"""What a simulation takes as given about detectors, machines and people: each figure with its source. Pure.

Times are seconds unless the name says otherwise. What rankmend's policy decides (how long a silence or a hang must last, how
long evidence is awaited, how often a node may fail) is not here: it is read from the policy that is simulated.
"""

import math
from dataclasses import dataclass, fields
from typing import Final

from rankmend.errors import ConfigError

GPUS_MEASURED: Final = 16_384  # the size at which times that grow with the job are given
GPUS_MAX: Final = 262_144
DAYS_MAX: Final = 3_650.0

# StepFun trace (arXiv 2502.03885): medians by class; mean over median of all 584 faults is 133 h / 20.4 h.
_TAIL: Final = 133.0 / 20.4


@dataclass(frozen=True, slots=True)
class RepairTime:
    """Log-normal hours out of service, by median and mean."""

    median_h: float
    mean_h: float

    @property
    def sigma(self) -> float:
        return math.sqrt(2.0 * math.log(max(self.mean_h / self.median_h, 1.0)))


REPAIRS: Final = {
    "gpu": RepairTime(16.8, 16.8 * _TAIL),
    "cable": RepairTime(47.4, 47.4 * _TAIL),
    "power": RepairTime(351.0, 351.0 * 1.5),
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    # Detection and fencing, measured by rankmend.
    death_s: float = 0.142  # a rank's end to the controller: p99 of a report, 2,000 nodes (docs/operate/scale.md)
    alert_s: float = (
        3.0  # kernel log to evidence: read within 1 s, rule and group 2 s (Policy.evidence_wait_s)
    )
    stop_order_s: float = (
        0.343  # to the last of 2,000 nodes (docs/operate/scale.md); grows with the nodes
    )
    kill_s: float = 3.0  # until ranks are gone that hold GPU memory: assumed; measured on CPU 0.1 s (docs/operate/mttr.md)
    start_order_s: float = 0.849  # to the last of 2,000 nodes (docs/operate/scale.md)
    hang_named_ratio: float = (
        0.97  # 149 of 149 injected hangs, lower end of the 95 % interval (scoreboard)
    )
    slow_found_ratio: float = 0.97  # 249 of 251 injected, lower end of the interval (scoreboard)
    slow_steps: float = 29.0  # found after 21 to 37 steps (README, bench/slow_live)
    # Healthy jobs in which a rank or node was accused: 3 of 900 (scoreboard). One recording counts as a day of a job: assumed.
    false_alarms_per_day: float = 3 / 900
    # What-if: every fault is found within so long; 0: when the rules find it. And all phases of MTTR times this.
    detect_max_s: float = 0.0
    mttr_factor: float = 1.0
    # Restart, published: 200 s for a cold restart at 16,384 GPUs, 17 s of it NCCL's initialization; 900 s and
    # 200 s at 98,000 (FT-HSDP, arXiv 2602.00277). Restore: a checkpoint of a 405B model in 117 s (arXiv 2605.23066).
    start_s: float = 36.0
    rendezvous_s: float = 17.0
    restore_s: float = 117.0
    first_step_s: float = 30.0
    memory_restore_s: float = 10.0  # from host memory or another node's: assumed
    # Training and saving.
    step_s: float = 6.0  # 16 M tokens of a 405B model at 400 TFLOP/s per GPU (arXiv 2407.21783)
    save_stall_s: float = 1.0  # asynchronous saves block below 1 s (arXiv 2606.15007)
    save_s: float = 173.0  # until one can be restored: a 405B model (arXiv 2605.23066)
    interval_s: float = 600.0
    snapshot_interval_s: float = 0.0  # 0: none are taken
    snapshot_stall_s: float = 0.04  # in-memory checkpoints block 0.01 to 0.04 s (arXiv 2509.16293)
    # Machines.
    recurs_s: float = 600.0  # mean time of training until a fault that stayed shows again: assumed
    lemon_nodes_ratio: float = 0.1  # 10 % of the nodes had 40.9 % of the faults (StepFun trace)
    lemon_faults_ratio: float = 0.409
    slow_per_1000_node_days: float = (
        0.09  # 0.5 % of the nodes in 54 days (MegaScale: 0.5 % of machines are slow)
    )
    slow_factor: float = 1.1  # by about 10 % (MegaScale, NSDI'24)
    check_h: float = (
        2.0  # a node that was left and has no fault comes back after its check: assumed
    )
    # People.
    person_s: float = (
        1800.0  # to answer, or to start a job again: diagnosis by hand takes over 30 min (Minder)
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{field.name} is {value}, not a number from 0")
            if field.name.endswith("_ratio") and value > 1:
                raise ConfigError(f"{field.name} is {value}, over 1")
        for name in ("step_s", "interval_s", "recurs_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is 0, not a number above 0")
        if self.slow_factor < 1:
            raise ConfigError(f"slow_factor is {self.slow_factor}, below 1")
        if self.interval_s <= self.save_stall_s:
            raise ConfigError(
                f"interval_s is {self.interval_s:g}, not above the {self.save_stall_s:g} s for which a save stops training"
            )
        if 0 < self.snapshot_interval_s <= self.snapshot_stall_s:
            raise ConfigError(
                f"snapshot_interval_s is {self.snapshot_interval_s:g}, not above the "
                f"{self.snapshot_stall_s:g} s for which a snapshot stops training"
            )


@dataclass(frozen=True, slots=True)
class Setup:
    """The job that is simulated."""

    gpus: int
    days: float
    gpus_per_node: int = 8
    spares: int = 0  # nodes
    nodes_min: int | None = None  # the job may shrink to so many; None: it has one size

    def __post_init__(self) -> None:
        if not 1 <= self.gpus_per_node <= 64:
            raise ConfigError(f"{self.gpus_per_node} GPUs per node: it is 1 to 64")
        if not 2 * self.gpus_per_node <= self.gpus <= GPUS_MAX:
            raise ConfigError(
                f"{self.gpus} GPUs: a simulation has two nodes ({2 * self.gpus_per_node} GPUs) to {GPUS_MAX}"
            )
        if self.gpus % self.gpus_per_node:
            raise ConfigError(
                f"{self.gpus} GPUs are not a whole number of nodes with {self.gpus_per_node} GPUs each"
            )
        if not (math.isfinite(self.days) and 0 < self.days <= DAYS_MAX):
            raise ConfigError(f"{self.days:g} days: it is above 0, and {DAYS_MAX:g} at most")
        if not 0 <= self.spares <= self.nodes:
            raise ConfigError(f"{self.spares} spares: it is 0 to {self.nodes}, the job's nodes")
        if self.nodes_min is not None and not 1 <= self.nodes_min <= self.nodes:
            raise ConfigError(f"nodes_min is {self.nodes_min}: it is 1 to {self.nodes}")

    @property
    def nodes(self) -> int:
        return self.gpus // self.gpus_per_node

    @property
    def horizon_s(self) -> float:
        return self.days * 86_400.0


def orders_scale(setup: Setup) -> float:
    """Return by how much orders take longer than to 2,000 nodes, where they were measured."""
    return setup.nodes / 2_000.0


def rendezvous_scale(setup: Setup) -> float:
    """Return by how much NCCL's initialization takes longer than at 16,384 GPUs.

    A power law through two published points: 17 s at 16,384 and 200 s at 98,000 GPUs.
    """
    exponent = math.log(200.0 / 17.0) / math.log(98_000.0 / GPUS_MEASURED)
    return float((setup.gpus / GPUS_MEASURED) ** exponent)
