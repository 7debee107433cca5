"""What waits for a record: one table of all kinds. Pure.

A decision is durable before anything follows from it: an order, an answer to a person, an act outside the job. From bookkeeping nothing
follows but what the next report would show again, so nobody waits for it. A journal keeps the order of its records whatever they are:
a decision is durable only with all that was written before it, so a decision may rest on bookkeeping, and none rests on what can be lost.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from recovery.journal.cluster_records import CLUSTER_KINDS
from recovery.journal.records import KINDS, Record, kind_of
from recovery.journal.slurm_records import SLURM_KINDS
from recovery.journal.watched_records import WATCHED_KINDS

_BOOKKEEPING: Final = frozenset(
    {
        "milestone",
        "relative_milestone",
        "work_seen",
        "steps_seen",
        "saves_stalled",
        "checkpoint_seen",
        "caught_up",
        "attempt_verified",
    }
)
_DECISIONS: Final = frozenset(
    {
        "job_opened",
        "launcher_started",
        "claim_taken",
        "attempt_started",
        "start_waits",
        "checkpoint_put_back",
        "restore_damaged",
        "saves_missing",
        "ranks_done",
        "attempt_abandoned",
        "attempt_ended",
        "incident_opened",
        "try_failed",
        "decided",
        "incident_event",
        "evidence_collected",
        "nodes_charged",
        "blame_corrected",
        "slow_found",
        "slow_explained",
        "slow_ended",
        "fabric_probe_skipped",
        "stop_requested",
        "job_ended",
        "budgets_reset",
        "tail_cut",
        "records_lost",
        "nodes_joined",
        "launchers_ended",
        "nodes_off",
        "attempt_heard",
        "adopted",
        "node_left",
        "finder_chosen",
        "plan_waits",
        "fence_waits",
        "evidence_taken",
        "evidence_doubted",
        "person_acted",
        "parallel_declared",
        "replicas_differ",
        "replicas_known",
        "numbers_wrong",
        "goes_back",
        "stand_still",
        # Of the journals that several jobs share: others decide by them at once.
        *CLUSTER_KINDS,
        *SLURM_KINDS,
        *WATCHED_KINDS,
    }
)

BOOKKEEPING: Final = frozenset(KINDS[kind] for kind in _BOOKKEEPING)


class RecordWeight(Enum):
    DECISION = "decision"
    BOOKKEEPING = "bookkeeping"


WEIGHTS: Final[Mapping[str, RecordWeight]] = MappingProxyType(
    dict.fromkeys(_BOOKKEEPING, RecordWeight.BOOKKEEPING)
    | dict.fromkeys(_DECISIONS, RecordWeight.DECISION)
)
"""By kind. tests/recovery/journal/test_record_weights.py compares it with all kinds."""


def has_decision(records: Iterable[Record]) -> bool:
    """Return whether somebody waits for one of the records; a kind that only a newer rankmend knows counts as a decision."""
    return any(
        WEIGHTS.get(kind_of(record), RecordWeight.DECISION) is RecordWeight.DECISION
        for record in records
    )
