"""What a node's agent reports to the controller: the jobs that other launchers have started, and which jobs of our own run here
(docs/reference/api.md).

Both sides use these types. All times travel as ages, and names as their users have given them: who shows them makes
them printable.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from rankmend.alerting import http_base
from rankmend.rank_values import ToldHidden, ToldPlace

VERSION: Final = 1
PATH: Final = "/v1/watched"
BYTES_MAX: Final = 4 * 1024 * 1024  # 512 ranks with sections and full rings: 2.5 MB
JOBS_MAX: Final = 512  # of one node: each has a rank there
PRESENT_MAX: Final = (
    64  # jobs of our own launchers on one node: as many connections as an agent takes
)
PRESENT_S: Final = 60.0  # between two reports of a node where nothing but `present` is to be said, and that is the same
LEFT_S: Final = (
    600.0  # a job that has left a node is reported for so long: it blames the node minutes later
)
RANKS_MAX: Final = 512  # of one job on one node, as many as an agent shows
TIMINGS_MAX: Final = 33
PLACES_MAX: Final = 16  # GPUs or NICs of one rank
FRAMES_MAX: Final = 32  # Python calls of one main thread
KERNEL_LINES_MAX: Final = 4
NOTES_MAX: Final = 4
RAS_LINES_MAX: Final = 8
LOG_LINES_MAX: Final = 4
# the part of a flight-recorder dump that a verdict needs: 12 kB, and its groups
DUMP_BYTES_MAX: Final = 64 << 10
EVIDENCE_BYTES_MAX: Final = 1 << 20  # of one report
REPORT_S: Final = (
    5.0  # between two reports of a node: a stopped rank is to be named within a minute
)

Age = Annotated[float, Meta(ge=0, le=1e9)]
Total = Annotated[float, Meta(ge=0, le=1e12)]
Amount = Annotated[float, Meta(ge=0, le=1e300)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Text = Annotated[str, Meta(max_length=256)]
Places = Annotated[tuple[Text, ...], Meta(max_length=PLACES_MAX)]

JobId = Annotated[str, Meta(max_length=36)]


class ReportedStep(Struct, frozen=True, array_like=True):
    """One finished step of a rank with sections. Totals are since the process attached."""

    number: Count
    step: Count
    age_s: Age
    duration_s: Age | None
    compute_s: Total
    communication_s: Total
    waited_s: Total
    io_s: Total
    checkpoint_s: Total


class ReportedFrame(Struct, frozen=True, array_like=True):
    """One Python call of a rank's main thread."""

    file: Text
    line: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    function: Text


class ReportedEvidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank of a hung job did when the agent looked."""

    frames: Annotated[
        tuple[ReportedFrame, ...], Meta(max_length=FRAMES_MAX)
    ] = ()  # innermost first
    kernel: Annotated[tuple[Text, ...], Meta(max_length=KERNEL_LINES_MAX)] = ()
    # JSON of a `detectors.hang.flight_dump.FlightDump`, trimmed; empty: there is none.
    dump: Annotated[str, Meta(max_length=DUMP_BYTES_MAX)] = ""
    # What NCCL's RAS says of ranks on this node, and of those that do not answer it.
    ras: Annotated[tuple[Text, ...], Meta(max_length=RAS_LINES_MAX)] = ()
    notes: Annotated[tuple[Text, ...], Meta(max_length=NOTES_MAX)] = ()  # what is missing, and why
    # What the job's log files say, of the first rank of a node: the verdict, and lines that show it.
    log: Annotated[tuple[Text, ...], Meta(max_length=LOG_LINES_MAX)] = ()


class ReportedWork(Struct, frozen=True, array_like=True):
    """The work that a rank's script has reported since the process attached, in all."""

    flops: Amount
    tokens: Amount
    samples: Amount
    data_type: Annotated[str, Meta(max_length=8)] = ""
    device: Annotated[str, Meta(max_length=64)] = ""


class ReportedRank(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank of a job on this node."""

    rank: Number
    world_size: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]
    attempt: Number
    local_rank: Number = 0
    pid: Count
    start_ticks: Count = 0  # when its process began: with the pid it names one process
    process_state: Annotated[str, Meta(max_length=1)] = ""  # letter of /proc/PID/stat
    attached_age_s: Age | None = None
    steps_done: Count = 0
    step: Count | None = None  # number of the newest
    is_relative: bool = False  # step numbers count from the start of the process
    step_age_s: Age | None = None
    step_s: Age | None = None  # median of the newest steps
    # Of the main thread since it began: on a processor, and ready for one. None: the kernel does not tell.
    running_s: Total | None = None
    ready_s: Total | None = None
    # Only where the job's owner requested sections.
    section: Annotated[str, Meta(max_length=16)] = "idle"
    section_age_s: Age | None = None
    sections_entered: Count = 0
    collectives_entered: Count = 0
    collective_timeout_s: Age | None = None
    has_pairs: bool = False
    steps: Annotated[tuple[ReportedStep, ...], Meta(max_length=TIMINGS_MAX)] = ()
    work: ReportedWork | None = None  # None: the script reports none
    hidden: ToldHidden | None = (
        None  # since the process attached, in all; None: nothing measures it
    )
    place: ToldPlace | None = None  # in the model's layout; None: not known
    gpus: Places = ()
    nics: Places = ()
    nccl: Places = ()  # versions that it has loaded
    error: Text = ""  # why its progress file can't be read
    evidence: ReportedEvidence | None = None  # once after the controller has requested it


class ReportedJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job with its living ranks on this node."""

    job_id: Annotated[
        str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
    ]
    name: Text
    user: Text
    launcher: Text
    slurm_job: Text = ""
    restarter: Text = ""  # what restarts its ranks by itself: torchelastic, nvrx; empty: nothing
    ranks: Annotated[tuple[ReportedRank, ...], Meta(max_length=RANKS_MAX)] = ()
    # Whose processes have ended lately, with the last that they told.
    ended: Annotated[tuple[ReportedRank, ...], Meta(max_length=RANKS_MAX)] = ()


class PresentJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job whose launcher shows ranks to this node's agent. The kernel says which user the launcher runs under (SO_PEERCRED)."""

    job_id: Annotated[
        str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
    ]
    uid: Number
    user: Text = ""  # its name on this node; its number where it has none


class LeftJob(PresentJob, frozen=True, kw_only=True, omit_defaults=True):
    """Such a job whose launcher shows no ranks to the agent any more."""

    age_s: Age  # since it did for the last time


class WatchedReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All watched jobs of one node that have a rank there, or had one lately; the others have none."""

    version: Annotated[int, Meta(ge=1, le=VERSION + 1)] = VERSION
    node: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,252}$(?!\n)")]
    jobs: Annotated[tuple[ReportedJob, ...], Meta(max_length=JOBS_MAX)] = ()
    # Of our own launchers. They report their ranks themselves; this is a second word on where they run.
    present: Annotated[tuple[PresentJob, ...], Meta(max_length=PRESENT_MAX)] = ()
    left: Annotated[tuple[LeftJob, ...], Meta(max_length=PRESENT_MAX)] = ()


class ReportTaken(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The controller's answer to a report. An agent that can't read it goes on without."""

    text: str = ""
    evidence_of: Annotated[tuple[JobId, ...], Meta(max_length=JOBS_MAX)] = ()  # jobs on this node


_DECODER: Final = msgspec.json.Decoder(WatchedReport)


def decode(body: bytes) -> WatchedReport:
    """Return a report, or raise `msgspec.DecodeError`."""
    return _DECODER.decode(body)


def report_url(text: str) -> str:
    """Return the address of a controller such as ``https://controller:9477`` to which reports go."""
    return http_base(text, "watch.controller") + PATH
