"""GPU, NIC and NUMA affinity, and the network plane and rail of each port.

Source: agent/sources/pci_topology.py. Cost: about 10 ms on a node of 200 PCI devices, once a minute.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from agent.metrics import PORT_LABELS, Family, Metric, gauge
from agent.sources.pci_topology import (
    PciDevice,
    PcieLink,
    Plane,
    assign_planes,
    closeness,
    read_default_route,
    read_topology,
)
from rankmend.errors import NoSourceError

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "topology_info",
        "",
        ("pci_bus_id", "kind", "device", "numa_node", "cpus"),
        "Where a GPU or NIC sits; always 1.",
    ),
    gauge(
        "nic_pcie_width_lanes",
        "lanes",
        ("device",),
        "PCIe lanes of a network card now; none of a virtual function.",
    ),
    gauge("nic_pcie_width_max_lanes", "lanes", ("device",), "Most PCIe lanes of card and slot."),
    gauge(
        "nic_pcie_transfers_per_second",
        "transfers per second",
        ("device",),
        "Rate of each PCIe lane of a network card now.",
    ),
    gauge(
        "nic_pcie_transfers_max_per_second",
        "transfers per second",
        ("device",),
        "Highest rate of each PCIe lane of card and slot.",
    ),
    gauge(
        "topology_affinity_info",
        "",
        ("pci_bus_id", "device", "closeness"),
        "How near a GPU (by bus id) is to a NIC: PIX, PXB, PHB, NODE, SYS; always 1.",
    ),
    gauge(
        "topology_plane_info",
        "",
        (*PORT_LABELS, "plane", "rail", "origin"),
        "Network plane and rail of a port, configured or guessed; always 1.",
    ),
)


class TopologyCollector:
    name = "topology"
    interval_s = 60.0

    def __init__(
        self,
        sysfs_root: Path,
        procfs_root: Path,
        excluded: Sequence[str] = (),
        plane_by_pattern: Mapping[str, Plane] | None = None,
        rail_by_pattern: Mapping[str, int] | None = None,
    ) -> None:
        self._sysfs_root = sysfs_root
        self._procfs_root = procfs_root
        self._excluded = tuple(excluded)
        self._plane_by_pattern = dict(plane_by_pattern or {})
        self._rail_by_pattern = dict(rail_by_pattern or {})

    def collect(self) -> Iterator[Metric]:
        topology = read_topology(self._sysfs_root, self._excluded)
        if not topology.gpus and not topology.nics:
            raise NoSourceError(f"no GPU and no network card under {self._sysfs_root}")
        for gpu in topology.gpus:
            yield _place("gpu", "", gpu)
        for nic in topology.nics:
            yield _place("nic", nic.name, nic.pci)
            if nic.pci.link is not None:
                yield from _link_metrics(nic.name, nic.pci.link)
            for gpu in topology.gpus:
                labels = (
                    ("pci_bus_id", gpu.bus_id),
                    ("device", nic.name),
                    ("closeness", closeness(gpu, nic.pci).value),
                )
                yield Metric("rankmend_topology_affinity_info", 1, labels)
        in_band = read_default_route(self._procfs_root, self._sysfs_root)
        for member in assign_planes(
            topology, self._plane_by_pattern, self._rail_by_pattern, in_band
        ):
            yield Metric(
                "rankmend_topology_plane_info",
                1,
                (
                    ("device", member.device),
                    ("port", member.port),
                    ("plane", member.plane.value),
                    ("rail", "" if member.rail is None else str(member.rail)),
                    ("origin", "configured" if member.is_configured else "guessed"),
                ),
            )


def _link_metrics(device: str, link: PcieLink) -> Iterator[Metric]:
    labels = (("device", device),)
    yield Metric("rankmend_nic_pcie_width_lanes", link.lanes, labels)
    yield Metric("rankmend_nic_pcie_width_max_lanes", link.lanes_max, labels)
    yield Metric("rankmend_nic_pcie_transfers_per_second", link.transfers_per_s, labels)
    yield Metric("rankmend_nic_pcie_transfers_max_per_second", link.transfers_max_per_s, labels)


def _place(kind: str, device: str, pci: PciDevice) -> Metric:
    return Metric(
        "rankmend_topology_info",
        1,
        (
            ("pci_bus_id", pci.bus_id),
            ("kind", kind),
            ("device", device),
            ("numa_node", "" if pci.numa_node is None else str(pci.numa_node)),
            ("cpus", pci.cpus),
        ),
    )
