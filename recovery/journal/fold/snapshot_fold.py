"""What the records of snapshots change in the ledger. Pure."""

from typing import Final

from recovery.journal.fold.changed_copy import replace
from recovery.journal.ledger import Ledger
from recovery.journal.snapshot_records import ParallelDeclared, ReplicasDiffer, ReplicasKnown

_DIFFERING_MAX: Final = 16  # newest; a rank has two snapshots


def fold_replicas_differ(record: ReplicasDiffer, ledger: Ledger) -> Ledger:
    return replace(ledger, differing=(*ledger.differing, record)[-_DIFFERING_MAX:])


def fold_parallel_declared(record: ParallelDeclared, ledger: Ledger) -> Ledger:
    return replace(ledger, layout=record.layout)


def fold_replicas_known(record: ReplicasKnown, ledger: Ledger) -> Ledger:
    return replace(ledger, replicas=record)
