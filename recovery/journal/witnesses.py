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

An eviction and a requeue end processes, so only the manager's word about whose these are allows them: an alert means that a node is
broken, and not whose pods are there. Source: the attack kept in tests/recovery/schedulers/kubernetes/test_foreign_nodes.py.
"""

from collections.abc import Collection, Iterable, Mapping
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

    @classmethod
    def _missing_(cls, _value: object) -> "Witness":
        """Return the weakest of all for what only a newer version knows."""
        return cls.LAUNCHER


_ANY: Final = frozenset(Witness) - {Witness.LAUNCHER}
PRESENCE: Final = frozenset({Witness.SCHEDULER, Witness.AGENT})
"""Witnesses of where a job runs, and not of whether something is wrong with the node."""

_OWN: Final = frozenset({Witness.SCHEDULER, Witness.SINGLE_TENANT})

ENOUGH: Final[Mapping[OutsideAct, frozenset[Witness]]] = MappingProxyType(
    {
        OutsideAct.DRAIN: _ANY,
        OutsideAct.EVICT: _OWN,
        OutsideAct.REQUEUE: _OWN,
        OutsideAct.QUARANTINE: _ANY,
        OutsideAct.KEEP_OUT: _ANY,
        OutsideAct.POWER_OFF: _ANY,
    }
)
"""Which witnesses allow an act; one of them is enough."""

IN_WORDS: Final[Mapping[Witness, str]] = MappingProxyType(
    {
        Witness.LAUNCHER: "the job's launchers alone",
        Witness.PERSON: "a person, with a token that is not limited to jobs",
        Witness.ALERT: "an alert about the node, by a sender other than the job's owner, not limited to jobs, that is not doubted",
        Witness.SCHEDULER: "Slurm or Kubernetes: the job's owner has an allocation or pods on the node, or had within ten minutes",
        Witness.AGENT: "the node's agent, with the node's certificate: this job runs on the node",
        Witness.SUBJECTS: "a job of another subject that blames the node, too, and was there by the word of Slurm, Kubernetes or the node's agent",
        Witness.SINGLE_TENANT: "`single_tenant = true`",
    }
)


def allows(act: OutsideAct, witnesses: Collection[Witness]) -> bool:
    """Return whether these witnesses are enough for the act."""
    return not ENOUGH[act].isdisjoint(witnesses)


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
    requested = f", and {manager} has nothing of theirs on it" if manager else ""
    return f"{node}: no {act.value.replace('_', ' ')} by the word of launchers of {owner} alone{requested} ([cluster] single_tenant)"
