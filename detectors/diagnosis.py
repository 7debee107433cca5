"""A diagnosis: the answer of a detector that sees the whole job.

`NOBODY` (no machine is to blame) and `UNKNOWN` (the data can't tell) are answers like any other.
"""

from dataclasses import dataclass
from enum import Enum

from detectors.finding import Evidence


class Verdict(Enum):
    CULPRITS = "culprits"
    NOBODY = "nobody"  # no machine is to blame
    UNKNOWN = "unknown"  # the data can't tell


@dataclass(frozen=True, slots=True)
class Culprit:
    """What is to blame; None where it isn't known."""

    rank: int | None = None
    host: str | None = None
    device: str | None = None
    stage: int | None = None
    dp_rank: int | None = None
    worker: int | None = None
    cause: str = ""  # the class of this one, where several differ


@dataclass(frozen=True, slots=True)
class Onset:
    """When it began: a step, or unix seconds by the clock of the host that recorded it."""

    step: int | None = None
    unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer of a detector that sees the whole job."""

    verdict: Verdict
    culprits: tuple[Culprit, ...]  # empty unless the verdict is CULPRITS
    cause: str  # the class: value of an Enum of the detector; empty where there is none
    reason: str  # one sentence for a person
    onset: Onset | None
    confidence: float  # 0 to 1: how far the verdict can be trusted, by rule and not by calibration
    evidence: tuple[Evidence, ...]
    ranks_counted: int = 0  # how many ranks the reason counts or lists beside its culprits

    def __post_init__(self) -> None:
        assert bool(self.culprits) == (self.verdict is Verdict.CULPRITS)
        assert 0 <= self.confidence <= 1


def diagnosis_page(diagnosis: Diagnosis) -> dict[str, object]:
    """Return a diagnosis in the form that `rankmend diagnose ... --json` prints."""
    return {
        "verdict": diagnosis.verdict.value,
        "culprits": [
            {
                "rank": culprit.rank,
                "host": culprit.host,
                "device": culprit.device,
                "stage": culprit.stage,
                "dp_rank": culprit.dp_rank,
                "worker": culprit.worker,
                "class": culprit.cause or diagnosis.cause,
            }
            for culprit in diagnosis.culprits
        ],
        "class": diagnosis.cause or None,
        "reason": diagnosis.reason,
        "onset": None
        if diagnosis.onset is None
        else {"step": diagnosis.onset.step, "unix_s": diagnosis.onset.unix_s},
        "confidence": round(diagnosis.confidence, 3),
        "evidence": [{"source": line.source, "text": line.text} for line in diagnosis.evidence],
    }
