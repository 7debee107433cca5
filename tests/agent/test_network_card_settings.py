"""Network cards in the configuration, and in the whole agent."""

import re
import shutil
import subprocess
import sys as system
from pathlib import Path

import pytest

from agent.assembly import network_cards
from agent.assembly.network_cards import NetworkCardSettings, make_collectors
from agent.collectors.ethtool import LINK_ERRORS
from agent.collectors.nic_files import COUNTERS
from agent.config import load
from agent.sources.pci_topology import Plane
from rankmend.errors import ConfigError
from tests.support.agent import FIXTURE, ROOT
from tests.support.nics import make_node

pytestmark = pytest.mark.process

CONFIG = """
[nic]
exclude = ["mlx5_3"]

[nic.planes]
compute = ["mlx5_0", "mlx5_1"]
storage = ["mlx5_2"]

[nic.rails]
mlx5_0 = 4

[nic.rates_gbit]
"mlx5_[01]" = 400
"""


def write_config(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text)
    return path


def test_configuration_of_network_cards_is_read(tmp_path: Path) -> None:
    nic = load(write_config(tmp_path, CONFIG)).nic

    assert nic.exclude == ("mlx5_3",)
    assert nic.plane_by_pattern() == {
        "mlx5_0": Plane.COMPUTE,
        "mlx5_1": Plane.COMPUTE,
        "mlx5_2": Plane.STORAGE,
    }
    assert nic.rails == {"mlx5_0": 4}
    assert nic.rates_gbit == {"mlx5_[01]": 400}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[nic]\nexcluded = []", "excluded"),
        ('[nic.planes]\nfrontend = ["eth0"]', "frontend"),
        ('[nic.planes]\nunknown = ["eth0"]', "unknown"),
        ('[nic.planes]\ncompute = ["eth0"]\nstorage = ["eth0"]', "eth0"),
        ("[nic.rails]\nmlx5_0 = -1", "-1"),
        ("[nic.rails]\nmlx5_0 = 1024", "1024"),
        ('[nic.rails]\nmlx5_0 = "first"', "rails"),
        ("[nic.rates_gbit]\nmlx5_0 = 0", "mlx5_0"),
        ("[nic.rates_gbit]\nmlx5_0 = 1e5", "mlx5_0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        load(write_config(tmp_path, text))


def test_limits_of_rail_and_rate_are_inclusive() -> None:
    network_cards.check(NetworkCardSettings(rails={"a": 0, "b": 1023}, rates_gbit={"a": 10_000}))


def test_collectors_have_the_names_that_the_configuration_knows(tmp_path: Path) -> None:
    collectors = make_collectors(NetworkCardSettings(), tmp_path, tmp_path)

    assert tuple(collector.name for collector in collectors) == network_cards.COLLECTORS


def test_documentation_names_every_counter_and_every_kind() -> None:
    text = (ROOT / "docs/reference/nic.md").read_text()

    rows = dict(re.findall(r"^\| `(\w+)` \| `(rankmend_nic_\w+)` \|$", text, re.MULTILINE))
    kinds = re.search(r"link_errors_total` has these kinds: (.*?)\. Intel", text, re.DOTALL)

    assert rows == {name: counter.metric for name, counter in COUNTERS.items()}
    assert kinds is not None
    assert set(re.findall(r"`(\w+)`", kinds[1])) == set(LINK_ERRORS.values())
    for collector in network_cards.COLLECTORS:
        assert f"| `{collector}` |" in text


def test_agent_shows_the_cards_of_a_tree_and_asks_no_driver_of_this_machine(
    tmp_path: Path,
) -> None:
    sys = make_node(tmp_path)
    shutil.copytree(FIXTURE / "proc", tmp_path / "proc", dirs_exist_ok=True)

    run = subprocess.run(
        [
            *(system.executable, "-m", "rankmend.cli", "agent", "--once"),
            *("--config", str(write_config(tmp_path, CONFIG))),
            *("--sysfs", str(sys), "--procfs", str(tmp_path / "proc")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    lines = set(run.stdout.splitlines())
    assert run.returncode == 0, run.stderr
    for line in (
        'rankmend_nic_port_state_id{device="mlx5_0",port="1"} 4.0',
        'rankmend_nic_rate_max_bytes_per_second{device="mlx5_1",port="1"} 5e+10',
        'rankmend_topology_plane_info{device="mlx5_0",origin="configured",plane="compute",port="1",'
        'rail="4"} 1.0',
        'rankmend_topology_affinity_info{closeness="PIX",device="mlx5_1",'
        'pci_bus_id="0000:39:00.0"} 1.0',
        'rankmend_ethernet_carrier{device="eth0"} 1.0',
        'rankmend_ethernet_driver_success{device="eth0"} 1.0',
        'rankmend_collector_success{collector="nic"} 1.0',
    ):
        assert line in lines
    assert "ethernet_driver_info{" not in run.stdout  # eth0 of this machine is another one
    shown = [line for line in lines if re.match("rankmend_(nic|ethernet|topology)_", line)]
    assert shown
    assert not [line for line in shown if "mlx5_3" in line]
