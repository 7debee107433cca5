"""Reasons, in words, that several deciders journal. Pure. No decision reads them."""

from collections.abc import Sequence

from recovery.journal.attempt_records import Choice


def cannot_start(why: object) -> str:
    return f"no attempt can start: {why}"


def gone_unseen(attempt: int) -> str:
    return f"attempt {attempt} is gone; its end was not observed"


def leftovers(attempt: int, waited_s: float, nodes: Sequence[str] = ()) -> str:
    """Return that processes of an attempt outlived their fence, with their nodes if known."""
    where = f" on {', '.join(nodes)}" if nodes else ""
    return (
        f"processes of attempt {attempt} are still there{where} after {waited_s:g} s: "
        f"nothing starts beside them"
    )


def budget_spent(what: str) -> str:
    return f"the budget is spent ({what})"


def held(choice: Choice, whose: str) -> str:
    """Return why nothing is started, and what a person can do. ``whose``: the job or the incident to approve."""
    because, back, leave = "the job would begin at step 0", "checkpoint", "begin at step 0"
    if choice.model_alone:
        because, back = "the optimizer's state would be lost", "training state"
        leave = f"go on from {choice.model_alone}"
    return (
        f"{choice.reason}. rankmend starts nothing, because {because}. Put a valid {back} back (rankmend keeps looking), "
        f"or let the job {leave}: `rankmend approve {whose}`"
    )
