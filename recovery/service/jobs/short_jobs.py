"""Jobs that have too few usable nodes in their Slurm allocation: asks the scheduler to requeue them. For the deciding thread."""

import logging
from collections.abc import Callable
from typing import Final

from rankmend.errors import ConfigError, RankmendError
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.job.alert_intake import ends_use
from recovery.journal.ledger import Ledger
from recovery.schedulers.slurm.allocation import requeue_request, waiting_incident
from recovery.schedulers.slurm.requests import Scheduler
from recovery.service.jobs.job_registry import JobRegistry
from recovery.service.jobs.served_job import Job

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
RETRY_S: Final = 10.0  # after the request could not be kept
ASKED_MAX: Final = 5_000


class ShortJobs:
    def __init__(
        self,
        jobs: JobRegistry,
        desk: ClusterController,
        scheduler: Scheduler,
        after_s: float,
        owner_of: Callable[[Job], str],
    ) -> None:
        """``after_s``: how long a job waits for a node before Slurm is asked; ``owner_of``: whose job it is in Slurm."""
        self._jobs = jobs
        self._desk = desk
        self._scheduler = scheduler
        self._after_s = after_s
        self._owner_of = owner_of
        self._since_s: dict[tuple[str, str], float] = {}  # job and incident: it waits for nodes
        self._asked: dict[str, None] = {}  # keys
        self._looked_at_s = float("-inf")

    def tick(self, now_s: float) -> None:
        if now_s - self._looked_at_s < LOOK_S:
            return
        self._looked_at_s = now_s
        since_s: dict[tuple[str, str], float] = {}
        for job in self._jobs.running.values():
            controller = job.controller
            incident = None if controller is None else waiting_incident(controller.ledger)
            if incident is None or not job.stored.join.attributes.get("SLURM_JOB_ID"):
                continue
            waits = (job.job_id, incident.state.incident_id)
            since_s[waits] = self._since_s.get(waits, now_s)
            if now_s - since_s[waits] >= self._after_s:
                self._ask(job)
        self._since_s = since_s

    def _ask(self, job: Job) -> None:
        assert job.controller is not None, "its incident was read"
        ledger = job.controller.ledger
        incident = waiting_incident(ledger)
        if incident is None or f"job:{job.job_id}" in self._desk.ledger.paused:
            return
        if self._desk.policy.why_observed(job.stored.join.name) is not None:
            return  # observe mode: it waits, as the plan that is journaled says
        attributes, owner = job.stored.join.attributes, self._owner_of(job)
        sharer = self._desk.shares_as(owner)
        request = requeue_request(
            incident, ledger, attributes, owner, self._beside(job), sharer, self._barred(ledger)
        )
        if request is None or request.key in self._asked:
            return
        try:
            self._scheduler.ask(request)
        except RankmendError as error:
            log.warning("cannot ask Slurm for a requeue", extra={"error": str(error)})
            if not isinstance(error, ConfigError):  # that would be refused again
                self._looked_at_s += RETRY_S
                return
        self._asked[request.key] = None
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]

    def _barred(self, ledger: Ledger) -> set[str]:
        """Return the job's nodes that an alert rules out, or that the cluster holds back."""
        accused = {
            retained.evidence.node
            for retained in ledger.evidence.values()
            if retained.overruled_by is None
            and not retained.doubted
            and ends_use(retained.evidence)
        }
        return accused | {node for node in ledger.members if self._desk.unusable(node)}

    def _beside(self, job: Job) -> tuple[str, ...]:
        """Return the names of the other jobs that run in the same Slurm job."""
        place = _place(job)
        return tuple(
            sorted(
                other.stored.join.name
                for other in self._jobs.running.values()
                if other is not job and _place(other) == place
            )
        )


def _place(job: Job) -> tuple[str, str]:
    attributes = job.stored.join.attributes
    return attributes.get("SLURM_CLUSTER_NAME", ""), attributes.get("SLURM_JOB_ID", "")
