"""Which finding allows which step: the next that is allowed, else a person."""

from dataclasses import replace

import msgspec
import pytest

from detectors.finding import Blame, Finding, Kind, Severity
from rankmend.errors import ConfigError
from recovery.controller.cluster.cluster_limits_file import parse_policy
from recovery.controller.job.planner import Scene, is_worth_moving, plan
from recovery.journal.ledger import Ledger, Member
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.node_records import LeaveCause, LeaveReason
from recovery.messages.codec import symptom_of

FINDING = Finding(
    kind=Kind.DEVICE,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="GPU lost on n1",
    job_id="job",
    attempt=1,
    node="n1",
    ranks=(0,),
    victims=(),
    since_age_s=1.0,
    symptom=symptom_of("evidence:RankmendGpuLost"),
)
SCENE = Scene(nodes=("n1", "n2"), spares=1, sizes=(2, 1))
LOST = replace(SCENE, must_leave={"n1": LeaveReason(LeaveCause.ALERT, "GPU lost")})


def allowing(*steps: PlanStep, kind: Kind = Kind.DEVICE) -> Policy:
    return Policy(allow={kind: steps})


@pytest.mark.parametrize(
    ("steps", "scene", "expected"),
    [
        ((PlanStep.RESTART_IN_PLACE,), SCENE, PlanStep.RESTART_IN_PLACE),
        ((PlanStep.MOVE,), SCENE, PlanStep.MOVE),  # dearer: the accused node is left
        ((PlanStep.SHRINK,), SCENE, PlanStep.ESCALATE),  # there is a spare, so it would be a move
        ((PlanStep.SHRINK,), replace(SCENE, spares=0), PlanStep.SHRINK),
        ((), SCENE, PlanStep.ESCALATE),
        ((PlanStep.MOVE,), LOST, PlanStep.MOVE),
        ((PlanStep.RESTART_IN_PLACE,), LOST, PlanStep.ESCALATE),  # on n1 nothing can be started
        ((PlanStep.MOVE,), replace(LOST, spares=0), PlanStep.ESCALATE),  # only fewer nodes are left
    ],
)
def test_the_next_allowed_step_is_taken_else_a_person_is_told(
    steps: tuple[PlanStep, ...], scene: Scene, expected: PlanStep
) -> None:
    made = plan(FINDING, Ledger(), allowing(*steps), None, scene)

    assert made.step is expected
    assert made.step is not PlanStep.ESCALATE or "does not allow" in made.reason


def test_a_suspect_is_restarted_in_place_where_moving_is_not_allowed() -> None:
    suspected = replace(SCENE, may_leave={"n1": LeaveReason(LeaveCause.BLAMED, "2")})

    made = plan(FINDING, Ledger(), allowing(PlanStep.RESTART_IN_PLACE), None, suspected)

    assert made.step is PlanStep.RESTART_IN_PLACE
    assert made.without == ()


def test_other_kinds_and_what_a_person_asks_for_are_not_held_back() -> None:
    policy = allowing(kind=Kind.RANK_SLOW)
    asked = replace(
        FINDING, kind=Kind.RANK_SLOW, symptom=symptom_of("person:restart"), blame=Blame.USER
    )

    assert plan(FINDING, Ledger(), policy, None, LOST).step is PlanStep.MOVE
    assert plan(asked, Ledger(), policy, None, SCENE).step is PlanStep.RESTART_IN_PLACE


def test_a_further_try_of_a_job_of_many_nodes_is_left_to_the_plan_that_knows_the_nodes() -> None:
    member = Member("n2", "l", "b", 2, None, None, joined=1, launcher_since=1, boot_since=0)
    joined = Ledger(members={"n2": member})

    assert plan(FINDING, joined, allowing(PlanStep.MOVE), None).step is PlanStep.RESTART_IN_PLACE
    assert plan(FINDING, joined, allowing(), None).step is PlanStep.ESCALATE
    assert plan(FINDING, Ledger(), allowing(PlanStep.MOVE), None).step is PlanStep.ESCALATE


def test_a_slow_rank_is_only_named_where_moving_it_is_not_allowed() -> None:
    ledger = Ledger(restart_cost_s=1.0)

    assert is_worth_moving(2.0, ledger, Policy())[0]
    is_worth, reason = is_worth_moving(2.0, ledger, allowing(kind=Kind.RANK_SLOW))
    assert not is_worth
    assert "does not allow" in reason


def test_the_file_says_it_by_kind_and_a_job_changes_only_the_kinds_that_it_names() -> None:
    read = parse_policy(
        msgspec.toml.decode(
            """
            [policy.allow]
            rank_slow = []
            host = ["move"]
            [[jobs]]
            match = "prod*"
            policy = { allow = { host = ["move", "shrink"] } }
            """
        )
    )

    assert read.policy.allow == {Kind.RANK_SLOW: (), Kind.HOST: (PlanStep.MOVE,)}
    assert read.policy_for("prod-1").allow == {
        Kind.RANK_SLOW: (),
        Kind.HOST: (PlanStep.MOVE, PlanStep.SHRINK),
    }


@pytest.mark.parametrize(
    "text", ["[policy.allow]\nhost = ['fly']", "[policy.allow]\nmoon = []", "[policy]\nallow = 3"]
)
def test_an_unknown_kind_or_step_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\[policy\]"):
        parse_policy(msgspec.toml.decode(text))
