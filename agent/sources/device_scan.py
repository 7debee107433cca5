"""Which network cards and disks there are, each with what identifies it for good.

Source: <root>/class/infiniband/<device>/node_guid (Linux Documentation/ABI/stable/sysfs-class-infiniband),
        <root>/class/net/<device>/{address,addr_assign_type,bonding_slave/perm_hwaddr}
        (ABI/testing/sysfs-class-net), <root>/class/nvme/<device>/{serial,model,transport},
        <root>/block/<device>/{removable,device/wwid,device/model}.

Left out is what comes and goes in normal life: virtual and scalable functions and their
representors, devices made of software (bonds, veth, bridges, software RDMA), what hangs on USB, network disks (iSCSI, Fibre Channel, NVMe over
fabrics, volumes of a cloud), removable ones.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from agent.sources.pci_topology import (
    Topology,
    list_known,
    list_names,
    read_driver,
    read_pci,
    read_text,
    read_topology,
)
from detectors.node.inventory import Device, DeviceKind

NO_GUIDS: Final = frozenset({"", "0000:0000:0000:0000", "ffff:ffff:ffff:ffff"})
_PERMANENT_ADDRESS: Final = "0"  # NET_ADDR_PERM, include/uapi/linux/netdevice.h
_NO_ADDRESS: Final = re.compile(r"(00:)*00")
_SCSI_DISK: Final = re.compile(r"sd[a-z]+")
# models of volumes that a cloud or a hypervisor attaches and detaches: EBS, Persistent Disk and
# Hyperdisk, Azure, VMware, Oracle, QEMU, Alibaba; virtio disks (vda) are no SCSI disks and left out
_REMOTE_MODELS: Final = re.compile(
    r"Amazon Elastic Block Store|nvme_card-pd|PersistentDisk|Virtual Disk|MSFT NVMe Accelerator.*"
    r"|BlockVolume|QEMU HARDDISK|QEMU NVMe Ctrl|(Alibaba )?Cloud Elastic Block Storage"
    r"|VMware Virtual .*|VBOX HARDDISK",
    re.IGNORECASE,
)
_PASSING_PATHS: Final = re.compile(r"/virtual/|/usb|/\w+\.sf\.\d+(/|$)")  # sf: scalable function
# the switch's end of a function: net/core/devlink.c, __devlink_port_phys_port_name_get (6.12)
_REPRESENTOR: Final = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
_REMOTE_PATHS: Final = re.compile(r"/(usb\d|session\d|rport-)")
_IDENTITY_CHARS_MAX: Final = 96
_CPUINFO_CHARS_MAX: Final = 1 << 16  # the first CPU's flags are within 4,000
_GUEST_NAMES: Final = re.compile(
    r"KVM|QEMU|VMware|Virtual Machine|VirtualBox|Xen|Google Compute Engine|OpenStack", re.IGNORECASE
)
_GPU_CLASSES: Final = frozenset({"0x0300", "0x0302"})  # VGA and 3D controllers (pci_ids.h)
_NVIDIA: Final = "0x10de"
_NUMA_NODE: Final = re.compile(r"node\d{1,4}")
_NODE_MEMORY: Final = re.compile(r"MemTotal:\s+(\d{1,15}) kB")  # drivers/base/node.c
# drivers/net/ethernet/{mellanox/mlx5/core/dev.c,broadcom/bnxt/bnxt_ulp.c,intel/ice/ice_idc.c} (6.12)
_AUXILIARY_DRIVERS: Final = frozenset({"mlx5_core", "bnxt_en", "ice"})
_RDMA_PART: Final = re.compile(r"\w+\.(rdma|roce|iwarp)\.\d+")


def scan_nics(sysfs_root: Path, excluded: Sequence[str]) -> tuple[Topology, list[Device]]:
    """Return the network cards, and the topology for the planes of their ports."""
    topology = read_topology(sysfs_root, excluded)
    devices: list[Device] = []
    # a cloud's virtual function has the address of the device that it serves
    seen: set[str] = set()
    for nic in topology.nics:
        folder = sysfs_root / "class" / ("infiniband" if nic.is_rdma else "net") / nic.name
        place = _resolved(folder)
        if (folder / "device" / "physfn").exists() or _PASSING_PATHS.search(place):
            continue
        if _REPRESENTOR.fullmatch(read_text(folder / "phys_port_name") or ""):
            continue
        own = _guid(folder) if nic.is_rdma else _permanent_address(folder)
        own = "" if own in seen else own
        seen.add(own)
        kind = DeviceKind.NIC if nic.is_rdma else DeviceKind.ETHERNET
        bus_id = nic.pci.bus_id
        identity = own or bus_id or nic.name
        netdevs = nic.network_devices if nic.is_rdma else ()
        device = Device(kind, identity, nic.name, bus_id, bool(own), network_devices=netdevs)
        devices.append(device)
    named = {
        item.pci_bus_id
        for item in devices
        if item.kind is DeviceKind.ETHERNET and item.is_permanent
    }
    # what has no identity of its own beside one that has is a part of that card
    return topology, [
        item
        for item in devices
        if item.kind is DeviceKind.NIC or item.is_permanent or item.pci_bus_id not in named - {""}
    ]


def _guid(folder: Path) -> str:
    guid = (read_text(folder / "node_guid") or "")[:_IDENTITY_CHARS_MAX]
    return "" if guid in NO_GUIDS else guid


def _permanent_address(folder: Path) -> str:
    """Return the MAC that the card was made with; a port of a bond carries the bond's in `address`."""
    address = read_text(folder / "bonding_slave" / "perm_hwaddr")
    if address is None and read_text(folder / "addr_assign_type") == _PERMANENT_ADDRESS:
        address = read_text(folder / "address")
    address = (address or "")[:_IDENTITY_CHARS_MAX]
    return "" if _NO_ADDRESS.fullmatch(address) else address


def scan_disks(sysfs_root: Path) -> list[Device]:
    """Return the disks that are built into this node."""
    return [*_nvme_disks(sysfs_root / "class" / "nvme"), *_scsi_disks(sysfs_root / "block")]


def _nvme_disks(root: Path) -> Iterator[Device]:
    for name in list_names(root):
        folder = root / name
        model = read_text(folder / "model") or ""
        if read_text(folder / "transport") not in (None, "pcie") or _is_remote(folder, model):
            continue
        bus_id = read_pci(folder / "device").bus_id
        serial = (read_text(folder / "serial") or "")[:_IDENTITY_CHARS_MAX]
        yield Device(
            DeviceKind.DISK, serial or bus_id or name, name, bus_id, is_permanent=bool(serial)
        )


def _scsi_disks(root: Path) -> Iterator[Device]:
    seen: set[str] = set()  # a disk with two paths has two names
    for name in list_names(root):
        folder = root / name
        if not _SCSI_DISK.fullmatch(name) or read_text(folder / "removable") == "1":
            continue
        if _is_remote(folder, read_text(folder / "device" / "model") or ""):
            continue
        wwid = " ".join((read_text(folder / "device" / "wwid") or "").split())
        wwid = wwid[:_IDENTITY_CHARS_MAX]
        # without one of its own there is only the name, which another boot may give to another disk
        if wwid and wwid not in seen:
            seen.add(wwid)
            yield Device(DeviceKind.DISK, wwid, name, slot=_scsi_slot(folder / "device"))


def _scsi_slot(device: Path) -> str:
    """Return the enclosure's slot of a SCSI disk, else its host, channel, target and LUN."""
    slots = [name for name in list_known(device, []) if name.startswith("enclosure_device:")]
    place = _resolved(device / slots[0]) if slots else Path(_resolved(device)).name
    return place[-_IDENTITY_CHARS_MAX:]


def _is_remote(folder: Path, model: str) -> bool:
    return bool(_REMOTE_MODELS.fullmatch(model) or _REMOTE_PATHS.search(_resolved(folder)))


def driven_functions(sysfs_root: Path, bus_ids: Sequence[str]) -> frozenset[str]:
    """Return those PCI functions that are there and have a driver."""
    devices = f"{sysfs_root}/bus/pci/devices"
    return frozenset(
        bus_id
        for bus_id in bus_ids
        if os.path.exists(f"{devices}/{bus_id}/driver")  # noqa: PTH110 - each 5 s: Path is dear
    )


def rdma_functions(sysfs_root: Path, driven: Iterable[str]) -> frozenset[str]:
    """Return those driven PCI functions whose driver still keeps an RDMA device.

    In the mode `exclusive` of `rdma system` the device itself shows in one network namespace only.
    Drivers that split their work have an auxiliary device for RDMA, which shows everywhere and goes
    when the driver gives the RDMA device up (mlx5_core after a firmware that can't be recovered).
    """
    has_auxiliary = (sysfs_root / "bus" / "auxiliary").exists()
    devices = sysfs_root / "bus" / "pci" / "devices"
    return frozenset(
        bus_id
        for bus_id in driven
        if not (has_auxiliary and read_driver(devices / bus_id) in _AUXILIARY_DRIVERS)
        or any(
            _RDMA_PART.fullmatch(name) and (devices / bus_id / name / "driver").exists()
            for name in list_known(devices / bus_id, [])
        )
    )


def _resolved(folder: Path) -> str:
    try:
        return str(folder.resolve())
    except (OSError, RuntimeError):  # links that go round; RuntimeError before Python 3.13
        return ""


def is_guest(procfs_root: Path, sysfs_root: Path) -> bool:
    """Tell whether this is a virtual machine.

    x86 processors say it by a flag that hypervisors set; elsewhere the firmware's names do.
    """
    try:
        with (procfs_root / "cpuinfo").open(encoding="ascii", errors="replace") as file:
            flags = re.search(r"^flags\s*:(.*)$", file.read(_CPUINFO_CHARS_MAX), re.MULTILINE)
    except OSError:
        flags = None
    if flags is not None:
        return "hypervisor" in flags[1].split()
    dmi = sysfs_root / "class" / "dmi" / "id"
    vendor, product = read_text(dmi / "sys_vendor") or "", read_text(dmi / "product_name") or ""
    if vendor == "Amazon EC2":
        return "metal" not in product
    return bool(_GUEST_NAMES.search(f"{vendor} {product}"))


def list_functions(sysfs_root: Path) -> frozenset[str]:
    """Return the PCI functions that are there."""
    return frozenset(list_known(sysfs_root / "bus" / "pci" / "devices", []))


def has_gpu_without_driver(sysfs_root: Path) -> bool:
    """Tell whether an NVIDIA GPU is on the bus that no driver drives."""
    devices = sysfs_root / "bus" / "pci" / "devices"
    return any(
        (read_text(devices / name / "class") or "")[:6] in _GPU_CLASSES
        and read_text(devices / name / "vendor") == _NVIDIA
        and not (devices / name / "driver").exists()
        for name in list_known(devices, [])
    )


def read_cpu_memory_bytes(sysfs_root: Path) -> int | None:
    """Return the memory of the NUMA nodes that have CPUs; None where they don't tell.

    The memory of a GPU that shares the CPU's address space (GH200, GB200) is a node without CPUs,
    which comes and goes with the driver and is no module of this machine.
    """
    root = sysfs_root / "devices" / "system" / "node"
    total_kib = 0
    for name in list_known(root, []):
        if not _NUMA_NODE.fullmatch(name) or not read_text(root / name / "cpulist"):
            continue
        size = _NODE_MEMORY.search(read_text(root / name / "meminfo") or "")
        if size is None:
            return None
        total_kib += int(size[1])
    return total_kib * 1024 or None
