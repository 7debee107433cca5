"""Topology files that are huge, cyclic, broken, or full of odd names."""

import json

import pytest

from detectors.formats.site.ibnetdiscover import parse_ibnetdiscover
from detectors.formats.site.lldp import parse_lldp
from detectors.formats.site.site_parts import parse_site_parts
from detectors.formats.site.slurm_topology import parse_parts
from detectors.network_topology import EdgeOrigin, edge, merge
from detectors.parts.fleet_parts import ABOVE_MAX, find_parts
from rankmend.errors import SourceError


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"SwitchName=leaf1 Nodes=n1\nSwitchName=leaf2 Nodes=n\xe4\n", "line 2: byte 0xe4"),
        (b"SwitchName=\x1b[2J Nodes=n1", "not a name"),
        (b"SwitchName=" + b"x" * 300 + b" Nodes=n1", "not a name"),
        (b"SwitchNames=leaf1 Nodes=n1", "line 1"),
        (b"SwitchName=leaf1 Nodes=n[1-3", "list"),
        (b"SwitchName=leaf1 Nodes=n[1-99999999]", "list"),
        pytest.param(b"SwitchName=leaf1 Nodes=n[0-19999]\n" * 51, "more than 1000000 edges",
                     marks=pytest.mark.thorough),
        (b"n1 leaf1\n" * 100_001, "100001 lines"),
        (b"SwitchName=top Switches=leaf1\n", "names no host"),
        (b'{"format": "rankmend-topology-1", "edges": [{"below": "n1", "above": "\\u001b[2J", '
         b'"below_is_node": true, "port": "", "confidence": 1, "origin": "lldp"}]}', "the name"),
        (b'{"format": "rankmend-topology-1", "edges": [{"below": "n1"}]}', "above"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_hostile_topology_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(SourceError, match="topology") as told:
        parse_parts(body)

    assert reason in str(told.value)
    assert str(told.value).isprintable()


def test_switches_in_a_ring_and_nodes_named_twice_have_their_parts_once() -> None:
    text = (
        "SwitchName=s1 Nodes=n1,n1 Switches=s2\nSwitchName=s2 Nodes=n2 Switches=s1,s2\n"
        "SwitchName=s1 Nodes=n2\n"
    )

    parts = parse_parts(text)

    assert [str(one.part) for one in parts.on["n1"]] == ["leaf switch s1", "switch s2"]
    assert [str(one.part) for one in parts.on["n2"]] == ["leaf switch s1", "switch s2"]


def test_a_switch_below_as_many_others_as_a_file_may_name_costs_no_node_more_than_its_bound() -> (
    None
):
    above = [edge("leaf", f"s{at}", EdgeOrigin.LLDP, is_node=False) for at in range(2_000)]
    nodes = [edge(f"n{at}", "leaf", EdgeOrigin.LLDP) for at in range(200)]

    parts = find_parts(merge([above, nodes]))

    assert {len(hung) for hung in parts.on.values()} == {ABOVE_MAX}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[[rack]]\nname = 'r\xff1'\nnodes = ['n1']", "utf-8"),
        (b"[[rack]]\nname = 'r1'\nnodes = ['n1']\n[[rack]]\nname = 'r1'\nnodes = ['n2']", "twice"),
        (b"[[rack]]\nname = 'r1'\nnodes = ['n1']\nowner = 'me'", "owner"),
    ],
    ids=["not UTF-8", "twice", "unknown key"],
)
def test_hostile_file_of_racks_is_refused_with_the_reason(text: bytes, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        parse_site_parts(text)


def test_texts_of_foreign_switches_and_cards_become_printable_names() -> None:
    lldp = json.dumps({"lldp": {"interface": {"eth0\n": {"chassis": {"\x1b[2Jsw": {}}}}}})
    ib = (
        'Switch 2 "S-0000000000000001"  # "\x1b[2J" enhanced\n'
        '[1] "H-0000000000000002"[1]\n\nCa 1 "H-0000000000000002"  # "n1 \x07 0"\n'
        '[1] "S-0000000000000001"[1]\n'
    )

    edges = [*parse_lldp("n1", lldp.encode()), *parse_ibnetdiscover(ib)]

    assert [(one.below, one.above) for one in edges] == [("n1", "␛[2Jsw"), ("n1", "␛[2J")]
    assert all(one.port.isprintable() for one in edges)
    with pytest.raises(SourceError, match="no node"):
        parse_lldp("n\udcff", b"{}")
