"""Sentences that several deciders journal as a reason. Pure: for people; no decision reads one."""

from collections.abc import Sequence


def cannot_start(why: object) -> str:
    return f"no attempt can be started: {why}"


def gone_unseen(attempt: int) -> str:
    return f"attempt {attempt} is gone, and nobody saw it end"


def leftovers(attempt: int, waited_s: float, nodes: Sequence[str] = ()) -> str:
    """Return that processes of an attempt outlived their fence, on nodes where those are known."""
    where = f" on {', '.join(nodes)}" if nodes else ""
    return (
        f"processes of attempt {attempt} are still there{where} after {waited_s:g} s: "
        f"nothing is started beside them"
    )


def budget_spent(what: str) -> str:
    return f"the budget is spent ({what})"
