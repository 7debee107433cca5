"""Why a rank is slow, as a result: the likely causes, what was looked at and what was missing. Pure."""

from dataclasses import dataclass

from detectors.finding import Action, Evidence
from detectors.slow.cause_signs import Scope, SlowSection


@dataclass(frozen=True, slots=True)
class SlowPlace:
    """What is slow, as far as it is known, and in which part of a step."""

    section: SlowSection = SlowSection.UNKNOWN
    rank: int | None = None
    node: str | None = None
    device: str | None = None
    job_id: str | None = None  # separates the ranks of several jobs on these nodes

    def name(self) -> str:
        where = f" on {self.node}" if self.node else ""
        return f"rank {self.rank}{where}" if self.rank is not None else f"{self.node}"


@dataclass(frozen=True, slots=True)
class SlowPeriod:
    """When it was slow, by the clock that dates the readings; ``onset_s`` is None if always."""

    start_s: float
    end_s: float
    onset_s: float | None = None

    @property
    def slow_from_s(self) -> float:
        return self.start_s if self.onset_s is None else max(self.start_s, self.onset_s)


@dataclass(frozen=True, slots=True)
class LikelyCause:
    cause: str
    scope: Scope
    node: str
    device: str
    summary: str
    action: Action
    confidence: float
    strength: float  # the deviation as a multiple of the sign's figure
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class SlowExplanation:
    """Why one rank is slow; with no causes and nothing missing, hardware shows no reason."""

    accused: SlowPlace
    causes: tuple[LikelyCause, ...]  # the likeliest first
    reason: str  # one sentence for a person
    looked_at: tuple[str, ...]  # causes that could be judged
    missing: tuple[str, ...]  # causes for which nothing was measured
    beside: tuple[str, ...] = ()  # what also deviates but can't slow down this section


def explanation_page(explanation: SlowExplanation) -> dict[str, object]:
    """Return an explanation in the form that `rankmend diagnose ... --json` prints."""
    return {
        "rank": explanation.accused.rank,
        "host": explanation.accused.node,
        "section": explanation.accused.section.value,
        "reason": explanation.reason,
        "causes": [
            {
                "cause": cause.cause,
                "host": cause.node,
                "device": cause.device or None,
                "summary": cause.summary,
                "action": cause.action.value,
                "confidence": round(cause.confidence, 3),
                "evidence": [{"source": line.source, "text": line.text} for line in cause.evidence],
            }
            for cause in explanation.causes
        ],
        "looked_at": list(explanation.looked_at),
        "missing": list(explanation.missing),
        "beside": list(explanation.beside),
    }
