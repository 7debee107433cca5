"""Reports and orders: all messages between launchers and a controller (contract 4).

Level-triggered: an order says what a node ought to be running now, a report what it is
running, and the launcher acts on the difference, so that a lost, late or repeated message
does no harm. Times travel as ages in seconds; who receives them dates them. On the wire they
are JSON (`recovery.messages.codec`), and a controller understands one minor version older and newer.
docs/reference/messages.md lists every field.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from detectors.failed.said_error import SaidAtEnd
from detectors.finding import Finding
from detectors.hang.flight_dump import FlightDump
from detectors.hang.python_stack import Frame
from rankmend.rank_values import ScriptEnd, ToldHidden, ToldPlace
from recovery.messages.candidates import WHOLE, HeldPart, PutBack, Share
from recovery.messages.probing import ProbeTold
from recovery.messages.quick_struct import QuickStruct, like_dataclass

VERSION: Final = 1
# Launchers that all others of an attempt count for the lease. A list of all would make the orders
# grow with the square: 480 MB for 2,000 nodes. Of 31, spread evenly, no rack holds a majority.
WITNESSES_MAX: Final = 31
# What is believed of another controller. A start each second for 31 years counts to 1e9: numbers
# above that are forged, and would leave no room above themselves.
EPOCH_MAX: Final = 1_000_000_000
ATTEMPT_MAX: Final = 1_000_000_000
# Of a reason in a report of a rank: 1,024 ranks with this much each stay far below a message's limit.
WHY_NOT_FORKED_CHARACTERS_MAX: Final = 300
# Of one rank in a report: as many as its progress file holds.
NUMBERS_MAX: Final = 64

KIND_MAX: Final = 128  # characters of a name in `NodeKinds`

ORDER_ENVIRONMENT: Final = frozenset(
    {
        *("RANKMEND_RESUME_PATH", "RANKMEND_RESUME_STEP", "RANKMEND_ATTEMPT"),
        "RANKMEND_SNAPSHOT",
    }
)
"""The only variables that an order can set. There is no free one, and never a command line."""


class Stop(Enum):
    """How to stop ranks that an order no longer names."""

    KILL = "kill"  # for recovery: SIGKILL at once
    GRACE = "grace"  # for a person, a scheduler or preemption: SIGTERM, a grace period, SIGKILL


class StopReason(Enum):
    """Why a job ends as planned."""

    TIME_LIMIT = "time limit"
    SIGHUP = "SIGHUP"
    SIGINT = "SIGINT"
    SIGQUIT = "SIGQUIT"
    SIGUSR1 = "SIGUSR1"
    SIGUSR2 = "SIGUSR2"
    SIGALRM = "SIGALRM"
    SIGTERM = "SIGTERM"
    SIGXCPU = "SIGXCPU"
    PERSON = "person"

    @property
    def exit_code(self) -> int:
        """Return the job's exit code: 128 + signal as a shell reports it, 124 as timeout(1) does."""
        return _EXIT_CODES[self]


_EXIT_CODES: Final = {
    StopReason.TIME_LIMIT: 124,
    StopReason.SIGHUP: 129,
    StopReason.SIGINT: 130,
    StopReason.SIGQUIT: 131,
    StopReason.SIGUSR1: 138,
    StopReason.SIGUSR2: 140,
    StopReason.SIGALRM: 142,
    StopReason.SIGTERM: 143,
    StopReason.SIGXCPU: 152,
    StopReason.PERSON: 143,
}
STOP_SIGNALS: Final = tuple(reason.value for reason in StopReason if reason.value.startswith("SIG"))
"""Signals that can ask for the planned end of a job, by name."""


class StartKind(Enum):
    """How a rank's process came to be."""

    FORKED = "forked"  # out of the fork server
    STANDBY = "standby"  # a process that had imported the framework became it
    FRESH = "fresh"  # Python was started for it
    UNKNOWN = ""  # by a newer launcher, in a way that this version does not know

    @classmethod
    def _missing_(cls, _value: object) -> "StartKind":
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class RankStart:
    """How a rank's process came to be, and why it was not forked although a fork server was requested."""

    kind: StartKind
    # Empty where it was forked, or where no fork server was requested. In a report at most
    # WHY_NOT_FORKED_CHARACTERS_MAX.
    why_not_forked: str = ""

    def bounded(self) -> "RankStart":
        """Return it with a reason that fits into a report."""
        return replace(self, why_not_forked=self.why_not_forked[:WHY_NOT_FORKED_CHARACTERS_MAX])


@dataclass(frozen=True, slots=True)
class RankError:
    """The error that a rank reported: its last traceback or its elastic error file."""

    type_name: str  # "RuntimeError"; empty where only a message is known
    message: str  # first line, at most 2,000 characters
    traceback: str  # at most 16,000 characters


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank's process ended. Exactly one of exit code and signal is set."""

    age_s: float
    exit_code: int | None
    signal: int | None
    by_launcher: bool  # the launcher sent the signal: the rank did not fail by itself
    oom_killed: bool  # the cgroup's or kernel's OOM-kill count grew in the same second
    error: RankError | None
    last_lines: tuple[str, ...]  # last lines of its output, oldest first
    words: SaidAtEnd | None = None  # what all that means; None: the launcher did not read it
    crash_library: str = ""  # in which it crashed, by the kernel's line; empty: not known


@like_dataclass
class StepTiming(QuickStruct, frozen=True):
    """One finished step, as the rank reported it."""

    number: int  # record number in this process, 1 for the first
    step: int
    age_s: float
    compute_s: float  # totals since the process attached
    communication_s: float
    io_s: float
    checkpoint_s: float
    waited_s: float = 0.0  # the part of the communication in which it only waited for others
    duration_s: float | None = None  # since the previous step; None if that is unknown


class NotFinite(Enum):
    """A number that JSON can't tell."""

    NAN = "nan"
    INFINITE = "inf"
    MINUS_INFINITE = "-inf"


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers that a rank reported of one step; None: not reported."""

    number: int  # of its records of numbers in this process, 1 for the first
    step: int
    loss: float | NotFinite | None = None
    grad_norm: float | NotFinite | None = None


@dataclass(frozen=True, slots=True)
class BadNumber:
    """The first value of its kind that was no finite number."""

    step: int
    value: NotFinite


@dataclass(frozen=True, slots=True)
class KeptSnapshots:
    """The snapshots that a rank has kept of its state since it attached."""

    count: int
    refused: int  # requested and not kept
    stalled_s: float  # for which training stood still, in all
    files: int  # that there is room for: 0, 1 or 2


@dataclass(frozen=True, slots=True)
class RankWork:
    """The work that a rank has reported since it attached, in all."""

    flops: float
    tokens: float
    samples: float
    data_type: str = ""  # of the FLOPs; empty: none were reported
    device: str = ""  # name of its accelerator; empty: not known


@like_dataclass
class RankReport(QuickStruct, frozen=True):
    """One rank of the reported attempt. None: the rank has not reported it yet."""

    rank: int
    local_rank: int
    pid: int
    process_state: str  # letter of /proc/PID/stat: R, S, D, T, t, Z ...; empty when gone
    attached_age_s: float | None = None
    resumed_age_s: float | None = None
    first_section_age_s: float | None = None
    step: int | None = None  # number of its newest finished step
    step_age_s: float | None = None
    steps_done: int = 0  # in this attempt
    is_relative: bool = False  # step numbers count from the start of the process
    section: str = "idle"
    section_age_s: float | None = None
    sections_entered: int = 0
    collectives_entered: int = 0
    collectives_completed: int = 0
    collective_timeout_s: float | None = None  # timeout of the newest collective
    has_pairs: bool = False  # it sends to or receives from single ranks
    timings: tuple[StepTiming, ...] = ()  # new ones since the last report
    progress_error: str | None = None  # why its progress file can't be read
    exit: RankExit | None = None
    start: RankStart | None = None
    rendezvous_began_age_s: float | None = None
    rendezvous_ended_age_s: float | None = None
    snapshots: KeptSnapshots | None = None  # None: the script asks for none
    numbers: tuple[StepNumbers, ...] = ()  # new ones since the last report, at most NUMBERS_MAX
    first_bad_loss: BadNumber | None = None  # since the rank attached
    first_bad_grad_norm: BadNumber | None = None
    work: RankWork | None = None  # None: the script reports none
    hidden: ToldHidden | None = None  # since it attached, in all; None: nothing measures it
    place: ToldPlace | None = None  # in the model's layout; None: not known
    nccl: tuple[str, ...] = ()  # versions that it has loaded; empty: none, or not reported
    # The process that made its steps has ended, and the program that had started it, such as a shell script, runs on.
    is_past_training: bool = False
    script_end: ScriptEnd = ScriptEnd.RUNNING


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """What one rank reported before it was stopped."""

    rank: int
    stack: tuple[Frame, ...]  # Python calls of its main thread, the innermost first
    dump: FlightDump | None  # the part of its flight-recorder dump that a verdict needs


@dataclass(frozen=True, slots=True)
class Collected:
    """The evidence of an incident that a launcher saved on its node. Files: docs/operate/incidents.md."""

    incident_id: str
    attempt: int
    folder: str  # on that node
    files: int
    size_bytes: int
    took_s: float
    notes: tuple[str, ...]  # what is missing and why; at most 32
    ranks: tuple[RankEvidence, ...] = ()  # in the first reports only
    output_says: str = ""  # what the ranks' output says, where none has an error that is known


@dataclass(frozen=True, slots=True)
class HardwareSeries:
    """Readings of one series of a node, as `detectors.slow.cause_table` names them."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    points: tuple[tuple[float, float], ...]  # age in seconds and value, the oldest first


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware metrics of a node while a rank of the job is slow."""

    asked: int  # number in the order that requested it
    series: tuple[HardwareSeries, ...]
    note: str = ""  # what is missing and why


@dataclass(frozen=True, slots=True)
class ToldFinding:
    """A finding about the job; the node's agent exports it as a metric and an alert."""

    key: str  # equal for the same finding
    kind: str  # one of detectors.finding.Kind: rank_slow, rank_hung, rank_failed
    ranks: tuple[int, ...]  # culprits on this node; none: no rank here is blamed
    section: str = ""  # for a slow rank
    cause: str = (
        ""  # for a slow rank, from detectors.slow.cause_table; empty: hardware shows nothing
    )
    factor: float = 0.0  # for a slow rank: its own work divided by its peers'


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the ranks of one attempt meet, or where peers reach a launcher."""

    address: str
    port: int
    is_hosted: bool = False  # the launcher there hosts the store; else rank 0 does


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """One checkpoint that a launcher found and checked."""

    path: str
    step: int | None
    kind: str  # value of a recovery.messages.candidates.CheckpointFormat
    size_bytes: int
    modified_unix_s: float
    is_valid: bool
    reason: str
    hindrance: str = ""  # value of a recovery.messages.candidates.Hindrance; "" when valid
    is_step_exact: bool = False  # the step comes from the content, not from the name
    share: Share = WHOLE  # whose content was read; names and sizes are always checked whole
    # Change of its oldest file; 0: it is one file, or not looked at.
    oldest_unix_s: float = 0.0
    parts: tuple[HeldPart, ...] = ()  # on this node's own disk, of formats that divide a save so
    # Of a valid one: whole in its structure, and so much of its content was not checked yet.
    unchecked_bytes: int = 0
    has_wrong_sum: bool = (
        False  # its bytes contradict their checksums, and nobody changed the files
    )
    # What its content holds: fields of a recovery.messages.candidates.Shape.
    holds: str = ""
    tensors: int = 0
    elements: int = 0
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The content of the checkpoint folder after the launcher's ranks were gone."""

    empty_through: int  # the look came after every process up to this attempt was gone
    checkpoints: tuple[FoundCheckpoint, ...]  # newest first, at most 20
    error: str | None = None  # why the folder can't be read
    revision: int = 0  # the revision of the order that requested it; an older look doesn't count
    # Why no attempt could publish there now: value of a recovery.checkpoints.unwritable.Unwritable, and in words; "" if one could.
    unwritable: str = ""
    unwritable_text: str = ""
    free_bytes: int = -1  # beside the checkpoints; -1: not known


@dataclass(frozen=True, slots=True)
class Peer:
    """A launcher of the attempt that others ask (docs/operate/fencing.md)."""

    node: str
    launcher_id: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Restore:
    """The checkpoint that the ranks continue from."""

    path: str
    step: int | None


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """A step at which ranks have kept their training state in memory, and the attempt in which they did."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class PartDigest:
    """What the floating-point tensors below one key of a rank's state add up to."""

    name: str  # the key, at most 64 characters
    digest: str  # XXH3-64, 16 hexadecimal digits


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """One rank's whole snapshot in the memory of the reporting node."""

    rank: int
    attempt: int
    step: int
    world_size: int  # of its attempt
    size_bytes: int
    digest: str  # XXH3-128 of its content, 32 hexadecimal digits
    age_s: float  # since it was written
    is_damaged: bool = False  # its content has changed since it was written
    parts: tuple[PartDigest, ...] = ()  # at most 16
    sequence: int = 0  # counts the rank's snapshots; 0: not reported

    @property
    def point(self) -> SnapshotPoint:
        return SnapshotPoint(self.attempt, self.step)


class CopyFault(Enum):
    """Why a snapshot was not copied or fetched."""

    CHANGED = "changed"  # the rank has begun to overwrite it, or it holds another one
    MISSING = "missing"  # the file or the copy isn't there
    DAMAGED = "damaged"  # the bytes don't have the digest
    FULL = "full"  # no room
    FENCED = "fenced"  # of an attempt that is over
    REFUSED = "refused"  # not what the other launcher expects
    UNREACHABLE = "unreachable"  # no connection
    CUT = "cut"  # the connection ended, stalled, or was tampered with
    UNPROVEN = "unproven"  # no proof of the job's secret
    LOST = "lost"  # the copier died


@dataclass(frozen=True, slots=True)
class CopyFaultTold:
    """A copy or a fetch that failed; the launcher tries again unless it is final."""

    rank: int
    attempt: int
    step: int
    node: str  # the other end
    fault: CopyFault

    @property
    def is_final(self) -> bool:
        """Return whether there is nothing to copy."""
        return self.fault in (CopyFault.CHANGED, CopyFault.MISSING, CopyFault.DAMAGED)

    @property
    def may_pass(self) -> bool:
        """Return whether the same may succeed a moment later."""
        return self.fault in (CopyFault.UNREACHABLE, CopyFault.CUT, CopyFault.LOST)


@dataclass(frozen=True, slots=True)
class Claim:
    """The newest orders of the controller that a launcher follows, reported to another one.

    A controller whose journal lacks the attempt adopts it when enough launchers claim the same
    (docs/operate/fencing.md).
    """

    contact_age_s: float  # since the last answer of the controller that it follows
    attempt: int = 0  # newest ordered attempt; 0: none
    ranks: tuple[int, ...] = ()  # ranks ordered on this node; none: it was a spare
    world_size: int = 1
    group_rank: int = 0
    group_count: int = 1
    restarts: int = 0
    restore: Restore | None = None  # what the attempt restored
    rendezvous: Endpoint | None = None  # where its ranks met
    peers: tuple[Peer, ...] = ()
    snapshot: SnapshotPoint | None = None  # what the attempt restored from memory
    group_sizes: tuple[int, ...] = ()  # as in the order


@dataclass(frozen=True, slots=True)
class NodeKinds:
    """What hardware a node has, as driver and firmware name it; empty: none, or not known; "several": of several kinds."""

    gpu: str = ""
    nic: str = ""
    node: str = ""  # vendor and product


NO_KINDS: Final = NodeKinds()


@like_dataclass
class Report(QuickStruct, frozen=True):
    """What one node is running for one job."""

    version: int
    node: str
    boot_id: str
    job_id: str
    revision: int  # newest order that the launcher carried out; 0: none
    attempt: int  # attempt of the ranks below; 0 before the first
    ranks: tuple[RankReport, ...]
    empty_through: int  # no process of this attempt or an older one is left on this node
    launch_error: str | None = None  # why the order's ranks could not start
    stop_requested: StopReason | None = None  # a planned stop: "SIGTERM", "time limit" ...
    findings: tuple[Finding, ...] = ()
    collected: Collected | None = None  # evidence of the incident that the newest order names
    launcher_id: str = ""  # UUID of this start of the launcher
    number: int = 0  # this report's number, from 1 for each launcher_id; older reports are ignored
    slots: int = 0  # ranks that this node can run; 0: as many as ordered
    rendezvous: Endpoint | None = None  # its suggestion for the next attempt: a fresh port
    peer_endpoint: Endpoint | None = None  # where other launchers check that it lives
    unreachable: tuple[str, ...] = ()  # the order's peers and neighbours that it can't reach
    fence_attempt: int | None = None  # read beside the checkpoints; None: no folder, or not yet
    found: Found | None = None  # only from a node whose order asks for it
    # Start of the launcher, CLOCK_BOOTTIME: within one boot_id the later one is the newer. 0: unknown.
    launcher_started_s: float = 0.0
    hardware: Hardware | None = None  # only when an order asks, in the first reports
    # This launcher carries out no further order, and nothing that it started is left on the node.
    leaving: bool = False
    # The newest controller whose orders it follows. 0 and empty: none yet.
    epoch: int = 0
    controller_id: str = ""
    claim: Claim | None = None  # only while another controller receives its reports
    launch_fault: str = ""  # the launch error for programs: ENOENT, store ...
    # Checkpoints seen during training, newest first, at most 4; only from a node with a share and
    # from group rank 0.
    known: tuple[FoundCheckpoint, ...] = ()
    folder_id: str = ""  # of the checkpoint folder that this node sees; empty: none, or not known
    kinds: NodeKinds = NO_KINDS  # of its hardware
    put_back: PutBack | None = None  # the checkpoint that was put back last
    # What the ranks have kept in memory; while they run, as far as it was read.
    snapshots: tuple[HeldSnapshot, ...] = ()
    # All of them were read after the last process of this attempt had gone; None: by a version that keeps none.
    snapshots_through: int | None = None
    copier: Endpoint | None = (
        None  # that takes copies of other nodes' snapshots; None: there is none
    )
    # What a fault may take with this node, from the widest part to the narrowest: switches or a block, as Slurm names them.
    domain: tuple[str, ...] = ()
    domain_is_block: bool = False  # ``domain`` is a block of Slurm's topology/block, no switch
    copies: tuple[HeldSnapshot, ...] = ()  # whole copies of other nodes' snapshots
    copy_faults: tuple[CopyFaultTold, ...] = ()  # of the newest request, until they are made good
    role: str = ""  # --role of its ranks; empty: "default"
    can_probe: bool = False  # this launcher takes part in tests of the network on request
    passed_preflight: bool = (
        False  # this node, at the launcher's start; false: or it was not checked
    )
    probe: ProbeTold | None = None  # its part in the newest one
    # Number of the newest LauncherLine that this launcher has printed; None: it prints none (--quiet, or an older version).
    line_printed: int | None = None


@dataclass(frozen=True, slots=True)
class LauncherLine:
    """What the launchers of a job print of one journal record."""

    number: int  # of the record
    text: str  # may have several lines


@dataclass(frozen=True, slots=True)
class Order:
    """What one node should run for one job. No ranks: nothing."""

    version: int
    job_id: str
    revision: int  # grows with every order of the job
    attempt: int  # the attempt of the ranks below; without ranks, the attempt that must be gone
    ranks: tuple[int, ...]  # global ranks of this node, local rank = place in this list
    world_size: int
    group_rank: int  # number of this node
    group_count: int
    stop: Stop  # how to stop running ranks that are not named here
    grace_s: float
    restore: Restore | None
    restarts: int  # TORCHELASTIC_RESTART_COUNT
    restarts_max: int  # TORCHELASTIC_MAX_RESTARTS
    collect: str | None = None  # incident whose evidence to save before killing ranks
    collect_s: float = 0.0  # longest delay of the kill for that; 0: ranks are dying, don't ask them
    node: str = ""  # node that the order is for
    launcher_id: str = ""  # start of that node's launcher; empty: any
    epoch: int = 0  # the controller's epoch; launchers refuse an older one
    rendezvous: Endpoint | None = None  # None: the launcher chooses (one node)
    # The same list for every launcher of the attempt: all of them, or WITNESSES_MAX spread evenly.
    # More than half of this list is the majority that a lease asks for.
    peers: tuple[Peer, ...] = ()
    lease_s: float = 0.0  # stop the ranks when cut off for this long; 0: never (one node)
    finds_checkpoints: bool = False  # look into the checkpoint folder and report its content
    controller_id: str = ""  # UUID of its start: a launcher follows the first one of an epoch
    reads_hardware: int = 0  # number of the record that asks for hardware metrics; 0: not now
    findings: tuple[ToldFinding, ...] = ()  # all findings for this node's agent
    # What this node reads of each checkpoint, in a look and beside training. None: it looks at all
    # if `finds_checkpoints` asks, and beside training nobody needs it.
    share: Share | None = None
    # The launchers of the nodes before and after this one in the ring of group ranks, queried often
    # whether they can be reached. They don't count for the lease, unless `peers` has them, too.
    neighbours: tuple[Peer, ...] = ()
    snapshot: SnapshotPoint | None = None  # that the ranks restore from memory
    continues: tuple[
        int, ...
    ] = ()  # ranks of this node that get SIGCONT if a signal has stopped them
    continue_number: int = 0  # number of the record that asks for it: once for each; 0: none does
    spare_count: int = 0  # nodes of the job that wait while this attempt runs; for people
    group_sizes: tuple[int, ...] = ()  # ranks of each node by group rank; empty: all have as many
    # The first of this node's ranks among those of its role, and how many these are. 0: the job has one role.
    role_rank: int = 0
    role_world_size: int = 0
    # The longest that a kill may take once the lease is over; then a rank that still steps ends itself. 0: it never does.
    kill_bound_s: float = 0.0
