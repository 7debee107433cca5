"""From the /sys and the driver's library of nodes by their agents' pages to the topology file, and to blame."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.assembly.families import FAMILIES
from detectors.formats.site.node_pages import METRICS
from rankmend.cli.agent import agent
from rankmend.cli.labs.fabric import fabric
from tests.support.agent import ROOT
from tests.support.gpu_nodes import (
    COMPUTE,
    GPU_BUSES,
    add_virtual_functions,
    make_bare_machine,
    make_cloud_node,
    make_dgx_h100,
)
from tests.support.nics import add_net, add_pci, add_rdma
from tests.support.nvml_stub.node import StubNode

pytestmark = pytest.mark.process

DEVICES = tuple(device for _nic, _gpu, device, _interface in COMPUTE)
CLUSTER = "5f1c9a3e77b04d0c9f2ee4a1d2c3b4a5"
DOMAIN = "5f1c9a3e-77b0-4d0c-9f2e-e4a1d2c3b4a5"
CONFIG = 'disabled = ["gpu", "gpu_state", "kernel_log", "findings"]\n'


def page_of(sys: Path, config: str = CONFIG) -> str:
    """Return what the agent of a node with this /sys serves."""
    path = sys.parent / "agent.toml"
    path.write_text(config)
    words = ["--once", "--config", str(path), "--sysfs", str(sys)]
    result = CliRunner().invoke(agent, [*words, "--procfs", str(sys.parent / "proc")])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    return folder


def put(pages: Path, nodes: list[str], text: str) -> None:
    for node in nodes:
        (pages / node).write_text(text)


def names(count: int, first: int = 1) -> list[str]:
    return [f"gpu{number:03}" for number in range(first, first + count)]


def topology(pages: Path, *words: str) -> tuple[dict[str, Any], str, Path]:
    """Return the topology file of these pages, what was told beside it, and its path."""
    target = pages.parent / "topology.json"
    result = run("topology", "--pages", str(pages), *words, "-o", str(target))
    assert result.exit_code == 0, result.stderr
    return json.loads(target.read_bytes()), result.stderr, target


def run(*words: str) -> Result:
    return CliRunner().invoke(fabric, list(words))


def rails_of(layout: dict[str, Any]) -> dict[str, str]:
    return {nic["device"]: nic["rail"] for nic in layout["nics"] if nic["rail"]}


def test_dgx_h100_has_eight_rails_and_a_nic_for_each_gpu(tmp_path: Path, pages: Path) -> None:
    put(pages, names(4), page_of(make_dgx_h100(tmp_path)))

    found, said, _path = topology(pages)

    (layout,) = found["layouts"]
    assert said == ""
    assert layout["nodes"] == names(4)
    assert (layout["origin"], layout["confidence"]) == ("sysfs", 0.9)
    assert rails_of(layout) == {device: str(rail) for rail, device in enumerate(DEVICES)}
    assert [gpu["nics"] for gpu in layout["gpus"]] == [[device] for device in DEVICES]
    assert {gpu["closeness"] for gpu in layout["gpus"]} == {"PIX"}
    (nic,) = [nic for nic in layout["nics"] if nic["device"] == "mlx5_3"]
    assert (nic["interface"], nic["pci_bus_id"], nic["numa_node"]) == ("ibp64s0", "0000:40:00.0", 0)
    assert (nic["link_layer"], nic["bytes_per_s"]) == ("InfiniBand", 50e9)
    planes = {nic["device"]: nic["plane"] for nic in layout["nics"]}
    assert (planes["mlx5_1"], planes["eno3"]) == ("storage", "in-band")


def test_roce_has_the_same_rails_as_infiniband(tmp_path: Path, pages: Path) -> None:
    put(pages, names(2), page_of(make_dgx_h100(tmp_path, link_layer="Ethernet")))

    (layout,) = topology(pages)[0]["layouts"]

    assert len(rails_of(layout)) == 8
    assert {nic["link_layer"] for nic in layout["nics"] if nic["rail"]} == {"Ethernet"}


@pytest.mark.parametrize("lost", ["GPU", "NIC"])
def test_a_node_that_lacks_a_card_has_the_rails_of_those_built_alike(
    tmp_path: Path, pages: Path, lost: str
) -> None:
    """Alone it would count the cards behind the lost one as one rail less."""
    broken = make_dgx_h100(
        tmp_path / "broken",
        lost_gpus=("43",) if lost == "GPU" else (),
        lost_nics=("mlx5_3",) if lost == "NIC" else (),
    )
    put(pages, names(4), page_of(make_dgx_h100(tmp_path / "whole")))
    put(pages, ["gpu005"], page_of(broken))

    found, said, _path = topology(pages)

    (own,) = [one for one in found["layouts"] if one["nodes"] == ["gpu005"]]
    whole = {device: str(rail) for rail, device in enumerate(DEVICES)}
    assert rails_of(own) == {
        device: rail for device, rail in whole.items() if lost == "GPU" or device != "mlx5_3"
    }
    told = (
        "mlx5_3: its own agent says no rail"
        if lost == "GPU"
        else "mlx5_4: its own agent says rail 1"
    )
    usual = "rail 1" if lost == "GPU" else "rail 2"
    assert said == f"rankmend: gpu005 {told}, 4 nodes built alike say {usual}\n"  # fmt: skip


def test_a_link_that_is_down_on_one_node_is_a_rail_and_one_that_is_down_on_all_is_none(
    tmp_path: Path, pages: Path
) -> None:
    alike = page_of(make_dgx_h100(tmp_path / "whole", down=("mlx5_11",)))
    put(pages, names(3), alike)
    put(pages, ["gpu009"], page_of(make_dgx_h100(tmp_path / "cut", down=("mlx5_3", "mlx5_11"))))

    for layout in topology(pages)[0]["layouts"]:
        assert rails_of(layout) == {device: str(rail) for rail, device in enumerate(DEVICES[:-1])}


def test_slower_nic_beside_a_gpu_is_no_rail(tmp_path: Path, pages: Path) -> None:
    sys = make_dgx_h100(tmp_path)
    slow = add_pci(sys, "15/15:01.0/16:00.0/17:02.0/19:00.0", "0x020000", "0x15b3", 0, "mlx5_core")
    add_rdma(sys, "mlx5_12", slow, "Ethernet", "25 Gb/sec (1X EDR)")
    put(pages, names(2), page_of(sys))

    (layout,) = topology(pages)[0]["layouts"]

    assert rails_of(layout) == {device: str(rail) for rail, device in enumerate(DEVICES)}


def test_virtual_functions_of_a_host_are_no_rails(tmp_path: Path, pages: Path) -> None:
    sys = make_dgx_h100(tmp_path)
    add_virtual_functions(sys, "mlx5_0", 20)
    put(pages, names(2), page_of(sys))
    # Its VFs are with pods, and it has lost a GPU: without the others it would count otherwise.
    put(pages, ["gpu003"], page_of(make_dgx_h100(tmp_path / "without", lost_gpus=("43",))))

    found, said, _path = topology(pages)

    assert said.startswith("rankmend: gpu003 mlx5_3: its own agent says no rail")
    for layout in found["layouts"]:
        assert rails_of(layout) == {device: str(rail) for rail, device in enumerate(DEVICES)}


def test_virtual_machine_without_switches_has_rails_by_the_order_of_its_fastest_nics(
    tmp_path: Path, pages: Path
) -> None:
    put(pages, names(2), page_of(make_bare_machine(tmp_path)))

    (layout,) = topology(pages)[0]["layouts"]

    assert rails_of(layout) == {f"mlx5_ib{rail}": str(rail) for rail in range(8)}
    assert layout["confidence"] == 0.6
    assert {tuple(gpu["nics"]) for gpu in layout["gpus"][:4]} == {
        ("mlx5_ib0", "mlx5_ib1", "mlx5_ib2", "mlx5_ib3")
    }


def test_cloud_node_with_one_nic_has_no_rail(tmp_path: Path, pages: Path) -> None:
    put(pages, names(2), page_of(make_cloud_node(tmp_path)))

    (layout,) = topology(pages)[0]["layouts"]

    assert [(nic["device"], nic["rail"]) for nic in layout["nics"]] == [("ens5", "")]
    assert [(gpu["pci_bus_id"], gpu["nics"]) for gpu in layout["gpus"]] == [("0000:00:1e.0", [])]


def test_rails_of_the_configuration_hold(tmp_path: Path, pages: Path) -> None:
    config = f'{CONFIG}[nic.planes]\ncompute = ["mlx5_0", "mlx5_3"]\n[nic.rails]\nmlx5_0 = 1\nmlx5_3 = 0\n'
    put(pages, names(4), page_of(make_dgx_h100(tmp_path / "a")))
    put(pages, ["gpu007"], page_of(make_dgx_h100(tmp_path / "b"), config))

    found, said, _path = topology(pages)

    (own,) = [one for one in found["layouts"] if one["nodes"] == ["gpu007"]]
    assert {key: rails_of(own)[key] for key in ("mlx5_0", "mlx5_3")} == {"mlx5_0": "1", "mlx5_3": "0"}  # fmt: skip
    assert (
        "gpu007 mlx5_0: its configuration says rail 1, 5 nodes built alike say rail 0" not in said
    )
    assert "gpu007 mlx5_0: its configuration says rail 1, 4 nodes built alike say rail 0" in said


def test_nodes_with_other_numbers_of_rails_share_none(tmp_path: Path, pages: Path) -> None:
    put(pages, names(2), page_of(make_dgx_h100(tmp_path / "a")))
    put(pages, names(2, 11), page_of(make_bare_machine(tmp_path / "b", nics=4)))

    dgx, bare = topology(pages)[0]["layouts"]

    assert (rails_of(dgx)["mlx5_0"], rails_of(bare)["mlx5_ib0"]) == ("0 of 8", "0 of 4")


def lldp(folder: Path, node: str, leaf_of: Callable[[int], str]) -> list[str]:
    interfaces = [
        {interface: {"chassis": {leaf_of(rail): {}}}}
        for rail, (_nic, _gpu, _device, interface) in enumerate(COMPUTE)
    ]
    path = folder / f"{node}.json"
    path.write_text(json.dumps({"lldp": {"interface": interfaces}}))
    return ["--lldp", str(path)]


def test_cable_in_the_leaf_switch_of_another_rail_is_told(tmp_path: Path, pages: Path) -> None:
    put(pages, names(6), page_of(make_dgx_h100(tmp_path, link_layer="Ethernet")))
    swapped = {3: 4, 4: 3}
    words = [
        word
        for node in names(6)
        for word in lldp(
            tmp_path,
            node,
            lambda rail, node=node: f"leaf{swapped.get(rail, rail) if node == 'gpu002' else rail}",  # type: ignore[misc]
        )
    ]

    _found, said, _path = topology(pages, *words)

    assert said.splitlines() == [
        "rankmend: gpu002 ibp154s0: sysfs says rail 4, lldp says leaf3, on which 5 ports of rail 3 hang",
        "rankmend: gpu002 ibp94s0: sysfs says rail 3, lldp says leaf4, on which 5 ports of rail 4 hang",
    ]


def test_blame_names_the_rail_of_bad_nics(tmp_path: Path, pages: Path) -> None:
    """NICs have other names on some nodes, where a storage card is missing; their rail is one."""
    put(pages, names(12), page_of(make_dgx_h100(tmp_path / "a")))
    renamed = page_of(make_dgx_h100(tmp_path / "b")).replace('"mlx5_5"', '"mlx5_rail3"')
    put(pages, names(4, 13), renamed)
    path = str(topology(pages)[2])

    result = run("blame", "--topology", path, "gpu[001-012]/mlx5_5", "gpu[013-016]/ibp94s0")
    other = run("blame", "--topology", path, "gpu[001-002]/mlx5_5", "gpu007/mlx5_0")

    assert (result.exit_code, result.stdout) == (0, "explained by rail 3 (16 of 16)\n")
    assert (other.exit_code, other.stdout) == (1, "no shared part explains these NICs\n")


def test_blame_names_the_node_whose_nics_are_bad(tmp_path: Path, pages: Path) -> None:
    put(pages, names(8), page_of(make_dgx_h100(tmp_path)))
    path = str(topology(pages)[2])

    result = run("blame", "--topology", path, "gpu003", "gpu003/mlx5_0")
    storage = run("blame", "--topology", path, "gpu[003-004]/mlx5_1")
    unknown = run("blame", "--topology", path, "gpu003/mlx5_77")

    assert result.stdout == "explained by node gpu003 (8 of 8)\n"
    assert storage.exit_code == 1  # 6 more NICs of that name are sound
    assert unknown.exit_code == 2
    assert "names no NIC mlx5_77 of gpu003" in unknown.stderr


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.nvml_stub.node import build

    return build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def ask_driver(
    tmp_path: Path, driver_library: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[StubNode], str]:
    """Return the function that returns the page of a DGX with these GPUs."""
    sys = make_dgx_h100(tmp_path / "driven")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver_library))
    monkeypatch.setenv("NVML_STUB_STATE", str(tmp_path / "gpus"))

    def ask(gpus: StubNode) -> str:
        for number, bus in enumerate(GPU_BUSES):
            gpus.set(number, "nvmlDeviceGetPciInfo", 0, bus, 0)
        gpus.save(tmp_path / "gpus")
        return page_of(sys, 'disabled = ["kernel_log", "findings"]\n')

    return ask


def fabric_of(clique: int, cluster: str = CLUSTER, state: int = 3) -> StubNode:
    gpus = StubNode(8)
    for number in range(8):
        gpus.join_fabric(number, cluster, clique, state)
    return gpus


def test_nodes_whose_gpus_joined_one_clique_are_an_nvlink_domain_that_blame_names(
    pages: Path, ask_driver: Callable[[StubNode], str]
) -> None:
    for clique in (1, 2):
        put(pages, names(4, 4 * clique), ask_driver(fabric_of(clique)))
    put(pages, names(4, 12), ask_driver(StubNode(8)))  # NVSwitches of its own: a cluster of zeros
    put(pages, ["gpu016"], ask_driver(fabric_of(1, state=2)))  # the registration is under way

    found, said, path = topology(pages)
    result = run("blame", "--topology", str(path), "gpu[004-007]")

    assert said == ""
    assert found["nvlink_domains"] == [
        {
            "name": f"{DOMAIN}.{clique}",
            "nodes": names(4, 4 * clique),
            "confidence": 0.99,
            "origin": "nvml",
        }
        for clique in (1, 2)
    ]
    assert {one["gpus"][0]["nvswitch_links"] for one in found["layouts"]} == {4}
    assert result.stdout == f"explained by NVLink domain {DOMAIN}.1 (4 of 4)\n"


def test_gpus_in_two_cliques_and_gpus_that_have_joined_none(
    pages: Path, ask_driver: Callable[[StubNode], str]
) -> None:
    split, partial = fabric_of(1), fabric_of(1)
    split.join_fabric(7, CLUSTER, 2)
    partial.join_fabric(6, CLUSTER, 1, state=2)
    partial.set(7, "nvmlDeviceGetGpuFabricInfoV/3", 3, 999, 1, 0, CLUSTER)  # it failed
    put(pages, ["gpu001"], ask_driver(split))
    put(pages, ["gpu002"], ask_driver(partial))

    found, said, _path = topology(pages)

    assert said == (
        f"rankmend: gpu001: its GPUs are in several NVLink domains: {DOMAIN}.1, {DOMAIN}.2\n"
    )
    (domain,) = found["nvlink_domains"]
    assert (domain["nodes"], domain["confidence"]) == (["gpu002"], 0.74)  # 6 of 8 GPUs


def seated(chassis: str, tray: int, gpus: int = 8) -> StubNode:
    """Return a compute tray of an NVL72, of whose GPUs so many name their chassis."""
    found = fabric_of(1)
    for number in range(gpus):
        found.seat(number, chassis, tray + 1, tray)
    return found


def test_nodes_whose_gpus_name_one_chassis_are_a_part_that_heat_is_blamed_on(
    pages: Path, ask_driver: Callable[[StubNode], str]
) -> None:
    put(pages, names(4, 4), ask_driver(seated("1821325191344", 0)))
    put(pages, names(4, 8), ask_driver(seated("1821325191345", 0)))
    put(pages, ["gpu012"], ask_driver(fabric_of(1)))  # an older driver: no platform info

    found, said, path = topology(pages)
    result = run("blame", "--topology", str(path), "--by", "heat", "gpu[004-007]")

    assert said == ""
    assert [(one["name"], one["nodes"], one["confidence"]) for one in found["chassis"]] == [
        ("1821325191344", names(4, 4), 0.99),
        ("1821325191345", names(4, 8), 0.99),
    ]
    assert result.stdout == "explained by chassis 1821325191344 (4 of 4)\n"


def test_gpus_in_two_chassis_without_one_or_with_a_word_for_a_serial_number(
    pages: Path, ask_driver: Callable[[StubNode], str]
) -> None:
    scattered = seated("A1234", 0)
    scattered.seat(7, "B1234", 1, 0)
    put(pages, ["gpu001"], ask_driver(scattered))
    put(pages, ["gpu002"], ask_driver(seated("A1234", 1, gpus=4)))
    put(pages, ["gpu003"], ask_driver(seated("0000000000000", 2)))
    put(pages, ["gpu004"], ask_driver(seated("N/A", 3)))

    found, said, _path = topology(pages)

    assert said == "rankmend: gpu001: its GPUs name several chassis: A1234, B1234\n"
    (chassis,) = found["chassis"]
    assert (chassis["name"], chassis["nodes"], chassis["confidence"]) == ("A1234", ["gpu002"], 0.49)


def test_gpus_with_a_bridge_are_each_others_peers(
    pages: Path, ask_driver: Callable[[StubNode], str]
) -> None:
    gpus = StubNode(8)
    for number in range(0, 8, 2):
        gpus.bridge(number, number + 1)
        gpus.bridge(number + 1, number)
        for gpu, peer in ((number, number + 1), (number + 1, number)):
            for link in range(4):
                far = f"nvmlDeviceGetNvLinkRemotePciInfo/{link}"
                gpus.set(gpu, far, 0, GPU_BUSES[peer], 0)
    put(pages, names(1), ask_driver(gpus))

    (layout,) = topology(pages)[0]["layouts"]

    assert [gpu["nvlink_gpus"] for gpu in layout["gpus"]] == [[1], [0], [3], [2], [5], [4], [7], [6]]  # fmt: skip


def test_answer_of_prometheus_stands_for_the_pages_of_all_its_nodes(
    tmp_path: Path, pages: Path
) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    result = [
        {
            "metric": {"__name__": one.name, "node": node, "instance": f"{node}:9476", **one.labels},
            "value": [1760000000, str(one.value)],
        }
        for family in text_string_to_metric_families(page_of(make_dgx_h100(tmp_path)))
        for one in family.samples
        for node in names(3)
    ]  # fmt: skip
    for one in result:
        one["metric"] = {key: value for key, value in one["metric"].items() if value}  # type: ignore[attr-defined]
    answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
    (pages / "answer.json").write_text(json.dumps(answer))

    (layout,) = topology(pages)[0]["layouts"]

    assert layout["nodes"] == names(3)
    assert rails_of(layout) == {device: str(rail) for rail, device in enumerate(DEVICES)}


def test_query_that_the_documentation_gives_asks_for_all_that_is_read() -> None:
    told = (ROOT / "docs" / "use" / "fabric.md").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'query=\{__name__=~"([^"]+)"\}', told)

    assert [name for name in METRICS if not re.fullmatch(pattern, name)] == []
    assert set(METRICS) <= FAMILIES.keys()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no GPU and no network card"),
        ("up 1\n", "no GPU and no network card"),
        ("{}", "no answer of Prometheus"),
        ('{"data": {"resultType": "vector", "result": [3]}}', "no labels"),
        ('rankmend_topology_info{kind="nic",device="\x1b[2J"} 1\n', "the name"),
        ('rankmend_topology_info{kind="nic",device="' + "x" * 300 + '"} 1\n', "the name"),
        (
            "".join(f'rankmend_topology_info{{kind="nic",device="e{n}"}} 1\n' for n in range(1025)),
            "1025 NICs",
        ),
        (
            "".join(
                f'rankmend_topology_info{{kind="gpu",pci_bus_id="{n}"}} 1\n' for n in range(65)
            ),
            "65 GPUs",
        ),
    ],
    ids=["empty", "other page", "other JSON", "odd answer", "escape", "long", "NICs", "GPUs"],
)
def test_page_that_says_nothing_or_too_much_is_refused_by_name(
    pages: Path, text: str, reason: str
) -> None:
    put(pages, ["gpu001"], text)

    result = run("topology", "--pages", str(pages))

    assert result.exit_code == 2
    assert "gpu001" in result.stderr
    assert reason in result.stderr
    assert "\x1b" not in result.stderr


def test_node_that_is_told_of_twice_is_refused(tmp_path: Path, pages: Path) -> None:
    put(pages, ["gpu001", "gpu001.prom"], page_of(make_cloud_node(tmp_path)))

    result = run("topology", "--pages", str(pages))

    assert result.exit_code == 2
    assert "node gpu001 is listed twice" in result.stderr


def test_tree_that_goes_round_and_has_hundreds_of_devices_is_read(
    tmp_path: Path, pages: Path
) -> None:
    sys = make_dgx_h100(tmp_path)
    round_and_round = sys / "class" / "infiniband" / "mlx5_0" / "device"
    round_and_round.unlink()
    round_and_round.symlink_to("device")
    for number in range(300):
        nic = add_pci(sys, f"f0/f0:{number // 8:02x}.{number % 8}", "0x020000", "0x8086", 0, "iavf")
        add_net(sys, f"vf{number}", nic, "100000")
    closed = sys / "class" / "infiniband" / "mlx5_9" / "ports"
    shutil.rmtree(closed)
    closed.write_text("no folder")
    if os.geteuid():
        (sys / "class" / "infiniband" / "mlx5_10" / "ports").chmod(0)
    put(pages, names(1), page_of(sys))

    (layout,) = topology(pages)[0]["layouts"]

    assert len(layout["nics"]) <= 64  # of the rest none has a plane that is known
    assert rails_of(layout)["mlx5_3"]
