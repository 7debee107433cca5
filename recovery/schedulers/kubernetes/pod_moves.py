"""What to do next about one pod of a job that has left its node. Pure.

    evict, until its budgets allow it -> it ends within its grace period -> gone
                                      -> its node is not heard: deleted, since nobody confirms its end;
                                         what holds a finalizer of it may still keep it for a while

It is asked only once the job runs without the node: its ranks there are proved gone (docs/operate/fencing.md).
"""

from dataclasses import dataclass

from recovery.journal.slurm_records import SlurmAct, SlurmOutcome
from recovery.schedulers.kubernetes.answers import PodInKubernetes
from recovery.schedulers.slurm.ledger import Work
from recovery.schedulers.slurm.requests import Do, Move, MoveEnd, MoveWait


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known beside the pod itself."""

    now_unix_s: float
    settled_s: float  # after it a call that was begun has had its effect, or has none
    timeout_s: float  # kubernetes.evict_timeout_s
    is_node_silent: bool
    may_delete: bool


def next_pod_move(work: Work, pod: str, seen: PodInKubernetes | None, facts: PodFacts) -> Move:
    """Return what to do; ``seen`` is None where the pod is gone."""
    name = pod.rpartition("/")[0]
    if seen is None:
        return MoveEnd(SlurmOutcome.DONE, f"pod {name} is gone")
    if seen.is_over:
        return MoveEnd(SlurmOutcome.DONE, f"pod {name} is over: {seen.phase}")
    if seen.is_leaving:
        return _follow(work, pod, seen, facts)
    done = work.did(SlurmAct.EVICT, pod)
    if done and facts.now_unix_s - done[-1].unix_s < facts.settled_s:
        return MoveWait(f"pod {name}: its eviction is under way")
    if done and facts.now_unix_s - done[0].unix_s >= facts.timeout_s:
        return MoveEnd(
            SlurmOutcome.REFUSED, f"pod {name} was not evicted within {facts.timeout_s:g} s"
        )
    return Do(SlurmAct.EVICT, pod)


def _follow(work: Work, pod: str, seen: PodInKubernetes, facts: PodFacts) -> Move:
    name = pod.rpartition("/")[0]
    if facts.is_node_silent:
        return _delete(work, pod, seen, facts)
    ends_unix_s = seen.leaves_by_unix_s
    if ends_unix_s is not None and facts.now_unix_s > ends_unix_s + facts.timeout_s:
        return MoveEnd(
            SlurmOutcome.FAILED,
            f"pod {name} still runs {facts.timeout_s:g} s after its grace period, on {seen.node}",
        )
    return MoveWait(f"pod {name} is ending")


def _delete(work: Work, pod: str, seen: PodInKubernetes, facts: PodFacts) -> Move:
    """Return what to do about a pod whose end nobody will confirm."""
    name = pod.rpartition("/")[0]
    if not facts.may_delete:
        return MoveWait(
            f"pod {name} is ending on {seen.node}, with which Kubernetes has lost touch (kubernetes.delete is off)"
        )
    done = work.did(SlurmAct.DELETE_POD, pod)
    if not done:
        return Do(SlurmAct.DELETE_POD, pod)
    keeps = ", ".join(seen.finalizers)
    if facts.now_unix_s - done[0].unix_s >= facts.timeout_s:
        return MoveEnd(
            SlurmOutcome.FAILED,
            f"pod {name} is still there {facts.timeout_s:g} s after its deletion: {keeps or 'something'} keeps it",
        )
    if keeps:  # the server has marked it: to say it again changes nothing
        return MoveWait(f"pod {name} is deleted once {keeps} lets it go")
    if facts.now_unix_s - done[-1].unix_s < facts.settled_s:
        return MoveWait(f"pod {name} is being deleted")
    return Do(SlurmAct.DELETE_POD, pod)
