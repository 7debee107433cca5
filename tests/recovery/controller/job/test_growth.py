"""A job takes in nodes that wait only where it is asked to, right after a save, and only nodes that proved healthy."""

from dataclasses import replace
from typing import Final

import pytest

from detectors.finding import Blame, Kind, SymptomKind
from recovery.controller.cluster.gate import Answer, Judgement
from recovery.controller.job.growth import (
    FitNodes,
    GrowthTimes,
    JobGrowth,
    Stays,
    WaitingNode,
    decide_growth,
    growth_finding,
)
from recovery.journal.attempt_records import (
    AttemptStarted,
    Cause,
    CheckpointSeen,
    Choice,
    Placement,
    StandKind,
    StandStill,
)
from recovery.journal.faults import Fault
from recovery.journal.incident_machine import Outcome
from recovery.journal.incident_records import IncidentEvent, IncidentOpened
from recovery.journal.ledger import Ledger, Wish
from recovery.journal.limits import PlanStep, Policy
from recovery.messages.exchange import FoundCheckpoint, Report
from recovery.messages.outside import PersonAct
from tests.support import job_ledgers
from tests.support.controller_bench import POLICY
from tests.support.nodes_bench import SETTINGS, Bench, FakeNode, command, evidence

ON: Final = replace(POLICY, grow_every_s=3600.0)
ELASTIC: Final = replace(SETTINGS, nodes_min=2, nodes_max=4, shrink_multiple=1, policy=ON)
HEALTHY: Final = WaitingNode(fit_s=600.0, has_passed=True)
SAVED: Final = GrowthTimes(attempt_s=3600.0, save_s=5.0)
TRAINS: Final = replace(
    Ledger(),
    attempt=1,
    wish=Wish.RANKS,
    is_attempt_open=True,
    is_verified=True,
    started=AttemptStarted(1, Cause.FIRST, Choice(True, None, "empty")),
    started_number=4,
    placement=(Placement("a", (0,)), Placement("b", (1,))),
    restorable=CheckpointSeen("/c/9", 9, "npz", "npz file", 1000.0, "whole"),
    saved_number=9,
)


def decide(
    ledger: Ledger = TRAINS,
    policy: Policy = ON,
    waiting: dict[str, WaitingNode] | None = None,
    times: GrowthTimes = SAVED,
    **changes: object,
) -> JobGrowth | Stays:
    settings = replace(ELASTIC, policy=policy, **changes)
    known = {"c": HEALTHY} if waiting is None else waiting
    return decide_growth(ledger, settings, {"a", "b", *known}, known, times, 0)


def test_job_grows_by_the_healthy_nodes_after_its_save() -> None:
    assert decide() == JobGrowth(("c",), 2, 3, 9)
    assert decide(waiting={"d": HEALTHY, "c": HEALTHY}) == JobGrowth(("c", "d"), 2, 4, 9)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (POLICY, Stays.OFF),  # by default
        (replace(ON, observe=True), Stays.FORBIDDEN),
        (replace(ON, allow={Kind.HOST: (PlanStep.MOVE,)}), Stays.FORBIDDEN),
        (replace(ON, restarts_max=0), Stays.SPENT),
    ],
)
def test_policy_keeps_the_job_as_it_is(policy: Policy, why: Stays) -> None:
    assert decide(policy=policy) is why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_verified": False}, Stays.NOT_TRAINING),
        ({"is_attempt_open": False}, Stays.NOT_TRAINING),
        ({"wish": Wish.NOTHING}, Stays.NOT_TRAINING),
        ({"paused_by": "ada"}, Stays.NOT_TRAINING),
        ({"incident": job_ledgers.ledger().incident}, Stays.NOT_TRAINING),
        ({"standing": StandStill(1, StandKind.WAITS, (0,), "")}, Stays.NOT_TRAINING),
        ({"saved_number": 0}, Stays.NO_SAVE),
        ({"saved_number": 4}, Stays.NO_SAVE),  # of the attempt before
        ({"barren": (Fault(),) * 50}, Stays.SPENT),
    ],
)
def test_state_of_the_job_keeps_it_as_it_is(changes: dict[str, object], why: Stays) -> None:
    assert decide(replace(TRAINS, **changes)) is why


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (replace(SAVED, attempt_s=3599.0), Stays.EARLY),
        (replace(SAVED, save_s=60.5), Stays.NO_SAVE),
    ],
)
def test_job_grows_neither_too_often_nor_long_after_a_save(times: GrowthTimes, why: Stays) -> None:
    assert decide(times=times) is why


@pytest.mark.parametrize(
    ("waiting", "changes", "why"),
    [
        ({}, {}, Stays.NO_NODE),
        ({"c": replace(HEALTHY, fit_s=599.0)}, {}, Stays.NO_NODE),
        ({"c": replace(HEALTHY, has_passed=False)}, {}, Stays.NO_NODE),
        ({"c": HEALTHY}, {"shrink_multiple": 4}, Stays.NO_SIZE),  # 3 ranks are no multiple of 4
        ({"c": HEALTHY}, {"nodes_max": 3, "spares": 1}, Stays.NO_SIZE),
        ({"c": HEALTHY}, {"shrink_multiple": 0}, Stays.NO_SIZE),  # a fixed size: c is its spare
    ],
)
def test_job_stays_where_no_node_fits(
    waiting: dict[str, WaitingNode], changes: dict[str, object], why: Stays
) -> None:
    known = {"nodes_min": 2, "nodes_max": 4, **changes}
    assert decide(waiting=waiting, **known) is why


def test_job_is_asked_once_at_a_save_and_not_while_a_node_with_ranks_is_in_doubt() -> None:
    waiting = {"c": HEALTHY}

    assert decide_growth(TRAINS, ELASTIC, {"a", "b", "c"}, waiting, SAVED, 9) is Stays.ASKED
    assert decide_growth(TRAINS, ELASTIC, {"a", "c"}, waiting, SAVED, 0) is Stays.NODE_AWAY


def test_growth_blames_nobody_and_names_the_save() -> None:
    finding = growth_finding(JobGrowth(("c",), 2, 3, 9), TRAINS, "job")

    assert finding.summary == "the job grows from 2 nodes to 3 after the save of step 9"
    assert (finding.blame, finding.node, finding.is_planned) == (Blame.USER, "", True)
    assert not finding.is_persons


def test_a_node_is_healthy_only_without_a_break() -> None:
    fit = FitNodes()
    assert fit.look({"c"}, 0.0, 10.0) == {"c": 0.0}
    assert fit.look({"c", "d"}, 5.0, 10.0) == {"c": 5.0, "d": 0.0}
    assert fit.look({"d"}, 6.0, 10.0) == {"d": 1.0}
    assert fit.look({"c", "d"}, 7.0, 10.0) == {"c": 0.0, "d": 2.0}
    assert fit.look({"c", "d"}, 17.5, 10.0) == {"c": 0.0, "d": 0.0}  # nobody looked for a while


# In a controller.


class CheckedNode(FakeNode):
    """A node that may have passed a pre-flight check at its launcher's start."""

    passed = True

    def report(self) -> Report:
        return replace(super().report(), passed_preflight=self.passed)


GROWS: Final = replace(
    ELASTIC, has_checkpoints=True, policy=replace(ON, grow_every_s=30.0, grow_healthy_s=15.0)
)


def join_late(settings_changes: dict[str, object] | None = None, *, passed: bool = True) -> Bench:
    """Return a job that trains on two nodes while a third has waited for 40 s."""
    bench = Bench(replace(GROWS, **(settings_changes or {})), names="ab")
    bench.beat(POLICY.join_wait_s + 2.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    late = bench.nodes["c"] = CheckedNode("c")
    late.passed = passed
    for step in range(5, 15):
        bench.beat(4.0, step)
    return bench


def save(bench: Bench, step: int, at_unix_s: float) -> None:
    """Let the job save, and train on for some seconds."""
    found = FoundCheckpoint(f"/c/{step}", step, "npz", 1, at_unix_s, True, "whole")
    for node in bench.nodes.values():
        node.known = (found,)
        node.told = {"path": f"/c/{step}", "step": step, "modified_unix_s": at_unix_s}
    for more in range(1, 13):
        bench.beat(1.0, step + more)


def test_a_node_that_joined_later_is_taken_in_right_after_a_save() -> None:
    bench = join_late()
    assert len(bench.records(AttemptStarted)) == 1

    save(bench, 30, 2000.0)

    (opened,) = bench.records(IncidentOpened)
    assert opened.failure.finding.symptom.kind is SymptomKind.GROWTH
    started = bench.records(AttemptStarted)[-1]
    assert [place.node for place in started.placement] == ["a", "b", "c"]
    assert started.choice.restored_path == "/c/30"
    assert bench.blamed == []

    save(bench, 50, 3000.0)
    assert len(bench.records(IncidentOpened)) == 1


def test_a_node_that_is_new_stays_out_of_a_job_that_grows() -> None:
    bench = join_late()
    bench.nodes["d"] = CheckedNode("d")

    save(bench, 30, 2000.0)

    assert bench.placed == ["a", "b", "c"]


@pytest.mark.parametrize("why", ["unchecked", "accused", "held"])
def test_an_unfit_node_is_not_taken_in(why: str) -> None:
    bench = join_late(passed=why != "unchecked")
    if why == "accused":
        bench.control.take_evidence(evidence("c"))
    if why == "held":
        bench.held["c"] = "drained"

    save(bench, 30, 2000.0)

    assert bench.records(IncidentOpened) == []


def test_a_pause_keeps_the_job_as_it_is() -> None:
    bench = join_late()
    bench.control.take_command(command(PersonAct.PAUSE))

    save(bench, 30, 2000.0)

    assert bench.records(IncidentOpened) == []


def test_a_growth_that_has_to_wait_is_dropped_once_the_save_is_old_and_asked_for_at_the_next() -> (
    None
):
    bench = join_late()
    bench.answer = Answer(Judgement.WAIT, "6 jobs were stopped within the hour")
    save(bench, 30, 2000.0)
    for step in range(50, 115):
        bench.beat(1.0, step)

    assert len(bench.records(IncidentOpened)) == 1
    assert [one.event.outcome for one in bench.records(IncidentEvent)] == [Outcome.CANCEL]
    assert len(bench.records(AttemptStarted)) == 1

    bench.answer = Answer(Judgement.ALLOWED, "open")
    save(bench, 130, 3000.0)
    assert bench.placed == ["a", "b", "c"]


def test_a_refused_growth_leaves_the_ranks_alone() -> None:
    bench = join_late()
    bench.answer = Answer(Judgement.REFUSED, "no restarts at night")

    save(bench, 30, 2000.0)

    assert [one.event.outcome for one in bench.records(IncidentEvent)] == [Outcome.CANCEL]
    assert bench.control.outcome is None
    assert len(bench.records(AttemptStarted)) == 1


def test_a_growth_that_fails_goes_on_with_the_nodes_that_are_left() -> None:
    bench = join_late()
    save(bench, 30, 2000.0)
    assert bench.placed == ["a", "b", "c"]
    assert bench.records(AttemptStarted)[-1].cause is Cause.INCIDENT
    bench.nodes["c"].is_silent = True
    bench.kill("b")
    for step in range(60, 100):
        bench.beat(1.0, step)

    assert bench.control.outcome is None
    assert bench.placed == ["a", "b"]
