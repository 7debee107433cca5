"""Which rank stands on which NIC: the rank's GPU, and the compute ports nearest to that GPU.

Source: the newest answers of the collectors `gpu` and `topology`; nothing is read.

Nearest is what the bridges of sysfs say, and where NCCL goes unless it is told otherwise (its
`NCCL_IB_HCA` is not seen here). Where a GPU is equally far from all ports, or the machine does not
show its bridges, no port is named.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from agent.metrics import PORT_LABELS, RANK_LABELS, Family, Metric, gauge
from agent.sampling.collection import CollectorView
from agent.sources.pci_topology import Closeness, Plane
from rankmend.errors import NoSourceError

_GPU_INFO: Final = "rankmend_rank_gpu_info"
_AFFINITY_INFO: Final = "rankmend_topology_affinity_info"
_PLANE_INFO: Final = "rankmend_topology_plane_info"
_WANTED: Final = frozenset({_GPU_INFO, _AFFINITY_INFO, _PLANE_INFO})

Labels = Mapping[str, str]

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "rank_nic_info",
        "",
        (*RANK_LABELS, "gpu", "pci_bus_id", *PORT_LABELS, "rail", "closeness"),
        "Which compute port is nearest to the GPU (pci_bus_id) that a rank stands on; always 1.",
    ),
)


def join_ranks(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Return which rank stands on which compute port, from the three info metrics."""
    found: dict[str, list[Labels]] = {name: [] for name in _WANTED}
    for metric in metrics:
        if metric.name in _WANTED:
            found[metric.name].append(dict(metric.labels))
    ports = [port for port in found[_PLANE_INFO] if port["plane"] == Plane.COMPUTE.value]
    seen: set[tuple[tuple[str, str], ...]] = set()
    for place in found[_GPU_INFO]:
        near = [item for item in found[_AFFINITY_INFO] if item["pci_bus_id"] == place["pci_bus_id"]]
        for port, closeness in _nearest(ports, near):
            labels = (
                ("job_id", place["job_id"]),
                ("rank", place["rank"]),
                ("gpu", place["gpu"]),
                ("pci_bus_id", place["pci_bus_id"]),
                ("device", port["device"]),
                ("port", port["port"]),
                ("rail", port["rail"]),
                ("closeness", closeness.value),
            )
            if labels not in seen:  # a rank may have several processes on one GPU
                seen.add(labels)
                yield Metric("rankmend_rank_nic_info", 1, labels)


def _nearest(ports: Sequence[Labels], near: Sequence[Labels]) -> list[tuple[Labels, Closeness]]:
    closeness_of = {labels["device"]: Closeness(labels["closeness"]) for labels in near}
    known = [
        (port, closeness_of[port["device"]]) for port in ports if port["device"] in closeness_of
    ]
    best = min((closeness.rank for _port, closeness in known), default=Closeness.SYS.rank)
    if best == Closeness.SYS.rank:
        return []
    return [(port, closeness) for port, closeness in known if closeness.rank == best]


class RankNicsCollector:
    name = "rank_nics"
    interval_s = 5.0

    def __init__(self) -> None:
        self._views: Callable[[], Sequence[CollectorView]] = lambda: ()

    def watch(self, views: Callable[[], Sequence[CollectorView]]) -> None:
        """Take what the other collectors have answered from here."""
        self._views = views

    def collect(self) -> Iterator[Metric]:
        views = [view for view in self._views() if view.name in ("gpu", "topology")]
        metrics = [metric for view in views for metric in view.metrics]
        if not any(metric.name == _GPU_INFO for metric in metrics):
            raise NoSourceError("no rank stands on a GPU here")
        yield from join_ranks(metrics)
