"""A cluster controller with a journal in memory."""

from collections.abc import Sequence

from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from detectors.node.charges import ChargeKind, ChargeVerdict, NodeCharge
from rankmend.errors import JournalError
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.journal.cluster_records import ClusterRecord
from recovery.journal.records import Entry

JOB = "0c1d6a52-0000-4000-8000-000000000001"
NOW = 1_800_000_000.0
FINDING = Finding(
    kind=Kind.RANK_FAILED,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="rank 3 failed: CUDA error: uncorrectable ECC error encountered",
    job_id=JOB,
    attempt=1,
    node="n2",
    ranks=(3,),
    victims=(),
    since_age_s=0.0,
    symptom=Symptom(SymptomKind.DEVICE, "ecc"),
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.jumped_s = 0.0

    def now_s(self) -> float:
        return self.now

    def unix_s(self) -> float:
        return NOW - 100.0 + self.now + self.jumped_s


class MemoryJournal:
    """Keeps records with the time of a clock; can be full."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.entries: list[Entry] = []
        self.is_full = False

    @property
    def opened(self) -> tuple[Entry, ...]:
        return tuple(self.entries)

    def append_many(self, records: Sequence[ClusterRecord], /) -> tuple[Entry, ...]:
        if self.is_full:
            raise JournalError("cluster.db: database or disk is full")
        new = [
            Entry(len(self.entries) + place, self._clock.unix_s(), 0.0, "boot", record)
            for place, record in enumerate(records, start=1)
        ]
        self.entries += new
        return tuple(new)


def make_desk(
    policy: ClusterPolicy | None = None,
    journal: MemoryJournal | None = None,
) -> tuple[ClusterController, MemoryJournal, Clock]:
    """``journal``: of a controller from which this one takes over."""
    clock = Clock()
    journal = journal or MemoryJournal(clock)
    return (
        ClusterController(journal, policy or ClusterPolicy(), clock, lambda _job: "llama"),
        journal,
        clock,
    )


def blame(
    desk: ClusterController,
    node: str,
    job_id: str,
    incident_id: str,
    finding: Finding = FINDING,
    kind: ChargeKind = ChargeKind.DEVICE,
) -> ChargeVerdict:
    """Let an incident of a job count against a node."""
    fault = finding.kind.value
    return desk.note_charge(NodeCharge(node, kind, job_id, incident_id, finding.summary, fault))
