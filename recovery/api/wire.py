"""Types of the API's requests and answers, beside reports and orders. docs/reference/api.md describes it.

The same types decode the requests, encode the answers and make /openapi.json.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from detectors.parallel_groups import RANKS_MAX
from detectors.replicas.layout import PART_CHARACTERS_MAX, SHARDED_MAX
from recovery.journal.job_records import ClaimProof, JobOutcome
from recovery.messages.copying import CopyRequest
from recovery.messages.exchange import EPOCH_MAX, LauncherLine
from recovery.messages.outside import PersonAct
from recovery.messages.probing import ProbeRequest

VERSION: Final = 1
# Per long poll, below the 50 or 60 s after which most proxies and load balancers give up.
WAIT_S_MAX: Final = 45.0
WAIT_S_SAFE: Final = 25.0  # what every controller allows; a few proxies give up after 30 s
NODES_MAX: Final = 20_000
SLOTS_MAX: Final = 1024
JOURNAL_UNREADABLE: Final = "journal"  # refusal of a 503: a journal cannot be read or written
POD_TOKEN_CHARACTERS_MAX: Final = 16 * 1024  # a signed token of a pod has 1,100 to 1,600
INCIDENTS_MAX: Final = 1000  # incidents of one answer, and ended jobs
FINDINGS_MAX: Final = 1000  # open findings of nodes in one answer

POLICY_OVERRIDES: Final = frozenset(
    {
        "restarts_max",
        "restarts_per_day_max",
        "no_progress_max",
        "no_progress_any_max",
        "same_error_max",
        "verify_timeout_s",
        "start_timeout_s",
        "verify_alive_s",
        "verify_attached_s",
        "join_wait_s",
        "spare_wait_s",
        "save_wait_s",
        "grow_every_s",
        "observe",
        "evidence_wait_s",
        "fence_timeout_s",
        "snapshot_copies",
    }
)
"""Limits that a job's owner may set: how patient recovery is with his own job, and how often it tries."""

# A name travels in paths, labels and file names: no slash, blank or control character.
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,252}$(?!\n)"
# What people may call a job, an attribute or themselves: any letters and blanks inside, and nothing that a terminal obeys or
# hides (`rankmend.printable`), nor blanks that look like another one or like nothing. Regular expressions of JSON Schema, so that /openapi.json holds them.
_UNSEEN: Final = (
    r"\x00-\x1f\x7f-\xa0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\ufffe\uffff"
    # as they are: JSON Schema has no escape of eight
    "\U00013430-\U0001345f\U00016fe4\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Marks that a terminal draws over the letter before them, of scripts in use, and the second and third parts of Korean syllables: as many
# as Vietnamese and Hebrew need, and one more.
_MARKS: Final = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0730-\u074a\u07eb-\u07f3\u0816-\u082d"
    r"\u0859-\u085b\u0897-\u089f\u08ca-\u0903\u093a-\u094f\u0951-\u0957\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    r"\u0f18\u0f19\u0f35-\u0f39\u0f71-\u0f87\u0f8d-\u0fbc\u102b-\u103e\u1160-\u11ff\u135d-\u135f\u17b6-\u17d3\u18a9\u1a17-\u1a1b\u1a55-\u1a7f"
    r"\u1ab0-\u1aff\u1b00-\u1b04\u1b34-\u1b44\u1b6b-\u1b73\u1cd0-\u1cf9\u1dc0-\u1dff\u20d0-\u20ff\u2cef-\u2cf1\u2de0-\u2dff\u302a-\u302f\u3099\u309a"
    r"\ua66f-\ua67d\ua69e\ua69f\ua6f0\ua6f1\ua8e0-\ua8f1\ua926-\ua92d\ud7b0-\ud7fb\ufb1e\ufe20-\ufe2f"
    "\U00010a01-\U00010a3a\U00010d24-\U00010d27\U00010f46-\U00010f50\U00016af0-\U00016af4\U0001cf00-\U0001cf46\U0001d165-\U0001d1ad\U0001d242-\U0001d244"
    "\U0001da00-\U0001daaf\U0001e000-\U0001e02a\U0001e130-\U0001e136\U0001e8d0-\U0001e8d6\U0001e944-\U0001e94a"
)
_FEW_MARKS: Final = rf"(?![\s\S]*[{_MARKS}]{{4}})"
LABEL_PATTERN: Final = rf"^{_FEW_MARKS}[^{_UNSEEN}]*$(?!\n)"
TITLE_PATTERN: Final = (
    rf"^{_FEW_MARKS}[^{_UNSEEN} \u3000](?:[^{_UNSEEN}]*[^{_UNSEEN} \u3000])?$(?!\n)"
)
NODES_PATTERN: Final = (
    r"^[A-Za-z0-9*?\[][A-Za-z0-9._:*?\[\]!-]{0,252}$(?!\n)"  # a name or shell pattern
)
LAUNCHER_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$(?!\n)"
Label = Annotated[str, Meta(max_length=256, pattern=LABEL_PATTERN)]
Title = Annotated[str, Meta(min_length=1, max_length=128, pattern=TITLE_PATTERN)]
LauncherId = Annotated[str, Meta(pattern=LAUNCHER_PATTERN)]
Name = Annotated[str, Meta(pattern=NAME_PATTERN, description="a node or a job")]
Text = Annotated[str, Meta(max_length=256)]
PartName = Annotated[str, Meta(max_length=PART_CHARACTERS_MAX)]
Reason = Annotated[str, Meta(max_length=1000)]
UnixSeconds = Annotated[float, Meta(ge=0, lt=1e15, description="seconds since 1970")]
Uuid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$(?!\n)")]


class Problem(Struct, omit_defaults=True):
    """Why a request was refused."""

    error: str
    field: str = ""
    value: str = ""
    outcome: JobOutcome | None = None  # with 410: how the job ended
    lines: list[
        LauncherLine
    ] = []  # with 410: the job's last ones, where the controller still has them
    # With 409: why a person's command was not obeyed (recovery.messages.outside.Refusal). With 503: why not
    # now (recovery.service.http.error_answers.NotNow).
    refusal: str = ""


class ParallelSizes(Struct, frozen=True):
    """Parallel sizes that the job's owner declares: ranks with the same tp, ep and pp place are replicas."""

    tp: Annotated[int, Meta(ge=1, le=RANKS_MAX)] = 1
    cp: Annotated[int, Meta(ge=1, le=RANKS_MAX)] = 1
    ep: Annotated[int, Meta(ge=1, le=RANKS_MAX)] = 1
    dp: Annotated[int, Meta(ge=1, le=RANKS_MAX)] | None = None  # null: by the number of ranks
    pp: Annotated[int, Meta(ge=1, le=RANKS_MAX)] = 1
    # Keys of the state that replicas divide among them.
    sharded_parts: Annotated[list[PartName], Meta(max_length=SHARDED_MAX)] = []


class ClaimNews(Struct):
    """The launcher took the checkpoint folder from an owner that had not released it."""

    owner: Reason
    proof: ClaimProof
    by: Text


class Join(Struct, kw_only=True):
    """What a launcher said when it joined, as the controller keeps it: names of older ones may be odd."""

    version: Annotated[int, Meta(ge=0, le=2)] = VERSION
    key: Annotated[str, Meta(min_length=1, max_length=512)]
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    node: Name
    launcher_id: Annotated[str, Meta(min_length=1, max_length=64)]
    run: Text = ""
    nodes_min: Annotated[int, Meta(ge=1, le=NODES_MAX)]
    nodes_max: Annotated[int, Meta(ge=1, le=NODES_MAX)]
    slots: Annotated[int, Meta(ge=1, le=SLOTS_MAX)]
    shrink_multiple: Annotated[int, Meta(ge=0, le=NODES_MAX * SLOTS_MAX)] = 0
    spares: Annotated[int, Meta(ge=0, lt=NODES_MAX)] = (
        0  # of nodes_max, where shrink_multiple isn't 0
    )
    parallel: ParallelSizes | None = None  # null: nobody says which ranks are replicas
    grace_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    policy: Annotated[dict[str, float], Meta(max_length=len(POLICY_OVERRIDES))] = {}
    attributes: Annotated[dict[Text, Text], Meta(max_length=32)] = {}
    job_id: Uuid | None = None
    has_checkpoints: bool = False
    checkpoint_folder: Text = ""  # as this launcher names it, for people
    takes_checkpoint: bool | None = None  # whether its ranks begin from the one they are given
    checkpoint_names: Annotated[list[Text], Meta(max_length=32)] = []  # --checkpoint-name
    program: Text = ""  # name and hash of the script that its ranks run; empty: not known
    budgets_reset_by: Text | None = None
    starts_from_scratch: bool = False
    claim_taken: ClaimNews | None = None
    # Of the controller that it follows, where it has lost that one: a job that is not known here
    # begins above it.
    epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)] = 0
    begins: bool = True  # False: only a job that runs here; 404 for one that is not known


class JoinRequest(Join, kw_only=True):
    """A launcher wants to run ranks of a job."""

    name: Title
    launcher_id: LauncherId
    run: Label = ""
    checkpoint_folder: Label = ""
    checkpoint_names: Annotated[list[Label], Meta(max_length=32)] = []
    attributes: Annotated[dict[Label, Label], Meta(max_length=32)] = {}
    budgets_reset_by: Label | None = None
    # The projected service-account token of the launcher's pod. The controller has it reviewed, and keeps it nowhere.
    pod_token: Annotated[str, Meta(max_length=POD_TOKEN_CHARACTERS_MAX)] = ""


class JoinAnswer(Struct):
    job_id: str
    is_new: bool
    report_s: float
    wait_s: float
    secret: str  # the job's secret: launchers authenticate to each other with it
    attempt: int = 0  # the job's newest; 0 before the first
    line: int = 0  # number of the newest LauncherLine that is older than this launcher


class Accepted(Struct):
    """A report is queued."""

    revision: int  # the revision of its node's newest order
    # Of the controller that decides for the job; a launcher that follows another one says so in its
    # reports. 0 and empty: not known.
    epoch: int = 0
    controller_id: str = ""
    attempt: int = 0  # the job's newest there; 0 before the first
    copies: CopyRequest | None = None  # of snapshots on other nodes; null: nothing is asked
    probe: ProbeRequest | None = None  # its part in a test of the network; null: it has none
    lines: list[LauncherLine] = []  # that the launcher has not printed yet, oldest first


class StartView(Struct):
    """Ranks of a node whose processes came to be in the same way."""

    start: str  # forked, standby or fresh; empty: in a way that this controller does not know
    ranks: list[int]
    why_not_forked: str = ""  # empty where no fork server was requested


class NodeView(Struct):
    """A node by the newest report of one job's launcher."""

    node: str
    job_id: str
    heard_age_s: float | None
    attempt: int
    ranks: list[int]
    is_spare: bool
    boot_id: str
    held: str | None = None  # why it gets no ranks, or the next restart leaves it
    starts: list[StartView] = []  # of the newest attempt; none: not reported
    leaf: str = ""  # switch, as the topology file tells; empty: not known
    rack: str = ""
    nvlink_domain: str = ""
    block: str = ""  # of Slurm's topology/block


class CostView(Struct):
    """What saving every ``interval_s`` costs: shares of the wall time, 0 to 1."""

    interval_s: float  # from the begin of a save to the next
    stalls: float
    recomputed: float
    restarts: float
    total: float


class CheckpointView(Struct):
    """The newest restorable checkpoint of a job, its saves, and what they cost. None: not known."""

    path: str
    format_name: str
    step: int | None
    steps_since: int | None
    age_s: float  # age of its newest file
    size_bytes: int | None
    saves: int  # measured, of the newest ones
    interval_s: float | None  # usual, from the begin of a save to the next
    stall_s: float | None  # for how long a save stops training
    stall_source: str  # value of a recovery.journal.attempt_records.StallSource
    save_s: float | None  # from the first change of its files to the last
    write_bytes_per_s: float | None
    restore_s: float | None  # the newest restore, on the slowest rank
    read_bytes_per_s: float | None
    failures: float  # older ones count less: half after 7 days of running
    ran_s: float  # time in which these came
    failure_interval_s: float  # mean running time between failures
    prior_failure_interval_s: float  # the published one that it begins from
    repair_s: float | None  # mean, from a fault to the first step
    present: CostView | None
    best: CostView | None
    formula: str
    missing: str  # what is missing for the costs; empty: nothing


class UnsavedView(Struct):
    """A job trains, and a restart could use nothing of it."""

    cause: str  # value of a rankmend.rank_values.Unsaved
    since_s: (
        float | None
    )  # trained since its last save or its begin, at least; None: it never saves
    folder: str  # where checkpoints are looked for; empty: not known here, or nowhere
    example: str  # the newest that can't be restored, and why
    text: str  # all of it for people


class SnapshotView(Struct):
    """What a job's ranks keep in the memory of their nodes, and what that costs. None: not known."""

    # newest of which every rank has its part, whole and unchanged; None: there is none
    step: int | None
    attempt: int | None  # in which that was written
    steps_since: int | None
    age_s: float | None  # of its oldest part
    size_bytes: int | None  # of all its parts
    held_bytes: int  # of all snapshots on all nodes that were looked at
    node_bytes: int  # the most that one node holds
    ranks: int  # that were looked at: without a controller service, those of this machine
    without_count: int  # ranks without any whole snapshot
    without: list[int]  # the first of these
    damaged: int  # snapshots that have changed in memory since they were written
    refused: int  # by the running ranks: requested and not kept
    files: int | None  # that the rank with the least room has: 2, 1 or 0
    stall_s: float | None  # for which one stops training, on the slowest rank: mean of this attempt
    interval_s: float | None  # from one to the next
    stayed_ratio: float  # share of failures that leave every rank on its node
    failure_interval_s: float  # mean running time between such failures
    present: CostView | None
    best: CostView | None
    formula: str
    missing: str  # what is missing for the costs; empty: nothing
    # The newest step of which other nodes have copies of all ranks; None: there is none.
    copied_step: int | None = None
    copied_steps_since: int | None = None
    copied_age_s: float | None = None  # since the last of these copies arrived
    copied_bytes: int = 0  # of all copies on all nodes


class PlaneView(Struct):
    """A network of a job's nodes that is degraded on some of them."""

    plane: str  # compute, storage, service, management, in-band, out-of-band
    nodes: list[str]
    summary: str  # of the first node's finding
    part: str = ""  # the switch that explains these nodes and others; empty: none is known


class NcclShare(Struct):
    """The ranks of a job that have loaded the same NCCL, where not all have."""

    version: str
    nodes: list[str]
    ranks: list[int]


class JobView(Struct):
    job_id: str
    name: str
    owner: str
    state: str
    attempt: int
    world_size: int
    nodes: int
    restarts: int
    restarts_without_progress: int
    highest_step: int | None
    incidents: int
    incident_id: str | None
    reason: str | None
    is_paused: bool = False
    problem: str | None = None  # why the controller can't manage it now
    attributes: dict[str, str] = {}
    # Of the job's own budgets; None where the job has ended.
    restarts_left: int | None = None
    no_progress_left: int | None = None  # restarts without progress, if the cause stays the same
    # The attempt that was adopted after the job's history was lost, until a person confirms.
    adopted_attempt: int | None = None
    checkpoint: CheckpointView | None = None  # None: none was seen, or an older controller
    snapshots: SnapshotView | None = (
        None  # None: the ranks keep none, or nobody has told of them yet
    )
    parallel: ParallelSizes | None = None  # as declared; None: nobody did
    # Which controller of the database has it; empty: the one that was asked, or none.
    controller: str = ""
    told_age_s: float | None = None  # of all this, where that controller does not answer; None: new
    planes: list[PlaneView] = []  # networks of its nodes that are degraded now
    fabric_probe: str = ""  # of idle nodes while its communication is slow: what it does, or found
    nccl: list[NcclShare] = []  # of its ranks' NCCLs; empty: all alike, or not reported
    unsaved: UnsavedView | None = None  # None: it saves, has not trained for long, or has ended
    # `restarts` counts those since a person last started it; None: of an older controller.
    restarts_in_all: int | None = None
    tokens: list[
        str
    ] = []  # ids of the tokens that its launchers use, as far as they have joined or reported here
    orphans: list[
        str
    ] = []  # nodes whose launchers are turned away: `problem` says why, and what to do
    began_unix_s: float | None = None  # of its first record; None: not known
    lasted_s: float | None = None  # from then to its end, or until now; None: not known
    script: str = ""  # file name of what its ranks run; empty: not known
    # Since the fault of the open incident; None: none is open, or its controller doesn't say.
    down_s: float | None = None


class Jobs(Struct):
    jobs: list[JobView]


class JobDetail(Struct):
    job: JobView
    nodes: list[NodeView]


class Nodes(Struct):
    nodes: list[NodeView]


class RankMap(Struct):
    """Where the ranks of a job's newest attempt stand: columns of equal length, in the order of ``ranks``."""

    job_id: str
    attempt: int
    step_s: float | None  # usual time of a step; null: not known
    node_names: list[str]
    ranks: list[int]
    nodes: list[int]  # places in node_names
    steps: list[int | None]
    ages_s: list[float | None]  # since the rank last advanced
    states: list[str]  # values of recovery.controller.job.watch.rank_picture.RankState
    factors: list[float | None]  # a rank's own work in a step over its peers'; null: not known
    # Step and loss, the mean of the ranks that report it, thinned to 241 at most; empty: none does.
    losses: list[tuple[int, float]] = []


class NodeChargeView(Struct):
    node: str
    kind: str  # value of detectors.node.charges.ChargeKind
    counts: bool
    reason: str


class IncidentView(Struct):
    incident_id: str
    job_id: str
    job: str
    opened_unix_s: float
    attempt: int
    cause: str
    signature: str
    summary: str
    blame: str
    node: str
    ranks: list[int]
    victims: list[int]
    outcome: str
    tries: int
    steps: list[str]  # planned recovery steps, one per try
    # Seconds, by the values of recovery.journal.accounting.RecoveryPhase and "_s". None: not reached,
    # or part of a later phase (see `notes`).
    phases: dict[str, float | None]
    notes: list[str]
    total_s: float | None
    recovered_s: float | None
    steps_recomputed: int | None
    caught_up_s: float | None
    # Where the last try began: value of a recovery.journal.accounting.Tier; None: no attempt was started.
    restored_from: str | None = None
    restored_step: int | None = None
    charges: list[NodeChargeView] = []  # what counts against nodes, and what doesn't
    blamed_before: str = ""  # value of Blame, where the blame was corrected since
    # Value of recovery.console.views.incident_view.IncidentStanding: the word that people read; empty: of an older controller.
    standing: str = ""
    waits_for: str = ""  # value of WaitsFor, where its plan waits
    highest_step: int | None = None  # of the job, when it opened
    ranks_lost: int = 0  # ranks of the job that did not train while it was open; 0: not known
    # Seconds from the fault until all that was lost is made again; until its end where the job ended; None: not over yet.
    lost_s: float | None = None
    is_lost_least: bool = (
        False  # it lost that much at least: nobody knows what had to be made again
    )
    # Since the fault, by the clock of who answers; None: it is over, its ranks train on, or an older controller answers.
    down_s: float | None = None
    # Seconds for which its ranks trained on after it opened, as with a slow rank; None: they do now.
    trained_s: float | None = 0.0


class Incidents(Struct):
    incidents: list[IncidentView]


class StoryLine(Struct):
    number: int
    unix_s: float
    monotonic_s: float
    boot_id: str
    kind: str
    text: str | None
    details: list[str]
    record: msgspec.Raw  # as it is in the journal: docs/reference/journal.md


class Story(Struct):
    """The content of `rankmend why`."""

    job_id: str
    job: str
    incident_id: str | None
    lines: list[StoryLine]


class PlanView(Struct):
    """A plan that waits, or (dry run) one that would be carried out."""

    job_id: str
    job: str
    incident_id: str
    try_number: int
    step: str
    reason: str
    judgement: str
    judgement_reason: str
    without: list[str] = []
    plan_id: str = ""  # equal for equal plans: an approval can name it
    waits_for: str = "leave"  # for an approval or a pause's end; "nodes": no approval replaces them
    # For how long it waits until the job is given up; None: without end, or not known.
    gives_up_after_s: float | None = None


class Plans(Struct):
    plans: list[PlanView]


class JobCommand(Struct, kw_only=True):
    """A person's command to one job."""

    act: PersonAct
    reason: Reason = ""
    incident_id: Annotated[str, Meta(max_length=128)] | None = None
    node: Name | None = None
    key: Annotated[str, Meta(max_length=128)] = ""
    plan_id: Annotated[str, Meta(max_length=64)] = ""  # the plan to approve or reject


class Because(Struct):
    """Body of a command to the cluster or a node."""

    reason: Reason = ""
    is_expected: bool = False  # the node may be one that the controller does not know yet


class NodeDrain(Struct):
    """Body of a drain: as `Because`, and whether the manager of the node's jobs is to take it out, too."""

    reason: Reason = ""
    is_expected: bool = False
    also_in: Annotated[str, Meta(pattern="^(|slurm|kubernetes)$")] = (
        ""  # within its bounds, dry until it may act
    )


class Window(Struct, kw_only=True):
    """Somebody works on the nodes: they get no ranks, and their alerts accuse nobody."""

    nodes: Annotated[
        list[Annotated[str, Meta(pattern=NODES_PATTERN)]], Meta(min_length=1, max_length=10_000)
    ]
    from_unix_s: UnixSeconds
    until_unix_s: UnixSeconds
    reason: Reason = ""
    is_expected: bool = False  # nodes may be ones that the controller does not know yet


class WatchedFinding(Struct):
    """A rank that a watched job waits for, or (no ranks) the verdict that no machine is to blame."""

    kind: str
    blame: str
    summary: str
    node: str
    ranks: list[int]
    evidence: list[str]


class WatchedView(Struct):
    """A job that another launcher has started, as the agents of its nodes report it."""

    job_id: str
    name: str
    user: str
    launcher: str
    slurm_job: str  # its number; empty: not Slurm's
    restarter: str  # what starts its ranks again by itself: torchelastic, nvrx; empty: nothing
    attempt: int
    world_size: int
    ranks_seen: int  # living ones, on nodes with an agent
    nodes: list[str]
    step: int | None
    step_s: float | None
    state: str  # value of recovery.controller.watched.verdict.WatchedState
    state_age_s: float
    reason: str
    findings: list[WatchedFinding] = []
    act: str = ""  # what is done about it by policy, or why nothing is; empty: people are notified
    nccl: list[NcclShare] = []  # of its ranks' NCCLs; empty: all alike, or not reported


class Watched(Struct):
    watched: list[WatchedView]


class WatchedSpan(Struct, array_like=True):
    """A stretch of a watched job's time. Seconds since it was first heard of."""

    begin_s: float
    end_s: float
    part: str  # docs/reference/goodput.md
    gpus: int
    stall_id: str  # that it is the cost of; empty: none
    is_estimated: bool


class WatchedStall(Struct):
    """A failure of a watched job. Seconds since it was first heard of."""

    stall_id: str
    kind: str  # hung, restarted
    ranks: list[int]
    node: str
    begin_s: float
    recovered_s: float | None


class WatchedSlow(Struct):
    """A rank that the job waited for at every step. Seconds since it was first heard of."""

    rank: int
    node: str
    section: str
    step_factor: float  # 1: not known
    begin_s: float
    end_s: float


class WatchedWork(Struct, array_like=True):
    """Work that ranks of a watched job told, and in which time."""

    begin_s: float
    end_s: float
    ranks: int
    flops: float
    tokens: float
    samples: float
    data_type: str
    device: str


class WatchedHidden(Struct, array_like=True):
    """What of one kind of work ran beside the ranks' own."""

    steps: int
    least_s: float
    most_s: float | None
    sources: list[str]
    gaps: list[str]


class WatchedSteps(Struct, array_like=True):
    """What ranks of a watched job spent steps on."""

    end_s: float
    ranks: int
    steps: int
    step_s: float
    compute_s: float
    communication_s: float
    waited_s: float
    io_s: float
    checkpoint_s: float
    hidden_communication: WatchedHidden | None = None
    hidden_io: WatchedHidden | None = None


class WatchedTime(Struct):
    """Where the time of a watched job went."""

    job_id: str
    name: str
    began_unix_s: float
    has_ended: bool
    spans: list[WatchedSpan]
    stalls: list[WatchedStall]
    slow: list[WatchedSlow]
    work: list[WatchedWork] = []
    steps: list[WatchedSteps] = []


class WatchedTimes(Struct):
    jobs: list[WatchedTime]


class Done(Struct):
    text: str


class PolicyView(Struct):
    """The limits of a job, or of all jobs."""

    job_id: str | None
    job: str | None
    approval: str
    dry_run: bool
    limits: msgspec.Raw  # recovery.journal.limits.Policy, as the journal has it
    budgets: msgspec.Raw
    quarantine: msgspec.Raw
    alerts: msgspec.Raw
    # What may be done about watched jobs ([watched]); empty from an older controller.
    watched: dict[str, bool | float | str] = {}
    observe: bool = False  # observe mode: plans are journaled, and not taken
    # Which nodes are kept out because they fail again and again ([lemons]); empty from an older controller.
    lemons: dict[str, bool | float | dict[str, int]] = {}


class HoldView(Struct):
    node: str
    hold: str
    who: str
    reason: str
    until_unix_s: float | None
    since_unix_s: float | None = None  # None: not known, of an older controller


class NodeFindingView(Struct):
    """A finding of a node that is open now, as its agent or a rule reports it."""

    node: str
    check: str  # name of the alert
    severity: str  # value of detectors.finding.Severity; another sender's word otherwise
    device: str  # empty: the host
    summary: str
    action: str  # as in the node's policy table; empty: none
    since_unix_s: float


class Pause(Struct):
    scope: str
    who: str
    reason: str


class WindowView(Struct):
    window_id: str
    nodes: list[str]
    from_unix_s: float
    until_unix_s: float
    who: str
    reason: str


class Cluster(Struct):
    paused: list[Pause]
    held: list[HoldView]
    windows: list[WindowView]
    notes: list[str]
    notes_about: list[str] = []  # the node or sender of each note; empty: the cluster
    # Where observe mode is on, in words; empty: nowhere, or an older controller.
    observe: list[str] = []
    findings: list[NodeFindingView] = []  # open ones, the worst first; at most FINDINGS_MAX


class SlurmRequestView(Struct):
    """What was asked of Slurm or Kubernetes, and what came of it."""

    key: str
    action: str  # value of recovery.schedulers.slurm.requests.SchedulerAction
    nodes: list[str]
    slurm_job: str  # of Slurm; of an eviction in Kubernetes: the job, as its pods' label has it
    reason: str
    asked_unix_s: float
    outcome: str  # value of recovery.journal.slurm_records.SlurmOutcome; empty: it is open
    text: str  # what came of it, or what it waits for


class SlurmDrainView(Struct):
    node: str
    unix_s: float
    reason: str


class SlurmNodeEventView(Struct):
    unix_s: float
    kind: str  # value of recovery.schedulers.slurm.ledger.NodeEventKind
    text: str


class SlurmNodeView(Struct):
    """A node that rankmend has drained in Slurm, or cordoned in Kubernetes, now or before."""

    node: str
    is_ours: bool  # drained by rankmend now
    drains: list[SlurmDrainView]  # the newest last
    over: str  # how the newest drain ended
    stay: str = ""  # value of recovery.schedulers.slurm.return_rules.Stay: why it is still out; empty: not known
    stay_text: str = ""
    check_due_unix_s: float | None = None  # of the next check
    history: list[SlurmNodeEventView] = []  # of all its drains, the newest last


class KubernetesNodeView(Struct):
    """A node of our jobs as Kubernetes has it."""

    node: str
    is_cordoned: bool
    is_ours: bool  # the cordon is rankmend's
    cordoned_by: str  # field managers, where others have cordoned it and the API server says who
    ready: str  # True, False or Unknown; empty: no kubelet has said
    conditions: list[str]  # that are true, each with its message, and why the node is not ready
    taints: list[str]  # key=value:effect, beside that of a cordon
    seen_unix_s: float


class SlurmView(Struct):
    enabled: bool
    acts: bool  # False: everything is dry
    problem: str  # why Slurm, or Kubernetes, does not answer
    requests: list[SlurmRequestView]  # the newest first
    nodes: list[SlurmNodeView]
    states: list[KubernetesNodeView] = []  # of Kubernetes: the nodes of jobs


class UntakenView(Struct):
    """Something that the cluster's rules would have had done, and was not."""

    at_unix_s: float
    source: str  # watched, cluster, slurm
    action: str
    why_not: str
    reason: str
    job_id: str
    job: str
    incident_id: str
    nodes: list[str]


class DrainSeenView(Struct):
    """A node that a person, or another tool, has taken out of use."""

    unix_s: float
    node: str
    who: str
    where: str  # rankmend or Slurm


class Untaken(Struct):
    untaken: list[UntakenView]
    drains: list[DrainSeenView]


class Target(Struct):
    """One entry of Prometheus' http_sd."""

    targets: list[str]
    labels: dict[str, str]


class Taken(Struct, omit_defaults=True):
    """Alerts are accepted."""

    alerts: int
    refused: int = 0  # too many alerts from this sender


class Version(Struct):
    version: str
    redirect: str | None = None
