"""Blocks of Slurm's topology/block, from every form in which Slurm has them, and what is done with them."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from detectors.formats.site.slurm_topology import parse_network, parse_parts
from detectors.network_topology import (
    EdgeOrigin,
    NodeBlock,
    NvlinkDomain,
    decode_topology,
    edge,
    encode_topology,
    leaf_switches,
    merge,
)
from detectors.parts.fleet_parts import FleetParts, find_parts
from detectors.parts.nvlink_domains import find_strays
from detectors.parts.shared_blame import PlacedWorker, explain_shared
from detectors.parts.symptoms import CAUSES_OF, SharedSymptom
from rankmend.cli.labs.fabric import fabric
from rankmend.errors import SourceError

# As topology.conf(5) has it, with a line that goes on, quotation marks, and a block for nodes that join later.
CONF = """# two racks of NVL72
BlockName=rack1 Nodes=node[01-\\
18]
blockname = rack2 nodes="node[19-36]"  # the second
BlockName=later
BlockSizes=18,36
"""
# As _print_topo_record of topology_block.c prints the same.
SHOWN = """BlockName=rack1 BlockIndex=0 Nodes=node[01-18] BlockSize=18
BlockName=rack2 BlockIndex=1 Nodes=node[19-36] BlockSize=18
BlockName=later BlockIndex=2 BlockSize=18
AggregatedBlock=rack[1-2] BlockIndex=3 Nodes=node[01-36] BlockSize=36
"""
YAML = """---
# as topology.yaml(5) has it
- topology: blocks
  cluster_default: false
  block:
    block_sizes:
      - 18
      - 36
    blocks:
      - block: rack1
        nodes: node[01-18]
      - block: rack2
        nodes: node[19-36]
      - block: later
- topology: flat
  flat: true
- topology: tree
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: leaf[1-2]
      - switch: leaf1
        nodes: node[01-02]
      - switch: leaf2
        nodes: node[03-36]
- topology: other
  tree:
    switches:
      - switch: other1
        nodes: node[01-36]
"""
RACKS = {
    "rack1": tuple(f"node{number:02}" for number in range(1, 19)),
    "rack2": tuple(f"node{number:02}" for number in range(19, 37)),
}


@pytest.mark.parametrize("text", [CONF, SHOWN, YAML], ids=["topology.conf", "scontrol", "yaml"])
def test_blocks_are_read_with_their_source_and_how_sure_it_is(text: str) -> None:
    found = parse_network(text.encode())

    assert {one.name: one.nodes for one in found.blocks} == RACKS
    assert {(one.origin, one.confidence) for one in found.blocks} == {(EdgeOrigin.SLURM, 0.9)}


def test_of_several_topologies_the_clusters_default_names_the_leaf_of_a_node() -> None:
    leaves = leaf_switches(parse_network(YAML))

    assert (leaves["node01"], leaves["node36"], len(leaves)) == ("leaf1", "leaf2", 36)
    assert [str(one.part) for one in parse_parts(YAML).on["node03"]] == [
        *("block rack1", "leaf switch leaf2", "switch top"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("BlockName=b1 Nodes=n1\nBlockName=b1 Nodes=n2\n", "line 2: block b1 is listed twice"),
        ("BlockName=\x1b[2J Nodes=n1\n", "line 1: '\\x1b[2J' is not a name"),
        ("BlockName=b1 Nodes=n[1-\n", "line 1: 'n[1-' is not a list"),
        ("RingName=r1 Nodes=n[1-4]\n", "line 1: neither a switch, a block"),
        ("BlockSizes=4\n", "names no host"),
        ("BlockSizes=4 what is this\n", "line 1: neither"),
        pytest.param(
            "".join(f"BlockName=b{at} Nodes=n[1-20000]\n" for at in range(51)),
            "1000000 edges",
            marks=pytest.mark.thorough,
        ),
        ("---\n- topology: [1]\n", "topology.yaml of Slurm: Expected `str`"),
        ("---\n- topology: t\n  block: {blocks: [{block: b, nodes: 'n[1-'}]}\n", "topology 't'"),
        ("---\n- topology: t\n  tree: {switches: [{switch: s, children: t}]}\n", "names no host"),
        ("---\n- {topology: t\n", "topology.yaml"),
    ],
)
def test_what_is_no_topology_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(SourceError) as told:
        parse_network(text)

    assert reason in str(told.value)


def test_without_pyyaml_the_way_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)  # as the import system marks what is not there

    with pytest.raises(SourceError, match="scontrol show topology"):
        parse_network(YAML)


def test_file_keeps_blocks_and_refuses_one_that_differs_between_sources() -> None:
    blocks = [NodeBlock("b2", ("n3",)), NodeBlock("b1", ("n1", "n2")), NodeBlock("b2", ("n3",))]
    topology = merge([], blocks=blocks)

    assert [one.name for one in topology.blocks] == ["b1", "b2"]
    assert decode_topology(encode_topology(topology)) == topology
    with pytest.raises(SourceError, match="block b1 has other nodes"):
        merge([], blocks=[NodeBlock("b1", ("n1",)), NodeBlock("b1", ("n2",))])


def blamed(parts: FleetParts, bad: Sequence[str], symptom: SharedSymptom) -> str:
    workers = [PlacedWorker(node, node) for node in parts.nodes]
    return explain_shared(workers, bad, parts, CAUSES_OF[symptom]).part


def test_a_block_can_slow_communication_and_heats_nothing() -> None:
    parts = parse_parts(CONF)

    found = {one: blamed(parts, RACKS["rack1"], one) for one in SharedSymptom}

    assert found[SharedSymptom.NETWORK] == found[SharedSymptom.ANYTHING] == "block rack1"
    assert found[SharedSymptom.HEAT] == found[SharedSymptom.POWER] == ""


def joined(nodes: Mapping[str, Sequence[str]]) -> tuple[NvlinkDomain, ...]:
    return tuple(NvlinkDomain(name, tuple(own), 0.99) for name, own in nodes.items())


def test_a_block_that_is_an_nvlink_domain_or_switch_by_another_name_is_no_part_of_its_own() -> None:
    """Else the two explain the same equally well, and none is ever named."""
    blocks = parse_network(CONF).blocks
    domains = joined({"d.1": RACKS["rack1"], "d.2": RACKS["rack2"][:9]})
    cables = [edge(node, "leaf2", EdgeOrigin.LLDP, port="eth0") for node in RACKS["rack2"]]

    by_nvlink = find_parts(merge([], nvlink_domains=domains, blocks=blocks))
    by_cables = find_parts(merge([cables], blocks=blocks))

    assert blamed(by_nvlink, RACKS["rack1"], SharedSymptom.NETWORK) == "NVLink domain d.1"
    assert blamed(by_nvlink, RACKS["rack2"], SharedSymptom.NETWORK) == "block rack2"
    assert blamed(by_nvlink, RACKS["rack2"][:9], SharedSymptom.NETWORK) == "NVLink domain d.2"
    assert blamed(by_cables, RACKS["rack1"], SharedSymptom.NETWORK) == "block rack1"
    assert blamed(by_cables, RACKS["rack2"], SharedSymptom.NETWORK) == "leaf switch leaf2"


def test_a_node_that_nvlink_puts_elsewhere_than_its_block_is_told_of() -> None:
    blocks = parse_network(CONF).blocks
    domains = joined({"d.1": (*RACKS["rack1"][1:], RACKS["rack2"][0]), "d.2": RACKS["rack2"][1:9], "d.3": RACKS["rack2"][9:]})  # fmt: skip

    (odd,) = find_strays(merge([], nvlink_domains=domains, blocks=(*blocks[:1], NodeBlock("b", (*RACKS["rack1"][1:5], RACKS["rack2"][3])))))  # fmt: skip

    assert odd.in_words() == (
        "node22: topology.conf says block b, nvml says NVLink domain d.2; 4 nodes of this block are in d.1"
    )
    assert list(find_strays(merge([], nvlink_domains=domains, blocks=blocks[1:]))) == []


def test_commands_write_blocks_and_name_the_one_to_blame(tmp_path: Path) -> None:
    conf, target = tmp_path / "topology.conf", tmp_path / "topology.json"
    conf.write_text(CONF)

    made = CliRunner().invoke(fabric, ["topology", "--slurm", str(conf), "-o", str(target)])
    told = CliRunner().invoke(fabric, ["blame", "--topology", str(target), "node[19-33,36]"])
    of_conf = CliRunner().invoke(fabric, ["blame", "--topology", str(conf), "node[19-33,36]"])

    assert made.exit_code == 0, made.stderr
    assert told.stdout == of_conf.stdout == "explained by block rack2 (16 of 18)\n"
