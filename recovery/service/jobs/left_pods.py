"""Pods of jobs on nodes that these have left: asks Kubernetes to evict them. For the deciding thread.

Only once the job runs without the node: then its ranks there are proved gone, and its launcher there has none to save. A launcher
that joined with its pod's own token has proved which pod that is: this one leaves, by its UID, and no other. Of a launcher without,
the owner of the job consents by a label of the pods, `rankmend.io/job`, whose value is the job's name. A name is nobody's
own, so the pods' namespace must be the owner's, by a label that only the cluster's administrators set.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from rankmend.errors import ConfigError, RankmendError
from recovery.journal.ledger import Ledger, Wish
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from recovery.service.jobs.job_registry import JobRegistry

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
RETRY_S: Final = 10.0  # after the request could not be kept
ASKED_MAX: Final = 20_000


class LeftPods:
    def __init__(
        self,
        jobs: JobRegistry,
        desk: RequestDesk,
        owner_of: Callable[[str], str],
        shares_as: Callable[[str], str],
    ) -> None:
        """``owner_of`` returns whom Kubernetes must confirm as a job's owner; empty: all users are one party.

        ``shares_as`` returns the owner if others have a share of the bounds, too.
        """
        self._shares_as = shares_as
        self._jobs = jobs
        self._desk = desk
        self._owner_of = owner_of
        self._asked: dict[str, None] = {}  # keys
        self._looked_at_s = float("-inf")

    def tick(self, now_s: float) -> None:
        if now_s - self._looked_at_s < LOOK_S:
            return
        self._looked_at_s = now_s
        for job in self._jobs.running.values():
            if job.controller is None:
                continue
            owner = self._owner_of(job.job_id)
            requests = eviction_requests(
                job.job_id,
                job.stored.join.name,
                job.controller.ledger,
                owner,
                self._desk.ledger.proved_pod,
                self._shares_as(owner),
            )
            for request in requests:
                if request.key not in self._asked and self._was_drained(request.nodes[0]):
                    self._ask(request)

    def _was_drained(self, node: str) -> bool:
        """Return whether Kubernetes was asked to cordon the node, also where that was dry."""
        works = self._desk.ledger.works.values()
        drains = (work.request for work in works if work.request.action is SchedulerAction.DRAIN)
        return any(node in drain.nodes for drain in drains)

    def _ask(self, request: SchedulerRequest) -> None:
        try:
            self._desk.ask(request)
        except RankmendError as error:
            log.warning("cannot ask Kubernetes for an eviction", extra={"error": str(error)})
            if not isinstance(error, ConfigError):  # that would be refused again
                self._looked_at_s += RETRY_S
                return
        self._asked[request.key] = None
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]


def eviction_requests(
    job_id: str,
    name: str,
    ledger: Ledger,
    subject: str = "",
    proved_pod: Callable[[str, str, str], str] = lambda _job_id, _node, _launcher_id: "",
    sharer: str = "",
) -> Iterator[SchedulerRequest]:
    """Yield a request for each node that a job has left, while ranks of its newest attempt run elsewhere.

    ``subject``: the owner to whom the pods' namespace must belong; empty: all users are one party. ``proved_pod`` returns the pod in
    which a launcher of the job runs on a node, by its own token; with it the request is about that pod alone. ``sharer``: of whose share of
    the bounds it is; empty: nobody's.
    """
    if ledger.wish is not Wish.RANKS or not ledger.is_attempt_open:
        return
    placed = {place.node for place in ledger.placement}
    for node, member in ledger.members.items():
        if member.left is not None and placed and node not in placed:
            pod = proved_pod(job_id, node, member.launcher_id)
            yield SchedulerRequest(
                f"evict/{job_id}/{node}/{member.launcher_id}",
                SchedulerAction.EVICT,
                (node,),
                reason=f"the job has left the node: {member.left}"[:300],
                pods_of=name,
                subject=subject,
                pods=(pod,) if pod else (),
                sharer=sharer,
            )
