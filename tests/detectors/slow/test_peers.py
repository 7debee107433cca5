"""Which ranks are compared with each other, by their places in the model's layout."""

from itertools import product

import pytest

from detectors.slow.peers import are_alike, shared_indices
from rankmend.rank_values import ToldPlace


def layout(**sizes: int) -> dict[int, ToldPlace]:
    """Return the places of a job with these sizes; a dimension of one rank has no index, as no group is made for it."""
    indices = product(*(range(size) if size > 1 else (None,) for size in sizes.values()))
    return {
        rank: ToldPlace(**dict(zip(sizes, place, strict=True)))
        for rank, place in enumerate(indices)
    }


@pytest.mark.parametrize(
    ("sizes", "shared", "alike"),
    [
        ({"pp": 4, "dp": 8, "tp": 8}, ("pp", "tp", "cp", "ep"), True),
        ({"pp": 1, "dp": 8, "tp": 8}, ("pp", "tp", "cp", "ep"), True),
        ({"dp": 2, "ep": 4, "tp": 2}, ("pp", "tp", "cp", "ep"), True),
        # A single replica: parts of the same tensor or sequence are equal work, too.
        ({"pp": 2, "dp": 1, "tp": 8}, ("pp",), True),
        ({"pp": 2, "dp": 1, "cp": 2, "tp": 8}, ("pp", "tp"), True),
        # Experts and stages without a replica have no peers but others that differ by design.
        ({"dp": 1, "ep": 4, "tp": 2}, ("pp", "tp", "cp"), False),
        ({"pp": 4, "dp": 1, "tp": 1}, (), False),
        # All ranks are peers.
        ({"pp": 1, "dp": 8, "tp": 1}, (), True),
        ({"pp": 1, "dp": 1, "tp": 8}, (), True),
        ({"pp": 1, "dp": 1, "tp": 1}, (), True),
    ],
)
def test_peers_differ_only_in_their_replica_and_stages_are_never_compared(
    sizes: dict[str, int], shared: tuple[str, ...], alike: bool
) -> None:
    places = layout(**sizes)

    assert shared_indices(places, len(places)) == shared
    assert are_alike(places.values(), shared, has_pairs="pp" in sizes and sizes["pp"] > 1) is alike


def test_a_layout_that_not_every_rank_has_told_says_nothing() -> None:
    places = layout(pp=2, dp=4)
    del places[5]

    assert shared_indices(places, 8) == ()


def test_sends_between_ranks_of_an_unknown_layout_may_be_those_of_stages() -> None:
    assert not are_alike([], (), has_pairs=True)
    assert not are_alike(layout(dp=2, tp=2).values(), ("tp",), has_pairs=True)
