"""Ledgers of a job with an open incident, and the checkpoints and snapshots that it may be restored from."""

from dataclasses import replace

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from recovery.controller.job.restore.snapshot_choice import with_snapshot
from recovery.journal.attempt_records import CheckpointSeen, Choice, Placement
from recovery.journal.incident_machine import IncidentState
from recovery.journal.incident_records import Failure
from recovery.journal.ledger import ErrorRun, Ledger, OpenIncident
from recovery.journal.limits import Policy
from recovery.journal.observation_records import SlowFound
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict
from recovery.messages.codec import symptom_of
from recovery.messages.exchange import HeldSnapshot, RankError, Restore

POLICY = Policy()
FINDING = Finding(
    kind=Kind.RANK_FAILED,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="rank 2 failed first: SIGKILL",
    job_id="job-1",
    attempt=3,
    node="n1",
    ranks=(2,),
    victims=(0, 1),
    since_age_s=0.5,
    symptom=symptom_of("killed:SIGKILL"),
    evidence=(Evidence("wait status", "rank 2: SIGKILL"),),
)
SEEN = CheckpointSeen("/c/10", 10, "npz", "npz file", 1000.0, "whole")
PLACEMENT = (Placement("n1", (0, 1)), Placement("n2", (2, 3)))
FROM_30 = Choice(True, Restore("/c/30", 30), "whole")
HELD = Choice(False, None, "no checkpoint is left")


def ledger(
    finding: Finding = FINDING,
    *,
    run: int = 1,
    step: int | None = 40,
    exit_code: int = 1,
    **changes: object,
) -> Ledger:
    error = RankError("ValueError", "bad batch 7", "")
    failure = Failure(3, finding, exit_code, 2, error, step, False, (0, 1, 2))
    incident = OpenIncident(IncidentState("inc-1", 3), failure, 40, failure, POLICY)
    errors = ErrorRun(finding.symptom, step, None, run)
    told = frozenset({0, 1, 2})
    return replace(
        Ledger(), incident=incident, errors=errors, attempt=3, telling_ranks=told, **changes
    )


def verdict(step: int, *, is_valid: bool = True, reason: str = "whole") -> CheckpointVerdict:
    candidate = Candidate(f"/c/{step}", step, CheckpointFormat.NPZ, 10, 1000.0 + step)
    return CheckpointVerdict(candidate, is_valid, reason)


def part(rank: int, step: int, *, attempt: int = 1, **changes: object) -> HeldSnapshot:
    made = HeldSnapshot(rank, attempt, step, 4, 100, f"{rank:032x}", 1.0)
    return replace(made, **changes)


def held(*steps: tuple[int, ...], attempt: int = 1) -> dict[str, tuple[HeldSnapshot, ...]]:
    """Return what the nodes hold: for each rank its steps."""
    parts = [part(rank, step, attempt=attempt) for rank, told in enumerate(steps) for step in told]
    return {
        place.node: tuple(one for one in parts if one.rank in place.ranks) for place in PLACEMENT
    }


def choose(
    there: dict[str, tuple[HeldSnapshot, ...]],
    choice: Choice = FROM_30,
    known: Ledger | None = None,
) -> Choice:
    return with_snapshot(choice, known or ledger(), POLICY, PLACEMENT, there)


def slow(rank: int, section: str = "communication", onset_step: int = 100) -> SlowFound:
    finding = Finding(
        kind=Kind.RANK_SLOW,
        severity=Severity.WARNING,
        blame=Blame.RANK,
        summary="slow",
        job_id="j",
        attempt=1,
        node=f"n{rank // 2}",
        ranks=(rank,),
        victims=(),
        since_age_s=10.0,
        symptom=Symptom(SymptomKind.SLOW, section),
        evidence=(),
    )
    return SlowFound(1, rank, section, 1.5, onset_step, finding)
