"""What a node has compared with what it had: devices that vanished, did not return or were replaced.

A device's identity is its GUID, MAC, UUID or serial number, else its PCI address, else its name. So
a renamed device is the same device, and a new device in the same slot is no loss. Devices are
remembered from the first look, across boots, until a person has them forgotten. If a kind can't be
looked at, its devices are unknown: none vanishes and none returns.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

DEVICES_MAX: Final = 512  # a node of 16 GPUs, 32 NICs, 64 disks and 64 memory modules has 176
REPLACED_S: Final = 7 * 86_400.0  # after this, a replaced device is forgotten


class DeviceKind(Enum):
    GPU = "gpu"
    NIC = "nic"  # an RDMA device, with its network devices
    ETHERNET = "ethernet"  # a network card without RDMA
    DISK = "disk"
    DIMM = "dimm"

    # by identity, as members are equal: Enum hashes the name in Python, thousands of times a look
    __hash__ = object.__hash__


class DeviceStanding(Enum):
    """The state of a known device; the values are those of the metric."""

    PRESENT = 0
    VANISHED = 1  # since this boot began
    NOT_BACK = 2  # seen in an earlier boot but not in this one
    REPLACED = 3  # another device is in its place
    WITHDRAWN = 4  # a virtual machine's RDMA device; the host removed its PCI function


@dataclass(frozen=True, slots=True)
class Device:
    kind: DeviceKind
    identity: str  # GUID, MAC, UUID, serial number; else the PCI address or the name
    name: str
    pci_bus_id: str = ""
    is_permanent: bool = True  # the identity belongs to the device, not to its place
    planes: tuple[str, ...] = ()  # network cards only
    network_devices: tuple[str, ...] = ()  # RDMA devices only: the ones last seen
    slot: str = ""  # disks without a PCI function only

    @property
    def place(self) -> str:
        """Return where it sits, which shows that another device took its place; empty if unknown."""
        return self.slot or self.pci_bus_id


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A remembered device."""

    device: Device
    boot_id: str  # the newest boot in which it was seen
    replaced_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class InventoryLook:
    """The devices found now. A kind missing from `found` can't be read."""

    found: Mapping[DeviceKind, Sequence[Device]]
    boot_id: str
    unix_s: float
    # PCI functions that have a driver: their network device may be in another network namespace
    driven: Collection[str] = ()
    rdma_driven: Collection[str] = ()  # the same for their RDMA device
    memory_bytes: int | None = None  # None: not known now
    # in a virtual machine the host adds and removes cards: the PCI functions that are there now
    functions_of_guest: Collection[str] | None = None  # None: not in a virtual machine


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """All remembered devices and their standing at the newest look."""

    known: tuple[KnownDevice, ...] = ()
    standings: Mapping[tuple[DeviceKind, str], DeviceStanding] = field(default_factory=dict)
    dropped: int = 0  # devices beyond DEVICES_MAX: counted, never silently lost
    memory_bytes_max: int = 0  # the most that was seen
    memory_bytes: int | None = None  # at the newest look that could tell

    @property
    def memory_lost_bytes(self) -> int | None:
        """Return how much memory the node lost; None if that is not known."""
        if self.memory_bytes is None:
            return None
        return max(0, self.memory_bytes_max - self.memory_bytes)

    def standing(self, device: Device) -> DeviceStanding | None:
        """Return a device's standing; None if it is not known."""
        return self.standings.get((device.kind, device.identity))

    def missing(self) -> list[Device]:
        wanted = (DeviceStanding.VANISHED, DeviceStanding.NOT_BACK, DeviceStanding.WITHDRAWN)
        return [item.device for item in self.known if self.standing(item.device) in wanted]


def each_once(devices: Iterable[Device]) -> list[Device]:
    """Return the devices without those whose identity another one has already: one card that is listed twice is one card."""
    return list(
        {(device.kind, device.identity): device for device in reversed(list(devices))}.values()
    )[::-1]


def update(memory: DeviceMemory, look: InventoryLook) -> DeviceMemory:
    """Return what is remembered after a look.

    A memory that holds something twice heals: what is there now, else what was seen last, is kept.
    """
    memory = replace(memory, known=_known_once(memory.known))
    look = replace(look, found={kind: each_once(found) for kind, found in look.found.items()})
    matches = _matches(memory, look)
    taken = {device for device in matches.values() if device is not None}
    new = [
        KnownDevice(device, look.boot_id)
        for devices in look.found.values()
        for device in devices
        if device not in taken
    ]
    new_places = {(item.device.kind, item.device.place) for item in new}
    known: list[KnownDevice] = []
    standings: dict[tuple[DeviceKind, str], DeviceStanding] = {}
    for item in memory.known:
        now, standing = item, memory.standing(item.device)
        if item.device.kind in look.found:
            match = matches.get(item)
            place = (item.device.kind, item.device.place)
            if match is not None:
                now, standing = (
                    KnownDevice(_merged(item.device, match), look.boot_id),
                    DeviceStanding.PRESENT,
                )
            elif _is_rdma_now(item.device, look) or _is_detached(item.device, look):
                continue
            elif item.replaced_unix_s is not None or (place[1] and place in new_places):
                since_s = look.unix_s if item.replaced_unix_s is None else item.replaced_unix_s
                if look.unix_s - since_s > REPLACED_S:
                    continue
                now, standing = replace(item, replaced_unix_s=since_s), DeviceStanding.REPLACED
            else:
                standing = _standing_of_absent(item, look)
        elif standing is DeviceStanding.PRESENT:
            standing = None  # not looked at
        known.append(now)
        if standing is not None:
            standings[now.device.kind, now.device.identity] = standing
    for item in new:
        standings[item.device.kind, item.device.identity] = DeviceStanding.PRESENT
    known += new
    dropped = memory.dropped + max(0, len(known) - DEVICES_MAX)
    known = _newest(known, standings)
    size = memory.memory_bytes if look.memory_bytes is None else look.memory_bytes
    size_max = max(memory.memory_bytes_max, size or 0)
    return DeviceMemory(tuple(known), _once_a_card(known, standings), dropped, size_max, size)


def _known_once(known: Iterable[KnownDevice]) -> tuple[KnownDevice, ...]:
    """Return each identity once: the record that was seen last, in the order in which they were first met."""
    return tuple(
        {(device.device.kind, device.device.identity): device for device in known}.values()
    )


def _newest(
    known: Sequence[KnownDevice], standings: Mapping[tuple[DeviceKind, str], DeviceStanding]
) -> list[KnownDevice]:
    """Return as many devices as fit; drop those that are gone first, oldest first."""
    states = [
        (device, standings.get((device.device.kind, device.device.identity))) for device in known
    ]
    replaced = [item for item, state in states if state is DeviceStanding.REPLACED]
    lost = [
        item
        for item, state in states
        if state not in (None, DeviceStanding.PRESENT, DeviceStanding.REPLACED)
    ]
    out = [*replaced, *lost][: max(0, len(known) - DEVICES_MAX)]
    left = [device for device in known if device not in out]
    return left[:DEVICES_MAX]


def _matches(memory: DeviceMemory, look: InventoryLook) -> dict[KnownDevice, Device | None]:
    """Return which present device each known one is; permanent identities match first."""
    matches: dict[KnownDevice, Device | None] = {}
    taken: set[Device] = set()
    for fits in (_is_same, _is_in_place_of):
        for item in memory.known:
            if matches.get(item) is not None:
                continue
            there = (
                device for device in look.found.get(item.device.kind, ()) if device not in taken
            )
            match = matches[item] = next((new for new in there if fits(item.device, new)), None)
            if match is not None:
                taken.add(match)
    return matches


def _is_same(before: Device, now: Device) -> bool:
    return before.identity == now.identity


def _is_in_place_of(before: Device, now: Device) -> bool:
    """Return whether two are the same by their place, if either has no permanent identity."""
    is_unsure = not (before.is_permanent and now.is_permanent)
    return is_unsure and bool(before.pci_bus_id) and before.pci_bus_id == now.pci_bus_id


def _merged(before: Device, now: Device) -> Device:
    """Return the device as seen now, with the better of the two identities."""
    if not now.network_devices:  # a container may hold them
        now = replace(now, network_devices=before.network_devices)
    if before.is_permanent and not now.is_permanent:
        return replace(now, identity=before.identity, is_permanent=True)
    return now


def _standing_of_absent(item: KnownDevice, look: InventoryLook) -> DeviceStanding:
    device = item.device
    if _is_hidden(device, look) or _is_bonded(device, look):
        return DeviceStanding.PRESENT
    if device.kind is DeviceKind.NIC and _is_taken_by_host(device, look):
        return DeviceStanding.WITHDRAWN
    return DeviceStanding.VANISHED if item.boot_id == look.boot_id else DeviceStanding.NOT_BACK


def _is_taken_by_host(device: Device, look: InventoryLook) -> bool:
    """Tell whether a card of a virtual machine is gone with its PCI function."""
    functions = look.functions_of_guest
    return functions is not None and device.pci_bus_id not in functions


def _is_detached(device: Device, look: InventoryLook) -> bool:
    """Tell whether a virtual machine lost a network card that hosts attach and detach at will."""
    return device.kind is DeviceKind.ETHERNET and _is_taken_by_host(device, look)


def each_card_once(cards: Sequence[Device]) -> list[Device]:
    """Return the cards without the network devices that RDMA devices have."""
    rdma = {card.pci_bus_id for card in cards if card.kind is DeviceKind.NIC} - {""}
    return [card for card in cards if card.kind is DeviceKind.NIC or card.pci_bus_id not in rdma]


def cards_elsewhere(memory: DeviceMemory, look: InventoryLook) -> list[Device]:
    """Return the network cards that exist but can't be seen because a container holds them.

    Members of a bond are not among them: the RDMA device of the bond stands for them.
    """
    seen = {
        (kind, device.identity)
        for kind in (DeviceKind.NIC, DeviceKind.ETHERNET)
        for device in look.found.get(kind, ())
    }
    return [
        item.device
        for item in memory.known
        if memory.standing(item.device) is DeviceStanding.PRESENT
        and (item.device.kind, item.device.identity) not in seen
        and not any(
            _is_in_place_of(item.device, now) for now in look.found.get(item.device.kind, ())
        )
        and _is_hidden(item.device, look)
        and not _is_bonded(item.device, look)
    ]


def _is_hidden(device: Device, look: InventoryLook) -> bool:
    """Tell whether a network card is in another network namespace: only its PCI function shows."""
    driven = {DeviceKind.ETHERNET: look.driven, DeviceKind.NIC: look.rdma_driven}.get(
        device.kind, ()
    )
    return device.pci_bus_id in driven


def forget(
    memory: DeviceMemory, names: Collection[str] | None
) -> tuple[DeviceMemory, list[Device]]:
    """Return the memory without the named devices that are gone (None: all), and those devices."""
    gone = [
        item.device
        for item in memory.known
        if memory.standing(item.device) not in (None, DeviceStanding.PRESENT)
        and (names is None or not set(names).isdisjoint(_names(item.device)))
    ]
    known = tuple(item for item in memory.known if item.device not in gone)
    keys = {(device.kind, device.identity) for device in gone}
    standings = {key: state for key, state in memory.standings.items() if key not in keys}
    return replace(memory, known=known, standings=standings), gone


def forget_memory(memory: DeviceMemory) -> DeviceMemory:
    """Return the memory with the present size as the expected one."""
    size = memory.memory_bytes
    return memory if size is None else replace(memory, memory_bytes_max=size)


def _names(device: Device) -> set[str]:
    return {device.name, device.identity, device.pci_bus_id} - {""}


def _is_rdma_now(device: Device, look: InventoryLook) -> bool:
    """Return whether a network card is now an RDMA device and remembered as such."""
    return device.kind is DeviceKind.ETHERNET and any(
        nic.pci_bus_id == device.pci_bus_id
        for nic in look.found.get(DeviceKind.NIC, ())
        if nic.pci_bus_id
    )


def _is_bonded(item: Device, look: InventoryLook) -> bool:
    """Tell whether an RDMA device has become part of a bond of its card (mlx5_bond_0)."""
    if item.kind is not DeviceKind.NIC:
        return False
    slot = item.pci_bus_id.rpartition(".")[0]
    return bool(slot) and any(
        "bond" in device.name and device.pci_bus_id.rpartition(".")[0] == slot
        for device in look.found[item.kind]
    )


def _once_a_card(
    known: Iterable[KnownDevice], standings: Mapping[tuple[DeviceKind, str], DeviceStanding]
) -> dict[tuple[DeviceKind, str], DeviceStanding]:
    """Leave out the network device if its card's RDMA device is gone too: one card counts once."""
    gone = {
        device.device.pci_bus_id
        for device in known
        if device.device.kind is DeviceKind.NIC
        and standings.get((DeviceKind.NIC, device.device.identity))
        not in (None, DeviceStanding.PRESENT)
    } - {""}
    covered = {
        device.device.identity
        for device in known
        if device.device.kind is DeviceKind.ETHERNET and device.device.pci_bus_id in gone
    }
    return {
        (kind, identity): standing
        for (kind, identity), standing in standings.items()
        if not (
            kind is DeviceKind.ETHERNET
            and identity in covered
            and standing is not DeviceStanding.PRESENT
        )
    }
