"""The ranks that a table names where the heat map shows all. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from recovery.api import wire
from recovery.controller.job.watch.rank_picture import RankState

_ROWS: Final = 20
_NOTABLE: Final = 1.05  # own work over the peers': below that, ranks are alike


@dataclass(frozen=True, slots=True)
class RankRow:
    rank: int
    node: str
    step: int | None
    age_s: float | None
    state: str
    factor: float | None


def slowest(ranks: wire.RankMap, *, trains: bool) -> list[RankRow]:
    """Return the ranks that fail, stand still or are slower than their peers, the worst first.

    ``trains``: the job does. Where it does not, only the failed ranks stand out: all others stand still because of them.
    """
    bad = {RankState.FAILED.value: 2} | ({RankState.STANDING.value: 1} if trains else {})
    rows = [
        row
        for row, state in enumerate(ranks.states)
        if state in bad or (trains and (ranks.factors[row] or 0.0) >= _NOTABLE)
    ]
    rows.sort(key=lambda row: (-bad.get(ranks.states[row], 0), -(ranks.factors[row] or 0.0)))
    return [
        RankRow(
            ranks.ranks[row],
            ranks.node_names[ranks.nodes[row]],
            ranks.steps[row],
            ranks.ages_s[row],
            ranks.states[row],
            ranks.factors[row],
        )
        for row in rows[:_ROWS]
    ]


def view_counts(ranks: wire.RankMap) -> Mapping[str, int]:
    """Return how many ranks are in which state, in the order of the states."""
    found = Counter(ranks.states)
    return {state.value: found[state.value] for state in RankState if found[state.value]}
