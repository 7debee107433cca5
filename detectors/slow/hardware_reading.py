"""Samples of hardware metrics, as `detectors.slow.causes` and `detectors.slow.odd_nodes` read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Waiting time of a rank's main thread. It includes waiting because the CPU quota is used up: the
# thread stays on the run queue (kernel/sched/stats.h, sched_info_enqueue).
RUN_QUEUE: Final = "rankmend_rank_run_queue_seconds_total"


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """One sample of one series of a node.

    One clock dates all samples of one diagnosis: Prometheus's, or the collector's.
    """

    node: str
    metric: str  # as in docs/reference/metrics.md
    value: float
    at_s: float
    device: str = ""  # UUID of a GPU, name of a NIC, disk or cgroup; empty: the node itself
    labels: tuple[tuple[str, str], ...] = ()  # the others: reason, kind, port ...


def reading_of(
    metric: str, labels: Mapping[str, str], value: float, at_s: float, node: str
) -> HardwareReading:
    """Return a reading of a series; its device is the first one that the labels name."""
    named = next((name for name in ("uuid", "device", "cgroup") if labels.get(name)), None)
    if metric == RUN_QUEUE:  # the part is the rank, and its own labels stay
        named = "device"
        part = f"rank {labels.get('rank', '')} of {labels.get('job_id', '')[:8]}"
        labels = {**labels, named: part}
    return HardwareReading(
        node=node,
        metric=metric,
        value=value,
        at_s=at_s,
        device=labels[named] if named else "",
        labels=tuple(sorted((key, text) for key, text in labels.items() if key != named)),
    )
