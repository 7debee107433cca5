"""Flows on one link are found, and the plan of source ports spreads them as far as the ports allow."""

from random import Random

import pytest

from detectors.fabric.collisions import TracedFlow, plan_ports
from rankmend.errors import SourceError


def flow(name: str, *spines: str) -> TracedFlow:
    """A flow whose ports 1, 2, ... go over these spines; it has port 1."""
    paths = {port: ("leaf0", f"{spine}-in", f"{spine}-out") for port, spine in enumerate(spines, 1)}
    return TracedFlow(name, (name, "t"), 1, paths)


def test_flows_on_one_link_move_to_those_that_idle() -> None:
    flows = [flow("a", "s1", "s2"), flow("b", "s1", "s2"), flow("c", "s3", "s1")]

    plan = plan_ports(flows)

    assert (plan.worst_before, plan.worst_after) == (2, 1)
    assert [(c.link, c.flows, c.idle) for c in plan.collisions] == [
        ("s1-in", ("a", "b"), ("s2-in",)),
        ("s1-out", ("a", "b"), ("s2-out",)),
    ]
    assert (plan.expected_before_ratio, plan.expected_after_ratio) == (2 / 3, 1.0)


def test_flow_that_has_no_other_path_is_given_room() -> None:
    flows = [flow("a", "s1"), flow("b", "s1", "s2"), flow("c", "s2", "s3")]

    plan = plan_ports(flows)

    assert plan.ports == (1, 2, 2)
    assert plan.worst_after == 1


def test_sixteen_flows_over_four_leaves_and_spines_get_a_link_each_whatever_the_hash() -> None:
    for seed in range(50):
        random = Random(seed)
        flows = []
        for number in range(16):
            leaf = number // 4
            paths = {}
            for port in range(16):
                spine = random.randrange(4)
                paths[port] = (
                    f"leaf{leaf}.h{number}",
                    f"s{spine}.{leaf}",
                    f"leaf{leaf ^ 2}.{spine}",
                )
            flows.append(TracedFlow(f"f{number}", (str(number), "t"), 0, paths))

        plan = plan_ports(flows)

        assert plan.worst_after == 1, seed
        assert plan.worst_after <= plan.worst_before


def test_one_path_only_leaves_nothing_to_choose() -> None:
    plan = plan_ports([flow("a", "s1", "s1"), flow("b", "s1", "s1")])

    assert plan.single_path
    assert plan.ports == (1, 1)


def test_flow_whose_path_is_unknown_is_an_error_that_names_it() -> None:
    with pytest.raises(SourceError, match=r"flow a.*port 7"):
        plan_ports([TracedFlow("a", ("a", "b"), 7, {})])
