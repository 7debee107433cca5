"""Expected times of collectives: by hand for small networks, and the order of ranks that they prefer."""

import pytest

from detectors.fabric.cost_model import (
    PathClass,
    PathClassName,
    all_to_all_s,
    bus_bytes_per_s,
    path_classes,
    preferred_order,
    ring_all_reduce_s,
)
from detectors.fabric.network import Network, Reading
from rankmend.errors import SourceError

FLAT = Network(("a", "b", "c", "d"))
TWO_LEAVES = Network(("a", "b", "c", "d"), leaf_of={"a": "l0", "c": "l0", "b": "l1", "d": "l1"})
CLASSES = (
    PathClass(PathClassName.LEAF, 1e-6, 10e9, 9),
    PathClass(PathClassName.ACROSS, 3e-6, 2e9, 9),
)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus_bytes_per_s("all_reduce", 1000, 2.0, 4) == 750.0
    assert bus_bytes_per_s("all_to_all", 1000, 2.0, 4) == 375.0
    with pytest.raises(SourceError, match="gossip"):
        bus_bytes_per_s("gossip", 1000, 2.0, 4)


def test_classes_are_medians_of_their_readings_and_dead_paths_are_left_out() -> None:
    readings = [
        Reading(0, 0, 2, 0, 0, 10e9, 2e-6),
        Reading(0, 2, 0, 0, 0, 10e9, 2e-6),
        Reading(0, 0, 1, 0, 0, 2e9, 6e-6),
        Reading(0, 1, 0, 0, 0, 0.0),
    ]

    near, far = path_classes(TWO_LEAVES, readings)

    assert (near.name, near.latency_s, near.bytes_per_s) == (PathClassName.LEAF, 1e-6, 10e9)
    assert (far.name, far.latency_s, far.bytes_per_s, far.tests) == (
        PathClassName.ACROSS,
        3e-6,
        2e9,
        1,
    )


def test_flat_ring_takes_twice_n_less_one_steps() -> None:
    classes = (PathClass(PathClassName.UNKNOWN, 1e-6, 1e9, 9),)

    assert ring_all_reduce_s(FLAT, classes, range(4), 4_000_000) == pytest.approx(6 * (1e-6 + 1e-3))
    assert all_to_all_s(FLAT, classes, 4_000_000) == pytest.approx(3 * (1e-6 + 1e-3))


def test_ring_leaf_by_leaf_crosses_each_uplink_once_and_is_preferred() -> None:
    order = preferred_order(TWO_LEAVES)

    assert [TWO_LEAVES.nodes[node] for node in order] == ["a", "c", "b", "d"]
    # One flow has the whole uplink of two nodes: 4 GB/s. In rank order two flows share it.
    assert ring_all_reduce_s(TWO_LEAVES, CLASSES, order, 4_000_000) == pytest.approx(
        6 * (3e-6 + 1e6 / 4e9)
    )
    assert ring_all_reduce_s(TWO_LEAVES, CLASSES, range(4), 4_000_000) == pytest.approx(
        6 * (3e-6 + 1e6 / 2e9)
    )


def test_path_that_nobody_measured_is_an_error_that_names_it() -> None:
    with pytest.raises(SourceError, match="across leaf switches"):
        ring_all_reduce_s(TWO_LEAVES, CLASSES[:1], range(4), 1000)
