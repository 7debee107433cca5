"""Which shared part explains workers that fail together: the smallest, or none."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats.site.site_parts import parse_site_parts
from detectors.formats.site.slurm_topology import parse_network, parse_parts
from detectors.network_topology import (
    EdgeOrigin,
    GpuChassis,
    LayoutNic,
    NetworkTopology,
    NodeLayout,
    NvlinkDomain,
    edge,
    encode_topology,
    merge,
)
from detectors.parts.fleet_parts import (
    FleetPart,
    FleetParts,
    HungPart,
    SharedKind,
    ToldDomain,
    find_parts,
    with_domains,
)
from detectors.parts.shared_blame import BlameEnd, PlacedWorker, explain_shared, together
from detectors.parts.symptoms import CAUSES_OF, SharedSymptom
from rankmend.cli.labs.fabric import fabric
from rankmend.errors import SourceError

SLURM = """SwitchName=leaf1 Nodes=n[0-7]
SwitchName=leaf2 Nodes=n[8-15]
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=leaf3 Nodes=n[16-23]
SwitchName=leaf4 Nodes=n[24-31]
SwitchName=spine2 Switches=leaf[3-4]
"""
SITE = """
[[rack]]
name = "r0"
nodes = ["n[0-3]"]
[[rack]]
name = "r1"
nodes = ["n[4-11]"]
[[rack]]
name = "r2"
nodes = ["n[12-31]"]
[[power_feed]]
name = "feed-a"
nodes = ["n0", "n4", "n8", "n12", "n16"]
[[coolant_loop]]
name = "cdu1"
racks = ["r0", "r1"]
[[coolant_loop]]
name = "cdu2"
racks = ["r2"]
"""


def fleet() -> FleetParts:
    return find_parts(merge([parse_network(SLURM).edges, parse_site_parts(SITE)]))


def nodes(*numbers: int) -> list[str]:
    return [f"n{number}" for number in numbers]


def named(bad: Sequence[str], symptom: SharedSymptom = SharedSymptom.ANYTHING) -> list[str]:
    workers = [PlacedWorker(node, node) for node in nodes(*range(32))]
    found = explain_shared(workers, bad, fleet(), CAUSES_OF[symptom])
    return [str(one.part) for one in found.named]


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (nodes(*range(8)), "leaf switch leaf1"),
        (nodes(*range(16)), "switch spine1"),
        (nodes(0, 1, 2, 3), "rack r0"),
        (nodes(*range(4, 12)), "rack r1"),
        (nodes(*range(12)), "coolant loop cdu1"),
        (nodes(0, 4, 8, 12, 16), "power feed feed-a"),
        (nodes(*range(7)), "leaf switch leaf1"),  # noise hides one of eight
    ],
)
def test_smallest_part_around_the_bad_nodes_is_named(bad: list[str], part: str) -> None:
    assert named(bad) == [part]


def test_nodes_that_share_nothing_are_alone() -> None:
    workers = [PlacedWorker(node, node) for node in nodes(*range(32))]

    found = explain_shared(workers, nodes(3, 9, 20), fleet())

    assert (found.end, found.named, found.alone) == (BlameEnd.NO_PART, (), ("n20", "n3", "n9"))
    assert found.in_words() == "no shared part explains these nodes"


def test_one_bad_node_and_almost_all_bad_nodes_name_no_part() -> None:
    workers = [PlacedWorker(node, node) for node in nodes(*range(32))]

    assert explain_shared(workers, ["n1"], fleet()).end is BlameEnd.TOO_FEW
    assert explain_shared(workers, nodes(*range(30)), fleet()).end is BlameEnd.ALMOST_ALL


def test_two_parts_around_the_same_nodes_are_told_and_none_is_named() -> None:
    parts = FleetParts(
        {
            node: (
                HungPart(FleetPart(SharedKind.LEAF, f"leaf{number // 4}")),
                HungPart(FleetPart(SharedKind.RACK, f"r{number // 4}")),
            )
            for number, node in enumerate(nodes(*range(16)))
        }
    )
    workers = [PlacedWorker(node, node) for node in parts.on]

    found = explain_shared(workers, nodes(0, 1, 2, 3), parts)
    by_heat = explain_shared(workers, nodes(0, 1, 2, 3), parts, CAUSES_OF[SharedSymptom.HEAT])

    assert (found.end, found.named) == (BlameEnd.TIED, ())
    assert found.in_words() == (
        "leaf switch leaf0 (4 of 4) or rack r0 (4 of 4) explain it equally well, so none is named"
    )
    assert [str(one.part) for one in by_heat.named] == ["rack r0"]


def test_a_part_and_a_node_that_failed_by_chance_beside_it_are_told_apart() -> None:
    workers = [PlacedWorker(node, node) for node in nodes(*range(32))]

    found = explain_shared(workers, nodes(*range(8), 30), fleet())

    assert [str(one.part) for one in found.named] == ["leaf switch leaf1"]
    assert found.alone == ("n30",)


def test_two_broken_parts_are_both_named() -> None:
    assert named([*nodes(0, 1, 2, 3), *nodes(*range(24, 32))]) == ["leaf switch leaf4", "rack r0"]


def rank_workers() -> list[PlacedWorker]:
    return [
        PlacedWorker(f"{node} {rail}", node, f"mlx5_{rail}")
        for node in nodes(*range(32))
        for rail in range(4)
    ]


def test_ranks_name_their_node_their_rail_or_what_is_above() -> None:
    def names(bad: list[str]) -> list[str]:
        return [str(one.part) for one in explain_shared(rank_workers(), bad, fleet()).named]

    assert names([f"n9 {rail}" for rail in range(4)]) == ["node n9"]
    assert names([f"{node} 2" for node in nodes(*range(32))]) == ["rail mlx5_2"]
    assert names([f"n{node} {rail}" for node in range(4) for rail in range(4)]) == ["rack r0"]


def test_a_leaf_of_one_rail_is_held_against_the_ranks_of_that_rail_alone() -> None:
    edges = [
        edge(node, f"leaf{number // 8}-{rail}", EdgeOrigin.LLDP, port=f"mlx5_{rail}/1")
        for number, node in enumerate(nodes(*range(32)))
        for rail in range(4)
    ]

    found = explain_shared(
        rank_workers(),
        [f"{node} 1" for node in nodes(*range(8))],
        find_parts(NetworkTopology(tuple(edges))),
    )

    assert [str(one.part) for one in found.named] == ["leaf switch leaf0-1"]


def test_a_rail_is_one_whatever_its_nics_are_called() -> None:
    """Half of the nodes have a storage card before their second NIC."""
    layouts = tuple(
        NodeLayout(
            tuple(nodes(*own)),
            nics=tuple(LayoutNic(f"mlx5_{nic}", "1", f"ib{nic}", rail=str(rail)) for rail, nic in enumerate(nics)),
        )
        for own, nics in ((range(16), (0, 1, 2, 3)), (range(16, 32), (0, 2, 3, 4)))
    )  # fmt: skip
    workers = [
        PlacedWorker(f"{node} {nic.device}", node, nic.device)
        for layout in layouts
        for node in layout.nodes
        for nic in layout.nics
    ]
    bad = [f"{node} mlx5_1" for node in layouts[0].nodes]
    bad += [f"{node} mlx5_2" for node in layouts[1].nodes]

    found = explain_shared(workers, bad, find_parts(merge([], layouts)))

    assert [str(one.part) for one in found.named] == ["rail 1"]


def test_a_leaf_that_lldp_knows_by_interface_is_held_against_the_ranks_of_that_nic() -> None:
    layout = NodeLayout(tuple(nodes(*range(32))), nics=tuple(LayoutNic(f"mlx5_{rail}", "1", f"ens{rail}", rail=str(rail)) for rail in range(4)))  # fmt: skip
    edges = [
        edge(node, f"leaf{number // 8}-{rail}", EdgeOrigin.LLDP, port=f"ens{rail}")
        for number, node in enumerate(layout.nodes)
        for rail in range(4)
    ]

    found = explain_shared(
        rank_workers(),
        [f"{node} 1" for node in nodes(*range(8))],
        find_parts(NetworkTopology(tuple(edges), layouts=(layout,))),
    )

    assert [str(one.part) for one in found.named] == ["leaf switch leaf0-1"]


def test_a_chassis_is_one_part_and_no_second_name_of_a_rack_with_its_nodes() -> None:
    chassis = (
        GpuChassis("A1234", ("n1", "n2"), 0.99),
        GpuChassis("B1234", ("n3", "n4"), 0.99),
    )
    site = parse_site_parts("[[rack]]\nname='r1'\nnodes=['n1', 'n2']")

    parts = find_parts(merge([site], chassis=chassis))

    assert parts.name_of("n1", SharedKind.RACK) == "r1"
    assert [parts.name_of(node, SharedKind.CHASSIS) for node in ("n1", "n3", "n9")] == [None, "B1234", None]  # fmt: skip


def test_an_nvlink_domain_can_slow_communication_and_heats_nothing() -> None:
    domain = NvlinkDomain("d.1", tuple(nodes(*range(5, 9))), 0.99)
    parts = find_parts(merge([parse_network(SLURM).edges], nvlink_domains=(domain,)))
    workers = [PlacedWorker(node, node) for node in nodes(*range(32))]

    def words(symptom: SharedSymptom) -> list[str]:
        found = explain_shared(workers, domain.nodes, parts, CAUSES_OF[symptom])
        return [str(one.part) for one in found.named]

    assert words(SharedSymptom.NETWORK) == words(SharedSymptom.ANYTHING) == ["NVLink domain d.1"]
    assert words(SharedSymptom.HEAT) == words(SharedSymptom.POWER) == []


@given(st.data())
def test_the_broken_part_is_named_whatever_noise_hides_and_a_sound_one_never(
    data: st.DataObject,
) -> None:
    parts = data.draw(fleets())
    below = parts.nodes_of
    broken = data.draw(st.sampled_from(sorted(below, key=str)))
    workers = [PlacedWorker(node, node) for node in parts.on]
    hidden_max = (len(below[broken]) - 1) // 4
    hidden = data.draw(st.sets(st.sampled_from(sorted(below[broken])), max_size=hidden_max))
    bad = below[broken] - hidden

    found = explain_shared(workers, bad, parts)

    for one in found.named:
        assert set(one.bad) <= bad
        assert one.sound < len(one.bad), "a part with as many sound nodes explains nothing"
        smaller = [p for p in below if below[p] < below[one.part] and set(one.bad) <= below[p]]
        assert not smaller, f"{smaller} explains the same nodes and is smaller"
        equal = [p for p in below if p != one.part and below[p] == below[one.part]]
        assert not equal, f"{equal} explains the same nodes equally well"
    if not hidden and found.named:
        assert [one.part for one in found.named] == [broken]
    if not hidden and found.tied:
        assert broken in [one.part for one in found.tied]


@given(st.data())
def test_order_of_workers_and_parts_changes_nothing(data: st.DataObject) -> None:
    parts = data.draw(fleets())
    bad = data.draw(st.sets(st.sampled_from(sorted(parts.on)), min_size=2))
    workers = [PlacedWorker(node, node) for node in parts.on]
    mixed = data.draw(st.permutations(workers))

    assert explain_shared(mixed, bad, parts) == explain_shared(workers, bad, parts)


@st.composite
def fleets(draw: st.DrawFn) -> FleetParts:
    """Return nodes with a leaf, a rack and a loop each, in any arrangement."""
    count = draw(st.integers(4, 24))
    kinds = (SharedKind.LEAF, SharedKind.RACK, SharedKind.COOLANT_LOOP)
    return FleetParts(
        {
            f"n{number}": tuple(
                HungPart(FleetPart(kind, str(draw(st.integers(0, 5)))), "") for kind in kinds
            )
            for number in range(count)
        }
    )


def test_faults_that_begin_together_are_one_group() -> None:
    since = {"a": 0.0, "b": 3.0, "c": 9.0, "d": 100.0, "e": 101.0}

    assert together(since, 10.0) == (frozenset("abc"), frozenset("de"))
    assert together({}, 10.0) == ()


def test_a_surer_leaf_holds_and_what_supplies_a_rack_supplies_its_nodes() -> None:
    topology = merge(
        [
            parse_network(SLURM).edges,
            parse_site_parts(SITE),
            [edge("n0", "leaf9", EdgeOrigin.LLDP, port="eth0")],
        ]
    )

    parts = find_parts(topology)

    assert {str(one) for one in parts.of_node("n0")} == {
        *("leaf switch leaf9", "rack r0", "power feed feed-a", "coolant loop cdu1"),
    }
    assert parts.of_node("n0.example.com") == parts.of_node("n0")
    assert parts.of_node("unknown") == frozenset()


def test_racks_of_another_source_fill_what_the_topology_does_not_tell() -> None:
    told = find_parts(merge([parse_network(SLURM).edges]))
    parts = FleetParts(told.on, {"n0": "k1", "y": "k1"}.get)

    assert parts.name_of("n0", SharedKind.RACK) == "k1"
    assert parts.name_of("y", SharedKind.RACK) == "k1"
    assert parts.name_of("n0", SharedKind.LEAF) == "leaf1"
    assert parts.name_of("x", SharedKind.RACK) is None


def test_switches_that_a_scheduler_tells_fill_what_the_topology_does_not() -> None:
    told = find_parts(merge([parse_network("n0 leaf1\n").edges]))

    joined = replace(told, on={**told.on, "n3": (HungPart(FleetPart(SharedKind.NVLINK_DOMAIN, "d")),)})  # fmt: skip
    parts = with_domains(
        joined,
        {
            "n0": ToldDomain(("top", "other")),
            "n1": ToldDomain(("top", "leaf2")),
            "n2": ToldDomain(),
            "n3": ToldDomain(("leaf2",)),
            "n4": ToldDomain(("b1",), is_block=True),
        },
    )

    assert {str(one) for one in parts.of_node("n0")} == {"leaf switch leaf1"}
    assert {str(one) for one in parts.of_node("n1")} == {"leaf switch leaf2", "switch top"}
    assert parts.of_node("n2") == frozenset()
    assert {str(one) for one in parts.of_node("n3")} == {"leaf switch leaf2", "NVLink domain d"}
    assert {str(one) for one in parts.of_node("n4")} == {"block b1"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no rack"),
        ("[[rack]]\nname='a'\n", "nodes"),
        ("[[rack]]\nname='a b'\nnodes=['n']", "name"),
        ("[[rack]]\nname='a'\nnodes=['n']\n[[rack]]\nname='b'\nnodes=['n']", "two racks: a and b"),
        ("[[rack]]\nname='a'\nnodes=['n']\n[[rack]]\nname='a'\nnodes=['m']", "twice"),
        ("[[power_feed]]\nname='f'\nracks=['r9']", "no [[rack]] 'r9'"),
        ("[[rack]]\nname='a'\nnodes=['n[0-999999999]']", "at most"),
        ("[[rak]]\nname='a'", "rak"),
    ],
)
def test_a_mistake_in_the_sites_file_is_named(text: str, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_site_parts(text)

    assert says in str(caught.value)


def test_commands_write_the_parts_and_name_the_one_to_blame(tmp_path: Path) -> None:
    slurm, site, target = (tmp_path / name for name in ("topology.conf", "site.toml", "t.json"))
    slurm.write_text(SLURM)
    site.write_text(SITE)
    run = CliRunner().invoke

    written = run(
        fabric, ["topology", "--slurm", str(slurm), "--site", str(site), "-o", str(target)]
    )
    found = run(fabric, ["blame", "--topology", str(target), "n[0-11]", "--json"])
    nobody = run(fabric, ["blame", "--topology", str(target), "n1", "n31"])
    strange = run(fabric, ["blame", "--topology", str(target), "n1", "n99"])

    assert written.exit_code == 0, written.stderr
    assert parse_parts(target.read_text()).on == fleet().on
    assert json.loads(found.output)["named"][0]["part"] == {"kind": "coolant loop", "name": "cdu1"}
    assert (nobody.exit_code, nobody.output) == (1, "no shared part explains these nodes\n")
    assert (strange.exit_code, strange.stderr.count("n99")) == (2, 1)


def test_a_file_of_an_earlier_version_has_switches_only() -> None:
    body = b'{"format": "rankmend-topology-1", "edges": [{"below": "n1", "above": "l1", "below_is_node": true, "port": "", "confidence": 0.9, "origin": "lldp"}]}'

    assert parse_parts(body.decode()).name_of("n1", SharedKind.LEAF) == "l1"
    assert b'"kind":"switch"' in encode_topology(parse_network(body.decode()))
