"""Works on requests about pods: those of a job on a node that it has left, one after another."""

import logging
from collections import Counter
from collections.abc import Collection
from typing import Final

from detectors.wording import counted
from rankmend.kubernetes_api import KubernetesBudgetError
from recovery.journal.slurm_records import (
    PodEnded,
    PodsSeen,
    SlurmAct,
    SlurmActs,
    SlurmOutcome,
)
from recovery.journal.witnesses import OutsideAct, Witness, allows, share_of
from recovery.schedulers.kubernetes.answers import SUBJECT, PodInKubernetes
from recovery.schedulers.kubernetes.client import KubernetesClient
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.kubernetes.pod_moves import PodFacts, next_pod_move
from recovery.schedulers.slurm.bench import Bench, Memory, fields_of, text_of
from recovery.schedulers.slurm.ledger import SlurmLedger, Work
from recovery.schedulers.slurm.limits import HOUR_S
from recovery.schedulers.slurm.managed_node import ManagedNode
from recovery.schedulers.slurm.node_moves import is_newer
from recovery.schedulers.slurm.requests import Do, Move, MoveEnd, MoveWait, SchedulerAction

log = logging.getLogger(__name__)

_PODS_MAX: Final = 100  # of one job on one node
_WORST: Final = (SlurmOutcome.DONE, SlurmOutcome.REFUSED, SlurmOutcome.FAILED)


class PodWork:
    """`recovery.schedulers.slurm.desk.RequestWork`."""

    def __init__(self, bench: Bench, client: KubernetesClient, limits: KubernetesLimits) -> None:
        self._bench = bench
        self._client = client
        self._limits = limits

    def advance(self, work: Work, memory: Memory) -> None:
        (name,) = work.request.nodes
        if work.request.action is not SchedulerAction.EVICT:
            text = f"Kubernetes has no {work.request.action.value}"
            self._bench.end(work, SlurmOutcome.FAILED, text)
            return
        node = self._client.nodes([name]).get(name)
        self._bench.note_answer()
        if node is None:
            self._bench.end(work, SlurmOutcome.LEFT, f"Kubernetes has no node {name}")
            return
        if work.pods is None and is_newer(node, work):
            text = f"{name} was made anew since: its pods are others"
            self._bench.end(work, SlurmOutcome.LEFT, text)
            return
        if work.pods is None:
            move = self._first_look(work, node)
            if isinstance(move, MoveEnd):
                self._bench.end(work, move.outcome, move.text)
            elif move is not None:
                self._bench.wait(work, memory, move.text)
            return
        waits = ""
        for pod in work.pods:
            work = self._bench.ledger.works[work.request.key]
            if pod not in work.pods_ended:
                waits = self._move_pod(work, pod, node, memory) or waits
        work = self._bench.ledger.works[work.request.key]
        ended = work.pods_ended.values()
        if len(ended) < len(work.pods or ()):
            self._bench.wait(work, memory, waits)
            return
        worst = max((item.outcome for item in ended), key=_WORST.index, default=SlurmOutcome.DONE)
        self._bench.end(
            work, worst, "; ".join(item.text for item in ended) or f"no pod is on {name}"
        )

    def _first_look(self, work: Work, node: ManagedNode) -> MoveEnd | MoveWait | None:
        """Keep which pods are meant, and return None; or return why nothing is done."""
        job, ledger = work.request.pods_of, self._bench.ledger
        if not self._limits.allows(SchedulerAction.EVICT):
            return MoveEnd(SlurmOutcome.DRY, f"would evict the pods of job {job} from {node.name}")
        drains = [item for item in ledger.open if item.request.action is SchedulerAction.DRAIN]
        if any(node.name in drain.request.nodes for drain in drains):
            return MoveWait(f"{node.name} is being cordoned")
        if not node.is_drained:
            # What replaces them would come back to the node.
            return MoveEnd(SlurmOutcome.REFUSED, f"{node.name} is not cordoned")
        pods = self._pods_of(work, node.name)
        if isinstance(pods, MoveEnd):
            return pods
        now_unix_s, sharer = self._bench.clock.unix_s(), work.request.sharer
        why = refuse_evictions(ledger, self._limits, len(pods), now_unix_s, sharer)
        if why is not None:
            return MoveEnd(SlurmOutcome.REFUSED, why)
        self._bench.write(PodsSeen(work.request.key, tuple(pod.reference for pod in pods)))
        return None

    def _pods_of(self, work: Work, node: str) -> list[PodInKubernetes] | MoveEnd:
        """Return the pods that are meant, or why none is touched."""
        job, owner = work.request.pods_of, work.request.subject
        if work.request.pods:
            # Their tokens have proved that they are the job's. One that is on another node by now is another matter.
            named = [self._client.pod(pod) for pod in work.request.pods]
            return [
                pod
                for pod in named
                if pod is not None and pod.node == node and not pod.is_over and not pod.is_of_node
            ]
        found = self._client.pods_on(node, job)
        # One of a DaemonSet would be back at once, and one of a file on the node never goes.
        pods = [pod for pod in found if not pod.is_over and not pod.is_of_node]
        spaces = {pod.namespace for pod in pods}
        theirs = {
            name for name in spaces if allows(OutsideAct.EVICT, {self._witness_of(name, owner)})
        }
        if pods and not theirs:
            return MoveEnd(SlurmOutcome.REFUSED, _foreign_text(spaces, owner))
        pods = [pod for pod in pods if pod.namespace in theirs]
        if len(pods) > _PODS_MAX:
            return MoveEnd(SlurmOutcome.REFUSED, f"{len(pods)} pods of job {job} are on {node}")
        return pods

    def _witness_of(self, namespace: str, owner: str) -> Witness:
        """Return whose word says that the pods of a namespace are the owner's; without an owner all users are one party."""
        if not owner:
            return Witness.SINGLE_TENANT
        is_theirs = self._client.subject_of(namespace) == owner
        return Witness.SCHEDULER if is_theirs else Witness.LAUNCHER

    def _move_pod(self, work: Work, pod: str, node: ManagedNode, memory: Memory) -> str:
        """Return what the pod waits for."""
        facts = PodFacts(
            self._bench.clock.unix_s(),
            self._bench.settled_s,
            self._limits.evict_timeout_s,
            node.is_silent,
            self._limits.delete and self._limits.act,
        )
        move: Move = next_pod_move(work, pod, self._client.pod(pod), facts)
        if isinstance(move, MoveWait):
            return memory.error or move.text
        if isinstance(move, MoveEnd):
            text = text_of(move, memory)
            if move.outcome is SlurmOutcome.REFUSED and memory.error:
                text = f"{move.text}: {memory.error}"
            self._bench.write(PodEnded(work.request.key, pod, move.outcome, text))
            return ""
        assert isinstance(move, Do), move
        self._bench.write(SlurmActs(work.request.key, move.act, pod))
        memory.error = ""
        fields = {**fields_of(work.request), "pod": pod, "act": move.act.value}
        log.info("acting on Kubernetes", extra=fields)
        if move.act is SlurmAct.DELETE_POD:
            self._client.delete_pod(pod)
            return f"pod {pod}: its deletion is read back"
        try:
            self._client.evict(pod)
        except KubernetesBudgetError as error:  # other pods may go meanwhile
            memory.error = str(error)
            return memory.error
        return f"pod {pod}: its eviction is read back"


def _foreign_text(namespaces: Collection[str], owner: str) -> str:
    names = ", ".join(sorted(namespaces)[:4])
    return (
        f"the pods are not known to be {owner}'s: namespace {names} has no label {SUBJECT}={owner}"
    )


def refuse_evictions(
    ledger: SlurmLedger,
    limits: KubernetesLimits,
    count: int,
    now_unix_s: float,
    sharer: str = "",
) -> str | None:
    """Return why so many pods of one node must not be evicted, or None. ``sharer``: of whose share they would be; empty: nobody's."""
    if not count:
        return None
    evicted: Counter[str] = Counter()
    for work in ledger.works.values():
        evicted[work.request.sharer] += len(_evicted(work, now_unix_s - HOUR_S))
    lately, most = evicted.total(), limits.evictions_per_hour_max
    if lately + count > most:
        return (
            f"{counted(lately, 'pod')} {'was' if lately == 1 else 'were'} evicted by rankmend within an hour: "
            f"kubernetes.evictions_per_hour_max is {most}"
        )
    own = evicted[sharer] if sharer else 0
    share = share_of(most, lately, own)
    # The pods of one node may always go: a job with many on a node would have no share that is large enough.
    if own and own + count > share:
        return (
            f"{counted(own, 'pod')} of jobs of {sharer} {'was' if own == 1 else 'were'} evicted by rankmend within an hour: "
            f"its share of kubernetes.evictions_per_hour_max is {share} of {most}"
        )
    return None


def _evicted(work: Work, since_unix_s: float) -> set[str]:
    """Return the pods of a request that were evicted since then, or are about to be."""
    acts = (act for act in work.acts if act.act is SlurmAct.EVICT)
    lately = {act.about for act in acts if act.unix_s > since_unix_s}
    is_open = work.ended is None
    return lately | (set(work.pods or ()) - work.pods_ended.keys() if is_open else set())
