"""Failures by the kind of hardware: of the GPUs, the NICs and the node itself of the node that each accuses. Pure.

The GPU time of an attempt is divided evenly among its nodes. docs/reference/goodput.md has the rules.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from recovery.goodput.job_time import JobTime
from recovery.goodput.ratios import DAY_S, GPU_DAYS, ratio
from recovery.goodput.timeline import TRAINING, TimePart
from recovery.messages.exchange import NodeKinds

MODELS_MAX: Final = 64  # that are told apart; names come from firmware and drivers
OTHER: Final = "other"
_TRAINS: Final = frozenset({*TRAINING, TimePart.CHECKPOINT, TimePart.UNFINISHED})

Kind = tuple[str, str]  # gpu, nic or node; and its name


@dataclass(frozen=True, slots=True)
class HardwareTotals:
    """Failures that accuse nodes with this hardware, and the GPU time that trained on such nodes."""

    failures: int = 0
    recovered: int = 0
    recovery_s: float = 0.0
    device_s: float = 0.0

    def plus(self, other: "HardwareTotals") -> "HardwareTotals":
        return HardwareTotals(
            self.failures + other.failures,
            self.recovered + other.recovered,
            self.recovery_s + other.recovery_s,
            self.device_s + other.device_s,
        )

    @property
    def mtbf_device_s(self) -> float | None:
        """Return the GPU time per failure."""
        return ratio(self.device_s, self.failures)

    @property
    def mttr_s(self) -> float | None:
        return ratio(self.recovery_s, self.recovered)

    @property
    def failures_per_1000_gpu_days(self) -> float | None:
        return ratio(self.failures * GPU_DAYS * DAY_S, self.device_s)


def hardware_of(
    job: JobTime, failures: Iterable[tuple[str, float | None]]
) -> dict[Kind, HardwareTotals]:
    """Return the totals of one job; ``failures``: the node that each accuses, and its MTTR."""
    found: dict[Kind, HardwareTotals] = {}
    if not any(_named(kinds) for kinds in job.kinds.values()):
        return found
    trained = _trained(job)
    for attempt in job.attempts:
        share_s = trained.get(attempt.attempt, 0.0) / max(1, len(attempt.nodes))
        for node in attempt.nodes:
            _add(found, job, node, HardwareTotals(device_s=share_s))
    for node, mttr_s in failures:
        more = HardwareTotals(1, 0 if mttr_s is None else 1, mttr_s or 0.0)
        _add(found, job, node, more)
    return found


def add_hardware(
    found: dict[Kind, HardwareTotals], more: Iterable[tuple[Kind, HardwareTotals]]
) -> None:
    """Add totals to others; of too many names the rest are counted together."""
    for (hardware, name), totals in more:
        kind = (hardware, name)
        if kind not in found and len(found) >= MODELS_MAX:
            kind = (hardware, OTHER)
        found[kind] = found.get(kind, HardwareTotals()).plus(totals)


def _add(found: dict[Kind, HardwareTotals], job: JobTime, node: str, more: HardwareTotals) -> None:
    kinds = job.kinds.get(node)
    if kinds is not None:
        add_hardware(found, ((kind, more) for kind in _named(kinds)))


def _named(kinds: NodeKinds) -> Iterator[Kind]:
    for hardware, name in (("gpu", kinds.gpu), ("nic", kinds.nic), ("node", kinds.node)):
        if name:
            yield hardware, name


def _trained(job: JobTime) -> dict[int, float]:
    """Return the GPU time of training by attempt."""
    found: dict[int, float] = {}
    for span in job.spans:
        if span.part in _TRAINS:
            found[span.attempt] = found.get(span.attempt, 0.0) + span.device_s
    return found
