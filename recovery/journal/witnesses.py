"""What outside a job may follow from whose word: one table of acts and witnesses, and its decider. Pure.

A job's launchers report what happens to its ranks, and anybody with a token with the role `launch` can run a launcher. Within the job
their word is enough: it leaves a node at once. Outside the job it is not. A cordon, an eviction, a drain, a requeue, a quarantine, a lemon
and a switched-off node hit other people's work, so each needs a second party:

- the nodes' manager, which confirms that the job's owner has an allocation or pods on that node (`SCHEDULER`);
- the node's agent, which reports with the node's certificate that this job runs there, and under which user (`AGENT`). What the agent
  itself saw of a fault arrives as its alert;
- an alert about the node from an authenticated sender other than the job's owner, unless the rule is doubted, or the sender's token is
  limited to jobs: a tenant may hold it under another name (`ALERT`);
- another subject whose job blames the node, too, and was there then (`SUBJECTS`): the manager or the agent has confirmed that. A second
  token of the same person, and a tenant who never had anything on the node, prove nothing about it;
- a person whose token is not limited to jobs, or a site that declares all its users one party (`single_tenant`).

A switched-off node ends the work of everybody on it, and that a launcher is silent is the launcher's own word. So it needs two further words:
that the job is there (`PRESENCE`), and that the node is lost (`LOSS`): an alert, another subject's job that was there and blames it within ten
minutes, the manager, which gets no answer of the node, or the node's agent, which reported until then and is silent, too. Without them the lease
decides. A person and `single_tenant` need no other.

An eviction and a requeue end processes, so only the manager's word about whose these are allows them: an alert means that a node is
broken, and not whose pods are there. Source: the attack kept in tests/recovery/schedulers/kubernetes/test_foreign_nodes.py.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final


class OutsideAct(Enum):
    """What rankmend may do outside the job that it recovers."""

    DRAIN = "drain"  # Slurm's drain, Kubernetes' cordon
    EVICT = "evict"
    REQUEUE = "requeue"
    QUARANTINE = "quarantine"
    KEEP_OUT = "keep_out"  # a lemon, until a person takes it back
    POWER_OFF = "power_off"


class Witness(Enum):
    """Whose report shows that the act is due. The journal keeps it."""

    LAUNCHER = ""  # of the job alone
    PERSON = "person"
    ALERT = "alert"
    SCHEDULER = "scheduler"
    AGENT = "agent"
    SUBJECTS = "subjects"
    SINGLE_TENANT = "single_tenant"
    MANAGER_LOST = "manager_lost"  # of the node, and not of a job there
    SILENT_AGENT = "silent_agent"

    @classmethod
    def _missing_(cls, _value: object) -> "Witness":
        """Return the weakest of all for what only a newer version knows."""
        return cls.LAUNCHER


_KNOWING: Final = frozenset({Witness.PERSON, Witness.SINGLE_TENANT})
PRESENCE: Final = frozenset({Witness.SCHEDULER, Witness.AGENT})
"""Witnesses of where a job runs, and not of whether something is wrong with the node."""

LOSS: Final = frozenset(
    {Witness.ALERT, Witness.SUBJECTS, Witness.MANAGER_LOST, Witness.SILENT_AGENT}
)
"""Witnesses, beside silent launchers, that a node is lost or not to be used."""

_ANY: Final = _KNOWING | PRESENCE | {Witness.ALERT, Witness.SUBJECTS}
_OWN: Final = frozenset({Witness.SCHEDULER, Witness.SINGLE_TENANT})

ENOUGH: Final[Mapping[OutsideAct, frozenset[Witness]]] = MappingProxyType(
    {
        OutsideAct.DRAIN: _ANY,
        OutsideAct.EVICT: _OWN,
        OutsideAct.REQUEUE: _OWN,
        OutsideAct.QUARANTINE: _ANY,
        OutsideAct.KEEP_OUT: _ANY,
        OutsideAct.POWER_OFF: _KNOWING,
    }
)
"""Which witnesses allow an act; one of them is enough."""

TOGETHER: Final[Mapping[OutsideAct, tuple[frozenset[Witness], ...]]] = MappingProxyType(
    {OutsideAct.POWER_OFF: (PRESENCE, LOSS)}
)
"""Which witnesses allow an act together: one of each group."""

IN_WORDS: Final[Mapping[Witness, str]] = MappingProxyType(
    {
        Witness.LAUNCHER: "the job's launchers alone",
        Witness.PERSON: "a person, with a token that is not limited to jobs",
        Witness.ALERT: "an alert about the node, by a sender other than the job's owner, not limited to jobs, that is not doubted",
        Witness.SCHEDULER: "Slurm or Kubernetes: the job's owner has an allocation or pods on the node, or had within ten minutes",
        Witness.AGENT: "the node's agent, with the node's certificate: this job runs on the node",
        Witness.SUBJECTS: "a job of another subject that blames the node, too, and was there by the word of Slurm, Kubernetes or the node's agent",
        Witness.SINGLE_TENANT: "`single_tenant = true`",
        Witness.MANAGER_LOST: "Slurm or Kubernetes: the node, which rankmend has drained, does not answer it",
        Witness.SILENT_AGENT: "the node's agent, with the node's certificate, reported until then, and for 130 s nothing",
    }
)


@dataclass(frozen=True, slots=True)
class ActPlace:
    """Where code decides about something outside a job: tests/recovery/controller/cluster/test_act_places.py compares this with the code."""

    what: str
    act: OutsideAct | None  # None: `needs` says what it rests on
    decided_by: str  # module:function
    bounds: tuple[
        str, ...
    ] = ()  # keys of the policy or configuration; a subject has its share of each
    refused: str = ""  # where people see what was not done for want of a witness
    needs: str = ""


_SLURM: Final = "`rankmend slurm`"
_KUBERNETES: Final = "`rankmend kubernetes`"
_DESK: Final = f"{_SLURM}, {_KUBERNETES}"
_UNTAKEN: Final = "the cluster's journal (`not_done`), `GET /v1/untaken`"
_OWN_NODES: Final = (
    "its launchers' word: it happens on the job's own nodes, and the bound is shared"
)
_CLUSTER: Final = "recovery.controller.cluster.cluster:ClusterController."

PLACES: Final = (
    ActPlace(
        "drain or cordon of a node that a job leaves, by another's word",
        OutsideAct.DRAIN, f"{_CLUSTER}is_vouched",
        ("drains_per_hour_max", "nodes_drained_max"), _DESK,
    ),
    ActPlace(
        "the same, where Slurm or Kubernetes has to confirm the owner",
        OutsideAct.DRAIN, "recovery.schedulers.slurm.node_work:NodeWork._is_foreign",
        ("drains_per_hour_max", "nodes_drained_max"), _DESK,
    ),
    ActPlace(
        "eviction of the pods of a job from a node that it has left",
        OutsideAct.EVICT, "recovery.schedulers.kubernetes.pod_work:PodWork._pods_of",
        ("evictions_per_hour_max",), _KUBERNETES,
    ),
    ActPlace(
        "requeue or cancellation of a Slurm job, also of a watched one",
        OutsideAct.REQUEUE, "recovery.schedulers.slurm.bounds:refuse_foreign_job",
        ("requeues_per_hour_max",), _SLURM,
    ),
    ActPlace(
        "act on a watched job that hangs: drain, cancel or requeue",
        None, "recovery.controller.watched.acting:decide", ("acts_per_hour_max",),
        needs="a report with a node's certificate or an `alert` token (`POST /v1/watched`); to cancel and requeue Slurm's word, too",
    ),
    ActPlace(
        "quarantine of a node",
        OutsideAct.QUARANTINE, f"{_CLUSTER}_quarantine",
        ("nodes_held_max", "nodes_held_percent"), _UNTAKEN,
    ),
    ActPlace(
        "a lemon, kept out until a person takes it back",
        OutsideAct.KEEP_OUT, f"{_CLUSTER}_keep_out", ("nodes_max",), _UNTAKEN,
    ),
    ActPlace(
        "power of a lost node, switched off to fence it",
        OutsideAct.POWER_OFF, f"{_CLUSTER}_allow_power_off",
        ("power_offs_per_hour_max",), _UNTAKEN,
    ),
    ActPlace(
        "stop of a job that trains", None,
        "recovery.controller.cluster.plan_verdict:_refuse_stop", ("stops_per_hour_max",),
        needs=_OWN_NODES,
    ),
    ActPlace(
        "probe of the network between a job's nodes", None,
        "recovery.controller.cluster.probe_verdict:refuse_probe", ("per_hour_max",),
        needs=_OWN_NODES,
    ),
    ActPlace(
        "how many nodes the fleet has, of which bounds are shares", None,
        f"{_CLUSTER}nodes_active", ("nodes_unconfirmed_max",),
        needs="Slurm, Kubernetes, the agent, the topology or `[discovery]`; what launchers alone name counts up to the bound",
    ),
)  # fmt: skip


def allows(act: OutsideAct, witnesses: Collection[Witness]) -> bool:
    """Return whether these witnesses are enough for the act."""
    if not ENOUGH[act].isdisjoint(witnesses):
        return True
    groups = TOGETHER.get(act, ())
    return bool(groups) and all(not group.isdisjoint(witnesses) for group in groups)


def strongest(act: OutsideAct, witnesses: Collection[Witness]) -> Witness:
    """Return the witness to keep on record; LAUNCHER where none is enough."""
    return next(
        (witness for witness in Witness if witness in witnesses and witness in ENOUGH[act]),
        Witness.LAUNCHER,
    )


def share_of(most: int, used: int, own: int) -> int:
    """Return how much of a bound one subject may use in all: half, rounded up, of what the others have left.

    ``used``: by all; ``own``: of that by the subject. No subject's launchers use up what others need, several of them leave something, too,
    and together they never use more than ``most``: own < share implies used < most.
    """
    return -(-(most - used + own) // 2)


def agreeing(owner: str, blames: Iterable[tuple[str, bool]]) -> bool:
    """Return whether another subject than the owner blames the node and was there when it did.

    ``blames``: of each the subject, and whether the nodes' manager or the node's agent has confirmed its presence then.
    """
    return any(was_there for subject, was_there in blames if subject not in ("", owner))


def refuse(act: OutsideAct, node: str, owner: str, manager: str = "") -> str:
    """Return for people why the act is not done. ``manager``: the manager that was queried about the owner; empty: none."""
    if act is OutsideAct.POWER_OFF:
        return f"{node}: no power off for the silence of launchers of {owner} alone: it needs another's word that the job is there, and that the node is lost"
    requested = f", and {manager} has nothing of theirs on it" if manager else ""
    return f"{node}: no {act.value.replace('_', ' ')} by the word of launchers of {owner} alone{requested} ([cluster] single_tenant)"
