"""Whose word says how large the fleet is, of which rankmend may hold back a share and doubts what accuses too much."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.controller.cluster.alert_shares import Sender
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import DAY_S, Budgets, ClusterPolicy
from recovery.controller.cluster.cluster_limits_file import parse_policy
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.cluster.ran_nodes import RanNodes
from tests.support.cluster_desk import make_desk

REAL = [f"n{number}" for number in range(40)]
FORGED = [f"forged-{number}" for number in range(1000)]


def nobody(_name: str) -> bool:
    return False


def everybody(_name: str) -> bool:
    return True


def desk_of(own_max: int = 5) -> ClusterController:
    budgets = Budgets(nodes_unconfirmed_max=own_max)
    desk, _journal, _clock = make_desk(ClusterPolicy(budgets=budgets))
    desk.note_running(REAL[:5], "alice")
    desk.note_running(FORGED, "mallory")
    return desk


def test_nodes_that_one_subject_has_invented_count_up_to_the_bound() -> None:
    desk = desk_of()

    assert desk.nodes_active() == 10
    assert set(desk.unconfirmed) == set(FORGED)


def by_settings(desk: ClusterController) -> None:
    desk.listed = dict.fromkeys(REAL, "")


def by_manager_or_agent(desk: ClusterController) -> None:
    desk.is_confirmed = REAL.__contains__


@pytest.mark.parametrize("confirm", [by_settings, by_manager_or_agent])
def test_nodes_that_another_knows_count_all(confirm: Callable[[ClusterController], None]) -> None:
    desk = desk_of()
    desk.note_running(REAL, "bob")

    before = desk.nodes_active()
    confirm(desk)

    assert before == 10, "five of alice's, of which bob names the same, and five of mallory's"
    assert desk.nodes_active() == 45
    assert set(desk.unconfirmed) == set(FORGED), "of alice and bob nothing has to be asked"


def one_party(desk: ClusterController) -> None:
    desk.policy = ClusterPolicy(
        desk.policy.approval, single_tenant=True, budgets=desk.policy.budgets
    )


def only_subject(desk: ClusterController) -> None:
    desk.is_only_subject = lambda owner: owner == "mallory"


@pytest.mark.parametrize("alone", [one_party, only_subject])
def test_where_nobody_else_may_launch_jobs_all_nodes_count(
    alone: Callable[[ClusterController], None],
) -> None:
    desk = desk_of()

    alone(desk)

    assert desk.nodes_active() == 1005
    assert desk.unconfirmed == ()


def test_nodes_of_jobs_without_owners_count_all() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy(budgets=Budgets(nodes_unconfirmed_max=5)))

    desk.note_running(REAL)

    assert desk.nodes_active() == 40


def test_a_forged_fleet_hides_no_rule_that_accuses_most_of_the_real_one() -> None:
    desk = desk_of(own_max=100)
    desk.note_running(REAL, "alice")
    labels = {"alertname": "RankmendGpuLost", "severity": "critical", "action": "drain"}
    told = [IncomingAlert({**labels, "node": node}, {}, desk.now_unix_s(), True) for node in REAL]

    desk.take_alerts(told, {}, Sender("prometheus"))
    desk.retell({})

    assert desk.nodes_active() == 140
    assert len(desk.doubts("job-of-alice")) == 40


def test_nodes_that_ran_nothing_for_a_day_count_no_more() -> None:
    ran = RanNodes()
    ran.note(["n1", "n2"], "alice", 0.0)
    ran.note(["n2"], "alice", 10.0)
    ran.note(["n1"], "bob", 20.0)

    assert ran.count(DAY_S + 5.0, 9, everybody, nobody).nodes == 2
    assert ran.count(DAY_S + 15.0, 9, everybody, nobody).nodes == 1
    assert ran.count(DAY_S + 25.0, 9, everybody, nobody).nodes == 0
    assert list(ran) == []


@given(
    st.lists(st.tuples(st.sampled_from("abcm"), st.integers(0, 60)), max_size=120),
    st.integers(0, 10),
)
def test_no_subject_makes_others_nodes_count_less_or_adds_more_than_the_bound(
    named: list[tuple[str, int]], own_max: int
) -> None:
    others, everyone = RanNodes(), RanNodes()
    for subject, number in named:
        everyone.note([f"n{number}"], subject, 0.0)
        if subject != "m":
            others.note([f"n{number}"], subject, 0.0)

    alone = others.count(0.0, own_max, everybody, nobody).nodes
    together = everyone.count(0.0, own_max, everybody, nobody).nodes

    assert alone <= together <= alone + own_max


def test_the_bound_is_a_key_of_the_policy() -> None:
    read = parse_policy({"budgets": {"nodes_unconfirmed_max": 7}}).cluster

    assert read.budgets.nodes_unconfirmed_max == 7
    with pytest.raises(Exception, match="nodes_unconfirmed_max can't be negative"):
        parse_policy({"budgets": {"nodes_unconfirmed_max": -1}})
