"""What this node has, against what it had and what it is meant to have (detectors/node/inventory.py).

Source: network cards and disks from sysfs (agent/sources/device_scan.py); GPUs, memory modules and the size of
        the memory from the newest answers of the collectors `gpu`, `gpu_state`, `edac` and `host`.
Cost:   a listing of two folders a run; everything anew (10 ms) where one has changed, else each minute.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from agent.collectors.edac import EdacCollector
from agent.collectors.gpu import GpuCollector, GpuStateCollector
from agent.collectors.host import HostCollector
from agent.expected_devices import ALL_PLANES, ExpectedDevices
from agent.metrics import Family, Metric, gauge
from agent.sampling.collection import CollectorOutcome, CollectorView
from agent.sources.device_scan import (
    driven_functions,
    has_gpu_without_driver,
    is_guest,
    list_functions,
    rdma_functions,
    read_cpu_memory_bytes,
    scan_disks,
    scan_nics,
)
from agent.sources.pci_topology import (
    Plane,
    Topology,
    assign_planes,
    read_default_route,
    read_names,
)
from agent.sources.remembered_devices import InventoryFile
from detectors.node.inventory import (
    Device,
    DeviceKind,
    DeviceMemory,
    DeviceStanding,
    InventoryLook,
    cards_elsewhere,
    each_card_once,
    each_once,
    forget,
    forget_memory,
    update,
)
from rankmend.clock import Clock, read_boot_id
from rankmend.errors import SourceError, StorageError

RESCAN_RUNS: Final = 12  # a minute: names can stay while what they mean changes
FORGOTTEN_RUNS: Final = 12  # so long a forgotten device is shown as well, which ends its finding
MISSING_CHARS_MAX: Final = 300
MEMORY: Final = "memory"  # the name under which it is counted and forgotten
_GIB: Final = 1 << 30

log = logging.getLogger(__name__)

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "inventory_state_id",
        "",
        ("kind", "device", "pci_bus_id", "identity"),
        "A device that was there: 0 it is there, 1 it vanished in this boot, 2 it did not come back with this boot, 3 another is in its place, 4 the host took it from this virtual machine.",
    ),
    gauge(
        "inventory_devices",
        "",
        ("kind", "plane"),
        "GPUs, network cards by plane, disks and memory modules that are there.",
    ),
    gauge(
        "inventory_expected",
        "",
        ("kind", "plane"),
        "Devices that [expect] states; of the memory, GiB.",
    ),
    gauge(
        "inventory_short",
        "",
        ("kind", "plane", "missing"),
        "Devices fewer than [expect] states, and which of those that were there are missing; of the memory, GiB.",
    ),
    gauge(
        "inventory_memory_lost_bytes",
        "bytes",
        (),
        "How much less memory the node has than the most that was seen.",
    ),
    gauge(
        "inventory_known",
        "",
        ("kind",),
        "1 when the devices of a kind can be counted that [expect] states, or, of GPUs, that the node had; else 0.",
    ),
    gauge(
        "inventory_kept", "", (), "1 when the devices are remembered on disk, 0 when that failed."
    ),
)


# Devices of this node by what other collectors have answered: GPUs, memory modules, the size of the memory.


Views = Mapping[str, CollectorView]  # by collector


def answered_memory_bytes(views: Views) -> int | None:
    """Return the size of the memory as the kernel counts it, or None while that can't be told."""
    sizes = _series(views, HostCollector.name, "rankmend_host_memory_size_bytes")
    return int(sizes[0].value) if sizes else None


def answered_dimms(views: Views) -> list[Device] | None:
    """Return the memory modules that have an EDAC driver, or None where there is none."""
    modules = _series(views, EdacCollector.name, "rankmend_edac_module_info")
    found = []
    for about in (dict(series.labels) for series in modules):
        place = f"{about['controller']}/{about['module']}"
        found.append(Device(DeviceKind.DIMM, place, about["label"] or place, is_permanent=False))
    return found or None


def answered_gpus(views: Views) -> list[Device] | None:
    """Return the GPUs that the driver lists, or None while that can't be told."""
    readings = views.get(GpuCollector.name)
    if readings is None or readings.is_stale:
        return None
    if readings.outcome is CollectorOutcome.ABSENT:
        return []
    states = {
        name: _series(views, GpuStateCollector.name, f"rankmend_gpu_{name}")
        for name in ("success", "lost", "collector_stuck", "collector_released")
    }
    is_held_up = any(
        series.value
        for name in ("collector_stuck", "collector_released")
        for series in states[name]
    )
    if readings.outcome is not CollectorOutcome.MEASURED or not states["success"] or is_held_up:
        return None
    # one that is lost has a finding of its own; one that is neither is no longer listed
    listed = {
        series.labels for name in ("success", "lost") for series in states[name] if series.value
    }
    found = [
        Device(DeviceKind.GPU, about["uuid"], f"gpu{about['gpu']}", about["pci_bus_id"])
        for about in (dict(labels) for labels in sorted(listed))
        if about["uuid"]
    ]
    return each_once(found)


def _series(views: Views, collector: str, metric: str) -> list[Metric]:
    view = views.get(collector)
    if view is None or view.is_stale or view.outcome is not CollectorOutcome.MEASURED:
        return []
    return [series for series in view.metrics if series.name == metric]


class InventoryCollector:
    name = "inventory"
    interval_s = 5.0

    def __init__(
        self,
        sysfs_root: Path,
        procfs_root: Path,
        clock: Clock,
        expect: ExpectedDevices,
        excluded: Sequence[str] = (),
        plane_by_pattern: Mapping[str, Plane] | None = None,
        kept: InventoryFile | None = None,
        boot_id: str | None = None,
    ) -> None:
        """``kept``: where the devices are remembered over restarts and boots."""
        self._sysfs, self._procfs = sysfs_root, procfs_root
        self._clock = clock
        self._expect = expect
        self._excluded = tuple(excluded)
        self._plane_by_pattern = dict(plane_by_pattern or {})
        self._is_guest = is_guest(procfs_root, sysfs_root)
        self._kept = kept
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        self._views: Callable[[], Sequence[CollectorView]] = lambda: ()
        self._lock = Lock()  # guards the memory: an operator may have devices forgotten
        self._memory = kept.load() if kept is not None else DeviceMemory()
        self._is_kept = True
        self._forgotten: dict[Device, int] = {}  # runs left
        self._names: tuple[frozenset[str], ...] = ()
        self._scanned: dict[DeviceKind, list[Device]] = {}
        self._run = 0
        self._given: tuple[Metric, ...] | None = None  # the newest answer, and what it was made of
        self._basis: tuple[InventoryLook, bool] | None = None
        self._judged: DeviceMemory | None = None

    def watch(self, views: Callable[[], Sequence[CollectorView]]) -> None:
        """Take what the other collectors have answered from here."""
        self._views = views

    def collect(self) -> Sequence[Metric]:
        self._scan()
        views = {view.name: view for view in self._views()}
        found = dict(self._scanned)
        gpus, is_unloaded = answered_gpus(views), False
        if gpus == []:
            is_unloaded = has_gpu_without_driver(self._sysfs)
            gpus = None if is_unloaded else gpus
        for kind, devices in ((DeviceKind.GPU, gpus), (DeviceKind.DIMM, answered_dimms(views))):
            if devices is not None:
                found[kind] = devices
        with self._lock:
            addresses = [item.device.pci_bus_id for item in self._memory.known]
            driven = driven_functions(self._sysfs, [address for address in addresses if address])
            rdma_driven = rdma_functions(self._sysfs, driven)
            size = answered_memory_bytes(views)
            if size is not None:
                size = read_cpu_memory_bytes(self._sysfs) or size
            functions = list_functions(self._sysfs) if self._is_guest else None
            now_s = self._clock.unix_s()
            look = InventoryLook(found, self._boot_id, now_s, driven, rdma_driven, size, functions)
            basis = (replace(look, unix_s=0.0), is_unloaded)
            if self._given is not None and self._is_as_before(basis):
                return self._given
            self._take(update(self._memory, look))
            memory = self._memory
            forgotten = self._show_forgotten()
            given = tuple(self._describe(memory, forgotten, look, is_unloaded=is_unloaded))
            self._given = None if forgotten else given
            self._basis, self._judged = basis, memory
        return given

    def _is_as_before(self, basis: tuple[InventoryLook, bool]) -> bool:
        """Return whether this look says what the one before has said: as nearly all do."""
        return (
            self._memory is self._judged
            and basis == self._basis
            and not self._forgotten
            and (self._kept is None or self._is_kept)
            # such a device is forgotten with time
            and all(item.replaced_unix_s is None for item in self._memory.known)
        )

    def _describe(
        self,
        memory: DeviceMemory,
        forgotten: Sequence[Device],
        look: InventoryLook,
        *,
        is_unloaded: bool,
    ) -> Iterator[Metric]:
        gpus, size = look.found.get(DeviceKind.GPU), look.memory_bytes
        yield from self._standings(memory, forgotten)
        if gpus or (
            is_unloaded and any(item.device.kind is DeviceKind.GPU for item in memory.known)
        ):
            yield Metric("rankmend_inventory_known", int(not is_unloaded), (("kind", "gpu"),))
        yield from self._counts(memory, look)
        yield from self._memory_size(memory, size)
        if self._kept is not None:
            yield Metric("rankmend_inventory_kept", int(self._is_kept))

    def forget(self, names: Sequence[str] | None) -> list[str]:
        """Forget devices that are gone, by name, PCI address or identity; None: all of them.

        ``memory`` is the memory that was lost. Returns what was forgotten, for a person.
        """
        with self._lock:
            memory, gone = forget(self._memory, names)
            texts = [describe(device) for device in gone]
            if (names is None or MEMORY in names) and memory.memory_lost_bytes:
                texts.append(f"{memory.memory_lost_bytes / _GIB:.1f} GiB of memory")
                memory = forget_memory(memory)
            if texts:
                self._forgotten |= dict.fromkeys(gone, FORGOTTEN_RUNS)
                self._take(memory)
            if texts and self._kept is not None and not self._is_kept:
                raise SourceError(
                    "forgotten until the agent restarts: it can't write its state_dir"
                )
        return texts

    def _show_forgotten(self) -> list[Device]:
        """Return the forgotten devices that are still to be shown, in this run for one."""
        known = {(item.device.kind, item.device.identity) for item in self._memory.known}
        shown = [item for item in self._forgotten if (item.kind, item.identity) not in known]
        self._forgotten = {item: runs - 1 for item, runs in self._forgotten.items() if runs > 1}
        return shown

    def _take(self, memory: DeviceMemory) -> None:
        """Go on with this memory, and write it where it has changed."""
        has_changed = (memory.known, memory.memory_bytes_max) != (
            self._memory.known,
            self._memory.memory_bytes_max,
        )
        self._memory = memory
        if self._kept is None or (not has_changed and self._is_kept):
            return
        try:
            self._kept.save(memory)
            self._is_kept = True
        except StorageError as error:
            if self._is_kept:
                log.error("devices are not remembered on disk", extra={"error": str(error)})  # noqa: TRY400
            self._is_kept = False

    def _scan(self) -> None:
        """Look at cards and disks anew where their names have changed, else each minute."""
        classes = ("class/infiniband", "class/net", "class/nvme", "block")
        names = tuple(read_names(self._sysfs / folder) for folder in classes)
        is_due = self._run % RESCAN_RUNS == 0
        self._run += 1
        if names == self._names and not is_due:
            return
        topology, nics = scan_nics(self._sysfs, self._excluded)
        topology = self._with_network_devices(topology, nics)
        planes: dict[str, list[str]] = {}
        in_band = read_default_route(self._procfs, self._sysfs)
        for member in assign_planes(topology, self._plane_by_pattern, {}, in_band):
            if member.plane.value not in planes.setdefault(member.device, []):
                planes[member.device].append(member.plane.value)
        nics = [replace(nic, planes=tuple(planes.get(nic.name, ()))) for nic in nics]
        self._scanned = {
            DeviceKind.NIC: [nic for nic in nics if nic.kind is DeviceKind.NIC],
            DeviceKind.ETHERNET: [nic for nic in nics if nic.kind is DeviceKind.ETHERNET],
            DeviceKind.DISK: scan_disks(self._sysfs),
        }
        self._names = names

    def _with_network_devices(self, topology: Topology, nics: Sequence[Device]) -> Topology:
        """Give RDMA devices the network devices that containers hold: planes may hang on their names."""
        with self._lock:
            known = {
                (item.device.kind, item.device.identity): item.device.network_devices
                for item in self._memory.known
            }
        held = {
            nic.name: known.get((nic.kind, nic.identity), ())
            for nic in nics
            if not nic.network_devices
        }
        return replace(
            topology,
            nics=tuple(
                replace(nic, network_devices=nic.network_devices or held.get(nic.name, ()))
                for nic in topology.nics
            ),
        )

    def _standings(self, memory: DeviceMemory, forgotten: Sequence[Device]) -> Iterator[Metric]:
        standings = [(item.device, memory.standing(item.device)) for item in memory.known]
        for device, standing in [
            *standings,
            *((item, DeviceStanding.PRESENT) for item in forgotten),
        ]:
            if standing is not None:
                labels = (
                    ("kind", device.kind.value),
                    ("device", device.name),
                    ("pci_bus_id", device.pci_bus_id),
                    ("identity", device.identity),
                )
                yield Metric("rankmend_inventory_state_id", standing.value, labels)

    def _counts(self, memory: DeviceMemory, look: InventoryLook) -> Iterator[Metric]:
        """Return how many there are, how many there ought to be, and which are missed."""
        found = look.found
        cards = _cards(memory, look)
        for plane in sorted({plane for card in cards for plane in card.planes}):
            count = sum(plane in card.planes for card in cards)
            yield Metric("rankmend_inventory_devices", count, _kind("nic", plane))
        for kind in (DeviceKind.GPU, DeviceKind.DISK, DeviceKind.DIMM):
            # a node that never had any has no number of them
            if found.get(kind) or (kind in found and self._is_missed(memory, kind)):
                yield Metric("rankmend_inventory_devices", len(found[kind]), _kind(kind.value))
        for plane, expected in self._expect.nics_by_plane().items():
            there = [card for card in cards if plane in (*card.planes, ALL_PLANES)]
            gone = [
                device
                for device in memory.missing()
                if device.kind in (DeviceKind.NIC, DeviceKind.ETHERNET)
                and plane in (*device.planes, ALL_PLANES)
            ]
            yield from _short("nic", plane, expected, len(there), gone)
        for kind, wanted in (
            (DeviceKind.DISK, self._expect.disks),
            (DeviceKind.DIMM, self._expect.dimms),
        ):
            if wanted is None:
                continue
            yield Metric("rankmend_inventory_known", int(kind in found), (("kind", kind.value),))
            if kind in found:
                gone = [device for device in memory.missing() if device.kind is kind]
                yield from _short(kind.value, "", wanted, len(found[kind]), gone)

    def _is_missed(self, memory: DeviceMemory, kind: DeviceKind) -> bool:
        expected = {DeviceKind.GPU: self._expect.gpus, DeviceKind.DISK: self._expect.disks}.get(
            kind
        )
        return bool(expected) or any(item.device.kind is kind for item in memory.known)

    def _memory_size(self, memory: DeviceMemory, size: int | None) -> Iterator[Metric]:
        if (lost_bytes := memory.memory_lost_bytes) is not None:
            yield Metric("rankmend_inventory_memory_lost_bytes", lost_bytes)
        expected_gib = self._expect.memory_gib
        if expected_gib is None:
            return
        yield Metric("rankmend_inventory_known", int(size is not None), (("kind", MEMORY),))
        if size is not None:
            yield from _short(MEMORY, "", expected_gib, round(size / _GIB, 1), [])


def _cards(memory: DeviceMemory, look: InventoryLook) -> list[Device]:
    """Return the network cards of the node, each once, with those that a container holds."""
    return each_card_once(
        [
            *look.found.get(DeviceKind.NIC, ()),
            *look.found.get(DeviceKind.ETHERNET, ()),
            *cards_elsewhere(memory, look),
        ]
    )


def _kind(kind: str, plane: str = "") -> tuple[tuple[str, str], ...]:
    return (("kind", kind), ("plane", plane))


def _short(
    kind: str, plane: str, expected: float, count: float, gone: Sequence[Device]
) -> Iterator[Metric]:
    short = max(0.0, expected - count)
    names = "; ".join(describe(device) for device in gone) if short else ""
    yield Metric("rankmend_inventory_expected", expected, _kind(kind, plane))
    missing = ("missing", names[:MISSING_CHARS_MAX])
    yield Metric("rankmend_inventory_short", short, (*_kind(kind, plane), missing))


def describe(device: Device) -> str:
    """Return a device as a person looks for it: ``mlx5_3 (0000:5d:00.0, 946d:ae03:00f4:1c2a)``."""
    about = dict.fromkeys(text for text in (device.pci_bus_id, device.identity) if text)
    about.pop(device.name, None)
    return f"{device.name} ({', '.join(about)})" if about else device.name
