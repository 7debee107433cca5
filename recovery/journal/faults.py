"""A failure as data, and whether two failures have the same cause. Pure.

Repeating what failed is of no use, and bad luck is no reason to give a job up. So failures that
brought nothing forward are counted by cause. Two of them have one cause when

- the same node is accused, in a job of several nodes: of whatever symptoms;
- the program raised the same class of error, on whichever rank;
- they show the same symptom (kind, cause, exit code or signal, class of error), and accuse the
  same ranks or nobody.

Two kills from outside (a SIGKILL whose sender nobody knows, a SIGTERM from elsewhere) never have
one cause: they say nothing about the job. Neither have two deaths of rankmend itself, nor two outages of something that the
program uses: what is away for a while comes back, and each restart waits longer for it (`outages_in_a_row`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from detectors.failed.error_classes import CLASSES, ErrorDecision
from detectors.finding import Blame, Kind, SymptomKind
from recovery.journal.incident_records import Failure
from recovery.messages.outside import trains

OWN_ENDS: Final = frozenset(
    SymptomKind(cause.value)
    for cause, row in CLASSES.items()
    if row.decision is ErrorDecision.RESTART_UNLESS_AGAIN
)
"""Ends that the program or its environment brings about itself."""
OF_CODE: Final = frozenset({SymptomKind.PROGRAM, SymptomKind.EXCEPTION})
"""Ends by an error that the program raised."""
_OUTSIDE: Final = frozenset({SymptomKind.KILLED, SymptomKind.USER, SymptomKind.SERVICE})
_RANKS_MAX: Final = 64  # accused at once; more are no single culprit


@dataclass(frozen=True, slots=True)
class Fault:
    """What ended an attempt."""

    kind: Kind | None = None  # None: nobody saw it
    symptom: SymptomKind = SymptomKind.UNKNOWN
    exit_code: int = 0  # 128 + n for signal n
    error_type: str = ""
    node: str = ""  # the accused one; empty in a job of one node
    ranks: tuple[int, ...] = ()  # the accused ones


UNSEEN: Final = Fault()
"""What ended an attempt while rankmend itself was not there to see it."""


def fault_of(failure: Failure, *, has_nodes: bool) -> Fault | None:
    """Return the failure as a fault; None where nothing has failed.

    A person's restart and the move of a slow rank end an attempt that trained well.
    """
    finding = failure.finding
    if trains(finding):
        return None
    is_place = finding.blame is Blame.RANK
    return Fault(
        finding.kind,
        finding.symptom.kind,
        failure.exit_code,
        "" if failure.error is None else failure.error.type_name,
        finding.node if is_place and has_nodes else "",
        finding.ranks if len(finding.ranks) <= _RANKS_MAX else (),
    )


def have_one_cause(fault: Fault, other: Fault) -> bool:
    """Return whether two faults are the same failure again."""
    if fault.kind is None or other.kind is None or {fault.symptom, other.symptom} & _OUTSIDE:
        return False
    if fault.node and fault.node == other.node:
        return True
    symptoms = (fault.kind, fault.symptom, fault.exit_code, fault.error_type)
    if symptoms != (other.kind, other.symptom, other.exit_code, other.error_type):
        return False
    if fault.symptom in OWN_ENDS:
        return True
    if fault.ranks or other.ranks:
        return not set(fault.ranks).isdisjoint(other.ranks)
    return fault.node == other.node


def count_in_a_row(faults: Sequence[Fault], fault: Fault) -> int:
    """Return how many of ``faults`` in a row, the last ones, have one cause with ``fault``."""
    return sum(1 for _one in takewhile(lambda item: have_one_cause(item, fault), reversed(faults)))


def outages_in_a_row(faults: Sequence[Fault]) -> int:
    """Return how many of ``faults``, the last ones, were outages of something outside the job."""
    return sum(
        1 for _one in takewhile(lambda item: item.symptom is SymptomKind.SERVICE, reversed(faults))
    )


def count_most_alike(faults: Sequence[Fault]) -> int:
    """Return the size of the largest group of one cause."""
    return max(
        (sum(have_one_cause(fault, other) for other in faults) for fault in faults), default=0
    )
