"""What a node had against what it has: the rules, the scan of a /sys, the file, the command."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent import config as configuration
from agent.expected_devices import ExpectedDevices
from agent.inventory_commands import inventory_commands
from agent.metrics import Metric
from agent.sampling.collection import CollectorOutcome, CollectorView
from agent.sources.device_scan import is_guest, read_cpu_memory_bytes, scan_disks, scan_nics
from agent.sources.pci_topology import Plane
from agent.sources.remembered_devices import BYTES_MAX
from detectors.node.inventory import (
    DEVICES_MAX,
    REPLACED_S,
    Device,
    DeviceKind,
    DeviceMemory,
    DeviceStanding,
    InventoryLook,
    cards_elsewhere,
    forget,
    update,
)
from rankmend.errors import ConfigError, SourceError
from tests.support.agent import answer_of
from tests.support.inventory import Bed, make_bed, make_tree
from tests.support.nics import add_net, add_pci, add_rdma, link, write

NIC = Device(DeviceKind.NIC, "946d:ae03:00f4:0001", "mlx5_0", "0000:1a:00.0")
OTHER = Device(DeviceKind.NIC, "946d:ae03:00f4:0002", "mlx5_1", "0000:3b:00.0")
CARD = Device(DeviceKind.ETHERNET, "04:3f:72:00:00:01", "eth0", "0000:1a:00.0")


def look(*devices: Device, boot_id: str = "boot-1", unix_s: float = 1000.0) -> InventoryLook:
    found = {kind: [one for one in devices if one.kind is kind] for kind in DeviceKind}
    return InventoryLook(found, boot_id, unix_s)


def remembered(*devices: Device) -> DeviceMemory:
    return update(DeviceMemory(), look(*devices))


# ---- the rules


def test_device_that_goes_in_this_boot_has_vanished() -> None:
    memory = update(remembered(NIC, OTHER), look(OTHER))

    assert memory.standing(NIC) is DeviceStanding.VANISHED
    assert memory.standing(OTHER) is DeviceStanding.PRESENT
    assert memory.missing() == [NIC]


def test_device_that_does_not_come_back_with_a_boot_is_told_apart_from_one_that_vanished() -> None:
    memory = update(remembered(NIC, OTHER), look(OTHER, boot_id="boot-2"))

    assert memory.standing(NIC) is DeviceStanding.NOT_BACK
    assert (
        update(memory, look(NIC, OTHER, boot_id="boot-2")).standing(NIC) is DeviceStanding.PRESENT
    )


def test_device_with_another_name_or_another_address_is_the_same_device() -> None:
    renamed = replace(NIC, name="ibp26s0", pci_bus_id="0000:1b:00.0")

    memory = update(remembered(NIC), look(renamed, boot_id="boot-2"))

    assert [one.device for one in memory.known] == [renamed]
    assert memory.missing() == []


def test_another_device_in_its_place_is_no_loss_and_the_old_one_is_forgotten_after_a_week() -> None:
    new = replace(NIC, identity="946d:ae03:00f4:0099")
    memory = update(remembered(NIC), look(new, boot_id="boot-2", unix_s=2000.0))
    later = update(memory, look(new, boot_id="boot-2", unix_s=2000.0 + REPLACED_S))
    a_week_later = update(later, look(new, boot_id="boot-2", unix_s=2001.0 + REPLACED_S))

    assert memory.standing(NIC) is later.standing(NIC) is DeviceStanding.REPLACED
    assert memory.missing() == []
    assert [one.device for one in a_week_later.known] == [new]


def test_place_decides_where_a_look_can_not_tell_whose_device_it_is() -> None:
    in_bond = Device(
        DeviceKind.ETHERNET, CARD.pci_bus_id, "eth0", CARD.pci_bus_id, is_permanent=False
    )

    memory = update(remembered(CARD), look(in_bond))

    assert [one.device.identity for one in memory.known] == [CARD.identity]
    assert memory.missing() == []


def test_kind_that_can_not_be_looked_at_loses_nothing_and_gets_nothing_back() -> None:
    unknown = InventoryLook({}, "boot-1", 1000.0)
    gone = update(remembered(NIC, OTHER), look(OTHER))

    memory = update(gone, unknown)

    assert memory.standing(OTHER) is None
    assert memory.standing(NIC) is DeviceStanding.VANISHED
    assert update(memory, look(NIC, OTHER)).missing() == []


def test_card_whose_rdma_device_is_gone_as_well_is_told_once() -> None:
    memory = remembered(CARD)
    memory = replace(memory, known=(*remembered(NIC).known, *memory.known))

    memory = update(memory, look())

    assert memory.missing() == [NIC]


def test_card_that_became_an_rdma_device_is_remembered_as_one() -> None:
    memory = update(remembered(CARD), look(NIC))

    assert [one.device for one in memory.known] == [NIC]


def test_rdma_device_that_became_part_of_a_bond_has_not_vanished() -> None:
    first = replace(NIC, pci_bus_id="0000:1a:00.0")
    second = replace(OTHER, pci_bus_id="0000:1a:00.1")
    bond = replace(first, name="mlx5_bond_0")

    assert update(remembered(first, second), look(bond)).missing() == []


def test_card_that_a_container_holds_has_not_vanished() -> None:
    driven = replace(look(), driven=frozenset({CARD.pci_bus_id}))

    assert update(remembered(CARD), driven).missing() == []
    assert update(remembered(CARD), look()).missing() == [CARD]


def test_rdma_device_that_a_container_holds_has_not_vanished() -> None:
    held = replace(look(), rdma_driven=frozenset({NIC.pci_bus_id}))

    assert update(remembered(NIC), held).missing() == []
    assert update(remembered(NIC), replace(look(), driven=frozenset({NIC.pci_bus_id}))).missing()


def test_cards_elsewhere_are_those_that_a_container_holds_and_no_members_of_a_bond() -> None:
    second = replace(OTHER, pci_bus_id="0000:1a:00.1")
    far = replace(OTHER, identity="946d:ae03:00f4:0003", pci_bus_id="0000:5d:00.0")
    driven = frozenset({NIC.pci_bus_id, second.pci_bus_id, far.pci_bus_id})
    now = replace(look(replace(NIC, name="mlx5_bond_0")), rdma_driven=driven)

    memory = update(remembered(NIC, second, far), now)

    assert cards_elsewhere(memory, now) == [far]


def test_new_device_has_room_where_those_that_are_gone_make_it() -> None:
    card = replace(CARD, pci_bus_id="")
    gone = [replace(card, identity=f"02:{number:04}") for number in range(DEVICES_MAX)]
    memory = update(remembered(*gone), look())

    memory = update(memory, look(card, OTHER))

    assert memory.standing(card) is memory.standing(OTHER) is DeviceStanding.PRESENT
    assert [one.device for one in memory.known] == [*gone[2:], OTHER, card]


def test_card_that_a_host_takes_from_a_virtual_machine_is_forgotten_or_withdrawn() -> None:
    attached = replace(look(NIC, CARD), functions_of_guest=frozenset({NIC.pci_bus_id}))
    other_card = replace(CARD, pci_bus_id="0000:05:00.0")
    memory = update(DeviceMemory(), replace(attached, found={**look(NIC, other_card).found}))
    detached = replace(look(), functions_of_guest=frozenset())
    fallen = replace(look(), functions_of_guest=frozenset({NIC.pci_bus_id, other_card.pci_bus_id}))

    after = update(memory, detached)

    assert [one.device for one in after.known] == [NIC]
    assert after.standing(NIC) is DeviceStanding.WITHDRAWN
    assert update(memory, fallen).missing() == [NIC, other_card]


def test_disk_in_the_slot_of_another_has_replaced_it() -> None:
    old = Device(DeviceKind.DISK, "naa.1", "sda", slot="2:0:0:0")
    new = replace(old, identity="naa.2")
    memory = update(remembered(old), look())

    memory = update(memory, look(new))

    assert memory.standing(old) is DeviceStanding.REPLACED


def test_no_more_devices_are_remembered_than_fit_and_the_rest_is_counted() -> None:
    disks = [
        Device(DeviceKind.DISK, f"S{number}", f"nvme{number}") for number in range(DEVICES_MAX + 3)
    ]

    memory = remembered(*disks)

    assert (len(memory.known), memory.dropped) == (DEVICES_MAX, 3)


@pytest.mark.parametrize("name", [NIC.name, NIC.pci_bus_id, NIC.identity])
def test_missing_device_is_forgotten_by_each_of_its_names_and_a_present_one_by_none(
    name: str,
) -> None:
    memory = update(remembered(NIC, OTHER), look(OTHER))

    after, gone = forget(memory, [name, OTHER.name])

    assert gone == [NIC]
    assert [one.device for one in after.known] == [OTHER]
    assert update(after, look(OTHER)).missing() == []


def test_less_memory_than_there_was_is_told_over_boots() -> None:
    memory = update(DeviceMemory(), replace(look(), memory_bytes=100))

    less = update(memory, replace(look(boot_id="boot-2"), memory_bytes=60))

    assert (memory.memory_lost_bytes, less.memory_lost_bytes) == (0, 40)
    assert update(less, look(boot_id="boot-2")).memory_lost_bytes == 40  # not known now


# ---- the scan


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path)


def test_cards_are_known_by_guid_and_mac_and_else_by_their_address(tree: Path) -> None:
    _topology, devices = scan_nics(tree, ["mlx5_3"])

    known = {(one.kind.value, one.name): one.identity for one in devices}
    assert known == {
        ("nic", "mlx5_0"): "946d:ae03:00f4:0001",
        ("nic", "mlx5_1"): "0000:3b:00.0",
        ("nic", "mlx5_2"): "0000:81:00.0",
        ("ethernet", "eth0"): "04:3f:72:aa:00:01",
    }  # not ens2np0, which is mlx5_2's, nor usb0


def test_port_of_a_bond_is_known_by_the_mac_that_it_was_made_with(tree: Path) -> None:
    eth0 = tree / "class" / "net" / "eth0"
    write(eth0 / "addr_assign_type", "2")  # stolen: the bond's
    write(eth0 / "address", "04:3f:72:bb:bb:bb")
    write(eth0 / "bonding_slave" / "perm_hwaddr", "04:3f:72:aa:00:01")

    _topology, devices = scan_nics(tree, [])

    assert next(one.identity for one in devices if one.name == "eth0") == "04:3f:72:aa:00:01"


def test_virtual_functions_and_devices_of_software_are_left_out(tree: Path) -> None:
    physical = tree / "bus" / "pci" / "devices" / "0000:81:00.0"
    function = add_pci(tree, "80/80:01.0/81:00.2", "0x020000", "0x15b3", 1, "mlx5_core")
    link(function / "physfn", physical.resolve())
    add_rdma(tree, "mlx5_9", function, "Ethernet", "200 Gb/sec (4X HDR)")
    add_net(tree, "eth9", function)
    for name in ("veth12", "docker0", "bond0", "tap1"):
        folder = tree / "devices" / "virtual" / "net" / name
        write(folder / "flags", "0x1003")
        link(tree / "class" / "net" / name, folder)
    (tree / "class" / "net" / "bond0" / "bonding").mkdir()
    software = tree / "devices" / "virtual" / "infiniband" / "rxe0"
    write(software / "node_guid", "946d:ae03:00f4:0077")
    link(tree / "class" / "infiniband" / "rxe0", software)

    _topology, devices = scan_nics(tree, [])

    names = {one.name for one in devices}
    assert names == {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "eth0"}


def test_scalable_functions_and_representors_are_left_out(tree: Path) -> None:
    card = (tree / "bus" / "pci" / "devices" / "0000:81:00.0").resolve()
    function = card / "mlx5_core.sf.4"
    add_rdma(tree, "mlx5_4", function, "Ethernet", "200 Gb/sec (4X HDR)")
    add_net(tree, "en3f0pf0sf88", function)
    representor = add_net(tree, "eth0_0", (tree / "class" / "net" / "eth0" / "device").resolve())
    write(representor / "phys_port_name", "pf0vf0")
    add_net(tree, "eth0_1", (tree / "class" / "net" / "eth0" / "device").resolve())

    _topology, devices = scan_nics(tree, [])

    assert {one.name for one in devices} == {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "eth0"}


def add_disk(tree: Path, name: str, model: str, serial: str, transport: str = "pcie") -> None:
    pci = tree / "devices" / "pci0000:c0" / "0000:c0:01.0" / f"0000:c{name[-1]}:00.0"
    folder = pci / "nvme" / name
    for file, text in (("model", model), ("serial", serial), ("transport", transport)):
        write(folder / file, text)
    link(folder / "device", pci)
    link(tree / "class" / "nvme" / name, folder)


def test_disks_that_are_built_in_are_known_by_their_serial_number(tree: Path) -> None:
    add_disk(tree, "nvme0", "SAMSUNG MZWLO3T8HCLS", "S6B1NE0T100001")
    add_disk(tree, "nvme1", "Amazon Elastic Block Store", "vol0abc")
    add_disk(tree, "nvme2", "Linux", "f00", transport="tcp")
    for name, place, removable in (
        ("sda", "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0", "0"),
        ("sdb", "pci0000:00/0000:00:14.0/usb1/1-2/host6/target6:0:0/6:0:0:0", "1"),
        ("sdc", "platform/host7/session1/target7:0:0/7:0:0:1", "0"),
    ):
        folder = tree / "devices" / place / "block" / name
        write(folder / "removable", removable)
        write(folder.parent.parent / "wwid", f"naa.5002538{name}")
        link(folder / "device", folder.parent.parent)
        link(tree / "block" / name, folder)

    disks = scan_disks(tree)

    assert [(disk.name, disk.identity) for disk in disks] == [
        ("nvme0", "S6B1NE0T100001"),
        ("sda", "naa.5002538sda"),
    ]
    assert disks[0].pci_bus_id == "0000:c0:00.0"


def add_scsi_disk(tree: Path, name: str, slot: str, wwid: str, model: str) -> Path:
    host = slot.partition(":")[0]
    device = tree / "devices" / "pci0000:00" / "0000:00:17.0" / f"host{host}" / slot
    write(device / "wwid", wwid)
    write(device / "model", model)
    write(device / "block" / name / "removable", "0")
    link(device / "block" / name / "device", device)
    link(tree / "block" / name, device / "block" / name)
    return device


def test_disk_with_two_paths_is_one_disk_and_its_place_is_the_enclosures_slot(tree: Path) -> None:
    slot = tree / "devices" / "pci0000:00" / "enclosure" / "1:0:9:0" / "Slot 04"
    slot.mkdir(parents=True)
    for name, place in (("sda", "1:0:0:0"), ("sdb", "2:0:0:0")):
        device = add_scsi_disk(tree, name, place, "naa.5000c500", "ST18000NM004J")
        link(device / "enclosure_device:Slot 04", slot)
    add_scsi_disk(tree, "sdc", "3:0:0:0", "naa.5000c501", "ST18000NM004J")

    disks = [(disk.name, disk.slot) for disk in scan_disks(tree)]

    assert [name for name, _slot in disks] == ["sda", "sdc"]
    assert disks[0][1].endswith("/1:0:9:0/Slot 04")
    assert disks[1][1] == "3:0:0:0"


@pytest.mark.parametrize(
    "model",
    [
        "Virtual disk",
        "Virtual Disk",
        "BlockVolume",
        "QEMU HARDDISK",
        "Cloud Elastic Block Storage",
        "Alibaba Cloud Elastic Block Storage",
        "VMware Virtual NVMe Disk",
        "VMware Virtual S",
        "PersistentDisk",
    ],
)
def test_volume_of_a_cloud_is_no_disk_of_the_node(tree: Path, model: str) -> None:
    add_disk(tree, "nvme0", model, "S6B1NE0T100001")
    add_scsi_disk(tree, "sda", "2:0:0:0", "naa.5002538", model)

    assert scan_disks(tree) == []


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "is_virtual"),
    [
        ("flags\t\t: fpu vme hypervisor lahf_lm", "", "", True),
        ("flags\t\t: fpu vme lahf_lm", "QEMU", "", False),  # the flags are the surer word
        ("Features\t: fp asimd", "QEMU", "KVM Virtual Machine", True),
        ("Features\t: fp asimd", "Amazon EC2", "p6e-gb200.36xlarge", True),
        ("Features\t: fp asimd", "Amazon EC2", "c7g.metal", False),
        ("Features\t: fp asimd", "Supermicro", "ARS-111GL-NHR", False),
    ],
)
def test_virtual_machine_is_known_by_the_processors_flag_else_by_the_firmware(
    tree: Path, cpuinfo: str, vendor: str, product: str, is_virtual: bool
) -> None:
    procfs = tree.parent / "proc"
    write(procfs / "cpuinfo", f"processor\t: 0\n{cpuinfo}\n")
    write(tree / "class" / "dmi" / "id" / "sys_vendor", vendor)
    write(tree / "class" / "dmi" / "id" / "product_name", product)

    assert is_guest(procfs, tree) is is_virtual


def test_memory_of_a_gpu_that_is_a_node_without_cpus_is_left_out(tree: Path) -> None:
    nodes = tree / "devices" / "system" / "node"
    for name, cpus, size_kib in (("node0", "0-71", 500), ("node1", "", 96), ("node8", "", 0)):
        write(nodes / name / "cpulist", cpus)
        write(nodes / name / "meminfo", f"Node {name[4:]} MemTotal:     {size_kib} kB\n")

    assert read_cpu_memory_bytes(tree) == 500 * 1024
    assert read_cpu_memory_bytes(tree / "nowhere") is None


# ---- the collector


def view_of(
    name: str, *metrics: Metric, outcome: CollectorOutcome = CollectorOutcome.MEASURED
) -> CollectorView:
    return CollectorView(name, 1.0, outcome, "", 0.5, 0.1, None, 0.5, 0, False, answer_of(metrics))


def gpu_views(
    *present: int, outcome: CollectorOutcome = CollectorOutcome.MEASURED, stuck: int = 0
) -> list[CollectorView]:
    series = []
    for gpu in range(3):
        labels = (("gpu", str(gpu)), ("uuid", f"GPU-{gpu}"), ("pci_bus_id", f"0000:0{gpu}:00.0"))
        series.append(Metric("rankmend_gpu_success", int(gpu in present), labels))
        series.append(Metric("rankmend_gpu_lost", 0, labels))
    series.append(Metric("rankmend_gpu_collector_stuck", stuck))
    return [view_of("gpu", outcome=outcome), view_of("gpu_state", *series)]


@pytest.fixture
def bed(tree: Path, tmp_path: Path) -> Bed:
    return make_bed(tree, tmp_path)


STATE_0 = "inventory_state_id{nic,mlx5_0,0000:1a:00.0,946d:ae03:00f4:0001}"


def test_card_that_falls_off_the_bus_is_named_at_once_and_after_a_restart_and_a_boot(
    bed: Bed,
) -> None:
    before = bed.look()[STATE_0]
    bed.pull("mlx5_0")
    at_once = bed.look()[STATE_0]
    bed.boot("boot-1")
    after_restart = bed.look()[STATE_0]
    bed.boot("boot-2")
    after_boot = bed.look()[STATE_0]

    assert (before, at_once, after_restart, after_boot) == (0, 1, 1, 2)


def test_fewer_cards_of_a_plane_than_expected_are_counted_and_named(bed: Bed) -> None:
    bed.expect = ExpectedDevices(nics={"compute": 2, "storage": 1})
    bed.boot("boot-1")
    before = bed.look()
    bed.pull("mlx5_0")

    after = bed.look()

    gone = "mlx5_0 (0000:1a:00.0, 946d:ae03:00f4:0001)"
    assert before["inventory_short{nic,compute,}"] == 0
    assert after[f"inventory_short{{nic,compute,{gone}}}"] == 1
    assert after["inventory_short{nic,storage,}"] == 0
    assert after["inventory_devices{nic,compute}"] == 1
    assert after["inventory_expected{nic,compute}"] == 2


def test_cards_that_a_container_holds_are_counted_with_those_of_their_plane(bed: Bed) -> None:
    bed.expect = ExpectedDevices(nics={"compute": 2, "storage": 1, "in-band": 1})
    bed.boot("boot-1")
    bed.look()
    bed.hide("mlx5_0", "eth0")
    before = bed.look()
    bed.boot("boot-1")

    after = bed.look()

    for values in (before, after):
        assert (
            values["inventory_short{nic,compute,}"] == values["inventory_short{nic,in-band,}"] == 0
        )
        assert values["inventory_devices{nic,compute}"] == 2
        assert values[STATE_0] == 0


def test_card_whose_rdma_device_alone_moved_is_counted_once(bed: Bed) -> None:
    bed.expect = ExpectedDevices(nics=5)
    bed.boot("boot-1")
    before = bed.look()
    bed.hide("mlx5_2")  # ens2np0 stays

    after = bed.look()

    assert before["inventory_short{nic,,}"] == after["inventory_short{nic,,}"] == 1


def test_card_whose_network_device_alone_moved_keeps_its_plane(bed: Bed) -> None:
    bed.planes = {"ens2np0": Plane.STORAGE, "mlx5_*": Plane.COMPUTE}
    bed.boot("boot-1")
    bed.look()
    bed.hide("ens2np0")
    bed.boot("boot-1")

    values = bed.look()

    assert values["inventory_devices{nic,storage}"] == 1
    assert values["inventory_devices{nic,compute}"] == 2


def test_rdma_device_that_its_driver_gave_up_has_vanished_and_one_in_a_container_has_not(
    bed: Bed,
) -> None:
    card = (bed.tree / "class" / "infiniband" / "mlx5_0" / "device").resolve()
    part = card / "mlx5_core.rdma.0"
    (bed.tree / "bus" / "auxiliary" / "drivers" / "mlx5_ib.rdma").mkdir(parents=True)
    link(part / "driver", bed.tree / "bus" / "auxiliary" / "drivers" / "mlx5_ib.rdma")
    bed.look()
    bed.hide("mlx5_0")
    in_container = bed.look()[STATE_0]
    shutil.rmtree(part)

    assert (in_container, bed.look()[STATE_0]) == (0, 1)


def test_gpu_that_the_driver_no_longer_lists_is_named(bed: Bed) -> None:
    bed.views = gpu_views(0, 1, 2)
    bed.look()
    bed.views = gpu_views(0, 2)

    values = bed.look()

    assert values["inventory_state_id{gpu,gpu1,0000:01:00.0,GPU-1}"] == 1
    assert values["inventory_devices{gpu,}"] == 2


@pytest.mark.parametrize(
    "views",
    [
        [],
        gpu_views(0, stuck=1),
        gpu_views(0, outcome=CollectorOutcome.BROKEN),
        gpu_views(0, outcome=CollectorOutcome.PENDING),
    ],
)
def test_gpus_do_not_vanish_while_nobody_can_tell(bed: Bed, views: list[CollectorView]) -> None:
    bed.views = gpu_views(0, 1, 2)
    bed.look()
    bed.views = views

    assert not [name for name in bed.look() if "{gpu," in name]


def test_gpus_are_gone_where_the_driver_is(bed: Bed) -> None:
    bed.views = gpu_views(0)
    bed.look()
    bed.views = gpu_views(0, outcome=CollectorOutcome.ABSENT)

    assert bed.look()["inventory_state_id{gpu,gpu0,0000:00:00.0,GPU-0}"] == 1


def test_gpus_have_not_vanished_while_their_driver_is_being_changed(bed: Bed) -> None:
    bed.views = gpu_views(0)
    before = bed.look()
    (bed.tree / "bus" / "pci" / "devices" / "0000:18:00.0" / "driver").unlink()
    bed.views = gpu_views(0, outcome=CollectorOutcome.ABSENT)

    values = bed.look()

    assert not [name for name in values if name.startswith("inventory_state_id{gpu,")]
    assert (before["inventory_known{gpu}"], values["inventory_known{gpu}"]) == (1, 0)


def test_memory_of_gpus_that_their_driver_took_along_is_not_lost(bed: Bed) -> None:
    node = bed.tree / "devices" / "system" / "node"
    for name, cpus in (("node0", "0-71"), ("node1", "")):
        write(node / name / "cpulist", cpus)
        write(node / name / "meminfo", f"Node {name[4:]} MemTotal:  {64 << 20} kB")
    bed.views = [view_of("host", Metric("rankmend_host_memory_size_bytes", 128 << 30))]
    bed.look()
    shutil.rmtree(node / "node1")
    bed.views = [view_of("host", Metric("rankmend_host_memory_size_bytes", 64 << 30))]

    assert bed.look()["inventory_memory_lost_bytes"] == 0


def test_cards_that_the_host_takes_from_a_virtual_machine_drain_nothing(bed: Bed) -> None:
    write(bed.tree.parent / "proc" / "cpuinfo", "flags\t\t: fpu hypervisor")
    bed.boot("boot-1")
    bed.look()
    bed.pull("mlx5_0")
    bed.hide("eth0")
    (bed.tree / "bus" / "pci" / "devices" / "0000:83:00.0").unlink()

    values = bed.look()

    assert values[STATE_0] == DeviceStanding.WITHDRAWN.value
    assert not [name for name in values if "{ethernet,eth0" in name]


def edac_view(*modules: str) -> CollectorView:
    names = ("controller", "module", "label", "location")
    return view_of(
        "edac",
        *(
            Metric(
                "rankmend_edac_module_info",
                1,
                tuple(zip(names, ("mc0", module, f"DIMM_{module}", ""), strict=True)),
            )
            for module in modules
        ),
    )


def test_memory_module_that_a_boot_left_out_is_named_and_short_of_what_is_expected(
    bed: Bed,
) -> None:
    bed.expect = ExpectedDevices(dimms=2)
    bed.boot("boot-1")
    bed.views = [edac_view("dimm0", "dimm1")]
    bed.look()
    bed.boot("boot-2")
    bed.views = [edac_view("dimm0")]

    values = bed.look()

    assert values["inventory_state_id{dimm,DIMM_dimm1,,mc0/dimm1}"] == 2
    assert values["inventory_short{dimm,,DIMM_dimm1 (mc0/dimm1)}"] == 1
    assert values["inventory_known{dimm}"] == 1


def test_number_that_is_expected_and_can_not_be_counted_is_shown_as_unknown(bed: Bed) -> None:
    bed.expect = ExpectedDevices(dimms=2, memory_gib=64.0)
    bed.boot("boot-1")

    values = bed.look()

    assert values["inventory_known{dimm}"] == values["inventory_known{memory}"] == 0
    assert not [name for name in values if name.startswith("inventory_short")]


def test_memory_is_compared_with_what_there_was_and_with_what_is_expected(bed: Bed) -> None:
    bed.expect = ExpectedDevices(memory_gib=64.0)
    bed.boot("boot-1")
    bed.views = [view_of("host", Metric("rankmend_host_memory_size_bytes", 64 << 30))]
    before = bed.look()
    bed.boot("boot-2")
    bed.views = [view_of("host", Metric("rankmend_host_memory_size_bytes", 48 << 30))]

    after = bed.look()

    assert before["inventory_memory_lost_bytes"] == before["inventory_short{memory,,}"] == 0
    assert after["inventory_memory_lost_bytes"] == 16 << 30
    assert after["inventory_short{memory,,}"] == 16


# ---- the command


def test_forgotten_device_is_shown_as_there_for_a_while_and_forgotten_over_boots(bed: Bed) -> None:
    bed.look()
    bed.pull("mlx5_0")
    bed.look()
    commands = inventory_commands(bed.inventory)

    answer = commands["forget"]({"devices": ["mlx5_0"]})

    assert answer == "forgotten: mlx5_0 (0000:1a:00.0, 946d:ae03:00f4:0001)"
    assert bed.look()[STATE_0] == 0  # so that the finding ends by good looks
    for _ in range(12):
        bed.look()
    assert STATE_0 not in bed.look()
    bed.boot("boot-2")
    assert STATE_0 not in bed.look()


@pytest.mark.parametrize("devices", [["mlx5_1"], ["nosuch"], [7], "mlx5_0", {}])
def test_word_that_names_nothing_missing_is_refused(bed: Bed, devices: object) -> None:
    bed.look()
    bed.pull("mlx5_0")
    bed.look()

    with pytest.raises(SourceError, match=r"missing|not a list"):
        inventory_commands(bed.inventory)["forget"]({"devices": devices})


# ---- the file


def test_devices_of_another_machine_are_forgotten_where_an_image_brought_them(bed: Bed) -> None:
    bed.look()
    bed.pull("mlx5_0")
    bed.boot("boot-2")
    same = bed.look()
    bed.machine_id.write_text("b" * 32 + "\n")
    bed.boot("boot-3")

    assert same[STATE_0] == 2
    assert STATE_0 not in bed.look()


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"version": 1}', b'{"version": 9, "known": []}', b"\xff" * 10, b"x" * BYTES_MAX],
    ids=["empty", "torn", "incomplete", "newer", "no text", "long"],
)
def test_broken_file_is_put_aside_and_the_node_is_learned_anew(bed: Bed, data: bytes) -> None:
    bed.look()
    file = bed.state / "inventory.json"
    file.write_bytes(data)
    bed.boot("boot-1")

    values = bed.look()

    assert values[STATE_0] == values["inventory_kept"] - 1 == 0
    assert (bed.state / "inventory.json.broken").read_bytes() == data
    assert b"mlx5_0" in file.read_bytes()


def test_file_is_written_only_when_something_has_changed(bed: Bed) -> None:
    bed.look()
    file = bed.state / "inventory.json"
    first = file.stat().st_ino

    bed.look()
    bed.look()

    assert file.stat().st_ino == first


def test_disk_that_takes_no_change_is_shown_and_nothing_is_lost_meanwhile(bed: Bed) -> None:
    bed.state.rmdir()
    values = bed.look()
    bed.state.mkdir()

    assert values["inventory_kept"] == 0
    assert bed.look()["inventory_kept"] == 1
    assert (bed.state / "inventory.json").exists()


# ---- the configuration


@pytest.mark.parametrize(
    ("expect", "named"),
    [
        ("nics = { computer = 8 }", "computer"),
        ("nics = -1", "-1"),
        ("disks = 5000", "5000"),
        ("memory_gib = 0", "memory_gib"),
        ("cpus = 2", "cpus"),
        ("gpus = 8\n[gpu]\nexpected_count = 4", "one is enough"),
    ],
)
def test_expectation_that_makes_no_sense_is_refused_by_name(
    tmp_path: Path, expect: str, named: str
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"[expect]\n{expect}\n")

    with pytest.raises(ConfigError, match=named):
        configuration.load(file)


def test_number_of_gpus_may_be_stated_with_the_others(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[expect]\ngpus = 8\nnics = 9\n")

    config = configuration.load(file)

    assert configuration.expected_gpus(config) == 8
    assert config.expect.nics_by_plane() == {"": 9}


# ---- a real agent
