"""The topology file: from the tools' own outputs, with origin and confidence, and read by blame."""

import json
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats.ib_write_bw import parse_ib_write_bw
from detectors.formats.site.ibnetdiscover import parse_ibnetdiscover
from detectors.formats.site.lldp import parse_lldp
from detectors.formats.site.slurm_topology import parse_parts, parse_topology
from detectors.network_topology import (
    EdgeOrigin,
    LayoutNic,
    NodeLayout,
    NvlinkDomain,
    cluster_by_latency,
    contradictions,
    decode_topology,
    edge,
    encode_topology,
    leaf_switches,
    merge,
)
from detectors.parts.fleet_parts import SharedKind, find_parts
from rankmend.cli.labs.fabric import fabric
from rankmend.errors import SourceError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "fabric"
IB_WRITE_BW = """ local address: LID 0000 QPN 0x0187 PSN 0x5bd8ec RKey 0x1fffbd VAddr 0x007f8c4a6ce000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             392.10             391.44             0.746618
---------------------------------------------------------------------------------------
"""


def test_ibnetdiscover_gives_hosts_below_leaves_and_leaves_below_spines() -> None:
    edges = parse_ibnetdiscover((FIXTURES / "ibnetdiscover.txt").read_text(encoding="utf-8"))

    assert {(one.below, one.above, one.port) for one in edges if one.below_is_node} == {
        ("node1", "leaf1", "mlx5_0/1"),
        ("node2", "leaf1", "mlx5_0/1"),
        ("node3", "leaf2", "mlx5_0/1"),
    }
    assert {(one.below, one.above) for one in edges if not one.below_is_node} == {
        ("leaf1", "spine1"),
        ("leaf2", "spine1"),
    }


def test_lldp_names_the_switch_of_each_cable() -> None:
    (found,) = parse_lldp("node7", (FIXTURES / "node7.json").read_bytes())

    assert (found.below, found.above, found.port, found.origin) == (
        "node7",
        "leaf1",
        "eth0",
        EdgeOrigin.LLDP,
    )


def test_surer_source_holds_and_both_stay_in_the_file() -> None:
    slurm = edge("n1", "old", EdgeOrigin.SLURM, port="eth0")
    lldp = edge("n1", "new", EdgeOrigin.LLDP, port="eth0")

    topology = decode_topology(encode_topology(merge([[slurm], [lldp]])))

    assert leaf_switches(topology) == {"n1": "new"}
    assert set(topology.edges) == {slurm, lldp}
    assert contradictions(topology) == ((lldp, slurm),)


def test_a_reader_of_the_first_format_finds_nothing_in_the_edges_that_it_does_not_know() -> None:
    """It refuses an edge of another kind or origin, and passes over keys: what is new has its own."""
    layout = NodeLayout(("n1",), nics=(LayoutNic("mlx5_0", rail="0"),), confidence=0.9)
    domain = NvlinkDomain("d.1", ("n1", "n2"), 0.99)
    topology = merge([[edge("n1", "leaf1", EdgeOrigin.LLDP, port="mlx5_0/1")]], (layout,), (domain,))  # fmt: skip

    told = json.loads(encode_topology(topology))

    assert decode_topology(encode_topology(topology)) == topology
    assert set(told) == {"edges", "format", "layouts", "nvlink_domains", "blocks", "chassis"}
    assert told["format"] == "rankmend-topology-1"
    assert [set(one) for one in told["edges"]] == [
        {"below", "above", "below_is_node", "port", "confidence", "origin", "kind", "below_kind"}
    ]


def test_an_edge_is_a_line_of_the_file() -> None:
    topology = merge([[edge(f"n{at}", "leaf1", EdgeOrigin.LLDP) for at in range(3)]])

    lines = encode_topology(topology).decode().splitlines()

    assert lines[:2] == ["{", ' "edges": [']
    assert lines[2] == (
        '  {"below":"n0","above":"leaf1","below_is_node":true,"port":"","confidence":0.98,"origin":"lldp","kind":"switch","below_kind":null},'
    )
    assert lines[5] == " ],"
    assert decode_topology("\n".join(lines)) == topology


def test_nodes_below_a_leaf_share_what_is_above_it() -> None:
    """12,500 nodes with eight rails below 32 spines each would else take 160 MB of the controller."""
    cables = [edge(f"n{at}", "leaf1", EdgeOrigin.LLDP, port="eth0") for at in range(2)]
    above = [edge("leaf1", f"s{at}", EdgeOrigin.LLDP, is_node=False) for at in range(3)]

    on = find_parts(merge([cables, above])).on

    assert [one.part.name for one in on["n0"]] == ["leaf1", "s0", "s1", "s2"]
    assert all(one is other for one, other in zip(on["n0"], on["n1"], strict=True))


def test_of_thousands_of_switches_only_those_that_share_a_name_get_their_guid() -> None:
    records = [f'Switch\t2 "S-{at:016x}"\t# "s{max(at, 1)}"\n[1]\t"H-{at:016x}"[1]\n' for at in range(6000)]  # fmt: skip
    hosts = [f'Ca\t1 "H-{at:016x}"\t# "n{at} mlx5_0"\n[1]\t"S-{at:016x}"[1]\n' for at in range(6000)]  # fmt: skip

    edges = parse_ibnetdiscover("\n".join((*records, *hosts)))

    assert {one.below: one.above for one in edges if one.below in ("n0", "n1", "n7")} == {
        **{"n0": f"s1 {0:016x}", "n1": f"s1 {1:016x}", "n7": "s7"},
    }


def test_what_a_newer_version_adds_is_passed_over() -> None:
    topology = merge(
        [[edge("n1", "leaf1", EdgeOrigin.LLDP)]],
        (NodeLayout(("n1",), nics=(LayoutNic("mlx5_0", rail="0"),)),),
    )
    told = json.loads(encode_topology(topology))
    told["edges"].append(told["edges"][0] | {"above": "x1", "kind": "optical_switch"})
    told["edges"].append(told["edges"][0] | {"below": "n2", "origin": "oracle"})
    told["layouts"][0] |= {"origin": "oracle", "cpus": 3}
    told["moons"] = [1]

    parts = parse_parts(json.dumps(told))

    assert [str(one.part) for one in parts.on["n1"]] == ["leaf switch leaf1"]
    assert [str(one.part) for one in parts.on["n2"]] == ["leaf switch leaf1"]
    assert parts.rail_of("n1", "mlx5_0") == "0"


@pytest.mark.parametrize(
    "change",
    [
        {"layouts": [{"nodes": ["\u001b[2J"]}]},
        {"layouts": [{"nodes": ["n"], "nics": [{"device": ""}]}]},
        {"layouts": [{"nodes": ["n"], "nics": [{"device": "a"}] * 1025}]},
        {"layouts": [{"nodes": ["n"] * 1_000_001}]},
        {"nvlink_domains": [{"name": "x" * 300, "nodes": ["n"], "confidence": 1}]},
        {"chassis": [{"name": "x" * 300, "nodes": ["n"], "confidence": 1}]},
        {"nvlink_domains": [{"name": "d.1", "nodes": [7], "confidence": 1}]},
    ],
    ids=["escape", "no device", "NICs", "nodes", "long name", "chassis", "number"],
)
def test_hostile_layouts_and_domains_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(SourceError, match="topology file") as told:
        parse_parts(json.dumps({"format": "rankmend-topology-1", "edges": []} | change))

    assert str(told.value).isprintable()


def test_command_writes_a_file_that_blame_reads(tmp_path: Path) -> None:
    conf, target = tmp_path / "topology.conf", tmp_path / "t.json"
    conf.write_text("SwitchName=leaf9 Nodes=node[8-9]\nSwitchName=top Switches=leaf9\n")
    words = ["topology", "--slurm", str(conf), "--lldp", str(FIXTURES / "node7.json"),
             "--ibnetdiscover", str(FIXTURES / "ibnetdiscover.txt"), "-o", str(target)]  # fmt: skip

    result = CliRunner().invoke(fabric, words)

    assert result.exit_code == 0, result.stderr
    assert parse_topology(target.read_text(encoding="utf-8")) == {
        **{"node1": "leaf1", "node2": "leaf1", "node3": "leaf2"},
        **{"node7": "leaf1", "node8": "leaf9", "node9": "leaf9"},
    }


def test_round_trips_group_nodes_and_say_that_it_is_a_guess() -> None:
    nodes = [f"n{number}" for number in range(6)]
    times = {(a, b): 5e-6 if a // 3 == b // 3 else 9e-6 for a in range(6) for b in range(a + 1, 6)}

    edges = cluster_by_latency(nodes, times)

    assert [one.above for one in edges] == ["group1"] * 3 + ["group2"] * 3
    assert {(one.origin, one.confidence) for one in edges} == {(EdgeOrigin.LATENCY, 0.5)}


def round_trips(nodes: int, group: int, pod: int, seed: int = 1) -> dict[tuple[int, int], float]:
    """Return a time for each pair by the lowest part that both hang on, with a tenth of noise."""
    noise = Random(seed)
    times = {}
    for a in range(nodes):
        for b in range(a + 1, nodes):
            usual_s = 5e-6 if a // group == b // group else 9e-6 if a // pod == b // pod else 15e-6
            times[a, b] = usual_s * noise.uniform(0.95, 1.05)
    return times


def test_round_trips_of_three_classes_show_groups_and_pods_of_groups() -> None:
    nodes = [f"n{number}" for number in range(16)]
    slow_pair = {(0, 1): 1e-3}

    topology = merge([cluster_by_latency(nodes, round_trips(16, 4, 8) | slow_pair)])
    parts = find_parts(topology)

    assert leaf_switches(topology) == {f"n{at}": f"group{at // 4 + 1}" for at in range(16)}
    assert [parts.name_of(f"n{at}", SharedKind.SWITCH) for at in range(16)] == [
        f"pod{at // 8 + 1}" for at in range(16)
    ]
    assert {one.confidence for one in topology.edges if one.below_is_node} == {0.5}


def test_groups_of_which_not_all_pairs_were_measured_are_less_sure() -> None:
    nodes = [f"n{number}" for number in range(8)]
    half = dict(list(round_trips(8, 4, 8).items())[::2])

    assert {one.confidence for one in cluster_by_latency(nodes, half)} == {0.25}


def test_a_single_near_pair_among_far_nodes_is_no_group() -> None:
    times = {(a, b): 9e-6 for a in range(8) for b in range(a + 1, 8)} | {(2, 3): 4e-6}

    assert cluster_by_latency([f"n{number}" for number in range(8)], times) == ()


def test_equal_round_trips_show_no_groups() -> None:
    times = {(a, b): 5e-6 * (1 + 0.02 * (a + b)) for a in range(4) for b in range(a + 1, 4)}

    assert cluster_by_latency(["a", "b", "c", "d"], times) == ()


def test_rdma_bandwidth_is_read_in_both_units() -> None:
    (row,) = parse_ib_write_bw(IB_WRITE_BW)
    (old,) = parse_ib_write_bw(IB_WRITE_BW.replace("Gb/sec", "MB/sec"))

    assert (row.size_bytes, row.iterations) == (65536, 5000)
    assert row.average_bytes_per_s == pytest.approx(48.93e9)
    assert old.average_bytes_per_s == pytest.approx(391.44 * 2**20)
    with pytest.raises(SourceError, match="Unable to find"):
        parse_ib_write_bw(" Did not detect devices\n Unable to find the Infiniband/RoCE device\n")


@pytest.mark.parametrize(
    "body", ["", "{}", '{"edges": 1}', '{"edges": [], "format": "x"}', "{" * 5000]
)
def test_broken_topology_file_is_a_clear_error(body: str) -> None:
    with pytest.raises(SourceError, match="topology file"):
        decode_topology(body)


@given(st.binary(max_size=300))
def test_odd_bytes_are_refused_or_read_as_lldp(body: bytes) -> None:
    try:
        parse_lldp("n", body)
    except SourceError:
        return


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda c: st.lists(c, max_size=3) | st.dictionaries(st.sampled_from(["lldp", "interface", "chassis", "id", "capability", "type", "enabled"]), c, max_size=3), max_leaves=20))  # fmt: skip
def test_odd_json_is_refused_or_read_as_lldp(value: object) -> None:
    try:
        parse_lldp("n", json.dumps({"lldp": value}).encode())
    except SourceError:
        return
