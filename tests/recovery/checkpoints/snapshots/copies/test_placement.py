"""Where copies lie: on other nodes, in other racks, balanced, and still there after losses."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats.site.site_parts import parse_site_parts
from detectors.formats.site.slurm_topology import parse_network
from detectors.network_topology import GpuChassis, NodeBlock, NvlinkDomain, merge
from detectors.parts.fleet_parts import NO_DOMAIN, ToldDomain, find_parts
from recovery.checkpoints.snapshots.copies.placement import (
    Groups,
    PlacedNode,
    failure_domain,
    holders,
    place,
    placed_node,
)


def nodes_of(*leaves: int) -> list[PlacedNode]:
    """Return nodes n0, n1, ... with the leaf of each."""
    return [PlacedNode(f"n{at}", ("spine", f"leaf{leaf}")) for at, leaf in enumerate(leaves)]


@st.composite
def clusters(draw: st.DrawFn) -> list[PlacedNode]:
    leaves = draw(st.lists(st.integers(0, 5), min_size=1, max_size=24))
    spines = draw(st.integers(1, 3))
    racks = draw(st.integers(0, 3))
    nodes = [
        PlacedNode(
            f"n{at}", (f"spine{leaf % spines}", f"leaf{leaf}"), (f"r{at % racks}",) if racks else ()
        )
        for at, leaf in enumerate(leaves)
    ]
    return draw(st.permutations(nodes))


def test_two_copies_of_neighbours_lie_in_the_other_rack() -> None:
    groups = place(nodes_of(0, 0, 1, 1))

    assert holders(groups) == {"n0": ("n2",), "n2": ("n0",), "n1": ("n3",), "n3": ("n1",)}


def test_copies_stay_below_one_spine_and_outside_of_their_leaf() -> None:
    nodes = [PlacedNode(f"n{at}", (f"spine{at // 8}", f"leaf{at // 4}")) for at in range(16)]
    at = {one.node: one.domain for one in nodes}

    for node, (holder,) in holders(place(nodes)).items():
        assert at[node][0] == at[holder][0], "near: below the same spine"
        assert at[node][1] != at[holder][1], "never below the same leaf"


def test_a_spine_with_one_leaf_goes_further_rather_than_stay_in_its_leaf() -> None:
    nodes = [
        *(PlacedNode(f"a{at}", ("spine0", "leaf0")) for at in range(4)),
        *(PlacedNode(f"b{at}", ("spine1", f"leaf{1 + at // 4}")) for at in range(8)),
    ]
    at = {one.node: one.domain for one in nodes}

    found = holders(place(nodes))

    assert all(at[node] != at[holder] for node, (holder,) in found.items())


def test_copies_keep_apart_racks_and_coolant_loops_too() -> None:
    nodes = [
        PlacedNode(f"n{at}", ("spine", f"leaf{at // 4}"), (f"r{at % 4}", f"cdu{at % 2}", "feed"))
        for at in range(16)
    ]
    at = {one.node: one for one in nodes}

    for node, (holder,) in holders(place(nodes)).items():
        assert at[node].domain != at[holder].domain
        assert at[node].shares[:2] != at[holder].shares[:2]
        assert at[node].shares[0] != at[holder].shares[0]
        assert at[node].shares[1] != at[holder].shares[1]


def test_a_nodes_place_comes_from_the_topology_file_before_its_scheduler() -> None:
    text = "SwitchName=l1 Nodes=n[1-2]\nSwitchName=top Switches=l1\n"
    site = "[[rack]]\nname='r1'\nnodes=['n1']\n[[power_feed]]\nname='b'\nnodes=['n1']\n[[power_feed]]\nname='a'\nnodes=['n1']"
    parts = find_parts(merge([parse_network(text).edges, parse_site_parts(site)]))

    assert placed_node("n1", ("s",), parts) == PlacedNode("n1", ("top", "l1"), ("r1", "", "a+b"))
    assert placed_node("n9", ("s",), parts) == PlacedNode("n9", ("s",))


def test_an_nvlink_domain_or_block_is_a_rack_where_no_rack_is_told() -> None:
    site = parse_site_parts("[[rack]]\nname='r1'\nnodes=['n1']")
    domain = NvlinkDomain("d.1", ("n1", "n2"), 0.99)
    blocks = [NodeBlock("b1", ("n1", "n2", "n3"))]
    parts = find_parts(merge([site], nvlink_domains=(domain,), blocks=blocks))

    assert placed_node("n1", (), parts).shares == ("r1", "", "")
    assert placed_node("n2", (), parts).shares == ("d.1", "", "")
    assert placed_node("n3", (), parts).shares == ("b1", "", "")


def test_a_chassis_is_a_rack_where_no_rack_is_known() -> None:
    domain = NvlinkDomain("d.1", ("n1", "n2"), 0.99)
    chassis = GpuChassis("A1234", ("n1",), 0.99)
    parts = find_parts(merge([], nvlink_domains=(domain,), chassis=(chassis,)))

    assert placed_node("n1", (), parts).shares == ("A1234", "", "")
    assert placed_node("n2", (), parts).shares == ("d.1", "", "")


def test_an_odd_node_joins_a_ring_of_three() -> None:
    assert sorted(map(len, place(nodes_of(0, 0, 0, 0, 0)))) == [2, 3]


def test_a_node_alone_has_no_copy() -> None:
    assert holders(place(nodes_of(0))) == {"n0": ()}
    assert place([]) == ()


def test_two_nodes_hold_one_copy_each_even_if_two_are_asked_for() -> None:
    assert holders(place(nodes_of(0, 0), 2), 2) == {"n0": ("n1",), "n1": ("n0",)}


def test_a_spare_takes_the_place_of_the_lost_node_and_no_other_copy_moves() -> None:
    before = place(nodes_of(0, 0, 1, 1, 2, 2))
    after = [node for node in nodes_of(0, 0, 1, 1, 2, 2) if node.node != "n2"]
    spare = PlacedNode("spare", ("spine", "leaf1"))

    groups = place([*after, spare], before=before)

    lost_with = next(group for group in before if "n2" in group)
    assert set(before) - {lost_with} < set(groups)
    assert {*lost_with, "spare"} - {"n2"} in map(set, groups)


def test_bad_numbers_and_names_are_refused() -> None:
    with pytest.raises(ValueError, match="9 copies"):
        place(nodes_of(0), 9)
    with pytest.raises(ValueError, match="named twice"):
        place([PlacedNode("a"), PlacedNode("a")])


@given(clusters(), st.integers(1, 3))
def test_each_node_gives_and_holds_the_same_number_on_other_nodes(
    nodes: list[PlacedNode], copies: int
) -> None:
    found = holders(place(nodes, copies), copies)

    wanted = min(copies, len(nodes) - 1)
    assert found.keys() == {one.node for one in nodes}
    for node, held_by in found.items():
        assert len(set(held_by) - {node}) == wanted
    held = list(itertools.chain.from_iterable(found.values()))
    assert all(held.count(node) == wanted for node in found)


@given(clusters(), st.integers(1, 3))
def test_no_two_of_a_snapshots_places_share_a_domain_that_fits_into_the_groups(
    nodes: list[PlacedNode], copies: int
) -> None:
    domains = {one.node: one.domain for one in nodes}
    groups_total = len(nodes) // (copies + 1)
    sizes = list(domains.values())
    if any(sizes.count(domain) > groups_total for domain in sizes):
        return

    for node, held_by in holders(place(nodes, copies), copies).items():
        assert len({domains[one] for one in (node, *held_by)}) == copies + 1


@given(clusters(), st.integers(1, 2), st.data())
def test_losses_of_as_many_nodes_as_there_are_copies_cost_no_snapshot(
    nodes: list[PlacedNode], copies: int, data: st.DataObject
) -> None:
    if len(nodes) <= copies:
        return
    found = holders(place(nodes, copies), copies)
    lost = data.draw(st.sets(st.sampled_from(sorted(found)), max_size=copies))

    assert all({node, *held_by} - lost for node, held_by in found.items())


def _moved(before: Groups, after: Groups, copies: int) -> set[str]:
    old, new = holders(before, copies), holders(after, copies)
    return {node for node in old.keys() & new.keys() if old[node] != new[node]}


@given(st.integers(2, 40), st.integers(1, 3), st.data())
def test_a_node_that_leaves_or_joins_moves_the_copies_of_few_others(
    nodes_total: int, copies: int, data: st.DataObject
) -> None:
    nodes = [PlacedNode(f"n{at}") for at in range(nodes_total)]
    groups = place(nodes, copies)
    for step in range(4):
        if data.draw(st.booleans()) or len(nodes) == 1:
            nodes = [*nodes, PlacedNode(f"new{step}")]
        else:
            del nodes[data.draw(st.integers(0, len(nodes) - 1))]

        after = place(nodes, copies, groups)

        assert len(_moved(groups, after, copies)) <= 3 * (2 * copies + 1)
        assert {node for group in after for node in group} == {one.node for one in nodes}
        if len(nodes) > copies:
            assert all(copies < len(group) < 2 * copies + 2 for group in after)
        groups = after


@given(clusters(), st.data())
def test_a_placement_after_changes_is_never_worse_than_a_new_one(
    nodes: list[PlacedNode], data: st.DataObject
) -> None:
    left = data.draw(st.lists(st.sampled_from(nodes), unique=True))
    domains = {one.node: one.domain for one in left}

    def inside(groups: Groups) -> int:
        return sum(
            domains[a] == domains[b] for a, held_by in holders(groups).items() for b in held_by
        )

    assert inside(place(left, before=place(nodes))) <= inside(place(left))


@pytest.mark.parametrize(
    ("address", "pattern", "domain"),
    [
        ("s0.s4.node12", "switch.switch.node", ("s0", "s4")),
        ("block3.node12", "block.node", ("block3",)),
        ("s[0-1].node12", "switch.node", ("s[0-1]",)),
        ("node12", "node", ()),
        ("s0.node12", "switch.switch.node", ()),
        ("s0..node12", "switch.switch.node", ()),
        ("s0.s4.node12", "", ()),
        ("", "switch.node", ()),
        ("s 0.node12", "switch.node", ()),
        ("s0.other", "switch.node", ()),
        ("s0." * 600 + "node12", "switch." * 600 + "node", ()),
    ],
)
def test_slurm_tells_the_switches_above_a_node(
    address: str, pattern: str, domain: tuple[str, ...]
) -> None:
    environment = {
        "SLURM_TOPOLOGY_ADDR": address,
        "SLURM_TOPOLOGY_ADDR_PATTERN": pattern,
        "SLURMD_NODENAME": "node12",
    }

    assert failure_domain(environment) == ToldDomain(
        domain, pattern == "block.node" and bool(domain)
    )


def test_without_slurm_the_domain_is_unknown() -> None:
    assert failure_domain({}) == NO_DOMAIN


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_from_slurm_gives_some_domain(address: str, pattern: str) -> None:
    failure_domain({"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern})
