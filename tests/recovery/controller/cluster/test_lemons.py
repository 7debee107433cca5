"""Nodes that fail again and again are kept out by policy: within bounds, dry first, and until a person takes them back."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.finding import Finding, Kind
from rankmend.errors import ConfigError
from recovery.controller.cluster.charge_verdict import LemonOver, find_over
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import DAY_S, Budgets, ClusterPolicy, LemonRules
from recovery.controller.cluster.cluster_limits_file import parse_policy
from recovery.journal.cluster_records import Hold, LemonFound, NodeHeld
from recovery.journal.narration.cluster_narrator import narrate_cluster
from tests.support.cluster_desk import FINDING, MemoryJournal, make_desk
from tests.support.cluster_desk import blame as note

DEVICE = replace(FINDING, kind=Kind.DEVICE)
NO_QUARANTINE = Budgets(nodes_held_max=0)
ACTS = ClusterPolicy(
    budgets=NO_QUARANTINE,
    lemons=LemonRules(limits={Kind.DEVICE: 2}, dry_run=False, nodes_percent=50.0),
)


def blame(desk: ClusterController, node: str, times: int, finding: Finding = DEVICE) -> None:
    """Let incidents of as many jobs count against a node."""
    for number in range(times):
        incident = f"i-{node}-{number}-{len(desk.ledger.past(node).blames)}"
        note(desk, node, f"job of {incident}", incident, finding)


def found(journal: MemoryJournal) -> list[LemonFound]:
    return [one.record for one in journal.entries if isinstance(one.record, LemonFound)]


def test_by_default_nobody_is_kept_out_however_often_it_fails() -> None:
    desk, journal, _clock = make_desk(ClusterPolicy(budgets=NO_QUARANTINE))
    desk.note_running([f"n{number}" for number in range(100)])

    blame(desk, "n2", 20)

    assert found(journal) == []
    assert desk.unusable("n2") is None


def test_a_node_at_its_kinds_limit_stays_out_until_a_person_takes_it_back() -> None:
    desk, journal, clock = make_desk(ACTS)
    desk.note_running([f"n{number}" for number in range(10)])

    blame(desk, "n2", 1)
    before = desk.unusable("n2")
    blame(desk, "n2", 1)
    held = desk.unusable("n2")
    clock.now += 400 * DAY_S
    much_later = desk.unusable("n2")
    desk.release("n2", "ann", "GPU replaced")
    blame(desk, "n2", 1)

    assert before is None
    assert held is not None
    assert "2 faults of kind device within 28 days, the limit is 2" in held
    assert much_later is not None, "no time ends it"
    assert desk.unusable("n2") is None, "its past is forgotten"
    kept, hold = (one.record for one in journal.entries[2:4])
    assert kept == LemonFound("n2", "device", 2, 2, 28.0, False, kept.reason)  # type: ignore[union-attr]
    assert isinstance(hold, NodeHeld)
    assert (hold.hold, hold.who, hold.until_unix_s) == (Hold.DRAIN, "policy", None)


def test_a_dry_run_journals_a_lemon_once_for_each_count_and_keeps_nobody_out() -> None:
    dry = replace(ACTS, lemons=replace(ACTS.lemons, dry_run=True))
    desk, journal, _clock = make_desk(dry)

    blame(desk, "n2", 3)
    desk.look_for_lemons()

    assert [(one.faults, one.is_dry) for one in found(journal)] == [(2, True), (3, True)]
    assert desk.unusable("n2") is None
    assert "would keep n2 out of use" in narrate_cluster(found(journal)[0])
    assert any("dry run: n2 would be kept out" in note.text for note in desk.notes)


def test_another_policy_finds_what_has_failed_before() -> None:
    dry = replace(ACTS, lemons=replace(ACTS.lemons, dry_run=True))
    desk, _journal, _clock = make_desk(dry)
    desk.note_running([f"n{number}" for number in range(10)])
    blame(desk, "n2", 2)

    desk.take_policy(ACTS)

    assert desk.unusable("n2") is not None


@pytest.mark.parametrize("rule", ["dry run of the cluster", "observe"])
def test_a_cluster_that_only_looks_keeps_nobody_out(rule: str) -> None:
    policy = replace(ACTS, is_dry=True) if rule != "observe" else replace(ACTS, observe=True)
    desk, journal, _clock = make_desk(policy)
    desk.note_running([f"n{number}" for number in range(10)])

    blame(desk, "n2", 2)

    assert [one.is_dry for one in found(journal)] == [True]
    assert desk.unusable("n2") is None


def test_faults_of_other_kinds_and_old_ones_count_for_nothing() -> None:
    desk, journal, clock = make_desk(ACTS)
    desk.note_running(["n1", "n2", "n3", "n4"])

    blame(desk, "n2", 5, FINDING)
    blame(desk, "n2", 1)
    clock.now += 29 * DAY_S
    blame(desk, "n2", 1)

    assert found(journal) == []


def test_no_more_than_the_share_of_the_fleet_is_kept_out_and_people_hear_of_the_rest() -> None:
    desk, _journal, _clock = make_desk(replace(ACTS, lemons=replace(ACTS.lemons, nodes_percent=10)))
    desk.note_running([f"n{number}" for number in range(20)])

    for number in range(6):
        blame(desk, f"n{number}", 2)

    out = [node for node in (f"n{number}" for number in range(20)) if desk.unusable(node)]
    assert out == ["n0", "n1"]
    assert any(
        "n5 is a lemon" in note.text and "is not kept out" in note.text for note in desk.notes
    )


@given(st.integers(1, 40), st.lists(st.integers(0, 39), max_size=60), st.integers(0, 5))
def test_whoever_is_blamed_the_share_and_the_number_hold(
    nodes: int, blamed: list[int], nodes_max: int
) -> None:
    rules = LemonRules(faults=2, dry_run=False, nodes_max=nodes_max, nodes_percent=10.0)
    desk, _journal, _clock = make_desk(ClusterPolicy(budgets=NO_QUARANTINE, lemons=rules))
    names = [f"n{number}" for number in range(nodes)]
    desk.note_running(names)

    for number in blamed:
        blame(desk, names[number % nodes], 1)

    out = [name for name in names if desk.unusable(name) is not None]
    assert len(out) <= min(nodes_max, nodes // 10)


def test_a_journal_that_is_full_keeps_nobody_out_and_says_so() -> None:
    desk, journal, _clock = make_desk(ACTS)
    desk.note_running([f"n{number}" for number in range(10)])
    blame(desk, "n2", 1)
    journal.is_full = True

    blame(desk, "n2", 1)
    desk.look_for_lemons()

    assert desk.unusable("n2") is None


def test_the_limit_that_is_exceeded_most_is_told() -> None:
    rules = LemonRules(limits={Kind.DEVICE: 2, Kind.HOST: 2}, faults=9)

    assert find_over(Counter({"device": 1, "host": 1}), rules) is None
    assert find_over(Counter({"device": 2, "host": 5}), rules) == LemonOver("host", 5, 2)
    assert find_over(Counter({"rank_failed": 9, "": 1}), rules) == LemonOver("any", 10, 9)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"limits": {"gpu": 2}}, "gpu"),
        ({"limits": {"device": 0}}, "limits.device is 0"),
        ({"limits": {"device": 1000}}, "limits.device is 1000"),
        ({"faults": -1}, "faults is -1"),
        ({"days": 0}, "days is 0"),
        ({"nodes_percent": 90}, "nodes_percent"),
        ({"strange": 1}, "strange"),
    ],
)
def test_a_mistake_in_the_policy_is_named(table: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_policy({"lemons": table})
