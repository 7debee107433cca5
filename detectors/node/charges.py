"""What counts against a node: one table of evidence, and the decider that all who count use. Pure.

A rank runs on a node, so each failure happens on a node. That proves little about the node. Acme (NSDI'24, table 3) found code
and data behind most errors of jobs, and rank 0, which evaluates and saves, is always on the same node. So

- what a device, the kernel or the host reports counts, and so does a hang that dumps or stacks prove;
- a signal counts only with such evidence beside it: its sender is not known, and a crash is the process's own;
- an error of code, data, storage or a service counts nothing from one job. It counts where jobs of two scripts
  had the same class of error on this node alone: a stale mount looks like `FileNotFoundError`;
- one job and one kind of evidence count once a day, however often the job restarts;
- what an incident had counted is taken back once the program itself proves to fail.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.finding import HOST_ENDED, Blame, Finding, Kind, SymptomKind

DAY_S: Final = 86_400.0
TEXT_CHARS_MAX: Final = 1_000  # of a summary that is kept

_NSDI: Final = "Acme (NSDI'24), table 3: code and data, seldom a machine"

# Errors that mean nothing without their text: an exit code, a wrong call. It is chance if two scripts have such an error on one node.
_NO_CLASS: Final = frozenset(
    {SymptomKind.EXIT, SymptomKind.PROGRAM, SymptomKind.LAUNCH, SymptomKind.UNKNOWN}
)

# Libraries that come with a device's driver. NCCL, cuDNN and cuBLAS are programs: a crash in them can be anybody's.
_DEVICE_LIBRARY: Final = re.compile(
    r"^(?:libcuda|libcudadebugger|libnvidia-[\w-]+|libnvcuvid|libnvoptix|libnvidia_nscq|libnvfm|libamdhip64|libhsa-runtime64|libhsakmt"
    r"|libdrm_amdgpu|libamdocl64|librocm_smi64|libamd_smi|libze_intel_gpu|libze_loader|libigdrcl|libSynapse|libhl-thunk|libascend_hal|libascendcl"
    r"|libnrt|libtpu|libmlx[45](?:-rdmav\d+)?|libibverbs|libbnxt_re(?:-rdmav\d+)?|libefa(?:-rdmav\d+)?|libirdma(?:-rdmav\d+)?|libhfi1verbs(?:-rdmav\d+)?)"
    r"\.so(?:[.\d]*)$"
)
_IN_LIBRARY: Final = re.compile(
    r"(?:segfault at|general protection fault|trap [\w ]{1,32}|unhandled|fatal signal|bus error)"
    r"[^\n]{0,300}? in ([^\s\[\],]{1,128})\["
)


class ChargeKind(Enum):
    """What an incident shows of a node."""

    UNKNOWN = ""  # from a version without this field
    DEVICE = "device"  # the device or its driver reported its own fault
    ALERT = "alert"  # an alert of the node's device, kernel or host rules it out
    HOST = "host"  # its launcher fell silent, or it booted anew
    CUT_OFF = "cut_off"  # other nodes of the job did not reach it
    SLOW = "slow"  # measured against the job's other nodes
    NUMBERS = "numbers"  # its numbers went wrong first
    HANG_PROVED = "hang_proved"  # by dumps or stacks
    DEVICE_CRASH = "device_crash"  # SIGSEGV or SIGBUS in a device's library, by the kernel's line
    BESIDE = (
        "beside"  # a signal, a fault or a stall with evidence of device, kernel or host beside it
    )
    SAME_ELSEWHERE = "same_elsewhere"  # one class of error in jobs of two scripts, here alone
    HANG_SEEN = "hang_seen"  # by the ranks' progress alone
    KILLED = "killed"
    CRASHED = "crashed"
    GPU_PROGRAM = "gpu_program"  # a program on the accelerator went wrong: code or silicon
    PROGRAM = "program"  # an error of code or data
    SERVICE = "service"
    STORAGE = "storage"
    MEMORY = "memory"
    PEER = "peer"
    PERSON = "person"
    SPREAD = "spread"  # ranks of several nodes at once
    LEFT = "left"  # the job leaves the node, which nothing accuses
    ENDED = "ended"  # its launcher ended, or came anew on the same boot

    @classmethod
    def _missing_(cls, _value: object) -> "ChargeKind":
        """Return the kind of what only a newer version knows."""
        return cls.UNKNOWN


class Weight(Enum):
    """How much one incident counts against a node."""

    ONE = "one"
    NOTHING = "nothing"
    COMPARED = (
        "compared"  # nothing by itself; one if a job of another script shows the same here alone
    )


@dataclass(frozen=True, slots=True)
class ChargeRow:
    weight: Weight
    reason: str  # for people: behind "counts:" or "counts nothing:"
    source: str


_ONE, _NOTHING, _COMPARED = Weight.ONE, Weight.NOTHING, Weight.COMPARED

CHARGES: Final[Mapping[ChargeKind, ChargeRow]] = {
    ChargeKind.UNKNOWN: ChargeRow(_ONE, "an older controller blamed it", "records before 1.16"),
    ChargeKind.DEVICE: ChargeRow(
        _ONE, "a device reported its own fault", "CUDA runtime API: cudaError 214, 220, 46 ..."
    ),
    ChargeKind.ALERT: ChargeRow(
        _ONE, "an alert rules out a device or the host", "the node agent's policy table"
    ),
    ChargeKind.HOST: ChargeRow(
        _ONE, "the node fell silent or booted anew", "reports twice a second; docs/operate/fencing.md"
    ),
    ChargeKind.CUT_OFF: ChargeRow(
        _ONE, "other nodes did not reach it", "the launchers' own probes of each other"
    ),
    ChargeKind.SLOW: ChargeRow(
        _ONE, "it was measured to be slow beside the job's other nodes", "detectors/slow"
    ),
    ChargeKind.NUMBERS: ChargeRow(
        _ONE, "its numbers went wrong first", "Meta, silent data corruption (arXiv 2102.11245)"
    ),
    ChargeKind.HANG_PROVED: ChargeRow(
        _ONE, "dumps or stacks prove that the others waited for it", "NCCL flight recorder"
    ),
    ChargeKind.DEVICE_CRASH: ChargeRow(
        _ONE, "it crashed in a device's library", "the kernel's line: arch/x86/mm/fault.c"
    ),
    ChargeKind.BESIDE: ChargeRow(
        _ONE, "an alert of its device, kernel or host came with it", "the node agent's policy table"
    ),
    ChargeKind.SAME_ELSEWHERE: ChargeRow(
        _ONE, "jobs of two scripts had this class of error here alone", "a stale mount: ENOENT"
    ),
    ChargeKind.HANG_SEEN: ChargeRow(
        _NOTHING, "no dump or stack proves whom the others waited for", "detectors/hang/live.py"
    ),
    ChargeKind.KILLED: ChargeRow(
        _NOTHING, "nobody knows who sent the signal, and nothing of the node came with it", "signal(7)"
    ),
    ChargeKind.CRASHED: ChargeRow(
        _COMPARED, "a crash is the process's own, unless the kernel names a device's library", "signal(7)"
    ),
    ChargeKind.GPU_PROGRAM: ChargeRow(
        _COMPARED, "code, a setting or silicon: a program on the GPU went wrong, or no GPU was there for it", "NVIDIA's XID catalogue: 13, 31; cudaError 46, 100, 999"
    ),
    ChargeKind.PROGRAM: ChargeRow(_COMPARED, "an error of code or data, from one job", _NSDI),
    ChargeKind.SERVICE: ChargeRow(
        _COMPARED, "something outside the job was away, for one job", "trackers, hubs, stores, DNS"
    ),
    ChargeKind.STORAGE: ChargeRow(
        _COMPARED, "storage failed, for one job: nodes share it", "errno ENOSPC, EDQUOT, EIO, ESTALE"
    ),
    ChargeKind.MEMORY: ChargeRow(_NOTHING, "memory ran out", "memory.events; cudaErrorMemoryAllocation"),
    ChargeKind.PEER: ChargeRow(_NOTHING, "it lost a peer", "gloo, NCCL: a victim's error"),
    ChargeKind.PERSON: ChargeRow(_NOTHING, "a person or the scheduler asked for it", "signal(7)"),
    ChargeKind.SPREAD: ChargeRow(
        _NOTHING, "ranks of several nodes had it at once", "no single node can be the cause"
    ),
    ChargeKind.LEFT: ChargeRow(
        _NOTHING, "the job leaves it for another reason", "recovery/journal/node_records.py"
    ),
    ChargeKind.ENDED: ChargeRow(
        _NOTHING, "its launcher ended, or came anew on the same boot", "a person or the scheduler ended it"
    ),
}  # fmt: skip
"""The one table of what counts against a node."""

_BY_SYMPTOM: Final[Mapping[SymptomKind, ChargeKind]] = {
    SymptomKind.UNKNOWN: ChargeKind.PROGRAM,
    SymptomKind.DO_NOT_RETRY: ChargeKind.PERSON,
    SymptomKind.OOM_KILLED: ChargeKind.MEMORY,
    SymptomKind.HOST_MEMORY: ChargeKind.MEMORY,
    SymptomKind.DEVICE_MEMORY: ChargeKind.MEMORY,
    SymptomKind.DEVICE: ChargeKind.DEVICE,
    SymptomKind.KERNEL_FAULT: ChargeKind.GPU_PROGRAM,
    SymptomKind.KILLED: ChargeKind.KILLED,
    SymptomKind.CRASHED: ChargeKind.CRASHED,
    SymptomKind.MIXED_NCCL: ChargeKind.PROGRAM,
    SymptomKind.PROGRAM: ChargeKind.PROGRAM,
    SymptomKind.STORAGE: ChargeKind.STORAGE,
    SymptomKind.SERVICE: ChargeKind.SERVICE,
    SymptomKind.EXCEPTION: ChargeKind.PROGRAM,
    SymptomKind.EXIT: ChargeKind.PROGRAM,
    SymptomKind.USER: ChargeKind.PERSON,
    SymptomKind.COMMUNICATION: ChargeKind.PEER,
    SymptomKind.STOPPED: ChargeKind.PERSON,
    SymptomKind.LAUNCH: ChargeKind.PROGRAM,
    SymptomKind.START_TIMEOUT: ChargeKind.HANG_SEEN,
    SymptomKind.HUNG: ChargeKind.HANG_SEEN,
    SymptomKind.SLOW: ChargeKind.SLOW,
    SymptomKind.NUMBERS: ChargeKind.NUMBERS,
    SymptomKind.CHECKPOINT: ChargeKind.STORAGE,
    SymptomKind.HOST: ChargeKind.HOST,
    SymptomKind.ALERT: ChargeKind.ALERT,
    SymptomKind.PERSON: ChargeKind.PERSON,
    SymptomKind.GROWTH: ChargeKind.PERSON,
    SymptomKind.DRY_RUN: ChargeKind.PERSON,
}  # fmt: skip
_WITH_EVIDENCE: Final = frozenset(
    {
        *(ChargeKind.KILLED, ChargeKind.CRASHED, ChargeKind.GPU_PROGRAM, ChargeKind.HANG_SEEN),
        ChargeKind.ENDED,
    }
)
"""Kinds that count once a device, the kernel or the host reports something of the node, too."""
_OF_NODES: Final = frozenset({ChargeKind.HOST, ChargeKind.ALERT, ChargeKind.ENDED})


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known of a node beside an incident's finding."""

    has_alert: bool = False  # of a device, the kernel or the host: it needs more than a restart
    is_proved: bool = False  # dumps or stacks name its ranks
    crash_library: str = ""  # in which a rank crashed, by the kernel's line; empty: not known
    is_own_word: bool = (
        True  # a device error: the device, its link or its driver reports its own fault
    )


NOTHING_BESIDE: Final = Beside()


def weigh(finding: Finding, nodes: Collection[str], beside: Beside = NOTHING_BESIDE) -> ChargeKind:
    """Return what a finding shows of the node that it names; ``nodes``: those of its ranks."""
    kind = _kind_of(finding)
    if finding.is_planned or finding.blame is Blame.USER:
        return ChargeKind.PERSON
    if kind is ChargeKind.DEVICE and not beside.is_own_word:
        kind = ChargeKind.GPU_PROGRAM
    if kind is ChargeKind.CRASHED and is_of_device(beside.crash_library):
        kind = ChargeKind.DEVICE_CRASH
    if kind is ChargeKind.HANG_SEEN and beside.is_proved:
        kind = ChargeKind.HANG_PROVED
    if kind in _WITH_EVIDENCE and beside.has_alert:
        kind = ChargeKind.BESIDE
    if len(set(nodes)) > 1 and kind not in _OF_NODES and CHARGES[kind].weight is not _NOTHING:
        return ChargeKind.SPREAD
    return kind


def _kind_of(finding: Finding) -> ChargeKind:
    symptom = finding.symptom
    if symptom == HOST_ENDED:
        return ChargeKind.ENDED
    if symptom.kind is not SymptomKind.UNKNOWN:
        return _BY_SYMPTOM[symptom.kind]
    # From a version whose findings had no symptom: their kind is all there is.
    by_kind = {
        Kind.DEVICE: ChargeKind.ALERT,
        Kind.HOST: ChargeKind.HOST,
        Kind.RANK_SLOW: ChargeKind.SLOW,
        Kind.RANK_HUNG: ChargeKind.HANG_SEEN,
        Kind.NUMBERS_WRONG: ChargeKind.NUMBERS,
    }
    return by_kind.get(finding.kind, ChargeKind.PROGRAM)


def is_of_device(library: str) -> bool:
    """Return whether a library comes with a device's driver."""
    return _DEVICE_LIBRARY.match(library.rpartition("/")[2]) is not None


def read_crash_library(lines: Iterable[str], pids: Collection[int] = ()) -> str:
    """Return the library in which a process crashed, by the kernel's last line about it; empty: no line names it.

    ``pids``: of the process; empty: any. Sources: arch/x86/mm/fault.c ("python3[71]: segfault at 0 ip ... error 4 in
    libcuda.so.535.104.05[7f...+...]"), arch/x86/kernel/traps.c, arch/arm64/kernel/traps.c.
    """
    found = ""
    for line in lines:
        match = _IN_LIBRARY.search(line)
        if match and (not pids or any(f"[{pid}]" in line for pid in pids)):
            found = match.group(1)
    return found


@dataclass(frozen=True, slots=True)
class NodeCharge:
    """What one incident shows of one node."""

    node: str
    kind: ChargeKind
    job_id: str
    incident_id: str
    summary: str
    fault: str = ""  # value of the finding's Kind
    error: str = ""  # class of the error, where it can be compared with another job's
    program: str = ""  # the script, as `program_of` names it; empty: not known
    is_here_alone: bool = False  # other nodes of the job ran on, and it's not rank 0 alone


def error_class(finding: Finding, type_name: str) -> str:
    """Return the class of an error that jobs of two scripts may share; empty: it has none, or only a class that means nothing."""
    symptom = finding.symptom.kind
    if symptom in _NO_CLASS or CHARGES[_kind_of(finding)].weight is not _COMPARED:
        return ""
    name = type_name.rpartition(".")[2] or finding.symptom.detail[:64]
    if symptom is SymptomKind.EXCEPTION and not type_name:
        return ""
    return f"{symptom.value}:{name}"


def is_other_program(text: str, other: str) -> bool:
    """Return whether two programs are two scripts: other names and other contents, both known."""
    (name, _c, content), (name2, _c2, content2) = text.partition(":"), other.partition(":")
    return bool(text and other and content and content2) and name != name2 and content != content2


@dataclass(frozen=True, slots=True)
class PastCharge:
    """A charge of before, as far as it matters now."""

    unix_s: float
    job_id: str
    incident_id: str
    kind: ChargeKind
    error: str = ""
    program: str = ""
    is_here_alone: bool = False
    subject: str = ""  # the job's owner; empty: nobody but the operator runs jobs
    was_there: bool = False  # another than the job's launchers has confirmed the owner on the node


@dataclass(frozen=True, slots=True)
class ChargeVerdict:
    """Whether a charge counts against its node, and why."""

    counts: bool
    reason: str
    kind: ChargeKind  # SAME_ELSEWHERE where another job has made it count
    is_new: bool = True  # False: this incident counts already


def judge_charge(
    charge: NodeCharge,
    counted: Sequence[PastCharge],
    compared: Sequence[PastCharge],
    now_unix_s: float,
    window_s: float,
) -> ChargeVerdict:
    """Return whether a charge counts against its node.

    ``counted``: what counts against the node already; ``compared``: errors on it that count nothing by themselves;
    ``window_s``: for so long they are compared.
    """
    mine = [item for item in counted if item.job_id == charge.job_id]
    known = next((item for item in mine if item.incident_id == charge.incident_id), None)
    if known is not None:
        return ChargeVerdict(True, CHARGES[known.kind].reason, known.kind, is_new=False)
    row, kind = CHARGES[charge.kind], charge.kind
    if row.weight is Weight.COMPARED and _is_shared(charge, compared, now_unix_s - window_s):
        kind = ChargeKind.SAME_ELSEWHERE
    elif row.weight is not Weight.ONE:
        return ChargeVerdict(False, row.reason, kind)
    if any(item.kind is kind and item.unix_s > now_unix_s - DAY_S for item in mine):
        return ChargeVerdict(
            False, "this job has counted for the same cause within a day", charge.kind
        )
    return ChargeVerdict(True, CHARGES[kind].reason, kind)


def _is_shared(charge: NodeCharge, compared: Sequence[PastCharge], since_s: float) -> bool:
    """Return whether a job of another script had this class of error on this node alone."""
    if not (charge.error and charge.is_here_alone):
        return False
    return any(
        item.error == charge.error
        and item.is_here_alone
        and item.job_id != charge.job_id
        and item.unix_s >= since_s
        and is_other_program(item.program, charge.program)
        for item in compared
    )
