"""Brings alerts to the jobs that run where the alerts point. For the deciding thread."""

import logging
from collections.abc import Iterable
from typing import Final

from recovery.cluster.active_alerts import JobNode
from recovery.cluster.alert_shares import READ_BACK, Sender
from recovery.cluster.cluster import ClusterController
from recovery.cluster.cluster_limits import AlertRules
from recovery.cluster.incoming_alerts import IncomingAlert
from recovery.journal.ledger import Wish
from recovery.service.job_registry import JobRegistry

log = logging.getLogger(__name__)

_RETELL_S: Final = 5.0  # active alerts to jobs that have come to a node since


class AlertDelivery:
    def __init__(self, desk: ClusterController, jobs: JobRegistry, now_s: float) -> None:
        self._desk = desk
        self._jobs = jobs
        self._retold_at_s = now_s

    def take(
        self,
        alerts: Iterable[IncomingAlert],
        sender: Sender = READ_BACK,
        rules: AlertRules | None = None,
    ) -> int:
        """Accept alerts and pass each job its evidence; return how many alerts did not fit."""
        taken, heard = self._desk.take_alerts(alerts, self._jobs_on(), sender, rules)
        for job_id, evidence in heard:
            job = self._jobs.running.get(job_id)
            if job is not None:
                job.take_evidence(evidence)
        if taken.passed_over:
            fields = {"count": len(taken.passed_over), "first": taken.passed_over[0]}
            log.info("alerts that match no job", extra=fields)
        return taken.refused

    def retell(self, now_s: float) -> None:
        """Tell jobs of the active alerts on nodes that they have come to, where that is due."""
        if now_s - self._retold_at_s < _RETELL_S:
            return
        self._retold_at_s = now_s
        jobs_on = self._jobs_on()
        self._desk.note_running(jobs_on)
        for job_id, evidence in self._desk.retell(jobs_on):
            job = self._jobs.running.get(job_id)
            if job is not None:
                job.take_evidence(evidence)

    def _jobs_on(self) -> dict[str, tuple[JobNode, ...]]:
        """Return which jobs run which ranks on each node, by what was ordered last."""
        found: dict[str, tuple[JobNode, ...]] = {}
        for job in self._jobs.running.values():
            if job.controller is None or job.controller.ledger.wish is not Wish.RANKS:
                continue
            started, job_id = job.controller.ledger.started, job.job_id
            for place in started.placement if started is not None else ():
                node = JobNode(job_id, place.ranks)
                found[place.node] = (*found.get(place.node, ()), node)
        return found
