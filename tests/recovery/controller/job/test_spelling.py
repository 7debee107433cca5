"""Names that are not known, and those that a person may have meant."""

import pytest

from recovery.controller.job.spelling import find_unknown, near, say_unknown

NODES = ("gpu-16", "gpu-17", "gpu-170", "login-1", "GPU-18.cluster.example")


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        ("gpu17", "gpu-17"),
        ("GPU-17", "gpu-17"),
        ("gpu-17.cluster.example", "gpu-17"),
        ("gpu-18", "GPU-18.cluster.example"),
        ("logni-1", "login-1"),
    ],
)
def test_the_nearest_name_comes_first(wanted: str, first: str) -> None:
    assert near(wanted, NODES)[0] == first


def test_what_is_like_nothing_has_no_near_names_and_what_is_like_many_has_five() -> None:
    assert near("storage", NODES) == ()
    assert len(near("gpu-1", [f"gpu-1{number}" for number in range(50)])) == 5


def test_a_pattern_is_known_where_it_matches_a_known_name() -> None:
    assert find_unknown(["gpu-17", "login-*"], NODES) is None
    assert find_unknown(["gpu-1[67]"], NODES) is None
    assert find_unknown(["gpu-17", "rack7-*"], NODES) == "rack7-*"
    assert find_unknown(["gpu-19"], NODES) == "gpu-19"
    assert find_unknown(["gpu-17"], ()) == "gpu-17"


def test_an_unknown_name_is_told_with_those_that_are_like_it() -> None:
    assert say_unknown("node", "gpu-19", ["gpu-17"]) == "no node 'gpu-19'; similar names: gpu-17"
    assert say_unknown("node", "x", []) == "no node 'x'"
