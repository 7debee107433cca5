"""Records of losses and gradient norms that went wrong."""

from dataclasses import dataclass

from detectors.finding import Severity
from detectors.numbers.wrong import ToldNumber, Trouble
from detectors.wording import ranks_in_words


@dataclass(frozen=True, slots=True)
class GoesBack:
    """The job is to go on from a state before a step, since its numbers went wrong in an attempt."""

    attempt: int
    behind: int  # only what was saved before this step is restored
    wrong_at: int  # the first step with wrong numbers
    count: int  # 1 for the first time


@dataclass(frozen=True, slots=True)
class NumbersWrong:
    """A number went wrong, at which step, and which ranks had it there first."""

    attempt: int
    step: int
    quantity: ToldNumber
    trouble: Trouble
    ranks: tuple[int, ...]  # that had it first; of ranks apart, those that differ from a majority
    # All that told the number at this step, or ought to be equal. None: it was not known of all of them.
    group: tuple[int, ...]
    value: str = ""  # the first one, as text: JSON has no NaN
    usual: float | None = None  # of a spike: the median of the past
    node: str = ""  # of the odd rank

    @property
    def odd_rank(self) -> int | None:
        """Return the one rank of several that had it before all others; None: nobody is accused."""
        return self.ranks[0] if len(self.ranks) == 1 < len(self.group) else None

    @property
    def severity(self) -> Severity:
        is_norm = self.quantity is ToldNumber.GRAD_NORM
        if self.trouble is Trouble.SPIKE or (self.trouble is Trouble.NOT_FINITE and is_norm):
            return (
                Severity.WARNING
            )  # loss scaling makes infinite norms by design; a loss follows what is wrong
        return Severity.CRITICAL

    @property
    def in_words(self) -> str:
        """Return what went wrong where, for people."""
        what, at = self.quantity.in_words, f"at step {self.step}"
        if self.trouble is Trouble.APART:
            others = ranks_in_words(set(self.group) - set(self.ranks))
            if not self.ranks:
                return f"the {what} of {others} differs among them {at}, and was equal before"
            verb = "differs" if len(self.ranks) == 1 else "differ"
            return f"the {what} of {ranks_in_words(self.ranks)}{self._on_node} {verb} from that of {others} {at}, and was equal before"
        is_now = f"became {self.value}"
        if self.trouble is Trouble.SPIKE and self.usual is not None:
            is_now = f"rose to {self.value}, usual were {self.usual:.4g},"
        return f"the {what} {is_now} {at}, {self._who}"

    @property
    def _who(self) -> str:
        if self.odd_rank is not None:
            return f"first on {ranks_in_words(self.ranks)}{self._on_node}"
        if not self.group:
            return f"on {ranks_in_words(self.ranks)}; some ranks had not reported that step"
        if len(self.group) == 1:
            return f"on {ranks_in_words(self.ranks)}, the only rank that reports it"
        if set(self.ranks) == set(self.group):
            return "on all ranks at once"
        return f"on {ranks_in_words(self.ranks)} at once"

    @property
    def _on_node(self) -> str:
        return f" ({self.node})" if self.node and self.odd_rank is not None else ""
