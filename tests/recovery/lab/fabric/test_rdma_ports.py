"""Which RDMA port a rail has, from trees of sysfs."""

from pathlib import Path

import pytest

from rankmend.errors import NoSourceError, SourceError
from recovery.lab.fabric.rdma_ports import (
    RailPort,
    active_ports,
    find_port,
    interface_of,
    is_device,
)
from tests.support.rdma_tree import DOWN, INIT, add_ipoib, add_port, make_roce_tree

LINK_LOCAL = "fe80:0000:0000:0000:0a00:27ff:fe4e:66a1"
OWN = "0000:0000:0000:0000:0000:ffff:0a00:0105"  # 10.0.1.5
OTHER = "0000:0000:0000:0000:0000:ffff:0a00:0205"  # 10.0.2.5


def test_interface_of_roce_gives_the_gid_of_its_address(tmp_path: Path) -> None:
    gids = [
        ("ens1", "IB/RoCE v1", LINK_LOCAL), ("ens1", "RoCE v2", LINK_LOCAL), None,
        ("ens1.7", "RoCE v2", OTHER), ("ens1", "IB/RoCE v1", OWN), ("ens1", "RoCE v2", OWN),
    ]  # fmt: skip
    add_port(tmp_path, "mlx5_2", gids=gids)

    assert find_port(tmp_path, "ens1", "10.0.1.5") == RailPort("mlx5_2", 1, True, "ens1", 5)
    assert find_port(tmp_path, "ens1", "10.9.9.9") == RailPort("mlx5_2", 1, True, "ens1", 1)
    assert find_port(tmp_path, "ens1.7", "10.0.2.5") == RailPort("mlx5_2", 1, True, "ens1.7", 3)
    assert find_port(tmp_path, "mlx5_2", "10.0.1.5") == RailPort("mlx5_2", 1, True, "ens1", 5)


def test_interface_with_ipv6_alone_gives_the_gid_of_its_address(tmp_path: Path) -> None:
    own = "fd00:0000:0000:0001:0000:0000:0000:0005"
    add_port(tmp_path, "mlx5_2", gids=[("ens1", "RoCE v2", LINK_LOCAL), ("ens1", "RoCE v2", own)])

    assert find_port(tmp_path, "ens1", "fd00:0:0:1::5") == RailPort("mlx5_2", 1, True, "ens1", 1)


def test_port_without_a_gid_for_roce_v2_leaves_the_choice_to_the_program(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", gids=[("eth0", "IB/RoCE v1", OWN)])

    assert find_port(tmp_path, "eth0", "10.0.1.5") == RailPort("rxe0", 1, True, "eth0", None)


def test_ipoib_interface_gives_its_port_of_infiniband(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx4_0", link_layer="InfiniBand", gids=[None], state=DOWN)
    add_port(tmp_path, "mlx4_0", link_layer="InfiniBand", gids=[None], port=2)
    add_ipoib(tmp_path, "ib1", "mlx4_0", port=2)

    assert find_port(tmp_path, "ib1") == RailPort("mlx4_0", 2, False, "ib1")
    assert interface_of(tmp_path, "mlx4_0:2") == "ib1"


def test_device_of_infiniband_needs_no_interface(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", link_layer="InfiniBand")

    assert find_port(tmp_path, "mlx5_0") == find_port(tmp_path, "mlx5_0:1") == RailPort("mlx5_0", 1, False)  # fmt: skip
    assert interface_of(tmp_path, "mlx5_0") is None
    assert is_device(tmp_path, "mlx5_0")
    assert not is_device(tmp_path, "mlx5_0:2")


@pytest.mark.parametrize(("state", "said"), [(DOWN, "'DOWN'"), (INIT, "'INIT'")])
def test_port_that_is_not_active_is_named_with_its_state(
    tmp_path: Path, state: str, said: str
) -> None:
    add_port(tmp_path, "mlx5_0", state=state, gids=[("ens1", "RoCE v2", OWN)])
    add_port(tmp_path, "mlx5_1")

    with pytest.raises(SourceError, match=f"RDMA port mlx5_0:1 is {said}, not ACTIVE"):
        find_port(tmp_path, "ens1", "10.0.1.5")
    assert active_ports(tmp_path) == ("mlx5_1:1",)


@pytest.mark.parametrize("name", ["eth9", "../../etc", "mlx5_0:9", "", "a" * 300])
def test_rail_without_a_device_is_absent(tmp_path: Path, name: str) -> None:
    make_roce_tree(tmp_path, {"mlx5_0": "eth0"})

    with pytest.raises(NoSourceError, match="has no RDMA device"):
        find_port(tmp_path, name)


def test_node_without_rdma_has_no_port(tmp_path: Path) -> None:
    assert active_ports(tmp_path) == ()
    with pytest.raises(NoSourceError):
        find_port(tmp_path, "eth0")
