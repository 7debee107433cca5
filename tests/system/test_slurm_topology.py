"""A real Slurm reads the topology.conf that rankmend reads, and rankmend reads what it shows of it."""

from pathlib import Path

import pytest

from detectors.formats.site.slurm_topology import parse_network, parse_parts
from tests.support.slurm import missing, slurm_cluster

pytestmark = pytest.mark.site

CONF = """# leaves
SwitchName = leaf1 Nodes="node[1-\\
2]"
switchname=leaf2 nodes=node3 LinkSpeed=5 # the other
SwitchName=top Switches=leaf[1-2]
"""


@pytest.mark.component("Slurm")
def test_what_slurm_shows_of_its_topology_is_what_its_file_says(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "topology.conf").write_text(CONF)

    with slurm_cluster(tmp_path, 3, TopologyPlugin="topology/tree") as cluster:
        shown = cluster.run("scontrol", "show", "topology").stdout

    assert "Level=1" in shown
    assert set(parse_network(shown).edges) == set(parse_network(CONF).edges)
    assert [str(one.part) for one in parse_parts(shown).on["node3"]] == [
        *("leaf switch leaf2", "switch top"),
    ]
