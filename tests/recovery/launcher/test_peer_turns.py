"""Which launchers are asked when, and how long a torn pair of nodes stays unknown. No clock, no socket."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from recovery.controller.job.membership import witness_groups
from recovery.launcher.membership.node_membership import Lease
from recovery.launcher.membership.peer_launchers import PeerTurns
from recovery.messages.exchange import Endpoint, Peer

LEASE_S = 15.0  # the default
LOOK_S = 0.25


def peers(*groups: int) -> tuple[Peer, ...]:
    return tuple(Peer(f"n{one}", f"launcher-{one}", Endpoint(f"n{one}", 7000)) for one in groups)


def lease(count: int, group: int, attempt: int = 1) -> Lease:
    """Return what a launcher of a job of so many nodes gets."""
    ring = peers((group - 1) % count, (group + 1) % count)
    return Lease(attempt, peers(*witness_groups(count)), LEASE_S, ring)


def turns_of(group: int, seed: int = 0) -> PeerTurns:
    return PeerTurns(f"launcher-{group}", Random(f"{seed} {group}").shuffle)


def asked(
    turns: PeerTurns, kept: Lease, for_s: float, unreachable: tuple[str, ...] = ()
) -> Iterator[tuple[float, str]]:
    """Yield when each question of so many seconds is asked, and which node."""
    for look in range(round(for_s / LOOK_S)):
        for peer in turns.due(kept, unreachable, look * LOOK_S):
            yield look * LOOK_S, peer.node


def longest_gaps(group: int, count: int, for_s: float) -> dict[str, float]:
    """Return the longest time in which each node is not asked, over a window of so many seconds."""
    gaps: dict[str, float] = {}
    last_s: dict[str, float] = {}
    for at_s, node in asked(turns_of(group), lease(count, group), for_s):
        gaps[node] = max(gaps.get(node, 0.0), at_s - last_s.get(node, 0.0))
        last_s[node] = at_s
    return {node: max(gap_s, for_s - last_s[node]) for node, gap_s in gaps.items()}


@pytest.mark.parametrize("count", [2, 31, 32, 2048, 10_000])
def test_every_node_asks_both_neighbours_every_sixth_of_the_lease(count: int) -> None:
    for group in {0, 1, count // 2, count - 1}:
        gaps = longest_gaps(group, count, 60.0)

        around = {f"n{(group - 1) % count}", f"n{(group + 1) % count}"}
        assert {node: gap_s for node, gap_s in gaps.items() if node in around} == dict.fromkeys(
            around, LEASE_S / 6
        )


@pytest.mark.parametrize("count", [12, 31, 2048])
def test_every_other_peer_has_its_turn_within_four_thirds_of_the_lease(count: int) -> None:
    for group in (0, 5, count - 1):
        gaps = longest_gaps(group, count, 200.0)

        others = {f"n{one}" for one in witness_groups(count)} - {f"n{group}"}
        assert gaps.keys() >= others
        assert max(gaps[node] for node in others) <= 4 * LEASE_S / 3


def test_all_are_asked_at_once_in_a_new_attempt_and_for_another_launcher_of_a_neighbour() -> None:
    turns = turns_of(7)
    first = [peer.node for peer in turns.due(lease(2048, 7), (), 100.0)]
    assert first[:2] == ["n6", "n8"]
    assert len(first) == 10
    assert turns.due(lease(2048, 7), (), 100.1) == []

    assert len(turns.due(lease(2048, 7, attempt=2), (), 100.2)) == 10

    moved = Lease(2, lease(2048, 7).peers, LEASE_S, (Peer("n6", "newer", Endpoint("n6", 7001)),))
    assert turns.due(moved, (), 100.3)[0].launcher_id == "newer"


def test_a_launcher_without_neighbours_takes_its_turns_and_asks_itself_never() -> None:
    """Its controller is older: orders name none."""
    kept = Lease(1, peers(*range(9)), LEASE_S)

    first = [peer.node for peer in turns_of(3).due(kept, (), 0.0)]

    assert sorted(first) == [f"n{one}" for one in range(9) if one != 3]


def test_those_that_did_not_answer_come_first_and_keep_nobody_from_a_turn() -> None:
    turns, kept = turns_of(100), lease(2048, 100)
    dead = tuple(f"n{one}" for one in witness_groups(2048)[:6])
    for_s = 31 * LEASE_S

    counts = Counter(node for _at_s, node in asked(turns, kept, for_s, dead))

    rounds = 3 * 31
    witnesses = [f"n{one}" for one in witness_groups(2048)]
    assert sum(counts[node] for node in witnesses) == 8 * rounds
    assert min(counts[node] for node in dead) >= rounds / 2
    assert min(counts[node] for node in witnesses) >= rounds / 8


@pytest.mark.thorough
def test_any_torn_pair_of_neighbours_among_2048_nodes_is_asked_within_a_sixth_of_the_lease() -> (
    None
):
    """The links break at one moment, and each launcher is at its own place in its rounds by then."""
    count, torn_at_s = 2048, 40.0
    began = Random("when each launcher began")
    found_s = dict[frozenset[int], float]()
    for group in range(count):
        ago_s = began.uniform(0.0, LEASE_S)
        turns, kept = turns_of(group), lease(count, group)
        near = {f"n{other % count}": other % count for other in (group - 1, group + 1)}
        for at_s, node in asked(turns, kept, torn_at_s + 2 * LEASE_S):
            if node in near and at_s + ago_s >= torn_at_s:
                pair = frozenset((group, near[node]))
                found_s[pair] = min(found_s.get(pair, 1e9), at_s + ago_s - torn_at_s)

    assert len(found_s) == count
    assert max(found_s.values()) <= LEASE_S / 6
    assert sum(found_s.values()) / count <= LEASE_S / 12  # either end may ask first
