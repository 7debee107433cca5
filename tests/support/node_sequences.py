"""What jobs met on nodes over days, and which nodes the cluster may hold back for it. A table that grows.

Each job runs on four nodes with two ranks each, unless it names others. Errors are lines as programs print them, after the
public reports that `tests.support.error_ends` names; "made" sequences put them into an order in time.
"""

from dataclasses import dataclass, replace
from typing import Final

from detectors.failed.error_classes import read_known_end
from detectors.failed.error_text import parse_error
from detectors.failed.failed_ranks import RankEnd, detect_failed
from detectors.finding import (
    HOST_ENDED,
    HOST_RESTARTED,
    HOST_SILENT,
    Blame,
    Finding,
    Kind,
    Severity,
    Symptom,
    SymptomKind,
)
from detectors.hang.live import HangCause

NODES: Final = ("n1", "n2", "n3", "n4")
RANKS_PER_NODE: Final = 2
MINUTE_H: Final = 1 / 60
SECOND_H: Final = 1 / 3600

# Errors as programs print them.
TRACKER: Final = (
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='tracker.example', port=443): "
    "Max retries exceeded with url: /api/v1/runs"
)
WANDB: Final = "wandb.errors.CommError: Run initialization has timed out after 90.0 sec."
HUB: Final = "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://hub.example"
BAD_DATA: Final = "ValueError: could not convert string to float: 'N/A'"
MISSING_KEY: Final = "KeyError: 'labels'"
SHAPES: Final = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x128 and 64x10)"
ASSERTION: Final = "AssertionError: loss is not finite"
TYPO: Final = "NameError: name 'optimzer' is not defined"
MISSING_FILE: Final = (
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/train/shard-17.tar'"
)
DENIED: Final = "PermissionError: [Errno 13] Permission denied: '/data/train'"
STALE: Final = "OSError: [Errno 116] Stale file handle: '/data/train'"
FULL: Final = "OSError: [Errno 28] No space left on device: '/ckpt/step_200.pt'"
TORN_WRITE: Final = (
    "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 1472 vs 1376"
)
LIBRARY: Final = (
    "ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory"
)
GPU_MEMORY: Final = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
HOST_MEMORY: Final = "MemoryError: Unable to allocate 12.0 GiB for an array"
ECC: Final = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
LOST_GPU: Final = "RuntimeError: CUDA error: unspecified driver error: GPU has fallen off the bus"
ILLEGAL: Final = "RuntimeError: CUDA error: an illegal memory access was encountered"
PEER: Final = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"


@dataclass(frozen=True)
class Met:
    """One incident of a job."""

    at_h: float
    job: str
    node: str
    said: str = ""  # the error of the ranks on the node
    signal: int | None = None
    exit_code: int = 1
    ranks: tuple[int, ...] | None = None  # that failed; None: all of the node
    symptom: Symptom | None = None  # another finding than that of failed ranks
    alert: str = ""  # action of an alert about a device of the node, beside it
    library: str = ""  # in which it crashed, by the kernel's line
    is_proved: bool = False  # by dumps or stacks
    nodes: tuple[str, ...] = NODES  # of the job
    program: str = ""  # as `program_of` names it; empty: the job's own


@dataclass(frozen=True)
class GaveUp:
    """The planner concludes that the program itself fails: for these incidents of the job, counted from 1."""

    at_h: float
    job: str
    incidents: tuple[int, ...]


@dataclass(frozen=True)
class Sequence:
    name: str
    events: tuple[Met | GaveUp, ...]
    held: tuple[str, ...] = ()  # in quarantine at the end
    counted: int | None = None  # how many count against all nodes; None: not asked


def placed(met: Met) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each of the job's nodes."""
    return {
        node: tuple(range(place * RANKS_PER_NODE, (place + 1) * RANKS_PER_NODE))
        for place, node in enumerate(met.nodes)
    }


def failed_ranks(met: Met) -> tuple[int, ...]:
    return placed(met)[met.node] if met.ranks is None else met.ranks


def find(met: Met) -> Finding:
    """Return the finding about an incident, as launcher and controller judge it."""
    where = placed(met)
    if met.symptom is not None:
        kinds = {
            SymptomKind.HOST: Kind.HOST,
            SymptomKind.HUNG: Kind.RANK_HUNG,
            SymptomKind.SLOW: Kind.RANK_SLOW,
            SymptomKind.NUMBERS: Kind.NUMBERS_WRONG,
            SymptomKind.ALERT: Kind.DEVICE,
        }
        return Finding(
            kind=kinds[met.symptom.kind],
            severity=Severity.CRITICAL,
            blame=Blame.RANK,
            summary=met.symptom.text,
            job_id=met.job,
            attempt=1,
            node=met.node,
            ranks=failed_ranks(met),
            victims=(),
            since_age_s=0.0,
            symptom=met.symptom,
        )
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 7, in <module>',
        met.said,
    ]
    words = read_known_end(parse_error(lines) if met.said else None, lines[-1:])
    code = None if met.signal is not None else met.exit_code
    ends = [RankEnd(rank, 1.0, code, met.signal, words=words) for rank in failed_ranks(met)]
    world = RANKS_PER_NODE * len(met.nodes)
    finding = detect_failed(ends, job_id=met.job, attempt=1, node=met.node, world_size=world)
    assert finding is not None
    node = next(
        (name for name, ranks in where.items() if set(ranks) & set(finding.ranks)), met.nodes[0]
    )
    return replace(finding, node=node)


def again(met: Met, *at_h: float) -> tuple[Met, ...]:
    return tuple(replace(met, at_h=one) for one in at_h)


def days(met: Met, count: int) -> tuple[Met, ...]:
    """Return the same incident of one job on days that follow each other."""
    return tuple(replace(met, at_h=25.0 * day) for day in range(count))


def jobs(met: Met, count: int = 3) -> tuple[Met, ...]:
    """Return the same incident in so many jobs of as many scripts, an hour apart."""
    return tuple(
        replace(met, at_h=float(number), job=f"{met.job}-{number}") for number in range(count)
    )


HUNG_BEHIND: Final = Symptom(SymptomKind.HUNG, HangCause.BEHIND.value)
SIGKILL, SIGSEGV, SIGBUS, SIGTERM = 9, 11, 7, 15
CUDA_LIBRARY: Final = "libcuda.so.535.104.05"
THREE_TIMES: Final = (0.0, 8.5 * SECOND_H, 17 * SECOND_H)
S = Sequence

SEQUENCES: Final = (
    # Errors of code, data and services: nothing from one job, however often.
    S("a tracker's outage three times in 17 s", again(Met(0, "a", "n1", TRACKER, ranks=(0,)), *THREE_TIMES), counted=0),
    S("a tracker's outage on each of five days", days(Met(0, "a", "n1", TRACKER, ranks=(0,)), 5), counted=0),
    S("wandb can't be reached by rank 0 of ten jobs", jobs(Met(0, "a", "n1", WANDB, ranks=(0,)), 10), counted=0),
    S("a hub is away for one node of one job, 4 times", again(Met(0, "a", "n2", HUB), 0, 1, 2, 3), counted=0),
    S("a bad sample in one job, 5 times", again(Met(0, "a", "n2", BAD_DATA), 0, 1, 2, 3, 4), counted=0),
    S("a missing key on each of six days", days(Met(0, "a", "n3", MISSING_KEY), 6), counted=0),
    S("an evaluation fails on rank 0 of six jobs", jobs(Met(0, "a", "n1", SHAPES, ranks=(0,)), 6), counted=0),
    S("an assertion of one rank in one job", again(Met(0, "a", "n2", ASSERTION, ranks=(3,)), *THREE_TIMES), counted=0),
    S("a typo on all ranks", again(Met(0, "a", "n1", TYPO, ranks=tuple(range(8))), *THREE_TIMES), counted=0),
    S("a typo that one node reaches, in five scripts", jobs(Met(0, "a", "n2", TYPO), 5), counted=0),
    S("a file is missing for one job", again(Met(0, "a", "n2", MISSING_FILE), 0, 1, 2, 3), counted=0),
    S("a file is missing for all nodes of three jobs", jobs(Met(0, "a", "n1", MISSING_FILE, ranks=tuple(range(8)))), counted=0),
    S("an exit code without a word, in four jobs", jobs(Met(0, "a", "n2", exit_code=3), 4), counted=0),
    S("usage errors of a sweep on one node", jobs(Met(0, "a", "n2", exit_code=2), 4), counted=0),
    S("the disk is full for one job", again(Met(0, "a", "n2", FULL), 0, 1, 2, 3), counted=0),
    S("torch.save writes to a full disk on rank 0", days(Met(0, "a", "n1", TORN_WRITE, ranks=(0,)), 4), counted=0),
    S("the GPU's memory is used up in five jobs", jobs(Met(0, "a", "n2", GPU_MEMORY), 5), counted=0),
    S("the host's memory is used up in five jobs", jobs(Met(0, "a", "n2", HOST_MEMORY), 5), counted=0),
    S("peers are lost, again and again", again(Met(0, "a", "n2", PEER), 0, 1, 2, 3), counted=0),
    S("somebody sends SIGTERM to one node's ranks", days(Met(0, "a", "n2", signal=SIGTERM), 4), counted=0),
    # Jobs of one script say no more than one job.
    S("a missing file in five jobs of one script", tuple(replace(met, program="train.py:aa") for met in jobs(Met(0, "a", "n2", MISSING_FILE), 5)), counted=0),
    S("two versions of one script", (Met(0, "a", "n2", MISSING_FILE, program="train.py:aa"), Met(1, "b", "n2", MISSING_FILE, program="train.py:bb")), counted=0),
    S("copies of one script under two names", (Met(0, "a", "n2", MISSING_FILE, program="a.py:aa"), Met(1, "b", "n2", MISSING_FILE, program="b.py:aa")), counted=0),
    S("jobs of which nobody knows the script", tuple(replace(met, program=":") for met in jobs(Met(0, "a", "n2", MISSING_FILE), 5)), counted=0),
    # The same class of error in jobs of other scripts, here alone: a stale mount.
    S("a mount is stale: four scripts miss files there alone", jobs(Met(0, "a", "n2", MISSING_FILE), 4), ("n2",), 3),
    S("two scripts miss files there alone: one count", jobs(Met(0, "a", "n2", MISSING_FILE), 2), counted=1),
    S("a stale file handle in four scripts there alone", jobs(Met(0, "a", "n3", STALE), 4), ("n3",), 3),
    S("a library that one node lacks, in four scripts", jobs(Met(0, "a", "n4", LIBRARY), 4), ("n4",), 3),
    S("the network of one node: a hub is away there alone, for four scripts", jobs(Met(0, "a", "n2", HUB), 4), ("n2",), 3),
    S("other classes of error in each script", (Met(0, "a", "n2", MISSING_FILE), Met(1, "b", "n2", DENIED), Met(2, "c", "n2", BAD_DATA), Met(3, "d", "n2", MISSING_KEY)), counted=0),
    S("the same class on other nodes of these jobs, too", (Met(0, "a", "n2", MISSING_FILE), Met(1, "a", "n3", MISSING_FILE), Met(2, "b", "n2", MISSING_FILE), Met(3, "b", "n3", MISSING_FILE), Met(4, "c", "n2", MISSING_FILE), Met(5, "c", "n3", MISSING_FILE)), counted=0),
    S("jobs of one node each: nothing to compare with", tuple(replace(met, nodes=("n2",)) for met in jobs(Met(0, "a", "n2", MISSING_FILE), 5)), counted=0),
    S("the other script's error is older than the window", (Met(0, "a", "n2", MISSING_FILE), Met(200, "b", "n2", MISSING_FILE)), counted=0),
    # What the program did is taken back.
    S("crashes in a device's library, and then the program itself fails", (*jobs(Met(0, "x", "n2", signal=SIGSEGV, library=CUDA_LIBRARY), 2), Met(3, "a", "n2", signal=SIGSEGV, library=CUDA_LIBRARY), GaveUp(4, "a", (1,))), counted=2),
    S("an error of device, taken back once the program proves to fail", (Met(0, "a", "n2", ECC), Met(25, "a", "n2", ECC), Met(50, "a", "n2", ECC), GaveUp(51, "a", (1, 2, 3))), counted=0),
    S("files missing in four scripts, two of which prove to be wrong themselves", (*jobs(Met(0, "a", "n2", MISSING_FILE), 4), GaveUp(5, "a-1", (1,)), GaveUp(6, "a-2", (1,))), counted=1),
    S("what one job did is taken back, and the others' stays", (*jobs(Met(0, "x", "n2", ECC)), Met(4, "a", "n2", ECC), GaveUp(5, "a", (1,))), ("n2",), 3),
    # Signals.
    S("SIGKILL of one job on each of six days, and nothing beside it", days(Met(0, "a", "n2", signal=SIGKILL), 6), counted=0),
    S("SIGKILL in six jobs, and nothing beside it", jobs(Met(0, "a", "n2", signal=SIGKILL), 6), counted=0),
    S("SIGKILL with an alert that asks to reset the GPU", jobs(Met(0, "a", "n2", signal=SIGKILL, alert="reset_gpu")), ("n2",), 3),
    S("SIGKILL with an alert about the program", jobs(Met(0, "a", "n2", signal=SIGKILL, alert="restart_app"), 5), counted=0),
    S("SIGKILL with an alert that asks for a look", jobs(Met(0, "a", "n2", signal=SIGKILL, alert="watch"), 5), counted=0),
    S("SIGSEGV in libcuda, in three jobs", jobs(Met(0, "a", "n2", signal=SIGSEGV, library=CUDA_LIBRARY)), ("n2",), 3),
    S("SIGBUS in a NIC's library, in three jobs", jobs(Met(0, "a", "n3", signal=SIGBUS, library="libmlx5.so.1.24.44.0")), ("n3",), 3),
    S("SIGSEGV in Python itself, of one job", days(Met(0, "a", "n2", signal=SIGSEGV, library="libpython3.11.so.1.0"), 5), counted=0),
    S("SIGSEGV in NCCL, of one job", days(Met(0, "a", "n2", signal=SIGSEGV, library="libnccl.so.2.27.3"), 5), counted=0),
    S("SIGSEGV of which the kernel says nothing", days(Met(0, "a", "n2", signal=SIGSEGV), 5), counted=0),
    S("SIGSEGV in four scripts, on this node alone", jobs(Met(0, "a", "n2", signal=SIGSEGV), 4), ("n2",), 3),
    # Devices, hosts, hangs.
    S("an uncorrectable error in three jobs", jobs(Met(0, "a", "n2", ECC)), ("n2",), 3),
    S("an uncorrectable error three times within an hour, of one job", again(Met(0, "a", "n2", ECC), 0, 0.3, 0.6), counted=1),
    S("an uncorrectable error of one job on three days", days(Met(0, "a", "n2", ECC), 3), ("n2",), 3),
    S("a GPU is lost in two jobs", jobs(Met(0, "a", "n2", LOST_GPU), 2), counted=2),
    S("a device error of the ranks of two nodes at once", jobs(Met(0, "a", "n2", ECC, ranks=(2, 3, 4, 5)), 4), counted=0),
    S("an illegal access of one job, 4 times", days(Met(0, "a", "n2", ILLEGAL), 4), counted=0),
    S("an illegal access with an alert that asks to replace the GPU", jobs(Met(0, "a", "n2", ILLEGAL, alert="replace")), ("n2",), 3),
    S("alerts rule a device out in three jobs", jobs(Met(0, "a", "n2", symptom=Symptom(SymptomKind.ALERT, "RankmendGpuLost"))), ("n2",), 3),
    S("a node falls silent in three jobs", jobs(Met(0, "a", "n2", symptom=HOST_SILENT)), ("n2",), 3),
    S("a node boots anew in three jobs", jobs(Met(0, "a", "n2", symptom=HOST_RESTARTED)), ("n2",), 3),
    S("a launcher ends in five jobs", jobs(Met(0, "a", "n2", symptom=HOST_ENDED), 5), counted=0),
    S("hangs that dumps prove, in three jobs", jobs(Met(0, "a", "n2", symptom=HUNG_BEHIND, is_proved=True)), ("n2",), 3),
    S("hangs by progress alone, in five jobs", jobs(Met(0, "a", "n2", symptom=HUNG_BEHIND), 5), counted=0),
    S("a slow node in three jobs", jobs(Met(0, "a", "n2", symptom=Symptom(SymptomKind.SLOW, "compute"))), ("n2",), 3),
    S("wrong numbers begin on one node, in three jobs", jobs(Met(0, "a", "n2", symptom=Symptom(SymptomKind.NUMBERS, "loss"))), ("n2",), 3),
    S("two bad nodes", (*jobs(Met(0, "a", "n2", ECC)), *jobs(Met(0, "b", "n3", LOST_GPU))), ("n2", "n3"), 6),
    S("three faults spread over ten days", (Met(0, "a", "n2", ECC), Met(120, "b", "n2", ECC), Met(240, "c", "n2", ECC)), counted=3),
)  # fmt: skip
