"""Which ranks run on which device of this node."""

from collections.abc import Iterator
from functools import cached_property
from typing import Final

from detectors.node.checks import Component
from detectors.node.node_state import CheckLook, HitRank, Snapshot

RANK_INFO: Final = "rankmend_rank_info"
RANK_GPU_INFO: Final = "rankmend_rank_gpu_info"
AFFINITY_INFO: Final = "rankmend_topology_affinity_info"

_CLOSENESS: Final = ("PIX", "PXB", "PHB", "NODE")  # nearest first; SYS counts as far


class RankPlaces:
    """Which ranks use which device of this node."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._all = tuple(sorted(set(_ranks(snapshot, RANK_INFO)), key=_rank_order))
        self._by_uuid: dict[str, list[HitRank]] = {}
        self._by_address: dict[str, list[HitRank]] = {}
        reading = snapshot.readings.get(RANK_GPU_INFO)
        for series in reading.series if reading else ():
            own = dict(series.labels)
            rank = HitRank(own["job_id"], int(own["rank"]))
            self._by_uuid.setdefault(own["uuid"], []).append(rank)
            self._by_address.setdefault(pci_address(own["pci_bus_id"]), []).append(rank)

    @cached_property
    def _near_nic(self) -> dict[str, list[str]]:
        return _gpus_near(self._snapshot)  # only where a NIC has a finding

    def hit_by(self, seen: CheckLook) -> tuple[HitRank, ...]:
        """Return the ranks on the device; all ranks of the node if all share the device."""
        own = dict(seen.labels)
        if seen.component is Component.RANK:
            return (HitRank(own["job_id"], int(own["rank"])),) if "rank" in own else ()
        if seen.component is Component.AGENT:
            return ()  # it slows down no rank
        if seen.component is Component.GPU and "uuid" in own:
            return tuple(sorted(self._by_uuid.get(own["uuid"], ()), key=_rank_order))
        if seen.component is Component.NIC and own.get("device") in self._near_nic:
            near = self._near_nic[own["device"]]
            hit = {rank for address in near for rank in self._by_address.get(address, ())}
            return tuple(sorted(hit, key=_rank_order))
        return self._all


def _gpus_near(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the GPUs for which each NIC is the nearest, by PCI address.

    NCCL lets a GPU send through the NIC that is nearest to it.
    """
    reading = snapshot.readings.get(AFFINITY_INFO)
    by_gpu: dict[str, list[tuple[int, str]]] = {}
    for series in reading.series if reading else ():
        own = dict(series.labels)
        if own["closeness"] in _CLOSENESS:
            place = (_CLOSENESS.index(own["closeness"]), own["device"])
            by_gpu.setdefault(pci_address(own["pci_bus_id"]), []).append(place)
    near: dict[str, list[str]] = {}
    for address, places in by_gpu.items():
        nearest = min(places)[0]
        for closeness, device in places:
            if closeness == nearest:
                near.setdefault(device, []).append(address)
    return near


def pci_address(text: str) -> str:
    """Return a PCI address in one form: NVML writes 8 digits of domain, sysfs 4.

    It has no function number: XID lines have none, and a GPU's is 0.
    """
    domain, _colon, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest.partition('.')[0]}"


def _ranks(snapshot: Snapshot, metric: str) -> Iterator[HitRank]:
    reading = snapshot.readings.get(metric)
    for series in reading.series if reading else ():
        own = dict(series.labels)
        yield HitRank(own["job_id"], int(own["rank"]))


def _rank_order(rank: HitRank) -> tuple[str, int]:
    return rank.job_id, rank.rank
