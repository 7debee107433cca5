"""What people must hear of: running jobs with an incident, and the journal of the causes."""

from detectors.finding import Blame, Finding, Kind, Severity
from recovery.controller.cluster.cluster_ledger import ClusterLedger, fold_entry
from recovery.controller.cluster.cluster_limits import PeopleRules
from recovery.controller.cluster.notices import RunningJob
from recovery.journal.cluster_records import CauseTold
from recovery.journal.incident_machine import IncidentState
from recovery.journal.incident_records import Failure, Plan
from recovery.journal.ledger import Ledger, OpenIncident
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.records import Entry
from recovery.messages.codec import symptom_of
from recovery.service.paging.causes import CauseChanges, SharedBy, follow
from recovery.service.paging.trouble import PresentTrouble

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
JOB = "6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10"
FINDING = Finding(
    kind=Kind.DEVICE,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="GPU lost",
    job_id=JOB,
    attempt=1,
    node="n1",
    ranks=(0,),
    victims=(),
    since_age_s=1.0,
    symptom=symptom_of("evidence:RankmendGpuLost"),
)
PLAN = Plan(PlanStep.MOVE, "leave n1", (), without=("n1",))
RULES = PeopleRules(stands_s=0.0)


def incident(finding: Finding = FINDING) -> OpenIncident:
    failure = Failure(1, finding, 1, None, None, None, False, ())
    return OpenIncident(
        IncidentState("6f1c1b52-1", 3), failure, None, failure, Policy(), waits=(PLAN, "dry run")
    )


def running(ledger: Ledger, *silent: str) -> list[RunningJob]:
    return [RunningJob(JOB, "train", ledger, Policy(), frozenset(silent))]


class Site:
    """The journal of the causes, and what was last made of it."""

    def __init__(self) -> None:
        self.ledger = ClusterLedger()
        self.now_s = NOW

    def look(
        self,
        *troubles: PresentTrouble,
        after_s: float = 1.0,
        rules: PeopleRules = RULES,
        listened_s: float = 1e6,
        unmanaged: frozenset[str] = frozenset(),
        ends: dict[str, str] | None = None,
        owners: dict[str, str] | None = None,
    ) -> CauseChanges:
        self.now_s += after_s
        changes = follow(
            self.ledger.causes,
            troubles,
            rules,
            self.now_s,
            ends=ends or {},
            unmanaged=unmanaged,
            listened_s=listened_s,
            shared=self.shared,
            owner_of=lambda job_id: (owners or {}).get(job_id, ""),
        )
        for record in changes.records:
            number = self.ledger.number + 1
            self.ledger = fold_entry(self.ledger, Entry(number, self.now_s, 0.0, "", record))
        return changes

    shared = SharedBy()

    def only(self, *troubles: PresentTrouble, **more: object) -> CauseTold:
        (one,) = self.look(*troubles, **more).open  # type: ignore[arg-type]
        return one.told
