"""Samples of hardware metrics, as `detectors.slow.causes` and `detectors.slow.odd_nodes` read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Of a rank's main thread. Time without a CPU because the quota is used up counts here, too: the
# thread stays on the run queue (kernel/sched/stats.h, sched_info_enqueue).
RUN_QUEUE: Final = "rankmend_rank_run_queue_seconds_total"


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """One sample of one series of a node.

    All samples of one diagnosis are dated by one clock: Prometheus's, or that of who gathered them.
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
    """Return a reading of a series; its device is what the labels name first."""
    named = next((name for name in ("uuid", "device", "cgroup") if labels.get(name)), None)
    if metric == RUN_QUEUE:  # the part is the rank; what it is of stays among the labels
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
