from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats.site.site_parts import parse_site_parts
from detectors.formats.site.slurm_topology import parse_network
from detectors.network_topology import NodeBlock, NvlinkDomain, merge
from detectors.parts.fleet_parts import find_parts
from detectors.replicas.layout import parse_parallel
from rankmend.errors import ConfigError
from recovery.controller.job.membership import (
    Word,
    choose_placement,
    find_torn,
    have_all_ended,
    judge_gone,
    neighbours_of,
    next_finder,
    peers_of,
    size_for,
    witnesses,
)
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import Placement, Proof
from recovery.journal.ledger import Ledger, Member
from recovery.journal.limits import Policy
from recovery.journal.node_records import cut_off_from
from recovery.messages.exchange import WITNESSES_MAX, Endpoint, Peer

pytestmark = pytest.mark.safety

POLICY = Policy()
BOUND_S = POLICY.lease_s + POLICY.kill_bound_s + POLICY.lease_margin_s
SETTINGS = JobSettings("job", "sim", "0", nodes_min=2, nodes_max=4, slots=2)


def member(node: str, **changes: object) -> Member:
    told = Member(node, f"{node}-l", f"{node}-b", 2, Endpoint(node, 7000), 1.0, 3, 3, 0)
    return replace(told, **changes)


def places(*nodes: str) -> tuple[Placement, ...]:
    return tuple(Placement(node, (2 * at, 2 * at + 1)) for at, node in enumerate(nodes))


def ledger(*nodes: str, **changes: object) -> Ledger:
    known = {node: member(node) for node in nodes}
    told = Ledger(attempt=5, placement=places(*nodes), members=known, started_number=10)
    return replace(told, **changes)


def word(*, reported_at_s: float, empty_at_s: float | None = None) -> Word:
    through = 4 if empty_at_s is None else 5
    return Word(reported_at_s, through, empty_at_s or 0.0, 0.0)


def judge(told: Ledger, words: dict[str, Word], now_s: float, **changes: object) -> object:
    arguments = {"started_at_s": 0.0, "confirmed_at_s": {}, **changes}
    return judge_gone(told, told.placement, words, POLICY, now_s, **arguments)


EMPTY = {node: word(reported_at_s=100.0, empty_at_s=60.0) for node in ("a", "b", "c")}


def test_every_launchers_word_is_proof_without_further_words() -> None:
    gone = judge(ledger("a", "b", "c"), EMPTY, 100.0)

    assert (gone.is_proved, gone.proofs) == (True, ())


def test_a_node_that_is_heard_and_not_empty_is_busy() -> None:
    gone = judge(ledger("a", "b", "c"), {**EMPTY, "c": word(reported_at_s=99.0)}, 100.0)

    assert (gone.is_proved, gone.busy, gone.silent) == (False, ("c",), ())


@pytest.mark.parametrize(("late_s", "is_proved"), [(0.0, True), (-0.1, False)])
def test_the_lease_counts_from_the_last_word_of_those_that_are_heard(
    late_s: float, is_proved: bool
) -> None:
    words = {**EMPTY, "c": word(reported_at_s=40.0)}

    gone = judge(ledger("a", "b", "c"), words, 60.0 + BOUND_S + late_s)

    assert gone.is_proved is is_proved
    assert [proof.proof for proof in gone.proofs] == ([Proof.LEASE] if is_proved else [])


@pytest.mark.parametrize(("late_s", "is_proved"), [(0.0, True), (-0.1, False)])
def test_the_lease_counts_from_the_silent_nodes_own_last_report(
    late_s: float, is_proved: bool
) -> None:
    words = {**EMPTY, "c": word(reported_at_s=80.0)}

    assert judge(ledger("a", "b", "c"), words, 80.0 + BOUND_S + late_s).is_proved is is_proved


@pytest.mark.parametrize(("late_s", "is_proved"), [(0.0, True), (-0.1, False)])
def test_a_node_never_heard_counts_from_the_controllers_start(
    late_s: float, is_proved: bool
) -> None:
    words = {"a": EMPTY["a"], "b": EMPTY["b"]}
    now_s = 90.0 + BOUND_S + late_s

    assert judge(ledger("a", "b", "c"), words, now_s, started_at_s=90.0).is_proved is is_proved


@pytest.mark.parametrize(
    ("nodes", "silent", "is_proved"),
    [("ab", "b", True), ("abc", "bc", False), ("abcd", "cd", True), ("abcd", "bcd", False)],
)
def test_silent_nodes_that_could_be_a_majority_are_never_proved_gone(
    nodes: str, silent: str, is_proved: bool
) -> None:
    words = {
        node: word(reported_at_s=50.0, empty_at_s=50.0) for node in nodes if node not in silent
    }

    assert judge(ledger(*nodes), words, 1e6).is_proved is is_proved


def test_for_a_job_of_one_node_the_lease_proves_nothing() -> None:
    assert not judge(ledger("a"), {}, 1e6).is_proved


def test_without_an_endpoint_to_ask_there_is_no_lease() -> None:
    told = ledger("a", "b", "c")
    told = replace(told, members={**told.members, "a": member("a", peer_endpoint=None)})

    assert peers_of(told) == ()
    assert not judge(told, {"a": EMPTY["a"], "b": EMPTY["b"]}, 1e6).is_proved


def test_an_attempt_whose_placement_is_not_known_has_no_lease() -> None:
    unknown = tuple(Placement(node, ()) for node in "abc")
    told = replace(ledger("a", "b", "c"), placement=unknown)

    assert not judge(told, {"a": EMPTY["a"], "b": EMPTY["b"]}, 1e6).is_proved


def test_another_boot_is_proof_and_an_older_one_is_none() -> None:
    words = {"a": EMPTY["a"], "b": EMPTY["b"]}
    told = ledger("a", "b", "c")
    new, old = (
        replace(told, members={**told.members, "c": member("c", boot_since=number)})
        for number in (11, 9)
    )

    assert [proof.proof for proof in judge(new, words, 100.0).proofs] == [Proof.BOOT]
    assert not judge(old, words, 61.0).is_proved


def test_a_persons_word_holds_for_the_attempt_it_was_given_for() -> None:
    words = {"a": EMPTY["a"], "b": EMPTY["b"]}

    now = judge(ledger("a", "b", "c", confirmed={"c": 5}), words, 61.0)
    before = judge(ledger("a", "b", "c", confirmed={"c": 4}), words, 61.0)

    assert [proof.proof for proof in now.proofs] == [Proof.PERSON]
    assert not before.is_proved


def test_the_end_of_a_launcher_is_proof_of_what_was_ordered_from_it_and_of_what_it_names() -> None:
    words = {"a": EMPTY["a"], "b": EMPTY["b"]}
    told = ledger("a", "b", "c")
    unordered = tuple(replace(place, ranks=()) for place in told.placement)

    def proofs(told: Ledger, **changes: object) -> list[Proof]:
        members = {**told.members, "c": member("c", **changes)}
        return [one.proof for one in judge(replace(told, members=members), words, 61.0).proofs]

    assert proofs(told, ended_through=0) == [Proof.LAST_WORD]
    assert proofs(told, ended_through=4, launcher_since=11) == []  # ordered from another launcher
    assert proofs(told, ended_through=5, launcher_since=11) == [Proof.LAST_WORD]
    assert proofs(replace(told, placement=unordered), ended_through=4) == []  # by another journal
    assert proofs(told, ended_through=None) == []


def test_a_node_without_power_is_empty_of_what_it_could_have_been_ordered() -> None:
    words = {"a": EMPTY["a"], "b": EMPTY["b"]}
    told = ledger("a", "b", "c")

    def judged(**changes: object) -> tuple[object, ...]:
        members = {**told.members, "c": member("c", is_off=True, **changes)}
        gone = judge(replace(told, members=members), words, 61.0)
        return gone.is_proved, gone.proofs, gone.off

    assert judged(ended_through=5) == (True, (), ("c",))
    assert judged(ended_through=4, launcher_since=11) == (False, (), ())  # another launcher since


def test_a_node_without_power_could_have_answered_until_it_was_read() -> None:
    told = ledger("a", "b", "c", "d")
    off = member("c", ended_through=5, is_off=True)
    told = replace(told, members={**told.members, "c": off})
    words = {"a": EMPTY["a"], "b": EMPTY["b"]}  # d is silent, and c is none of the silent

    early = judge(told, words, 150.0 + BOUND_S - 0.1, ended_at_s={"c": 150.0})
    late = judge(told, words, 150.0 + BOUND_S, ended_at_s={"c": 150.0})

    assert not early.is_proved
    assert (late.off, [proof.proof for proof in late.proofs]) == (("c",), [Proof.LEASE])


def test_a_launcher_that_has_ended_could_have_answered_until_its_word_came() -> None:
    told = ledger("a", "b", "c", "d")
    told = replace(told, members={**told.members, "c": member("c", ended_through=5)})
    words = {"a": EMPTY["a"], "b": EMPTY["b"]}  # d is silent, and c is none of the silent

    early = judge(told, words, 150.0 + BOUND_S - 0.1, ended_at_s={"c": 150.0})
    late = judge(told, words, 150.0 + BOUND_S, ended_at_s={"c": 150.0})

    assert not early.is_proved
    assert [proof.proof for proof in late.proofs] == [Proof.LAST_WORD, Proof.LEASE]


def test_a_rebooted_node_could_have_answered_until_its_boot() -> None:
    told = ledger("a", "b", "c", "d")
    told = replace(told, members={**told.members, "c": member("c", boot_since=11)})
    booted = Word(200.0, 4, 0.0, launcher_at_s=150.0)
    words = {"a": EMPTY["a"], "b": EMPTY["b"], "c": booted}

    assert not judge(told, words, 150.0 + BOUND_S - 0.1).is_proved
    assert judge(told, words, 150.0 + BOUND_S).is_proved


def test_the_counted_launchers_are_all_or_spread_evenly() -> None:
    few = places(*(f"n{number}" for number in range(WITNESSES_MAX)))
    many = places(*(f"n{number}" for number in range(2000)))

    assert len(witnesses(few)) == WITNESSES_MAX
    counted = [int(name[1:]) for name in witnesses(many)]
    assert len(set(counted)) == WITNESSES_MAX
    gaps = {after - before for before, after in pairwise(counted)}
    assert gaps <= {64, 65}


def test_neighbours_are_those_before_and_after_in_the_ring_that_can_be_asked() -> None:
    told = ledger(*(f"n{number:02}" for number in range(40)))
    unasked = member("n06", peer_endpoint=None)
    unasked_too = {**told.members, "n06": unasked}
    del unasked_too["n08"]
    around = replace(told, members=unasked_too)

    assert [peer.node for peer in neighbours_of(told, 7)] == ["n06", "n08"]
    assert [peer.node for peer in neighbours_of(told, 0)] == ["n39", "n01"]
    assert [peer.node for peer in neighbours_of(told, 39)] == ["n38", "n00"]
    assert neighbours_of(told, 1)[0] == Peer("n00", "n00-l", Endpoint("n00", 7000))
    assert neighbours_of(around, 7) == ()


@pytest.mark.parametrize(("nodes", "around"), [("a", []), ("ab", ["b"]), ("abc", ["c", "b"])])
def test_no_node_of_a_small_ring_is_its_own_neighbour_or_one_twice(
    nodes: str, around: list[str]
) -> None:
    assert [peer.node for peer in neighbours_of(ledger(*nodes), 0)] == around


def chosen(before: tuple[Placement, ...], usable: str, nodes: int) -> list[str]:
    members = {node: member(node, joined=ord(node)) for node in usable}
    made = choose_placement(SETTINGS, before, members, nodes)
    ranks = [rank for place in made for rank in place.ranks]
    assert ranks == list(range(2 * nodes))
    return [place.node for place in made]


@pytest.mark.parametrize(
    ("before", "usable", "nodes", "after"),
    [
        ("", "cab", 2, "ab"),
        ("abc", "abcd", 3, "abc"),
        ("abc", "acd", 3, "adc"),
        ("abc", "bcd", 3, "dbc"),
        ("abcd", "abd", 3, "abd"),
        ("abcd", "abcd", 2, "ab"),
        ("ab", "abcd", 4, "abcd"),
        ("abc", "de", 2, "de"),
    ],
)
def test_nodes_keep_their_places_and_spares_take_those_of_who_left(
    before: str, usable: str, nodes: int, after: str
) -> None:
    assert chosen(places(*before), usable, nodes) == list(after)


LEAVES = """SwitchName=leaf1 Nodes=a,b,e,h
SwitchName=leaf2 Nodes=c,d,f
SwitchName=leaf3 Nodes=g,i,j
SwitchName=top1 Switches=leaf[1-2]
SwitchName=top2 Switches=leaf3
"""
RACKS = "[[rack]]\nname='r1'\nnodes=['a','b','f']\n[[rack]]\nname='r2'\nnodes=['c','d','e','g','h','i','j']"


@pytest.mark.parametrize(
    ("before", "usable", "after"),
    [
        ("abcd", "gfebcd", "ebcd"),  # e is below the lost node's leaf
        ("abcd", "gfeabd", "abfd"),
        ("abcd", "giabd", "abgd"),  # none is near: the first that joined
        ("abcd", "gfabd", "abfd"),  # f is below the same leaf, g only in the same rack
        ("abcd", "gfbcd", "fbcd"),  # f stands in a's rack
        ("acdx", "fegcdx", "ecdx"),
    ],
)
def test_the_nearest_spare_takes_the_place_of_a_lost_node(
    before: str, usable: str, after: str
) -> None:
    parts = find_parts(merge([parse_network(LEAVES).edges, parse_site_parts(RACKS)]))
    members = {node: member(node, joined=at) for at, node in enumerate(usable)}

    made = choose_placement(SETTINGS, places(*before), members, len(before), parts)

    assert [place.node for place in made] == list(after)


@pytest.mark.parametrize(("usable", "after"), [("gebcd", "gbcd"), ("ebcd", "ebcd")])
def test_a_spare_of_the_same_nvlink_domain_comes_before_one_below_the_same_leaf(
    usable: str, after: str
) -> None:
    domain = NvlinkDomain("d.1", ("a", "g"), 0.99)
    parts = find_parts(merge([parse_network(LEAVES).edges], nvlink_domains=(domain,)))
    members = {node: member(node, joined=at) for at, node in enumerate(reversed(usable))}

    made = choose_placement(SETTINGS, places(*"abcd"), members, 4, parts)

    assert [place.node for place in made] == list(after)


@pytest.mark.parametrize(
    ("block", "usable", "after"),
    [
        ("ag", "egbcd", "gbcd"),  # smaller than the leaf of a, b and e
        ("ag", "ebcd", "ebcd"),
        ("afghijklm", "egbcd", "ebcd"),  # larger than it: a block of several leaves
    ],
)
def test_a_spare_of_the_same_block_comes_before_one_of_a_larger_leaf(
    block: str, usable: str, after: str
) -> None:
    parts = find_parts(merge([parse_network(LEAVES).edges], blocks=[NodeBlock("b1", tuple(block))]))
    members = {node: member(node, joined=at) for at, node in enumerate(usable)}

    made = choose_placement(SETTINGS, places(*"abcd"), members, 4, parts)

    assert [place.node for place in made] == list(after)


def test_a_spare_below_the_part_that_broke_is_taken_last() -> None:
    """a, b and h are lost together: leaf1 explains them, and e hangs on it, too."""
    parts = find_parts(merge([parse_network(LEAVES).edges, parse_site_parts(RACKS)]))

    def chosen_of(usable: str) -> list[str]:
        members = {node: member(node, joined=at) for at, node in enumerate(usable)}
        made = choose_placement(SETTINGS, places(*"abhcd"), members, 5, parts)
        return [place.node for place in made]

    assert chosen_of("efgicd") == ["f", "g", "i", "c", "d"]
    assert chosen_of("efgcd") == ["f", "g", "e", "c", "d"], "else the job would stand"


def test_a_job_that_says_nothing_of_its_size_keeps_that_of_its_minimum() -> None:
    assert [size_for(SETTINGS, usable) for usable in (1, 2, 3, 4)] == [None, 2, 2, 2]


def test_the_multiple_is_of_ranks_and_not_of_nodes() -> None:
    settings = JobSettings("j", "n", "0", nodes_min=2, nodes_max=9, slots=6, shrink_multiple=8)

    assert settings.sizes == (8, 4)
    assert [size_for(settings, usable) for usable in (9, 7, 4, 3)] == [8, 4, 4, None]


def test_a_multiple_that_no_number_of_nodes_gives_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 1 to 2 with 6 ranks each gives a multiple of 8"):
        JobSettings("j", "n", "0", nodes_min=1, nodes_max=2, slots=6, shrink_multiple=8)


def test_a_job_has_only_the_sizes_that_its_parallel_sizes_fit() -> None:
    layout = parse_parallel("tp=2,pp=2")
    nodes = JobSettings(
        "j", "n", "0", nodes_min=1, nodes_max=3, slots=4, shrink_multiple=4, layout=layout
    )

    assert nodes.sizes == (3, 2, 1)
    assert replace(nodes, slots=2, shrink_multiple=1).sizes == (2,)
    with pytest.raises(ConfigError, match="they make 20 ranks, and there are 12"):
        replace(nodes, layout=replace(layout, dp=5))
    with pytest.raises(ConfigError, match="6 ranks are not a multiple of 4"):
        replace(nodes, nodes_min=3, slots=2, shrink_multiple=0)


def test_spares_are_nodes_that_a_job_of_a_range_never_trains_on() -> None:
    settings = JobSettings(
        "j", "n", "0", nodes_min=2, nodes_max=6, slots=1, shrink_multiple=1, spares=2
    )

    assert settings.sizes == (4, 3, 2)
    with pytest.raises(ConfigError, match="spares is 5"):
        replace(settings, spares=5)


def test_the_finder_is_the_lowest_group_rank_that_was_not_asked() -> None:
    before = places("b", "a")

    assert next_finder(before, {"a", "b", "c"}, ()) == "b"
    assert next_finder(before, {"a", "c"}, ()) == "a"
    assert next_finder(before, {"a", "c"}, ("a",)) == "c"
    assert next_finder(before, {"a"}, ("a",)) is None


@pytest.mark.parametrize(
    ("unreachable", "gone"),
    [
        ({"a": (), "b": (), "c": ()}, []),
        ({"a": ("b",), "b": (), "c": ()}, ["b"]),  # nobody knows whose cable it is: the later
        ({"a": ("b", "c"), "b": (), "c": ()}, ["a"]),  # all miss one
        ({"a": ("b",), "b": (), "c": ("d",), "d": ()}, ["b", "d"]),
        ({"a": ("z",), "b": ("b",)}, []),  # who is not heard, or itself
    ],
)
def test_of_nodes_that_do_not_reach_each_other_as_few_as_will_do_go(
    unreachable: dict[str, tuple[str, ...]], gone: list[str]
) -> None:
    assert sorted(find_torn(unreachable, ["a", "b", "c", "d"])) == gone


@given(st.sets(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh"))))
def test_the_one_that_most_others_miss_goes_first_until_all_that_stay_reach_each_other(
    pairs: set[tuple[str, str]],
) -> None:
    nodes = "fbhadgce"
    left = {frozenset(pair) for pair in pairs if len(set(pair)) == 2}
    gone: dict[str, list[str]] = {}
    while left:
        missed = {
            node: sorted(other for pair in left if node in pair for other in pair - {node})
            for node in nodes
        }
        worst = max(nodes, key=lambda node: (len(missed[node]), nodes.index(node)))
        gone[worst] = missed[worst]
        left = {pair for pair in left if worst not in pair}

    torn = find_torn({node: [b for a, b in pairs if a == node] for node in nodes}, nodes)

    assert list(torn) == list(gone)
    assert torn == {node: cut_off_from(others) for node, others in gone.items()}


def test_a_spare_that_a_probe_found_slow_is_taken_last_and_only_where_the_job_would_stand() -> None:
    usable = {node: member(node) for node in ("a", "s1", "s2")}

    def placed(known: dict[str, Member]) -> list[str]:
        return [
            one.node for one in choose_placement(SETTINGS, places("a", "b"), known, 2, slow={"s1"})
        ]

    assert placed(usable) == ["a", "s2"]
    assert placed({node: usable[node] for node in ("a", "s1")}) == ["a", "s1"]


@pytest.mark.parametrize(
    ("through", "expected"),
    [((), False), ((3, 3), True), ((3, 4), True), ((3, None), False), ((3, 2), False)],
)
def test_a_job_is_left_alone_once_each_launcher_has_ended_with_nothing_left(
    through: tuple[int | None, ...], *, expected: bool
) -> None:
    members = {
        f"n{number}": member(f"n{number}", ended_through=ended)
        for number, ended in enumerate(through)
    }

    assert have_all_ended(Ledger(attempt=3, members=members)) is expected
