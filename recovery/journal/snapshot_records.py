"""Records of what was found in the ranks' snapshots."""

from dataclasses import dataclass, replace

from detectors.replicas.layout import ParallelLayout
from detectors.wording import ranks_in_words


@dataclass(frozen=True, slots=True)
class ReplicasKnown:
    """Which ranks' whole snapshots were equal at several steps of an attempt; none: they no longer are."""

    attempt: int
    groups: tuple[tuple[int, ...], ...]  # of two ranks or more, each in order


@dataclass(frozen=True, slots=True)
class ParallelDeclared:
    """What the job's owner says of its parallel sizes has changed."""

    layout: ParallelLayout | None  # None: nothing any more


@dataclass(frozen=True, slots=True)
class ReplicasDiffer:
    """Ranks that ought to hold equal values of a part of their state did not at a step."""

    attempt: int
    step: int
    part: str  # key of the state, such as "model"
    group: tuple[int, ...]  # ranks that ought to be equal
    odd: tuple[int, ...]  # those that differ from a majority; none: there is no majority
    node: str = ""  # of the odd rank, if it is one
    is_declared: bool = False  # by the job's owner, not learned

    def repeats(self, older: "ReplicasDiffer") -> bool:
        """Return whether an older record tells the same, of this step or of one before it."""
        return older.step <= self.step and self == replace(older, step=self.step, node=self.node)

    @property
    def in_words(self) -> str:
        """Return which ranks differ, for people."""
        others = ranks_in_words(set(self.group) - set(self.odd))
        if self.odd:
            verb = "differs" if len(self.odd) == 1 else "differ"
            on_node = f" ({self.node})" if self.node else ""
            return (
                f"{self.part} of {ranks_in_words(self.odd)}{on_node} {verb} from that of {others}"
            )
        return f"{self.part} of {others} differs among them, and no majority is equal"
