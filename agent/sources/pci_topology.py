"""Which GPU, NIC and NUMA node lie close together, and which network a port belongs to.

Source: <root>/bus/pci/devices/*/{class,vendor,numa_node,local_cpulist} (Linux
        Documentation/ABI/testing/sysfs-bus-pci), the folders that these links lead to (each PCI
        bridge is a folder in its parent's), <root>/class/infiniband/*/device,
        <root>/class/net/*/device, <procfs>/net/route.

The plane of a port comes from the configuration, else it is a guess from where the port sits, and marked as a guess.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

from rankmend.errors import SourceError

_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
# PCI class codes: VGA, 3D and other display controllers, processing accelerators (pci_ids.h)
_DISPLAY_CLASSES: Final = frozenset({"0x0300", "0x0302", "0x0380"})
_ACCELERATOR_CLASS: Final = "0x1200"
_GPU_VENDORS: Final = frozenset({"0x10de", "0x1002"})  # NVIDIA, AMD; a BMC's VGA is neither
_BMC_DRIVERS: Final = frozenset({"cdc_ether", "cdc_ncm", "rndis_host"})  # Ethernet over USB


_CPUS_CHARS_MAX: Final = 200
_CARD_TYPES: Final = frozenset({"1", "32"})  # ARPHRD_ETHER, ARPHRD_INFINIBAND
_LANES_MAX: Final = 32  # PCI Express base specification: x1 to x32
_LINK_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?")


class Plane(Enum):
    COMPUTE = "compute"
    STORAGE = "storage"
    SERVICE = "service"  # never guessed, as the next
    MANAGEMENT = "management"
    IN_BAND = "in-band"
    OUT_OF_BAND = "out-of-band"
    UPLINK = "uplink"
    UNKNOWN = "unknown"


class Closeness(Enum):
    """The distance of two PCI devices, in the terms of `nvidia-smi topo -m`, nearest first."""

    PIX = "PIX"  # one PCIe switch
    PXB = "PXB"  # several PCIe switches, no host bridge
    PHB = "PHB"  # one host bridge
    NODE = "NODE"  # one NUMA node
    SYS = "SYS"  # across NUMA nodes, or not known

    @property
    def rank(self) -> int:
        return _CLOSENESS_ORDER.index(self)


_CLOSENESS_ORDER: Final = tuple(Closeness)
_Value = TypeVar("_Value", Plane, int)


@dataclass(frozen=True, slots=True)
class PciDevice:
    bus_id: str  # as in sysfs: 0000:3b:00.0; empty for a device without a PCI address
    ancestry: tuple[str, ...]  # from the host bridge down to the device itself
    numa_node: int | None
    cpus: str  # such as 0-31,64-95; empty where not known
    link: "PcieLink | None" = None


@dataclass(frozen=True, slots=True)
class PcieLink:
    """The link between a device and the port above it, now and at best: what both ends can do."""

    lanes: int
    lanes_max: int
    transfers_per_s: float
    transfers_max_per_s: float


_NOWHERE: Final = PciDevice("", (), None, "")


@dataclass(frozen=True, slots=True)
class Nic:
    """An RDMA device, or a network device that belongs to none."""

    name: str
    ports: tuple[str, ...]  # one empty name for a network device
    network_devices: tuple[str, ...]
    driver: str
    is_rdma: bool
    pci: PciDevice
    is_virtual_function: bool = (
        False  # of a card that this host has, too: it is there for a guest or a pod
    )


@dataclass(frozen=True, slots=True)
class PortNetwork:
    """The network that a port belongs to."""

    device: str
    port: str
    plane: Plane
    rail: int | None  # for compute ports only
    is_configured: bool


@dataclass(frozen=True, slots=True)
class Topology:
    gpus: tuple[PciDevice, ...]  # in the order of their bus ids, as NVML numbers them
    nics: tuple[Nic, ...]


def read_topology(sysfs_root: Path, excluded: Sequence[str] = ()) -> Topology:
    """Return the GPUs and NICs of a node. Excluded devices are not looked at."""
    return Topology(_read_gpus(sysfs_root), tuple(_read_nics(sysfs_root, excluded)))


def closeness(device: PciDevice, other: PciDevice) -> Closeness:
    """Return how near two devices are, from the bridges between them."""
    shared = 0
    for mine, theirs in zip(device.ancestry, other.ancestry, strict=False):
        if mine != theirs:
            break
        shared += 1
    if shared > 1:  # beneath one root port at least
        bridges = max(len(device.ancestry), len(other.ancestry)) - shared - 1
        return Closeness.PIX if bridges <= 1 else Closeness.PXB
    if shared:
        return Closeness.PHB
    if device.numa_node is not None and device.numa_node == other.numa_node:
        return Closeness.NODE
    return Closeness.SYS


def assign_planes(
    topology: Topology,
    plane_by_pattern: Mapping[str, Plane],
    rail_by_pattern: Mapping[str, int],
    in_band: AbstractSet[str] = frozenset(),
) -> tuple[PortNetwork, ...]:
    """Return the plane and rail of every port.

    A pattern is that of a device (``mlx5_*``), a port (``mlx5_0/1``) or a network device
    (``eth[01]``); the first that fits decides. ``in_band`` names the network devices that carry
    the default route. Compute NICs have the rail of the configuration, else their place in
    the order of the GPUs that they are nearest to.
    """
    near_rails = _guess_rails(topology)
    members = []
    for nic in topology.nics:
        for port in nic.ports:
            names = (nic.name, f"{nic.name}/{port}", *nic.network_devices)
            configured = _first_fit(names, plane_by_pattern)
            plane = configured or _guess_plane(nic, near_rails, in_band)
            rail = _first_fit(names, rail_by_pattern)
            if rail is None and plane is Plane.COMPUTE:
                rail = near_rails.get(nic.name)
            members.append(PortNetwork(nic.name, port, plane, rail, configured is not None))
    return tuple(members)


def _first_fit(names: Sequence[str], value_by_pattern: Mapping[str, _Value]) -> _Value | None:
    for pattern, value in value_by_pattern.items():
        if any(fnmatchcase(name, pattern) for name in names):
            return value
    return None


def _guess_rails(topology: Topology) -> dict[str, int]:
    """Return the RDMA devices that share a switch with a GPU, numbered in the order of GPUs."""
    order: dict[str, tuple[int, str]] = {}
    for number, gpu in enumerate(topology.gpus):
        near = [
            (closeness(gpu, nic.pci).rank, nic)
            for nic in topology.nics
            if nic.is_rdma and not nic.is_virtual_function
        ]
        best = min((rank for rank, _nic in near), default=Closeness.SYS.rank)
        if best > Closeness.PXB.rank:
            continue
        for rank, nic in near:
            if rank == best:
                order.setdefault(nic.name, (number, nic.pci.bus_id))
    ordered = sorted(order, key=lambda name: order[name])
    return {name: rail for rail, name in enumerate(ordered)}


def _guess_plane(nic: Nic, near_rails: Mapping[str, int], in_band: AbstractSet[str]) -> Plane:
    if nic.driver in _BMC_DRIVERS:
        return Plane.OUT_OF_BAND
    if nic.name in near_rails:
        return Plane.COMPUTE
    if any(device in in_band for device in nic.network_devices):
        return Plane.IN_BAND
    # with GPUs in sight, an RDMA device far from all of them is there for the storage
    is_card = nic.is_rdma and not nic.is_virtual_function
    return Plane.STORAGE if is_card and near_rails else Plane.UNKNOWN


def read_default_route(procfs_root: Path, sysfs_root: Path) -> frozenset[str]:
    """Return the network devices of the IPv4 default route and those beneath them (bond, VLAN)."""
    try:
        lines = (procfs_root / "net" / "route").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    found: set[str] = set()
    waiting = [line.split()[0] for line in lines[1:] if line.split()[1:2] == ["00000000"]]
    while waiting:
        device = waiting.pop()
        if device in found or not _is_plain_name(device):
            continue
        found.add(device)
        lower = (sysfs_root / "class" / "net" / device).glob("lower_*")
        waiting.extend(path.name.removeprefix("lower_") for path in lower)
    return frozenset(found)


def read_pci(folder: Path) -> PciDevice:
    """Return the place of the PCI device at, or above, a folder of sysfs."""
    try:
        resolved = folder.resolve()
    except (OSError, RuntimeError):  # links that go round; RuntimeError before Python 3.13
        return _NOWHERE
    ancestry: list[str] = []
    for part in resolved.parts:
        if _ROOT.fullmatch(part) or (ancestry and _BUS_ID.fullmatch(part)):
            ancestry.append(part)
    if len(ancestry) < 2:
        return _NOWHERE
    while resolved.name != ancestry[-1]:
        resolved = resolved.parent
    node = read_text(resolved / "numa_node")
    return PciDevice(
        bus_id=ancestry[-1],
        ancestry=tuple(ancestry),
        numa_node=int(node) if node and node.isdecimal() and len(node) < 5 else None,  # -1: none
        cpus=(read_text(resolved / "local_cpulist") or "")[:_CPUS_CHARS_MAX],
        link=_read_link(resolved),
    )


def _read_link(device: Path) -> PcieLink | None:
    """Return the state of a device's link, or None where the kernel shows none.

    A virtual function has none of its own: "0" lanes and "Unknown". A card of 16 lanes in a slot
    of 8 is how the machine was built, so the port above counts, too.
    """
    lanes, transfers_per_s = _lanes(device, "current"), _transfers(device, "current")
    lanes_max, transfers_max_per_s = _lanes(device, "max"), _transfers(device, "max")
    if not (lanes and lanes_max and transfers_per_s and transfers_max_per_s):
        return None
    port = device.parent
    return PcieLink(
        lanes,
        min(lanes_max, _lanes(port, "max") or lanes_max),
        transfers_per_s,
        min(transfers_max_per_s, _transfers(port, "max") or transfers_max_per_s),
    )


def _lanes(folder: Path, when: str) -> int | None:
    text = read_text(folder / f"{when}_link_width") or ""
    lanes = int(text) if text.isdecimal() and len(text) < 4 else 0
    return lanes if 0 < lanes <= _LANES_MAX else None  # 0 or 255: not known


def _transfers(folder: Path, when: str) -> float | None:
    match = _LINK_SPEED.fullmatch(read_text(folder / f"{when}_link_speed") or "")
    return float(match[1]) * 1e9 if match else None


def has_hardware(network_device: Path) -> bool:
    """Tell whether a folder of class/net is that of a card, and of nothing made of software.

    The kernel links it to its card. Recorded trees may lack that link: then the place of the folder
    says it, or, where it was copied out of its place, that it is an Ethernet or InfiniBand device
    which stands on no other and is no bridge and no tunnel.
    """
    if (network_device / "device").exists():
        return True
    if network_device.is_symlink():
        try:
            parts = network_device.resolve().parts
        except (OSError, RuntimeError):  # links that go round
            return False
        return "devices" in parts and "virtual" not in parts[parts.index("devices") :]
    index = read_text(network_device / "ifindex")
    return (
        read_text(network_device / "type") in _CARD_TYPES
        and index is not None
        and index == read_text(network_device / "iflink")
        and not any((network_device / name).exists() for name in ("bridge", "tun_flags", "bonding"))
    )


def read_driver(device: Path) -> str:
    """Return the driver's name of a device folder, or nothing."""
    try:
        return (device / "driver").resolve(strict=True).name
    except (OSError, RuntimeError):  # none, or links that go round
        return ""


def read_text(path: Path) -> str | None:
    """Return the stripped text of a small file, or None where it can't be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def is_excluded(name: str, excluded: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in excluded)


def list_names(folder: Path) -> list[str]:
    """Return the sorted names in a folder of sysfs, none where it does not exist."""
    return sorted(read_names(folder), key=_by_number)


def list_known(folder: Path, unlisted: list[str]) -> list[str]:
    """Return the sorted names in a folder; an unreadable folder is added to ``unlisted``."""
    try:
        return list_names(folder)
    except SourceError:
        unlisted.append(str(folder))
        return []


def read_names(folder: Path) -> frozenset[str]:
    """Return the names in a folder of sysfs, none where it does not exist."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - every second: no paths are wanted
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError as error:
        raise SourceError(f"cannot list {folder}: {error.strerror}") from error
    return frozenset(
        name for name in names if name.isprintable()
    )  # bytes that are no text break a page


def _read_gpus(sysfs_root: Path) -> tuple[PciDevice, ...]:
    devices = sysfs_root / "bus" / "pci" / "devices"
    gpus = []
    for name in list_names(devices):
        kind = (read_text(devices / name / "class") or "")[:6]
        if kind not in _DISPLAY_CLASSES and kind != _ACCELERATOR_CLASS:
            continue
        if kind == _ACCELERATOR_CLASS or read_text(devices / name / "vendor") in _GPU_VENDORS:
            gpus.append(read_pci(devices / name))
    return tuple(sorted((gpu for gpu in gpus if gpu.bus_id), key=lambda gpu: gpu.bus_id))


def _read_nics(sysfs_root: Path, excluded: Sequence[str]) -> Iterator[Nic]:
    taken: set[str] = set()
    rdma_root, net_root = sysfs_root / "class" / "infiniband", sysfs_root / "class" / "net"
    for name in list_names(rdma_root):
        device = rdma_root / name / "device"
        network_devices = tuple(list_known(device / "net", []))
        taken.update(network_devices)
        if not is_excluded(name, excluded):
            ports = tuple(list_known(rdma_root / name / "ports", []))
            is_virtual = (device / "physfn").exists()
            yield Nic(
                *(name, ports, network_devices, read_driver(device), True),
                *(read_pci(device), is_virtual),
            )
    for name in list_names(net_root):
        device = net_root / name / "device"
        if name in taken or is_excluded(name, excluded):
            continue
        if has_hardware(net_root / name):
            yield Nic(name, ("",), (name,), read_driver(device), False, read_pci(device))


def _by_number(name: str) -> tuple[str | int, ...]:
    """Return the sort key that puts mlx5_10 behind mlx5_9."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


def _is_plain_name(name: str) -> bool:
    return bool(name) and "/" not in name and name not in (".", "..")
