"""Reasons, in words, that several deciders journal. Pure. No decision reads them."""

from collections.abc import Sequence


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
