"""Which GPU, NIC and NUMA node lie close together, and which network a port belongs to."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.topology import TopologyCollector
from agent.sources.pci_topology import (
    Closeness,
    Nic,
    PciDevice,
    Plane,
    PortNetwork,
    Topology,
    assign_planes,
    closeness,
    read_default_route,
    read_pci,
    read_topology,
)
from rankmend.errors import NoSourceError
from tests.support.agent import PATIENT, checked, values_of
from tests.support.collectors import unpack_ttar
from tests.support.gpu_nodes import add_virtual_functions
from tests.support.nics import add_net, link, make_node, write


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return make_node(tmp_path)


def device(chain: str, numa_node: int | None = None) -> PciDevice:
    ancestry = tuple(chain.split("/"))
    return PciDevice(ancestry[-1], ancestry, numa_node, "")


def nic(name: str, pci: PciDevice, is_rdma: bool = True, driver: str = "mlx5_core") -> Nic:
    return Nic(name, ("1",) if is_rdma else ("",), (f"net-{name}",), driver, is_rdma, pci)


def members_of(members: tuple[PortNetwork, ...]) -> dict[str, tuple[str, int | None, bool]]:
    return {
        f"{member.device}/{member.port}": (
            member.plane.value,
            member.rail,
            member.is_configured,
        )
        for member in members
    }


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("R/rp/up/d1/gpu", "R/rp/up/d2/nic", Closeness.PIX),
        ("R/rp/gpu", "R/rp/nic", Closeness.PIX),
        ("R/rp/up/d1/up2/d3/gpu", "R/rp/up/d2/nic", Closeness.PXB),
        ("R/rp1/gpu", "R/rp2/nic", Closeness.PHB),
        ("R/rp1/up/d1/gpu", "R/rp2/up/d1/nic", Closeness.PHB),
        ("R/rp/gpu", "Q/rp/nic", Closeness.NODE),
    ],
)
def test_closeness_is_told_from_the_bridges_between(
    one: str, other: str, expected: Closeness
) -> None:
    assert closeness(device(one, 0), device(other, 0)) is expected
    assert closeness(device(other, 0), device(one, 0)) is expected


def test_devices_of_two_numa_nodes_or_of_an_unknown_one_are_far() -> None:
    assert closeness(device("R/a", 0), device("Q/b", 1)) is Closeness.SYS
    assert closeness(device("R/a", None), device("Q/b", None)) is Closeness.SYS


def test_node_is_read_from_sysfs(sys: Path) -> None:
    topology = read_topology(sys)

    assert [gpu.bus_id for gpu in topology.gpus] == ["0000:18:00.0", "0000:39:00.0"]
    assert [nic.name for nic in topology.nics] == [
        *("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"),
        *("eth0", "usb0"),  # ens2np0 is mlx5_2's, lo has no hardware
    ]
    assert topology.nics[0].pci.numa_node == 0
    assert topology.nics[2].network_devices == ("ens2np0",)
    assert topology.nics[2].pci.cpus == "32-63"
    assert topology.nics[5].pci.bus_id == "0000:80:14.0"  # the USB controller above it


def test_planes_and_rails_are_guessed_from_the_places(sys: Path, tmp_path: Path) -> None:
    in_band = read_default_route(tmp_path / "proc", sys)

    members = members_of(assign_planes(read_topology(sys), {}, {}, in_band))

    assert members == {
        "mlx5_0/1": ("compute", 0, False),
        "mlx5_1/1": ("compute", 1, False),
        "mlx5_2/1": ("storage", None, False),
        "mlx5_3/1": ("storage", None, False),
        "eth0/": ("in-band", None, False),
        "usb0/": ("out-of-band", None, False),
    }


def test_configuration_wins_over_the_guess(sys: Path) -> None:
    members = members_of(
        assign_planes(
            read_topology(sys),
            {"ens2np0": Plane.UPLINK, "mlx5_1/1": Plane.STORAGE, "eth*": Plane.OUT_OF_BAND},
            {"mlx5_0": 7, "mlx5_2": 3},
        )
    )

    assert members["mlx5_0/1"] == ("compute", 7, False)
    assert members["mlx5_1/1"] == ("storage", None, True)
    assert members["mlx5_2/1"] == ("uplink", 3, True)  # named by its network device
    assert members["eth0/"] == ("out-of-band", None, True)


def test_first_pattern_that_fits_decides(sys: Path) -> None:
    planes = {"mlx5_0": Plane.STORAGE, "mlx5_*": Plane.COMPUTE}

    members = members_of(assign_planes(read_topology(sys), planes, {}))

    assert members["mlx5_0/1"][0] == "storage"
    assert members["mlx5_3/1"][0] == "compute"


def test_rails_follow_the_gpus_and_not_the_names_of_the_cards() -> None:
    gpus = (device("A/rp/up/d1/g0"), device("B/rp/up/d1/g1"))
    cards = (nic("mlx5_0", device("B/rp/up/d2/n")), nic("mlx5_1", device("A/rp/up/d2/n")))

    members = members_of(assign_planes(Topology(gpus, cards), {}, {}))

    assert members["mlx5_1/1"] == ("compute", 0, False)
    assert members["mlx5_0/1"] == ("compute", 1, False)


def test_virtual_functions_of_a_card_of_this_host_are_no_compute_and_no_storage_cards(
    sys: Path,
) -> None:
    before = members_of(assign_planes(read_topology(sys), {}, {}))
    add_virtual_functions(sys, "mlx5_0", 2)
    add_virtual_functions(sys, "mlx5_2", 1)

    members = members_of(assign_planes(read_topology(sys), {}, {}))

    assert {name: one for name, one in members.items() if name in before} == before
    assert {name: one for name, one in members.items() if name not in before} == dict.fromkeys(
        ("mlx5_0v0/1", "mlx5_0v1/1", "mlx5_2v0/1"), ("unknown", None, False)
    )


def test_two_gpus_that_share_a_card_make_one_rail() -> None:
    gpus = (device("A/rp/up/d1/g0"), device("A/rp/up/d2/g1"))
    cards = (nic("mlx5_0", device("A/rp/up/d3/n")),)

    assert members_of(assign_planes(Topology(gpus, cards), {}, {}))["mlx5_0/1"][:2] == (
        "compute",
        0,
    )


def test_card_beside_a_cascaded_switch_is_no_rival_of_a_nearer_one() -> None:
    gpus = (device("A/rp/up/d1/up2/d2/g0"),)
    near, far = device("A/rp/up/d1/up2/d3/n"), device("A/rp/up/d4/n")

    members = members_of(
        assign_planes(Topology(gpus, (nic("far", far), nic("near", near))), {}, {})
    )

    assert members["near/1"] == ("compute", 0, False)
    assert members["far/1"] == ("storage", None, False)


def test_card_beyond_the_host_bridge_is_not_taken_for_a_compute_card() -> None:
    gpus = (device("A/rp1/g0"),)
    cards = (nic("mlx5_0", device("A/rp2/n")),)

    assert members_of(assign_planes(Topology(gpus, cards), {}, {}))["mlx5_0/1"][0] == "unknown"


def test_without_a_gpu_in_sight_nothing_is_guessed_of_rdma() -> None:
    cards = (nic("mlx5_0", device("A/rp/n")),)

    assert members_of(assign_planes(Topology((), cards), {}, {}))["mlx5_0/1"] == (
        "unknown",
        None,
        False,
    )


def test_default_route_over_a_bond_marks_the_cards_beneath(sys: Path, tmp_path: Path) -> None:
    bond = sys / "devices" / "virtual" / "net" / "bond0"
    write(bond / "flags", "0x1403")
    link(sys / "class" / "net" / "bond0", bond)
    link(bond / "lower_eth0", sys / "class" / "net" / "eth0")
    link(bond / "lower_bond0", bond)  # must not go round for ever
    write(tmp_path / "proc" / "net" / "route", "Iface\tDestination\nbond0\t00000000\tx")

    assert read_default_route(tmp_path / "proc", sys) == {"bond0", "eth0"}


def test_excluded_devices_are_not_looked_at(sys: Path) -> None:
    names = [nic.name for nic in read_topology(sys, excluded=("mlx5_3", "usb*")).nics]

    assert names == ["mlx5_0", "mlx5_1", "mlx5_2", "eth0"]


def test_device_without_a_bus_has_no_place(tmp_path: Path) -> None:
    assert read_pci(tmp_path) == PciDevice("", (), None, "")


def test_links_that_go_round_lead_nowhere(sys: Path, tmp_path: Path) -> None:
    device = sys / "class" / "infiniband" / "mlx5_0" / "device"
    device.unlink()
    device.symlink_to("device")

    values = values_of(list(TopologyCollector(sys, tmp_path / "proc").collect()))

    assert values["topology_info{,nic,mlx5_0,,}"] == 1
    assert values["topology_affinity_info{0000:39:00.0,mlx5_1,PIX}"] == 1


def test_numa_node_minus_one_is_none(sys: Path) -> None:
    folder = sys / "bus" / "pci" / "devices" / "0000:1a:00.0"
    (folder / "numa_node").write_text("-1\n")

    assert read_pci(folder).numa_node is None


def test_topology_is_shown(sys: Path, tmp_path: Path) -> None:
    collector = TopologyCollector(sys, tmp_path / "proc", excluded=("mlx5_3",))

    values = values_of(checked(collector.collect()))

    assert values["topology_info{0000:18:00.0,gpu,,0,0-31}"] == 1
    assert values["topology_info{0000:1a:00.0,nic,mlx5_0,0,0-31}"] == 1
    assert values["topology_affinity_info{0000:18:00.0,mlx5_0,PIX}"] == 1
    assert values["topology_affinity_info{0000:39:00.0,mlx5_0,NODE}"] == 1
    assert values["topology_affinity_info{0000:39:00.0,mlx5_2,SYS}"] == 1
    assert values["topology_plane_info{mlx5_1,1,compute,1,guessed}"] == 1
    assert values["topology_plane_info{eth0,,in-band,,guessed}"] == 1


def test_node_without_cards_and_gpus_is_absent(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        list(TopologyCollector(tmp_path, tmp_path).collect())


def test_tree_whose_links_lead_nowhere_is_survived(sys: Path, tmp_path: Path) -> None:
    shutil.rmtree(sys / "devices" / "pci0000:15")

    names = values_of(list(TopologyCollector(sys, tmp_path / "proc").collect()))

    assert "topology_affinity_info{0000:39:00.0,mlx5_1,PIX}" in names
    assert not [name for name in names if "0000:18:00.0" in name]


def test_network_device_of_a_card_with_rdma_is_shown_once(sys: Path) -> None:
    add_net(sys, "ens2np1", (sys / "class" / "net" / "ens2np0" / "device").resolve())

    cards = [nic for nic in read_topology(sys).nics if nic.name in ("mlx5_2", "ens2np1")]

    assert [card.network_devices for card in cards] == [("ens2np0", "ens2np1")]


def set_link(folder: Path, lanes: str, lanes_max: str, speed: str, speed_max: str) -> None:
    write(folder / "current_link_width", lanes)
    write(folder / "max_link_width", lanes_max)
    write(folder / "current_link_speed", speed)
    write(folder / "max_link_speed", speed_max)


def test_pcie_link_of_a_card_is_measured_against_what_card_and_slot_can_do(tmp_path: Path) -> None:
    sys = make_node(tmp_path)
    card = (sys / "class" / "infiniband" / "mlx5_0" / "device").resolve()
    set_link(card, "8", "16", "16.0 GT/s PCIe", "32.0 GT/s PCIe")
    set_link(card.parent, "16", "16", "16.0 GT/s PCIe", "16.0 GT/s PCIe")

    values = values_of(checked(TopologyCollector(sys, tmp_path / "proc").collect()))

    assert values["nic_pcie_width_lanes{mlx5_0}"] == 8
    assert values["nic_pcie_width_max_lanes{mlx5_0}"] == 16
    assert values["nic_pcie_transfers_per_second{mlx5_0}"] == 16e9
    assert values["nic_pcie_transfers_max_per_second{mlx5_0}"] == 16e9  # the slot's


@pytest.mark.parametrize(
    ("lanes", "speed"), [("0", "Unknown"), ("255", "Unknown speed"), ("16", ""), ("x16", "8 GT/s")]
)
def test_card_without_a_pcie_link_of_its_own_has_no_values(
    tmp_path: Path, lanes: str, speed: str
) -> None:
    sys = make_node(tmp_path)
    card = (sys / "class" / "infiniband" / "mlx5_0" / "device").resolve()
    set_link(card, lanes, "16", speed, "16.0 GT/s PCIe")

    values = values_of(checked(TopologyCollector(sys, tmp_path / "proc").collect()))

    assert not any(name.startswith("nic_pcie") for name in values)


_PART = st.sampled_from(["R", "Q", "rp", "up", "d1", "d2", "x"])
_CHAIN = st.lists(_PART, min_size=0, max_size=8).map(tuple)


@PATIENT
@given(_CHAIN, _CHAIN, st.none() | st.integers(0, 1), st.none() | st.integers(0, 1))
def test_closeness_does_not_depend_on_the_order(
    one: tuple[str, ...], other: tuple[str, ...], node: int | None, other_node: int | None
) -> None:
    left, right = PciDevice("a", one, node, ""), PciDevice("b", other, other_node, "")

    assert closeness(left, right) is closeness(right, left)


def test_recorded_tree_is_read(tmp_path: Path) -> None:
    datasets = os.environ.get("RANKMEND_DATASETS")
    if not datasets:
        pytest.skip("RANKMEND_DATASETS is not set")
    unpack_ttar(Path(datasets) / "sysfs" / "node-exporter" / "sys.ttar", tmp_path)

    topology = read_topology(tmp_path / "sys")

    assert [nic.name for nic in topology.nics][:2] == ["i40iw0", "mlx4_0"]
    assert topology.nics[0].pci.bus_id == ""  # recorded without the link to its device
