"""Brings alerts to the jobs that run where the alerts point. For the deciding thread."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from rankmend.errors import JournalError
from recovery.controller.cluster.active_alerts import JobNode
from recovery.controller.cluster.alert_shares import READ_BACK, Sender
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.cluster.node_names import NodeNames, NoMatch
from recovery.journal.ledger import Wish
from recovery.service.jobs.job_registry import JobRegistry
from recovery.service.jobs.job_store import ALONE
from recovery.service.jobs.served_job import Job

log = logging.getLogger(__name__)

_RETELL_S: Final = 5.0  # active alerts to jobs that have come to a node since
ELSEWHERE_S_MAX: Final = 120.0  # old is what other controllers said of their nodes
_NAMES_S: Final = 2.0  # for which names of nodes are good
_LOGGED_MAX: Final = 10_000  # names


@dataclass(frozen=True, slots=True)
class Delivered:
    refused: int  # alerts that found no room
    job_ids: frozenset[str]  # jobs that received one
    late: int = 0  # `TakenAlerts.late`: the sender must send them again


class AlertDelivery:
    def __init__(
        self, desk: ClusterController, jobs: JobRegistry, now_s: Callable[[], float]
    ) -> None:
        self._desk = desk
        self._jobs = jobs
        self._now_s = now_s
        self._retold_at_s = now_s()
        self._made: tuple[float, NodeNames] | None = None  # when
        self._logged: dict[tuple[str, str], None] = {}  # a name, and what became of it

    def take(
        self,
        alerts: Iterable[IncomingAlert],
        sender: Sender = READ_BACK,
        rules: AlertRules | None = None,
    ) -> Delivered:
        """Accept alerts and pass each job its evidence."""
        self._note_running()
        taken, received = self._desk.take_alerts(
            alerts, self._jobs_on(), sender, rules, self._names
        )
        for job_id, evidence in received:
            job = self._jobs.running.get(job_id)
            if job is not None:
                job.take_evidence(evidence)
        if taken.passed_over:
            fields = {"count": len(taken.passed_over), "first": taken.passed_over[0]}
            log.info("alerts that match no job", extra=fields)
        job_ids = frozenset(job_id for job_id, _evidence in received)
        return Delivered(taken.refused, job_ids, taken.late)

    def find_unrecorded(self, job_ids: Collection[str]) -> list[Job]:
        """Return those of the jobs in whose journals an alert that they have received is not durable yet."""
        jobs = [job for job_id in job_ids if (job := self._jobs.running.get(job_id)) is not None]
        return [job for job in jobs if job.controller and not job.controller.has_recorded_evidence]

    def refuse_unwritten(self, job_ids: Collection[str]) -> None:
        """Raise JournalError if the disk of such a job keeps its alerts from being durable."""
        for job in self.find_unrecorded(job_ids):
            if job.controller and job.controller.is_behind_disk:
                raise JournalError(f"the alert is not yet in the journal of job {job.job_id}")

    def retell(self, now_s: float) -> None:
        """Tell jobs of the active alerts on nodes that they have come to, where that is due."""
        if now_s - self._retold_at_s < _RETELL_S:
            return
        self._retold_at_s = now_s
        self._note_running()
        jobs_on = self._jobs_on()
        for job_id, evidence in self._desk.retell(jobs_on, self._names):
            job = self._jobs.running.get(job_id)
            if job is not None:
                job.take_evidence(evidence)
        self._log_names()

    def _log_names(self) -> None:
        """Log each name once that alerts give a node and its launcher doesn't."""
        reported = self._desk.told_names
        for name in reported.unmatched:
            if name.why is not NoMatch.UNHEARD and self._is_new((name.told, name.why.value)):
                fields = {"told": name.told, "reason": name.why.value, "alertname": name.alertname}
                level = logging.WARNING if name.is_telling else logging.INFO
                text = "alerts name a node that is no launcher's: they count for no job"
                log.log(level, text, extra={**fields, "similar": ", ".join(name.like)})
        for match in reported.matched:
            if self._is_new((match.told, match.node)):
                fields = {"told": match.told, "node": match.node, "match": match.match.value}
                log.info("alerts call a node otherwise than its launcher", extra=fields)

    def _is_new(self, said: tuple[str, str]) -> bool:
        is_new = said not in self._logged
        self._logged[said] = None
        if len(self._logged) > _LOGGED_MAX:
            del self._logged[next(iter(self._logged))]
        return is_new

    def _names(self) -> NodeNames:
        """Return the names of all nodes; those of 10,000 take 50 ms, so that a burst of messages shares them."""
        now_s = self._now_s()
        if self._made is None or now_s - self._made[0] > _NAMES_S:
            self._made = now_s, self._make_names()
        return self._made[1]

    def _make_names(self) -> NodeNames:
        """Return the names of all nodes that are known, with the addresses of their launchers."""
        nodes, fleet = self._desk.named_nodes(), self._jobs.fleet
        addresses: dict[str, list[str]] = {}
        for node, address in self._desk.listed.items():
            if address:
                addresses.setdefault(node, []).append(address)
        for job in self._jobs.running.values():
            members = {} if job.controller is None else job.controller.ledger.members
            nodes.update(members)
            for node, member in members.items():
                if member.peer_endpoint is not None:
                    addresses.setdefault(node, []).append(member.peer_endpoint.address)
        is_whole = True
        if self._jobs.is_shared:
            elsewhere = self._desk.elsewhere
            is_fresh = elsewhere is not None and self._now_s() - elsewhere.at_s <= ELSEWHERE_S_MAX
            are_owned = all(item.holder in fleet.peers for item in fleet.jobs.values())
            is_whole = fleet is not ALONE and are_owned and (is_fresh or not fleet.peers)
            nodes.update(elsewhere.nodes if elsewhere is not None else ())
        domains = self._desk.policy.alerts.domains
        return NodeNames(nodes, addresses, domains, is_whole=is_whole)

    @property
    def asks_for_nodes(self) -> bool:
        """Return whether a name depends on which nodes other controllers have. For any thread."""
        reported = self._desk.told_names
        return bool(reported.matched or reported.unmatched)

    def _note_running(self) -> None:
        """Note the nodes of all jobs, also of one whose ranks are stopped just now: what is accused is a share of them."""
        for job in self._jobs.running.values():
            if job.controller is not None and job.controller.ledger.started is not None:
                placement = job.controller.ledger.started.placement
                owner = self._desk.owner_of(job.job_id)
                self._desk.note_running((place.node for place in placement), owner)

    def _jobs_on(self) -> dict[str, tuple[JobNode, ...]]:
        """Return which jobs run which ranks on each node, by what was ordered last."""
        found: dict[str, tuple[JobNode, ...]] = {}
        for job in self._jobs.running.values():
            if job.controller is None or job.controller.ledger.wish is not Wish.RANKS:
                continue
            started, job_id = job.controller.ledger.started, job.job_id
            if started is None:
                continue
            for place in started.placement:
                node = JobNode(job_id, place.ranks, started.attempt)
                found[place.node] = (*found.get(place.node, ()), node)
        return found
