"""Whether a node is kept out after its pre-flight check, or returned. Pure.

A node is returned only if we took it out, and nobody has changed its reason since: what keeps it out is compared with what
we wrote, letter by letter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.preflight.verdicts import CheckStanding, CheckVerdict, FlightOutcome

CAUSES_MAX: Final = 3
REASON_MAX: Final = 200


class HoldMove(Enum):
    """What to do about a node; the value is for people."""

    HOLD = "hold it"
    RETURN = "return it"
    LEAVE = "leave it as it is"


@dataclass(frozen=True, slots=True)
class NodeHold:
    """What keeps a node out now, and what we wrote when we took it out; None: nothing."""

    present: str | None
    ours: str | None


@dataclass(frozen=True, slots=True)
class HoldDecision:
    move: HoldMove
    why: str


def decide_hold(outcome: FlightOutcome, causes: Sequence[str], hold: NodeHold) -> HoldDecision:
    """Return what to do; ``causes``: what `causes_of` found, empty if nothing speaks against the node."""
    if causes:
        if hold.present is not None:
            return HoldDecision(HoldMove.LEAVE, f"it is out already: {hold.present}")
        return HoldDecision(HoldMove.HOLD, "; ".join(causes))
    if outcome is not FlightOutcome.PASSED:
        return HoldDecision(HoldMove.LEAVE, f"its check ended as {outcome.value}")
    if hold.present is None:
        return HoldDecision(HoldMove.LEAVE, "it passed, and is in service")
    if hold.ours is None or hold.ours != hold.present:
        return HoldDecision(HoldMove.LEAVE, f"it passed, and others keep it out: {hold.present}")
    return HoldDecision(HoldMove.RETURN, "it passed, and our check had taken it out")


def causes_of(checks: Sequence[CheckVerdict], *, is_hang_cause: bool) -> list[str]:
    """Return what keeps a node out, in words, the first few."""
    counted = {CheckStanding.FAILED} | ({CheckStanding.HUNG} if is_hang_cause else set())
    found = [check for check in checks if check.standing in counted]
    texts = [
        f"{check.name} {check.part}: {check.reason}"[:REASON_MAX] for check in found[:CAUSES_MAX]
    ]
    more = len(found) - len(texts)
    return [*texts, *([f"and {more} more"] if more > 0 else [])]
