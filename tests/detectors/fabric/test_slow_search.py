"""A slow part is named in 2 log2 N rounds, and a sound network accuses nobody."""

from math import ceil, log2

import pytest

from detectors.fabric.fabric_verdict import Direction, FabricOutcome, FabricVerdict, PartKind
from detectors.fabric.network import Network, PairTest, Reading
from detectors.fabric.pair_rounds import first_rounds, tournament
from detectors.fabric.slow_part import judge
from detectors.fabric.slow_search import plan, rounds_max
from rankmend.errors import ConfigError
from tests.detectors.fabric.simulated_network import SimulatedNetwork, make_network


def parts(verdict: FabricVerdict) -> list[tuple[PartKind, str]]:
    return [(part.kind, part.name) for part in verdict.parts]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 33])
def test_tournament_has_each_pair_once_and_no_node_twice_in_a_round(count: int) -> None:
    rounds = tournament(count)

    assert len(rounds) == count - 1 + count % 2
    assert len({pair for pairs in rounds for pair in pairs}) == count * (count - 1) // 2
    assert sum(len(pairs) for pairs in rounds) == count * (count - 1) // 2
    for pairs in rounds:
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes))


@pytest.mark.parametrize("count", [2, 3, 5, 12, 16, 100, 1024])
@pytest.mark.parametrize("per_leaf", [0, 3, 4, 32])
def test_first_rounds_are_half_of_those_allowed_and_pair_nobody_twice(
    count: int, per_leaf: int
) -> None:
    network = make_network(count, per_leaf=per_leaf)

    rounds = first_rounds(network)

    assert len(rounds) == max(1, ceil(log2(count)))
    for pairs in rounds:
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes))
        assert len(nodes) >= count - max(2, count // 8) or count < 8


@pytest.mark.thorough
def test_slow_node_is_named_among_1024() -> None:
    for seed in range(3):
        simulated = SimulatedNetwork(
            make_network(1024), seed, lambda s, r, _rail, _path: 0.4 if 700 in (s, r) else 1.0
        )

        verdict = simulated.search()

        assert parts(verdict) == [(PartKind.NODE, "n700")]
        assert simulated.rounds <= 20
        assert verdict.parts[0].delay_ratio == pytest.approx(2.5, rel=0.3)


def test_two_slow_nodes_are_both_named_without_a_known_topology() -> None:
    simulated = SimulatedNetwork(
        make_network(64), 1, lambda s, r, _rail, _path: 0.4 if {5, 41} & {s, r} else 1.0
    )

    assert parts(simulated.search()) == [(PartKind.NODE, "n5"), (PartKind.NODE, "n41")]


def test_node_that_sends_slowly_is_a_sender() -> None:
    simulated = SimulatedNetwork(
        make_network(16), 1, lambda s, _r, _rail, _path: 0.3 if s == 5 else 1.0
    )

    (part,) = simulated.search().parts
    assert (part.kind, part.name, part.direction) == (PartKind.NODE, "n5", Direction.SENDS)


def test_slow_nic_is_told_from_its_node_and_its_rail() -> None:
    network = make_network(256, rails=8, per_leaf=32)
    nic = SimulatedNetwork(
        network, 1, lambda s, r, rail, _path: 0.5 if 77 in (s, r) and rail == 3 else 1.0
    )
    rail = SimulatedNetwork(network, 2, lambda _s, _r, rail, _path: 0.5 if rail == 6 else 1.0)
    node = SimulatedNetwork(network, 3, lambda s, r, _rail, _path: 0.5 if 77 in (s, r) else 1.0)

    assert parts(nic.search()) == [(PartKind.NIC, "n77 rail3")]
    assert parts(rail.search()) == [(PartKind.RAIL, "rail6")]
    assert parts(node.search()) == [(PartKind.NODE, "n77")]


def test_one_slow_rail_of_two_is_named() -> None:
    simulated = SimulatedNetwork(
        make_network(16, rails=2), 1, lambda _s, _r, rail, _path: 0.5 if rail == 1 else 1.0
    )

    assert parts(simulated.search()) == [(PartKind.RAIL, "rail1")]


@pytest.mark.parametrize(("nodes", "per_leaf"), [(16, 4), (1024, 32), (96, 16)])
def test_slow_switch_and_slow_uplink_are_told_apart(nodes: int, per_leaf: int) -> None:
    network = make_network(nodes, per_leaf=per_leaf)
    below = set(range(per_leaf, 2 * per_leaf))
    uplink = SimulatedNetwork(
        network, 1, lambda s, r, _rail, _path: 0.4 if (s in below) != (r in below) else 1.0
    )
    switch = SimulatedNetwork(network, 2, lambda s, r, _rail, _path: 0.4 if {s, r} & below else 1.0)

    assert parts(uplink.search()) == [(PartKind.UPLINK, "leaf1")]
    assert parts(switch.search()) == [(PartKind.SWITCH, "leaf1")]
    assert max(uplink.rounds, switch.rounds) <= network.rounds_max


def test_uplink_of_an_unknown_switch_is_a_group_and_accuses_no_node() -> None:
    simulated = SimulatedNetwork(
        make_network(16),
        1,
        lambda s, r, _rail, _path: 0.3 if (s // 4 == 1) != (r // 4 == 1) else 1.0,
    )

    assert parts(simulated.search()) == [(PartKind.GROUP, "n4,n5,n6,n7")]


def test_uplinks_that_are_all_slower_than_the_leaves_are_no_fault() -> None:
    simulated = SimulatedNetwork(
        make_network(64, per_leaf=8),
        1,
        lambda s, r, _rail, _path: 0.25 if s // 8 != r // 8 else 1.0,
    )

    assert simulated.search().outcome is FabricOutcome.SOUND


def test_slow_pair_is_named_by_all_pairs_and_by_no_shorter_search_that_never_met_it() -> None:
    def fault(s: int, r: int, _rail: int, _path: int) -> float:
        return 0.3 if (s, r) == (3, 9) else 1.0

    short = SimulatedNetwork(make_network(16), 1, fault).search()
    whole = SimulatedNetwork(make_network(16), 1, fault)
    verdict = whole.search(all_pairs=True)

    assert short.parts == ()
    assert parts(verdict) == [(PartKind.LINK, "n3 -> n9")]
    assert whole.rounds <= rounds_max(whole.network, all_pairs=True) == 23


def test_slow_path_is_a_path_and_its_ports_are_named() -> None:
    verdict = SimulatedNetwork(
        make_network(16), 1,
        lambda s, r, _rail, path: 0.4 if {s, r} == {3, 9} and path % 2 == 0 else 1.0,
    ).search(all_pairs=True)  # fmt: skip

    (part,) = verdict.parts
    assert (part.kind, part.name) == (PartKind.PATH, "n3 <-> n9")
    assert all(path % 2 == 0 for path in part.paths)


@pytest.mark.thorough
def test_sound_network_of_1024_accuses_nobody_whatever_the_seed() -> None:
    network = make_network(1024)
    for seed in range(5):
        verdict = SimulatedNetwork(network, seed).search()

        assert verdict.parts == (), seed


@pytest.mark.parametrize(
    "network",
    [make_network(16), make_network(16, rails=2), make_network(16, per_leaf=4), make_network(5)],
)
@pytest.mark.parametrize(
    "seeds", [range(15), pytest.param(range(15, 150), marks=pytest.mark.thorough)]
)
def test_sound_small_network_accuses_nobody_whatever_the_seed(
    network: Network, seeds: range
) -> None:
    for seed in seeds:
        simulated = SimulatedNetwork(network, seed)

        assert simulated.search().parts == (), seed
        assert simulated.rounds <= network.rounds_max


def test_lossy_node_is_named_though_its_rate_is_the_usual() -> None:
    network = make_network(8)
    rounds = [plan(network, (), number) or () for number in range(3)]
    readings = tuple(
        Reading(number, s, r, 0, 0, 1e9, resent_ratio=0.03 if 6 in (s, r) else 0.0001)
        for number, tests in enumerate(rounds)
        for test in tests
        for s, r in ((test.low, test.high), (test.high, test.low))
    )

    (part,) = judge(network, readings).parts

    assert (part.kind, part.name, part.resent_ratio) == (PartKind.NODE, "n6", 0.03)
    assert part.delay_ratio == 1.0


def test_loss_says_nothing_where_every_test_loses_much() -> None:
    network = make_network(8)
    tests = [test for number in range(3) for test in plan(network, (), number) or ()]
    readings = tuple(
        Reading(0, s, r, 0, 0, 1e9, resent_ratio=0.9 if 6 in (s, r) else 0.2)
        for test in tests
        for s, r in ((test.low, test.high), (test.high, test.low))
    )

    assert judge(network, readings).parts == ()


def test_two_nodes_are_too_few_for_a_verdict() -> None:
    verdict = SimulatedNetwork(make_network(2), 1, lambda *_test: 0.1).search()

    assert (verdict.outcome, verdict.parts) == (FabricOutcome.UNCLEAR, ())


def test_collisions_everywhere_are_unclear_and_accuse_nobody() -> None:
    def collides(s: int, r: int, _rail: int, path: int) -> float:
        return 0.5 if (s * 7919 + r * 104729 + path * 31) % 5 < 2 else 1.0

    verdict = SimulatedNetwork(make_network(64), 1, collides).search()

    assert verdict.outcome is FabricOutcome.UNCLEAR
    assert {part.kind for part in verdict.parts} <= {PartKind.PATH, PartKind.LINK}


def test_node_that_never_answered_is_not_accused_and_not_sound() -> None:
    network = make_network(8)
    done = tuple(
        Reading(0, s, r, 0, 0, 1e9) for s, r in ((0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4))
    )

    assert judge(network, done).parts == ()
    assert plan(network, done, 1) == tuple(PairTest(*p) for p in ((0, 2), (1, 3), (4, 6), (5, 7)))
    assert judge(network, ()).outcome is FabricOutcome.UNCLEAR


@pytest.mark.parametrize("nodes", [("a",), ("a", "a")])
def test_impossible_network_is_refused(nodes: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Network(nodes)
