"""A node that failed is kept out, and one that passed is returned only if we took it out."""

import pytest

from detectors.preflight.holds import HoldMove, NodeHold, causes_of, decide_hold
from detectors.preflight.verdicts import CheckStanding, CheckVerdict, FlightOutcome

FAILED, PASSED = FlightOutcome.FAILED, FlightOutcome.PASSED
CAUSE = ["gemm_bits cuda:1: 1 wrong"]


@pytest.mark.parametrize(
    ("outcome", "causes", "hold", "move"),
    [
        (FAILED, CAUSE, NodeHold(None, None), HoldMove.HOLD),
        (FAILED, CAUSE, NodeHold("a person's", None), HoldMove.LEAVE),
        (FAILED, CAUSE, NodeHold("ours", "ours"), HoldMove.LEAVE),
        (PASSED, [], NodeHold("ours", "ours"), HoldMove.RETURN),
        (PASSED, [], NodeHold("ours; and a person's words", "ours"), HoldMove.LEAVE),
        (PASSED, [], NodeHold("a person's", None), HoldMove.LEAVE),
        (PASSED, [], NodeHold(None, "ours"), HoldMove.LEAVE),
        (FlightOutcome.UNANSWERED, [], NodeHold("ours", "ours"), HoldMove.LEAVE),
        (FlightOutcome.STOPPED, [], NodeHold("ours", "ours"), HoldMove.LEAVE),
        (FlightOutcome.NOT_BEGUN, [], NodeHold("ours", "ours"), HoldMove.LEAVE),
    ],
)
def test_what_is_done_about_a_node(
    outcome: FlightOutcome, causes: list[str], hold: NodeHold, move: HoldMove
) -> None:
    assert decide_hold(outcome, causes, hold).move is move


def test_a_hang_is_a_cause_only_where_the_site_says_so() -> None:
    checks = [CheckVerdict("disk", "disk", CheckStanding.HUNG, "waits in the kernel")]

    assert causes_of(checks, is_hang_cause=False) == []
    assert causes_of(checks, is_hang_cause=True) == ["disk disk: waits in the kernel"]


def test_a_reason_names_the_first_causes_and_counts_the_rest() -> None:
    checks = [CheckVerdict(f"c{n}", "p", CheckStanding.FAILED, "bad") for n in range(5)]

    assert causes_of(checks, is_hang_cause=False)[2:] == ["c2 p: bad", "and 2 more"]
