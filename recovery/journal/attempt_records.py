"""Records of attempts: where each began, how far it came, how it ended. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rankmend.rank_values import ToldHidden, Unsaved
from recovery.journal.node_records import Joined
from recovery.messages.exchange import Endpoint, Restore, SnapshotPoint


class HiddenSource(Enum):
    """How hidden time is known."""

    COLLECTIVES = (
        "asynchronous_collectives"  # from their issue to the look at which they were complete
    )
    DDP = "ddp_statistics"  # PyTorch's window of sampled iterations: at most that
    SCRIPT = "background_sections"  # the script's own rankmend.background
    LOADER = "loader_without_workers"  # the thread that trains makes the batches: nothing is hidden


class HiddenGap(Enum):
    """Why it is not known how much was hidden."""

    UNTIMED = "untimed_collectives"  # nobody sees when a device has done them; or several models
    UNSAMPLED = "ddp_not_sampled"  # PyTorch has not reported an iteration yet
    WORKERS = "loader_workers"  # nobody reports for how long other processes make batches


@dataclass(frozen=True, slots=True)
class HiddenSeen:
    """What of one kind of work ran beside the own work of the ranks that report it. Seconds, of these ranks together.

    Each source proves a least and a most, which are equal where it measures:
    docs/reference/goodput.md. A figure that nobody reports is absent, with the reason.
    """

    steps: int  # of these ranks together; 0: nobody reports it
    least_s: float = 0.0
    most_s: float | None = None  # None: nobody knows
    sources: tuple[str, ...] = ()  # values of HiddenSource
    gaps: tuple[str, ...] = ()  # values of HiddenGap: what nobody reports


def hidden_communication(before: ToldHidden, now: ToldHidden, steps: int) -> HiddenSeen | None:
    """Return what a rank reported of communication in these steps; None where nothing was."""
    gaps = []
    if now.has_untimed:
        gaps.append(HiddenGap.UNTIMED)
    if now.has_replica and not now.samples:
        gaps.append(HiddenGap.UNSAMPLED)
    sent_s = max(0.0, now.sendings_s - before.sendings_s)
    least_s = max(0.0, now.works_least_s - before.works_least_s) + sent_s
    most_s = max(0.0, now.works_most_s - before.works_most_s) + sent_s
    sources = []
    if now.works > before.works:
        sources.append(HiddenSource.COLLECTIVES)
    if now.sendings > before.sendings:
        sources.append(HiddenSource.SCRIPT)
    if now.samples:
        sources.append(HiddenSource.DDP)
        most_s += steps * now.overlap_s / now.samples
    if not sources or (gaps and not least_s):
        return _seen(0, 0.0, None, (), gaps) if gaps else None
    return _seen(steps, least_s, None if gaps else most_s, sources, gaps)


def hidden_io(before: ToldHidden, now: ToldHidden, steps: int) -> HiddenSeen | None:
    """Return what a rank reported of reading in these steps; None where nothing was."""
    gaps = [HiddenGap.WORKERS] if now.loads_in_workers else []
    if now.reads:
        read_s = max(0.0, now.reads_s - before.reads_s)
        return _seen(steps, read_s, None if gaps else read_s, [HiddenSource.SCRIPT], gaps)
    if gaps:
        return _seen(0, 0.0, None, (), gaps)
    return _seen(steps, 0.0, 0.0, [HiddenSource.LOADER], ()) if now.loads_itself else None


def add_hidden(reported: Iterable[HiddenSeen | None]) -> HiddenSeen | None:
    """Return the sum over ranks, or records."""
    known = [item for item in reported if item is not None]
    if not known:
        return None
    telling = [item for item in known if item.steps]
    most = [item.most_s for item in telling if item.most_s is not None]
    return HiddenSeen(
        steps=sum(item.steps for item in telling),
        least_s=sum(item.least_s for item in telling),
        most_s=sum(most) if telling and len(most) == len(telling) else None,
        sources=_all(item.sources for item in known),
        gaps=_all(item.gaps for item in known),
    )


def _seen(
    steps: int,
    least_s: float,
    most_s: float | None,
    sources: Iterable[HiddenSource],
    gaps: Iterable[HiddenGap],
) -> HiddenSeen:
    names = tuple(source.value for source in sources)
    return HiddenSeen(steps, least_s, most_s, names, tuple(gap.value for gap in gaps))


def _all(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))


class Cause(Enum):
    """Why an attempt was started."""

    FIRST = "first"
    RESUMED = "resumed"  # the job started again after its end (planned stop, done, escalated)
    TAKEOVER = "takeover"  # rankmend itself ended while ranks ran
    INCIDENT = "incident"


class AttemptResult(Enum):
    DONE = "done"
    STOPPED = "stopped"  # planned
    FAILED = "failed"  # stopped by recovery
    LOST = "lost"  # ended together with rankmend


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of one node, in the order of their local ranks."""

    node: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PassedOver:
    path: str
    step: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """A rank's part of a snapshot, and the node that had it."""

    rank: int
    node: str
    of_rank: int | None = None  # whose it was, where that is another rank, which is equal


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint to restore, and why others were passed over."""

    is_possible: bool  # False: starting would lose what an earlier attempt had restored
    restore: Restore | None  # None: from the beginning
    reason: str
    passed_over: tuple[PassedOver, ...] = ()
    modified_unix_s: float | None = None  # the checkpoint's; a file can be overwritten
    # A person started the job again and what earlier attempts had saved is gone: steps, budgets
    # and checkpoints of before count no more.
    is_new_run: bool = False
    # What the ranks restore from memory; `restore` is then what they would begin from without it.
    snapshot: SnapshotPoint | None = None
    fetched: tuple[FetchedPart, ...] = ()  # those ranks' parts of it that came from other nodes
    # Identities of what else was there and is never restored: its step is not from before the numbers went wrong.
    spoiled: tuple[str, ...] = ()
    has_folder: bool = True  # the place of checkpoints is known
    # Identities of newer ones that the program could not begin from: this choice is a step back.
    fallen_back_from: tuple[str, ...] = ()
    # Of the checkpoint, restored before so much of its content was checked. 0: all was, or an older version wrote it.
    unchecked_bytes: int = 0
    # Of a choice that is not possible: a model without an optimizer's state, from which a person may let the job go on.
    model_alone: str = ""

    @property
    def begins_at(self) -> int | None:
        """Return the step that the attempt begins from; None: at zero, or not known."""
        if self.snapshot is not None:
            return self.snapshot.step
        return None if self.restore is None else self.restore.step

    @property
    def restored_path(self) -> str | None:
        """Return the checkpoint that the attempt reads; None: it reads none."""
        return None if self.restore is None or self.snapshot is not None else self.restore.path

    @property
    def held_about(self) -> str:
        """Return the existing checkpoints, for a choice that is not possible."""
        newest = self.passed_over[0].path if self.passed_over else ""
        return f"{len(self.passed_over)} {newest}".rstrip()

    @property
    def identity(self) -> str:
        """Return an identity that differs from other snapshots, and other checkpoints at the same path."""
        if self.snapshot is not None:
            return identity_of(self.snapshot)
        return "" if self.restore is None else f"{self.restore.path}@{self.modified_unix_s}"


def identity_of(snapshot: SnapshotPoint) -> str:
    """Return the identity of a choice of this snapshot."""
    return f"snapshot {snapshot.attempt}:{snapshot.step}"


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """Durable before the order that starts the ranks."""

    attempt: int
    cause: Cause
    choice: Choice
    incident_id: str | None = None
    try_number: int | None = None
    is_progress: bool = False  # its checkpoint is newer than that of any earlier attempt
    placement: tuple[Placement, ...] = ()  # in the order of group ranks; (): as in the settings
    rendezvous: Endpoint | None = None  # where its ranks meet; None: the launcher chooses
    # Whether the program takes the chosen checkpoint, by its arguments and its text; None: not known.
    is_taken: bool | None = None


@dataclass(frozen=True, slots=True)
class StartWaits:
    """No attempt starts, since it would begin at zero or could not save; a notice tells people."""

    reason: str
    about: str  # the existing checkpoints: the same ones are journaled once
    is_for_storage: bool = (
        False  # it waits for a checkpoint folder that can be written: no approval replaces that
    )
    model_alone: str = ""  # a checkpoint without an optimizer's state, from which an approval starts it; "": at step 0


class StallSource(Enum):
    """How it is known for how long a save stops training."""

    SECTION = "section"  # the script marks it: `rankmend.section("checkpoint")`
    STEPS = "steps"  # at most this: by how much the longest step around the save exceeds the median
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SaveStall:
    """A save that stopped training."""

    age_s: float  # how long before the record it ended, at the latest: its step's end
    stall_s: float  # of the slowest rank


@dataclass(frozen=True, slots=True)
class SavesStalled:
    """Saves that stopped training since the record before, by the ranks' checkpoint sections."""

    attempt: int
    stalls: tuple[SaveStall, ...]  # oldest first


@dataclass(frozen=True, slots=True)
class SavesSeen:
    """How the newest attempt saved since the record before. Seconds; None: not known."""

    count: int
    interval_s: float | None = None  # mean, from the begin of a save to the next
    stall_s: float | None = None  # mean: for how long a save stopped training
    stall_source: StallSource = StallSource.UNKNOWN
    # Of the newest save: from the first change of its files to the last, or its section if that is longer.
    save_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """The checkpoint that a failure would now restore."""

    path: str
    step: int | None
    format: str  # value of a recovery.messages.candidates.CheckpointFormat
    label: str  # the format's name for people
    modified_unix_s: float
    reason: str  # what was checked
    size_bytes: int = 0  # 0: from a version without this field
    saves: SavesSeen | None = None  # None: none was measured
    newer_path: str | None = None  # a newer one, which is still being written
    holds: str = ""  # value of a recovery.messages.candidates.Holds; empty: not known
    # The first of those that a person may take for the newest. Empty: none, or an older version wrote it.
    passed_over: tuple[PassedOver, ...] = ()


@dataclass(frozen=True, slots=True)
class SavesMissing:
    """The job trains, and nothing of it could be restored: nothing was saved since it began, or since its last save."""

    attempt: int
    cause: Unsaved  # never NO_FOLDER: the choice of each attempt has that
    trained_s: float  # since the last save, or since it began
    folder: str = ""  # where checkpoints are looked for; empty: not known here
    newest: str = ""  # the checkpoint that could be restored last; empty: there was none
    example: str = ""  # the newest that can't be restored, and why
    has_snapshots: bool = False  # ranks keep some in memory


@dataclass(frozen=True, slots=True)
class RestoreDamaged:
    """The checkpoint that an attempt began from, before all of it was checked, contradicts its own checksums."""

    attempt: int
    path: str
    step: int | None
    modified_unix_s: float
    reason: str  # what does not fit
    # The job goes back to an older one, and restores nothing that was saved since. False: nothing older is known, or the
    # policy allows no restart, so the attempt trains on.
    goes_back: bool


@dataclass(frozen=True, slots=True)
class CheckpointPutBack:
    """A launcher has put back the checkpoint that its ranks restore: something had deleted it."""

    attempt: int
    node: str
    path: str
    count: int = 1  # of times in this attempt
    is_given_up: bool = False  # it was deleted once more, and is left so


@dataclass(frozen=True, slots=True)
class AttemptVerified:
    """Every rank of the attempt has made its steps. Ages are those of the slowest rank."""

    attempt: int
    is_comparable: bool  # its step numbers are comparable with those of other attempts
    telling_ranks: tuple[int, ...]  # ranks that report their steps
    attached_age_s: float | None = None
    resumed_age_s: float | None = None
    first_section_age_s: float | None = None
    first_step_age_s: float | None = None
    first_step: int | None = None  # lowest first step number of any rank
    rendezvous_began_age_s: float | None = None
    rendezvous_ended_age_s: float | None = None
    unused_step: int | None = None  # they were given this step, and begin as if they had nothing
    # They were given an older checkpoint, and begin behind this step of a checkpoint that was passed over.
    own_choice_step: int | None = None


@dataclass(frozen=True, slots=True)
class Milestone:
    """The highest step that any rank has reported in this attempt."""

    attempt: int
    step: int
    # Every rank has made this one, too: where ranks do not wait for each other, the highest step
    # is that of the rank that nothing has stopped. None from a version without this field.
    floor_step: int | None = None


@dataclass(frozen=True, slots=True)
class WorkSeen:
    """The work that ranks have reported since the record before, or since their first step."""

    attempt: int
    took_s: float  # until `age_s` before this record
    age_s: float
    ranks: int  # that reported it
    flops: float
    tokens: float
    samples: float
    data_type: str = ""  # of the FLOPs; empty: none were reported, or of several
    device: str = ""  # the accelerators' name; empty: not known, or several


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """What ranks with sections spent their steps on since the record before. Seconds, of all these ranks together."""

    attempt: int
    ranks: int
    steps: int  # of all ranks together
    step_s: float
    compute_s: float  # in sections of that name; 0: the script has none, and the rest of a step is its compute
    communication_s: float  # for which the rank stood still or worked at it
    waited_s: float  # the part of it in which it only waited for others
    io_s: float
    checkpoint_s: float
    hidden_communication: HiddenSeen | None = None  # None: not reported, as by older versions
    hidden_io: HiddenSeen | None = None


@dataclass(frozen=True, slots=True)
class RelativeMilestone:
    """The steps of an attempt whose ranks count from the start of the process."""

    attempt: int
    steps: int  # the most of any rank
    floor_steps: int | None  # the fewest of any rank; None until every rank has reported


@dataclass(frozen=True, slots=True)
class RanksDone:
    """Every rank ended with exit code 0, or has finished its training."""

    attempt: int
    reason: str = ""  # what still ran, and was ended; empty: every rank ended with exit code 0


@dataclass(frozen=True, slots=True)
class AttemptAbandoned:
    """rankmend restarted and did not find the attempt's ranks: it stops what is left of them."""

    attempt: int
    reason: str


class Proof(Enum):
    """The proof that a node is empty if its launcher did not report it (docs/operate/fencing.md)."""

    BOOT = "boot"  # the node has booted since
    LEASE = "lease"  # its launcher was cut off long enough to have stopped its ranks
    PERSON = "person"  # a person confirmed it
    LAST_WORD = "last_word"  # its launcher reported its end, with nothing left on the node


@dataclass(frozen=True, slots=True)
class GoneProof:
    node: str
    proof: Proof
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """No process of the attempt is left on any node: the proof that allows the next."""

    attempt: int
    result: AttemptResult
    proofs: tuple[GoneProof, ...] = ()  # for nodes whose launcher did not report it
    off: tuple[str, ...] = ()  # nodes without power, by `nodes_off`


@dataclass(frozen=True, slots=True)
class AttemptHeard:
    """Nodes run an attempt that this journal doesn't know: it is a copy, or lost records."""

    attempt: int
    nodes: tuple[str, ...]  # all that joined: any of them may run it


@dataclass(frozen=True, slots=True)
class Adopted:
    """A running attempt that this journal did not know continues under this controller."""

    attempt: int
    epoch: int  # this controller's epoch from now on, above any that its launchers have seen
    followed_epoch: int  # the highest that they had seen
    placement: tuple[Placement, ...]  # a node with an unknown name is "?" and its group rank
    nodes: tuple[Joined, ...]  # the launchers of the placement
    heard: tuple[str, ...]  # nodes that reported; others get no ranks until a person confirms
    restarts: int
    is_history_lost: bool  # this journal knew no attempt: budgets count as spent until confirmed
    restore: Restore | None = None
    rendezvous: Endpoint | None = None
    snapshot: SnapshotPoint | None = None


class StandKind(Enum):
    CONTINUED = "continued"  # ranks that a signal had stopped get SIGCONT
    SUSPENDED = "suspended"  # all ranks are stopped together: left alone
    WAITS = "waits"  # nothing could be restored: it has until the long limit
    ENDED = "ended"  # a rank has advanced since


@dataclass(frozen=True, slots=True)
class StandStill:
    """Ranks of the newest attempt stand still, and are not restarted for it; or they have gone on. Durable before SIGCONT is ordered."""

    attempt: int
    kind: StandKind
    ranks: tuple[int, ...]
    reason: str = ""
    after_s: float | None = None  # of an end: since the record of the standstill
