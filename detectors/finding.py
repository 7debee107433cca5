"""A finding: a detector's verdict, and its form on the wire, the alert (contract 3).

The label names below are the only ones that rankmend routes by; docs/operate/alerts.md lists them
with their meanings, and a test compares the list with this file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """What is wrong."""

    RANK_FAILED = "rank_failed"
    RANK_HUNG = "rank_hung"
    RANK_SLOW = "rank_slow"
    NUMBERS_WRONG = "numbers_wrong"
    DEVICE = "device"
    HOST = "host"


class Severity(Enum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Action(Enum):
    """What an operator or the controller should do, the weakest first."""

    NONE = "none"
    WATCH = "watch"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    DRAIN = "drain"
    REPLACE = "replace"
    CONTACT_SUPPORT = "contact_support"

    @property
    def ends_use(self) -> bool:
        """Whether the device can't simply be used on by the next attempt."""
        return self not in (Action.NONE, Action.WATCH, Action.RESTART_APP)


class Blame(Enum):
    """What a finding holds responsible. NOBODY is the abstention, a first-class answer."""

    RANK = "rank"  # this rank, and so what it stands on; without a rank, its node
    PROGRAM = "program"  # the user's code or configuration: no machine to blame
    MEMORY = "memory"  # the kernel's or the cgroup's out-of-memory killer
    COMMUNICATION = "communication"  # the network between ranks, no single one
    USER = "user"  # somebody asked for it
    NOBODY = "nobody"

    @property
    def legend(self) -> str:
        """Return what it means, for people."""
        return _LEGEND[self]


_LEGEND: Final = {
    Blame.RANK: "this rank, and the node and device that it runs on",
    Blame.PROGRAM: "the training program or its settings, no machine",
    Blame.MEMORY: "memory ran out",
    Blame.COMMUNICATION: "the network between ranks, no single machine",
    Blame.USER: "a person asked for it",
    Blame.NOBODY: "nothing accuses a rank or a machine",
}


def blamed_in_words(blame: Blame, kind: str, ranks: Sequence[int]) -> tuple[str, str]:
    """Return whom or what a finding of this kind about these ranks blames, in a word for people, and what that word means.

    What is found of a host names the ranks on it, and blames none of them.
    """
    if blame is not Blame.RANK:
        return blame.value, blame.legend
    if kind == Kind.HOST.value or not ranks:
        return "node", "this node, and all on it"
    many = "these ranks, and what they run on"
    return blame.value, blame.legend if len(ranks) == 1 else many


# label -> meaning; an alert carries those that apply, as text
LABELS: Final = {
    "alertname": "RankmendRankFailed, ...: one name per kind; for a node's findings, one per check",
    "job_id": "UUID of the job",
    "node": "node name: configured, else SLURMD_NODENAME, else short host name",
    "rank": "global rank, decimal; several: ascending, with commas between",
    "attempt": "attempt in which it was found; not part of an alert's identity",
    "uuid": "GPU UUID as NVML gives it",
    "device": "other device: NIC, disk, sensor",
    "severity": "info, warning or critical",
}
IDENTITY_EXCLUDES: Final = frozenset({"attempt", "replica", "severity"})


class SymptomKind(Enum):
    """What shows that something failed; the ends of a rank are those of `FailureCause`."""

    UNKNOWN = ""  # a finding of a version that did not say, or that nothing here can read
    DO_NOT_RETRY = "do_not_retry"
    OOM_KILLED = "oom_killed"
    HOST_MEMORY = "host_memory"
    DEVICE_MEMORY = "device_memory"
    DEVICE = "device"
    KERNEL_FAULT = "kernel_fault"
    KILLED = "killed"
    CRASHED = "crashed"
    MIXED_NCCL = "mixed_nccl"
    PROGRAM = "program"
    STORAGE = "storage"
    SERVICE = "service"
    EXCEPTION = "exception"
    EXIT = "exit"
    USER = "user"
    COMMUNICATION = "communication"
    STOPPED = "stopped"
    LAUNCH = "launch"  # a rank's process could not be started
    START_TIMEOUT = "start timeout"  # not every rank had a process in time
    HUNG = "hung"
    SLOW = "slow"
    NUMBERS = "numbers"
    CHECKPOINT = "checkpoint"  # what the ranks have restored is damaged
    HOST = "host"  # a node's launcher is gone, silent or another one
    ALERT = "evidence"  # an alert accuses a device or a host
    PERSON = "person"  # nothing failed: a person asked for it
    GROWTH = "growth"  # nothing failed: nodes wait that the job can use
    DRY_RUN = "dry run"  # nothing failed: a person asks what would be done


@dataclass(frozen=True, slots=True)
class Symptom:
    """What failed, for programs: equal for the same failure again.

    ``detail`` is a name or a fingerprint and no sentence: a signal, an exit code, the error with what
    differs between two runs removed, an alert's name, a section, what a person asked for.
    """

    kind: SymptomKind = SymptomKind.UNKNOWN
    detail: str = ""

    @property
    def text(self) -> str:
        """Return the symptom in one line; versions before record 1.3 read nothing else."""
        return f"{self.kind.value}:{self.detail}" if self.detail else self.kind.value


HOST_SILENT: Final = Symptom(SymptomKind.HOST, "silent")
HOST_ENDED: Final = Symptom(SymptomKind.HOST, "ended")
HOST_RESTARTED: Final = Symptom(SymptomKind.HOST, "restarted")
HOST_ALONE: Final = Symptom(SymptomKind.HOST, "alone")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line that a person can check, with where it was read."""

    source: str  # "wait status", "progress file", "/proc/PID/stat", "stderr" ...
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, where, since when, on which evidence, and who is held responsible."""

    kind: Kind
    severity: Severity
    blame: Blame
    summary: str  # one sentence for a person
    job_id: str
    attempt: int
    node: str
    ranks: tuple[int, ...]  # the culprits; empty when nobody is accused
    victims: tuple[int, ...]  # ranks that failed or stand still because of the culprits
    since_age_s: float  # how long ago it began, by the clock of who found it
    signature: str = ""  # the symptom in one line, for people and older versions
    evidence: tuple[Evidence, ...] = ()
    symptom: Symptom = Symptom()  # what decisions rest on

    def __post_init__(self) -> None:
        if self.symptom.kind is not SymptomKind.UNKNOWN:
            object.__setattr__(self, "signature", self.symptom.text)

    @property
    def is_persons(self) -> bool:
        """Whether a person asked for it, and nothing failed."""
        return self.symptom.kind is SymptomKind.PERSON

    @property
    def is_planned(self) -> bool:
        """Whether nothing failed: a person asked for it, or the job takes in nodes that wait."""
        return self.symptom.kind in (SymptomKind.PERSON, SymptomKind.GROWTH)


def alert_labels(finding: Finding) -> dict[str, str]:
    """Return the labels under which this finding travels as an alert."""
    name = "Rankmend" + "".join(part.capitalize() for part in finding.kind.value.split("_"))
    labels = {
        "alertname": name,
        "job_id": finding.job_id,
        "node": finding.node,
        "attempt": str(finding.attempt),
        "severity": finding.severity.value,
    }
    if finding.ranks:
        labels["rank"] = ",".join(str(rank) for rank in sorted(finding.ranks))
    return labels


def alert_annotations(finding: Finding) -> dict[str, str]:
    """Return the annotations of this finding's alert."""
    lines = [f"{evidence.source}: {evidence.text}" for evidence in finding.evidence]
    return {
        "summary": finding.summary,
        "blame": finding.blame.value,
        "description": "\n".join(lines),
    }


def identity(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what makes two alerts the same one: the routing labels, sorted.

    Without attempt and replica: two Prometheus replicas differ in the one, and a fault that
    outlives a restart would otherwise be a new alert each time.
    """
    return tuple(
        sorted(
            (name, value)
            for name, value in labels.items()
            if name in LABELS and name not in IDENTITY_EXCLUDES and value  # empty: not there
        )
    )
