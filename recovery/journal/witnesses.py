"""What outside a job may follow from whose word: one table of acts and witnesses, and its decider. Pure.

A job's launchers report what happens to its ranks, and whoever holds a token with the role `launch` can run a launcher. Within the job
their word is enough: it leaves a node at once. Outside the job it is not. A cordon, an eviction, a drain, a requeue, a quarantine, a lemon
and a switched-off node hit other people's work, so each needs a second party:

- the nodes' manager, which says that the job's owner has an allocation or pods on that node (`SCHEDULER`);
- an alert about the node from an authenticated sender other than the job's owner (`ALERT`);
- two subjects whose jobs blame the node (`SUBJECTS`);
- a person, or a site that says that all its users are one party (`single_tenant`).

An eviction and a requeue end processes, so only the manager's word about whose these are allows them: an alert says that a node is
broken, and not whose pods are there. Source: the attack kept in tests/recovery/kubernetes/test_foreign_nodes.py.
"""

from collections.abc import Collection, Mapping
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
    """Whose word says that the act is due. The journal keeps it."""

    LAUNCHER = ""  # of the job alone
    PERSON = "person"
    ALERT = "alert"
    SCHEDULER = "scheduler"
    SUBJECTS = "subjects"
    SINGLE_TENANT = "single_tenant"

    @classmethod
    def _missing_(cls, _value: object) -> "Witness":
        """Return the weakest of all for what only a newer version knows."""
        return cls.LAUNCHER


_ANY: Final = frozenset(Witness) - {Witness.LAUNCHER}
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
        Witness.PERSON: "a person",
        Witness.ALERT: "an alert about the node, by a sender other than the job's owner",
        Witness.SCHEDULER: "Slurm or Kubernetes: the job's owner has an allocation or pods on the node",
        Witness.SUBJECTS: "jobs of two subjects that blame the node",
        Witness.SINGLE_TENANT: "`single_tenant = true`",
    }
)


def allows(act: OutsideAct, witnesses: Collection[Witness]) -> bool:
    """Return whether these witnesses are enough for the act."""
    return not ENOUGH[act].isdisjoint(witnesses)


def strongest(act: OutsideAct, witnesses: Collection[Witness]) -> Witness:
    """Return the witness to keep on record; LAUNCHER where none is enough."""
    return next(
        (one for one in Witness if one in witnesses and one in ENOUGH[act]), Witness.LAUNCHER
    )


def refuse(act: OutsideAct, node: str, owner: str, manager: str = "") -> str:
    """Return for people why the act is not done. ``manager``: who was asked about the owner; empty: nobody."""
    asked = f", and {manager} has nothing of theirs on it" if manager else ""
    return f"{node}: no {act.value.replace('_', ' ')} by the word of launchers of {owner} alone{asked} ([cluster] single_tenant)"
