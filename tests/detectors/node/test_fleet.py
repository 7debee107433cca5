"""Who differs from the fleet, and who fails again and again."""

from detectors.node.fleet_drift import find_drift
from detectors.node.lemons import DAY_S, BlamedNode, find_lemons

NOW_S = 100 * DAY_S


def test_the_node_with_another_driver_is_named() -> None:
    versions = {f"n{number}": {"nvidia": "570.1", "kernel": "6.1"} for number in range(4)}
    versions["odd"] = {"nvidia": "550.9", "kernel": "6.1"}

    (drift,) = find_drift(versions)

    assert (drift.component, drift.usual) == ("nvidia", "570.1")
    assert drift.others == (("odd", "550.9"),)


def test_without_a_majority_nobody_differs() -> None:
    versions = {"a": {"bios": "1"}, "b": {"bios": "1"}, "c": {"bios": "2"}, "d": {"bios": "2"}}

    (drift,) = find_drift(versions)

    assert (drift.usual, drift.others) == (None, ())
    assert drift.counts == (("1", 2), ("2", 2))


def test_of_two_nodes_neither_is_the_odd_one() -> None:
    (drift,) = find_drift({"a": {"bios": "1"}, "b": {"bios": "2"}})

    assert drift.usual is None


def test_lemons_are_counted_by_kind_within_the_days() -> None:
    faults = [BlamedNode("bad", "device", NOW_S - DAY_S * n) for n in (0, 1, 27)]
    faults += [BlamedNode("bad", "hung", NOW_S), BlamedNode("bad", "device", NOW_S - 29 * DAY_S)]
    faults += [BlamedNode("good", "device", NOW_S), BlamedNode("", "device", NOW_S)]

    (lemon,) = find_lemons(faults, NOW_S)

    assert (lemon.node, lemon.faults) == ("bad", 4)
    assert lemon.kinds == (("device", 3), ("hung", 1))


def test_two_faults_make_no_lemon() -> None:
    assert find_lemons([BlamedNode("n", "device", NOW_S)] * 2, NOW_S) == []
