"""Every kind of record that a job's or the cluster's journal holds, and the stored form of one.

Records are frozen dataclasses, one module for each subject (`job_records`, `attempt_records`, ...).
The stored form is JSON with the record's kind and the schema version beside it. Within a
major version fields and kinds are only added: an older rankmend ignores fields it does not
know, and keeps and skips kinds it does not know. docs/reference/journal.md lists the kinds.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from rankmend.errors import ConfigError, JournalError
from recovery.journal.attempt_records import (
    Adopted,
    AttemptAbandoned,
    AttemptEnded,
    AttemptHeard,
    AttemptStarted,
    AttemptVerified,
    CheckpointPutBack,
    CheckpointSeen,
    Milestone,
    RanksDone,
    RelativeMilestone,
    RestoreDamaged,
    SavesMissing,
    SavesStalled,
    StandStill,
    StartWaits,
    StepsSeen,
    WorkSeen,
)
from recovery.journal.cluster_records import CLUSTER_KINDS, ClusterRecord
from recovery.journal.incident_records import (
    BlameCorrected,
    CaughtUp,
    Decided,
    EvidenceCollected,
    IncidentEvent,
    IncidentOpened,
    NodesCharged,
    PlanWaits,
    TryFailed,
)
from recovery.journal.job_records import (
    BudgetsReset,
    ClaimTaken,
    JobEnded,
    JobOpened,
    LauncherStarted,
    PersonActed,
    RecordsLost,
    StopRequested,
    TailCut,
)
from recovery.journal.node_records import (
    EvidenceDoubted,
    EvidenceTaken,
    FenceWaits,
    FinderChosen,
    LaunchersEnded,
    NodeLeft,
    NodesJoined,
    NodesOff,
)
from recovery.journal.observation_records import (
    FabricProbeSkipped,
    GoesBack,
    NumbersWrong,
    ParallelDeclared,
    ReplicasDiffer,
    ReplicasKnown,
    SlowEnded,
    SlowExplained,
    SlowFound,
)
from recovery.journal.slurm_records import SLURM_KINDS, SlurmRecord
from recovery.journal.watched_records import WATCHED_KINDS, WatchedTimeRecord

MAJOR: Final = 1


# 1: several nodes; 2: progress of steps that count from a checkpoint; 3: causes and symptoms as fields; 4: nodes without power; 5: snapshots; 6: losses and gradient norms; 7: watched jobs, Slurm; 8: parallel sizes, when ranks last stepped, saves stalled, launchers lived; work; 9: time of watched jobs, anatomy of steps; 10: work and steps of watched jobs, what is hidden; 11: probes of the network; 12: the symptom mixed_nccl, restores that a script did not use; 13: jobs that save nothing, waits for storage; 14: restored checkpoints that prove damaged, steps back to older checkpoints; 15: the symptoms storage and service; 16: held starts that name a model alone, what counts against nodes, corrected blame, ranks that stand still and may go on, jobs that were done while something still ran, doubted alerts
MINOR: Final = 16


BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # a finding that names 16,384 ranks takes 0.2 MiB

KnownRecord: TypeAlias = (
    JobOpened
    | LauncherStarted
    | ClaimTaken
    | AttemptStarted
    | StartWaits
    | CheckpointPutBack
    | RestoreDamaged
    | CheckpointSeen
    | SavesMissing
    | AttemptVerified
    | Milestone
    | RelativeMilestone
    | RanksDone
    | AttemptAbandoned
    | AttemptEnded
    | IncidentOpened
    | TryFailed
    | Decided
    | IncidentEvent
    | EvidenceCollected
    | CaughtUp
    | NodesCharged
    | BlameCorrected
    | SlowFound
    | SlowExplained
    | SlowEnded
    | FabricProbeSkipped
    | StopRequested
    | JobEnded
    | BudgetsReset
    | TailCut
    | RecordsLost
    | NodesJoined
    | LaunchersEnded
    | NodesOff
    | AttemptHeard
    | Adopted
    | NodeLeft
    | FinderChosen
    | PlanWaits
    | FenceWaits
    | EvidenceDoubted
    | EvidenceTaken
    | PersonActed
    | ParallelDeclared
    | ReplicasDiffer
    | ReplicasKnown
    | NumbersWrong
    | GoesBack
    | WorkSeen
    | SavesStalled
    | StepsSeen
    | StandStill
    | ClusterRecord
    | SlurmRecord
    | WatchedTimeRecord
)

KINDS: Final[dict[str, type[KnownRecord]]] = {
    "job_opened": JobOpened,
    "launcher_started": LauncherStarted,
    "claim_taken": ClaimTaken,
    "attempt_started": AttemptStarted,
    "start_waits": StartWaits,
    "checkpoint_put_back": CheckpointPutBack,
    "restore_damaged": RestoreDamaged,
    "checkpoint_seen": CheckpointSeen,
    "saves_missing": SavesMissing,
    "attempt_verified": AttemptVerified,
    "milestone": Milestone,
    "relative_milestone": RelativeMilestone,
    "ranks_done": RanksDone,
    "attempt_abandoned": AttemptAbandoned,
    "attempt_ended": AttemptEnded,
    "incident_opened": IncidentOpened,
    "try_failed": TryFailed,
    "decided": Decided,
    "incident_event": IncidentEvent,
    "evidence_collected": EvidenceCollected,
    "caught_up": CaughtUp,
    "nodes_charged": NodesCharged,
    "blame_corrected": BlameCorrected,
    "slow_found": SlowFound,
    "slow_explained": SlowExplained,
    "slow_ended": SlowEnded,
    "fabric_probe_skipped": FabricProbeSkipped,
    "stop_requested": StopRequested,
    "job_ended": JobEnded,
    "budgets_reset": BudgetsReset,
    "tail_cut": TailCut,
    "records_lost": RecordsLost,
    "nodes_joined": NodesJoined,
    "launchers_ended": LaunchersEnded,
    "nodes_off": NodesOff,
    "attempt_heard": AttemptHeard,
    "adopted": Adopted,
    "node_left": NodeLeft,
    "finder_chosen": FinderChosen,
    "plan_waits": PlanWaits,
    "fence_waits": FenceWaits,
    "evidence_taken": EvidenceTaken,
    "evidence_doubted": EvidenceDoubted,
    "person_acted": PersonActed,
    "parallel_declared": ParallelDeclared,
    "replicas_differ": ReplicasDiffer,
    "replicas_known": ReplicasKnown,
    "numbers_wrong": NumbersWrong,
    "goes_back": GoesBack,
    "work_seen": WorkSeen,
    "saves_stalled": SavesStalled,
    "steps_seen": StepsSeen,
    "stand_still": StandStill,
    **CLUSTER_KINDS,
    **SLURM_KINDS,
    **WATCHED_KINDS,
}


NAMES: Final = {record: name for name, record in KINDS.items()}


_DECODERS: Final = {
    name: msgspec.json.Decoder(record, strict=True) for name, record in KINDS.items()
}


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """A record of a newer rankmend: kept in the journal, skipped here."""

    kind: str
    body: bytes


Record: TypeAlias = KnownRecord | UnknownRecord


class NewerRecordError(JournalError):
    """A newer rankmend wrote a record of a kind that is known here, in a way that is not."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in its place: number, and when it was written by which clock."""

    number: int  # 1 for the first, without gaps
    unix_s: float
    monotonic_s: float  # compares only within one boot
    boot_id: str
    record: Record


def kind_of(record: Record) -> str:
    return record.kind if isinstance(record, UnknownRecord) else NAMES[type(record)]


def encode_record(record: Record) -> bytes:
    """Return the stored form of a record."""
    body = record.body if isinstance(record, UnknownRecord) else msgspec.json.encode(record)
    if len(body) > BODY_BYTES_MAX:
        raise JournalError(
            f"a {kind_of(record)} record of {len(body)} bytes is over the limit of {BODY_BYTES_MAX}"
        )
    return body


def decode_record(kind: str, major: int, minor: int, body: bytes) -> Record:
    """Return the record of a stored form, or an UnknownRecord for a newer version's kind."""
    if major != MAJOR:
        raise JournalError(
            f"a {kind} record of version {major}.{minor}; this rankmend reads {MAJOR}.x"
        )
    decoder = _DECODERS.get(kind)
    if decoder is None:
        if minor <= MINOR:
            raise JournalError(f"kind {kind!r} does not exist in version {major}.{minor}")
        return UnknownRecord(kind, body)
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError, ConfigError) as error:
        if minor > MINOR:
            raise NewerRecordError(
                f"a {kind} record was written by a newer rankmend (records {major}.{minor}, this one knows "
                f"{MAJOR}.{MINOR}) and can't be read: {error}. Upgrade this controller"
            ) from error
        raise JournalError(f"a {kind} record can't be read: {error}") from error
