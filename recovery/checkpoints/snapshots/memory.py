"""What one node's ranks have kept in memory, as whoever shows it knows it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from recovery.messages.exchange import HeldSnapshot, KeptSnapshots


@dataclass(frozen=True, slots=True)
class NodeMemory:
    node: str
    held: tuple[HeldSnapshot, ...] = ()  # whole ones of its own ranks
    copies: tuple[HeldSnapshot, ...] = ()  # of other nodes' ranks
    kept: Mapping[int, KeptSnapshots] = field(default_factory=dict)  # by running rank
    newest_step: int | None = (
        None  # that a rank of it has finished; None: not known, or not comparable
    )
    told_age_s: float = 0.0  # since the node reported this: what is held is older by so much


def newest_step_of(steps: Iterable[int | None]) -> int | None:
    return max((step for step in steps if step is not None), default=None)
