"""Records of observations beside failures: numbers, slow ranks, snapshots, probes. Pure."""

from dataclasses import dataclass, replace
from enum import Enum

from detectors.fabric.fabric_verdict import FabricVerdict
from detectors.fabric.probe_evidence import ProbeSays
from detectors.finding import Evidence, Finding, Severity
from detectors.numbers.wrong import ToldNumber, Trouble
from detectors.replicas.layout import ParallelLayout
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
    # All ranks that reported the number at this step, or ought to be equal. None: not known of all of them.
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


@dataclass(frozen=True, slots=True)
class SlowFound:
    """A rank is slower than its peers. It is reported; training continues."""

    attempt: int
    rank: int
    section: str  # what grew: compute, communication, io
    factor: float  # own work divided by the peers'
    onset_step: int
    finding: Finding
    step_factor: float = 1.0  # by this factor every step of the job is longer
    is_always: bool = False  # in all steps that the controller has seen of the attempt


@dataclass(frozen=True, slots=True)
class SlowExplained:
    """Why a rank is slow, as its hardware shows."""

    attempt: int
    rank: int
    cause: str  # from detectors.slow.cause_table; empty: hardware shows nothing or was not measured
    reason: str  # one sentence
    confidence: float
    evidence: tuple[Evidence, ...]
    part: str = ""  # that explains it together with other slow ranks, in words; empty: none


@dataclass(frozen=True, slots=True)
class SlowEnded:
    attempt: int
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicasKnown:
    """Which ranks' whole snapshots were equal at several steps of an attempt; none: they no longer are."""

    attempt: int
    groups: tuple[tuple[int, ...], ...]  # of two ranks or more, each in order


@dataclass(frozen=True, slots=True)
class ParallelDeclared:
    """The parallel sizes that the job's owner declares have changed."""

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
        """Return whether an older record has the same, of this step or of a step before it."""
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


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """How much a probe may load; each node keeps them by itself."""

    seconds: float  # of sending in each direction of a test
    limit_s: float  # for the whole probe on a node, from its order
    bytes_per_s: float  # that a node sends
    bytes_max: int  # that a node sends in all


@dataclass(frozen=True, slots=True)
class FabricProbeAsked:
    """Nodes are about to get a request to test the network among themselves, or (dry) would be. In the cluster's journal, too."""

    probe_id: str  # UUID
    job_id: str
    attempt: int
    ranks: tuple[int, ...]  # whose communication is slow
    about: int  # newest record of these that was known
    nodes: tuple[str, ...]  # that take part; the first one coordinates
    training: tuple[str, ...]  # those of them that run ranks of the job
    rails: tuple[str, ...]  # interfaces to test; (): the interface that leads to the other nodes
    limits: ProbeLimits
    epoch: int  # of the requesting controller: another one doesn't go on with it
    is_dry: bool


@dataclass(frozen=True, slots=True)
class FabricProbeSkipped:
    """A probe was due, and too few nodes are idle."""

    attempt: int
    ranks: tuple[int, ...]
    about: int
    idle: tuple[str, ...]  # nodes that could have taken part


class ProbeEnd(Enum):
    JUDGED = "judged"
    YIELDED = "yielded"  # its nodes are needed, or what it was about has ended
    FAILED = "failed"
    LATE = "late"  # no word within its time
    INTERRUPTED = "interrupted"  # the requesting controller has ended


@dataclass(frozen=True, slots=True)
class FabricProbeEnded:
    """What came of a probe. In the cluster's journal, too."""

    probe_id: str
    end: ProbeEnd
    reason: str = ""  # why there is no verdict, or why it decides nothing
    verdict: FabricVerdict | None = None
    says: ProbeSays | None = None  # what the verdict means for the slow ranks
    part: str = ""  # slow, and on the path of the slow ranks, in words; empty: none
    slow_nodes: tuple[str, ...] = ()  # of the probe, that were found slow
