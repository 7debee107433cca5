"""Says what kind of failure an error is: one table of classes, and how an error finds its class. Pure.

A class is read from objects and frames, then from words. A library's own type, an errno, the place where
an exception was raised say what failed; words such as "connection refused" don't say by whom. So

- "lost a peer" needs a frame or a name of torch.distributed, gloo, NCCL, MPI or a store;
- a connection that breaks inside the client of something outside is an outage of a service;
- a connection that breaks in the program's own code is an exception, and doubtful: where another rank has
  a cause of its own, this one is its victim (`may_be_peer`);
- an error of data or code (KeyError, ValueError ...) that quotes a device's words stays an exception.

Of a chain the strongest class decides, unless the newest error is decisive itself: what failed while an
error was handled says less than that error. An error that no row knows is an ordinary exception.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from detectors.failed.error_rows import ROWS, is_devices_own_word
from detectors.failed.error_text import (
    LINES_MAX,
    ErrorFrame,
    ErrorPart,
    ErrorText,
    error_line,
    fingerprint,
    first_cause,
    first_line,
    is_aside,
    parse_error,
    read_parts,
)
from detectors.failed.outages import (
    CLIENT,
    CLIENT_NAME,
    PACKAGE,
    SOCKET_ERROR,
    STANDARD_LIBRARY,
    SURE_OUTAGE,
    is_clients_own,
    is_offline,
    is_outage,
)
from detectors.failed.plain_lines import clean_line
from detectors.failed.said_error import FailureCause, SaidAtEnd, SaidError
from detectors.finding import Blame

SAID_CHARS_MAX: Final = 400  # length of the text for people


class ErrorDecision(Enum):
    """What follows from a failure of a class, as far as the class decides it."""

    END = "end"  # no restart helps
    RESTART = "restart"  # whatever came before; the budgets bound it
    RESTART_UNLESS_AGAIN = "restart_unless_again"  # the same error twice at one place ends the job
    RESTART_LATER = "restart_later"  # with a growing pause (recovery.journal.faults); never held against the program
    NONE = "none"  # no failure


@dataclass(frozen=True, slots=True)
class FailureClass:
    """What one class of failures means."""

    decision: ErrorDecision
    some: Blame  # to blame where some ranks have it
    every: Blame  # to blame where every rank has it
    is_outside: bool  # no other checkpoint helps
    source: str


_AGAIN: Final = ErrorDecision.RESTART_UNLESS_AGAIN
_ANEW: Final = ErrorDecision.RESTART

CLASSES: Final[Mapping[FailureCause, FailureClass]] = {
    FailureCause.DO_NOT_RETRY: FailureClass(
        ErrorDecision.END, Blame.PROGRAM, Blame.PROGRAM, False, "exit code 93, as NVIDIA's resiliency extension"
    ),
    FailureCause.OOM_KILLED: FailureClass(
        _ANEW, Blame.MEMORY, Blame.MEMORY, True, "oom_kill of memory.events and /proc/vmstat"
    ),
    FailureCause.HOST_MEMORY: FailureClass(
        _ANEW, Blame.MEMORY, Blame.MEMORY, True, "errno ENOMEM; a full /dev/shm; a loader's worker that vanished"
    ),
    FailureCause.DEVICE_MEMORY: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, True, "cudaErrorMemoryAllocation: batch and model decide it"
    ),
    FailureCause.DEVICE: FailureClass(
        _ANEW, Blame.RANK, Blame.RANK, True, "CUDA runtime API: the device reports its own fault"
    ),
    FailureCause.KERNEL_FAULT: FailureClass(
        _ANEW, Blame.RANK, Blame.PROGRAM, True, "NVIDIA's XID catalogue: 13 and 31 are either's fault"
    ),
    FailureCause.KILLED: FailureClass(
        _ANEW, Blame.RANK, Blame.NOBODY, True, "signal(7): the sender of SIGKILL isn't known"
    ),
    FailureCause.CRASHED: FailureClass(
        _ANEW, Blame.RANK, Blame.PROGRAM, False, "signal(7): SIGSEGV, SIGBUS, SIGABRT are the process's own"
    ),
    FailureCause.MIXED_NCCL: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, True, "NCCL src/init.cc compares the versions of all ranks"
    ),
    FailureCause.PROGRAM: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, False, "Python's types of errors in code; misuse of CUDA and NCCL"
    ),
    FailureCause.STORAGE: FailureClass(
        _AGAIN, Blame.NOBODY, Blame.NOBODY, True, "errno ENOSPC, EDQUOT, EIO, EROFS, ESTALE: shared by nodes as a rule"
    ),
    FailureCause.SERVICE: FailureClass(
        ErrorDecision.RESTART_LATER, Blame.NOBODY, Blame.NOBODY, True, "something outside the job is away for a while"
    ),
    FailureCause.EXCEPTION: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, False, "Acme (NSDI'24), table 3: code and data, seldom a machine"
    ),
    FailureCause.EXIT: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, False, "an exit code alone says nothing"
    ),
    FailureCause.USER: FailureClass(
        _ANEW, Blame.USER, Blame.USER, True, "SIGTERM, SIGINT ... from somebody else than the launcher"
    ),
    FailureCause.COMMUNICATION: FailureClass(
        _ANEW, Blame.COMMUNICATION, Blame.COMMUNICATION, True, "another rank is gone: a victim's error"
    ),
    FailureCause.STOPPED: FailureClass(
        ErrorDecision.NONE, Blame.NOBODY, Blame.NOBODY, False, "rankmend stopped it"
    ),
}  # fmt: skip
"""The one table of classes: whom a finding blames, what may come again, and where no other checkpoint helps."""

_OF_CODE_OR_DATA: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:KeyError|ValueError|IndexError|LookupError|TypeError|AttributeError|NameError|UnboundLocalError"
    r"|AssertionError|FileNotFoundError|NotADirectoryError|IsADirectoryError|FileExistsError|PermissionError"
    r"|ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError|JSONDecodeError|Unicode\w*Error|StopIteration"
    r"|ZeroDivisionError|OverflowError|FloatingPointError|NotImplementedError|RecursionError|UnpicklingError"
    r"|ValidationError|ConfigError|ParserError|YAMLError|BadZipFile|UnidentifiedImageError)\b"
)
# Libraries that join the ranks of a job.
_PEER_FRAME: Final = re.compile(
    r"(?:^|/)(?:torch/distributed/(?!checkpoint/)|torch/nn/parallel/distributed|torch/csrc/distributed|mpi4py/|horovod/|deepspeed/comm/|megatron/core/"
    r"(?:parallel_state|pipeline_parallel|tensor_parallel|distributed)|byteps/|pygloo/|cupyx/distributed/|cupy/cuda/nccl"
    r"|jax/_src/(?:distributed|clusters)|(?:paddle|dgl|vllm|sglang|mindspore|oneflow|torch_npu|torch_xla|habana_frameworks|torch_geometric|colossalai)/(?:\w+/){0,3}distributed|accelerate/utils/operations|torchft/|ray/util/collective/)"
)
_PEER_NAME: Final = re.compile(
    r"\bgloo\b|\bgloo/|[Nn]ccl[A-Z]\w+|\bNCCL\b|\bRCCL\b|\bHCCL\b|ProcessGroup|TCPStore|\bc10d\b|\bDist(?:Backend|Network|Store)?Error\b"
    r"|torch\.distributed\.\w*(?:Error|Timeout)|Watchdog caught collective|\bMPI\b|\bMPI_\w+|\bUCX\w*|\bucp_\w+|coordination service|/job:\w+/(?:replica:\d+/)?task:\d+|client socket has (?:timed out|failed)"
    r"|torch/csrc/distributed|Horovod|HorovodInternalError|SocketImpl\(|JAX distributed service|Heartbeat monitor timed out|\bRendezvous\w*Error\b|monitoredBarrier|MultiProcessing rendezvous"
)
_LOADER_FRAME: Final = re.compile(
    r"(?:^|/)(?:torch/utils/data/dataloader|torchdata/stateful_dataloader/stateful_dataloader)\.py$"
)
_WORKER_FRAME: Final = re.compile(
    r"(?:^|/)(?:torch/utils/data/_utils/(?:worker|fetch)|torchdata/stateful_dataloader/worker)\.py$"
)
_FRAMES_MAX: Final = 24  # looked at from the raise outwards

_DECISIVE: Final = frozenset(
    {
        FailureCause.USER,
        FailureCause.HOST_MEMORY,
        FailureCause.DEVICE_MEMORY,
        FailureCause.DEVICE,
        FailureCause.KERNEL_FAULT,
        FailureCause.MIXED_NCCL,
    }
)
_STRENGTH: Final = {cause: place for place, cause in enumerate(FailureCause)}


_BROKEN: Final = re.compile(
    rf"{SOCKET_ERROR.pattern}|[Cc]onnection (?:was )?(?:closed|reset) by peer", SOCKET_ERROR.flags
)


@lru_cache(maxsize=128)  # all ranks print one error, and each judge of it needs its class
def classify(error: ErrorText) -> FailureCause:
    """Return the class of an error; one that says nothing takes that of what it came from."""
    if (killed := _kill_of_child(error)) is not None:
        return killed
    parts = read_parts(error)
    if any(_WORKER_ENDED.search(part.statement) for part in parts):
        parts = [part for part in parts if not _WORKER_GONE.search(part.statement)] or parts
    may_ask_nobody = is_offline(parts)
    found = [_class_of(part, may_ask_nobody=may_ask_nobody) for part in parts]
    newest, is_certain = found[0]
    if newest in _DECISIVE or (is_certain and newest is FailureCause.PROGRAM):
        return newest
    strong = [cause for cause, is_strong in found if is_strong]
    return min(strong, key=_STRENGTH.__getitem__) if strong else newest


# torch's DataLoader.cpp tells how a worker ended, dataloader.py behind it only that it is gone (facebookresearch/pycls#146).
_WORKER_ENDED: Final = re.compile(
    r"DataLoader worker \(pid \d+\) (?:is killed by signal|exited unexpectedly with exit code)"
)
_WORKER_GONE: Final = re.compile(r"DataLoader worker \(pid\(s\) [^)]*\) exited unexpectedly")


def may_be_peer(error: ErrorText) -> bool:
    """Return whether a broken connection of the program's own may lead to another rank."""
    parts = read_parts(error)
    if classify(error) is not FailureCause.EXCEPTION:
        return False
    return any(
        SOCKET_ERROR.search(first_line(part))
        and not any(
            _LOADER_FRAME.search(frame.path) or _WORKER_FRAME.search(frame.path)
            for frame in part.frames
        )
        for part in parts
    )


def _class_of(part: ErrorPart, *, may_ask_nobody: bool) -> tuple[FailureCause, bool]:
    """Return the class of one error of a chain, and whether it says more than Python's type."""
    statement, frames = part.statement, part.frames[:_FRAMES_MAX]
    is_of_data = _OF_CODE_OR_DATA.search(first_line(part)) is not None
    is_peer = _is_of_peers(statement, frames)
    is_loader = _is_of_loader(frames) or "DataLoader worker (pid" in statement
    for row in ROWS:
        if (is_of_data and not row.is_any_type) or (row.needs_peer and not is_peer):
            continue
        if (row.needs_loader and not is_loader) or not row.pattern.search(statement):
            continue
        needed = row.needs_frame
        if needed and not any(needed.search(frame.path) for frame in frames):
            continue
        return row.cause, not row.is_any_type or row.cause is FailureCause.USER
    is_asked = is_of_data and not is_clients_own(statement, frames)
    if not (is_peer or is_asked or may_ask_nobody) and is_outage(statement, frames):
        return FailureCause.SERVICE, True
    if not is_peer and _MOUNT_IS_GONE.search(first_line(part)) and not _is_of_sockets(frames):
        return FailureCause.STORAGE, True
    if _NO_WAY.search(first_line(part)):
        return FailureCause.COMMUNICATION, True
    return FailureCause.EXCEPTION, False


# What a file's reads and writes say once its mount is gone, but sockets, too: then a frame of theirs stands behind it.
_MOUNT_IS_GONE: Final = re.compile(
    r"^(?:OSError|IOError|BrokenPipeError): \[Errno (?:107|108|112|121)\]"
)
# ENETDOWN, ENETUNREACH, EHOSTUNREACH: the kernel knows no way to the other host. No program brings that about.
# asyncio puts the errors of several addresses into one.
_NO_WAY: Final = re.compile(r"^OSError: (?:Multiple exceptions: )?\[Errno (?:100|101|113)\]")
_OF_SOCKETS: Final = re.compile(
    r"(?:^|/)(?:socket|ssl|socketserver|selectors|asyncio/\w+|multiprocessing/connection)\.py$"
)


def _is_of_sockets(frames: Sequence[ErrorFrame]) -> bool:
    """Return whether a socket may have failed; without any frame nobody knows."""
    return not frames or any(
        _OF_SOCKETS.search(frame.path) or CLIENT.search(frame.path) for frame in frames
    )


def _is_of_peers(statement: str, frames: Sequence[ErrorFrame]) -> bool:
    """Return whether an error is about the ranks' connections: torch.distributed, gloo, NCCL, MPI or a store."""
    if _PEER_NAME.search(statement):
        return True
    if (
        "in DataLoader worker process" in statement
    ):  # the worker's connection, whatever the rank ran
        return False
    is_socket = SOCKET_ERROR.search(statement.partition("\n")[0]) is not None
    for frame in frames:
        if _PEER_FRAME.search(frame.path):
            return True
        if CLIENT.search(frame.path) or (is_socket and _is_own_code(frame.path)):
            return False
    # Without a frame nobody knows whose connection broke. To take it for a peer's costs no node and no job.
    is_broken = not frames and _BROKEN.search(statement) is not None
    return is_broken and not (SURE_OUTAGE.search(statement) or CLIENT_NAME.search(statement))


def _is_own_code(path: str) -> bool:
    """Return whether a file is the program's: below DDP's forward, its own connections break, too."""
    return not (STANDARD_LIBRARY.search(path) or PACKAGE.search(path) or "torch/" in path)


def _is_of_loader(frames: Sequence[ErrorFrame]) -> bool:
    """Return whether the rank read from its workers: a worker's own error has other frames."""
    paths = [frame.path for frame in frames]
    is_worker = any(_WORKER_FRAME.search(path) for path in paths)
    is_dataset = any(CLIENT.search(path) for path in paths)
    return not is_worker and not is_dataset and any(_LOADER_FRAME.search(path) for path in paths)


def read_end(error: ErrorText | None, last_lines: Sequence[str]) -> SaidAtEnd:
    """Return what a rank said at its end; ``error``: already read, if it left one."""
    return read_known_end(error or parse_error(last_lines), last_lines)


def read_known_end(
    error: ErrorText | None,
    last_lines: Sequence[str],
    *,
    beside: Sequence[str] = (),
    exit_text: str = "",
) -> SaidAtEnd:
    """Return what a rank said at its end, whose output was searched for errors.

    ``beside``: errors of threads, exit handlers and other processes. ``exit_text``: of `sys.exit`.
    """
    if error is not None:
        own = error_line(error)
        others = tuple(line for line in (*error.beside, *beside) if not own.startswith(line))
        device = _device(last_lines) if error.type_name in _SAY_NOTHING else None
        return SaidAtEnd(_said(error), device, tuple(dict.fromkeys(others)))
    if (bare := _bare_error(last_lines)) is not None:
        return SaidAtEnd(error=_said(bare), beside=tuple(beside))
    device = _device(last_lines)
    if device is None:
        return SaidAtEnd(beside=tuple(beside), exit_text=exit_text)
    return SaidAtEnd(device=device, beside=tuple(beside))


# That a process ended itself: the cause stands above, if anywhere.
_SAY_NOTHING: Final = frozenset({"terminate", "Fatal Python error"})


def _device(last_lines: Sequence[str]) -> SaidError | None:
    line = find_device_line(last_lines)
    if line is None:
        return None
    found = ErrorText("", line, line)
    return SaidError(FailureCause.DEVICE, fingerprint(found), line[:SAID_CHARS_MAX])


_BARE: Final = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (.+)$")
# Of what a line without a traceback may tell: nobody's node and no bug hangs on it.
_BY_LINE: Final = frozenset(
    {
        FailureCause.COMMUNICATION,
        FailureCause.SERVICE,
        FailureCause.STORAGE,
        FailureCause.HOST_MEMORY,
        FailureCause.DEVICE_MEMORY,
    }
)


def _bare_error(last_lines: Sequence[str]) -> ErrorText | None:
    """Return the error that the last line names where there is no traceback, or None where that says too little.

    Some programs print an exception and end. A broken connection is then taken for a peer's, which blames nobody.
    """
    lines = [text for line in last_lines[-LINES_MAX:] if (text := clean_line(line))]
    line = lines[-1] if lines else ""
    match = _BARE.match(line)
    before = lines[-2] if len(lines) > 1 else ""
    if match is None or before.startswith(" ") or is_aside(before):  # the end of a traceback
        return None
    error = ErrorText(match[1].rpartition(".")[2], match[2], line)
    return error if classify(error) in _BY_LINE else None


def _said(error: ErrorText) -> SaidError:
    line, last, first = error_line(error), _last_error_of_nccl(error), first_cause(error)
    said = f"{line}; NCCL says: {last}" if last else line
    if first:
        said = f"{said[: SAID_CHARS_MAX // 2]} (first cause: {first})"
    return SaidError(
        classify(error),
        fingerprint(error),
        said[:SAID_CHARS_MAX],
        may_be_peer(error),
        error.is_uncaught,
    )


_LAST_ERROR: Final = "\nLast error:"


def _last_error_of_nccl(error: ErrorText) -> str:
    """Return what NCCL says of an error below PyTorch's first line, such as whose version is another; empty: nothing.

    Source: ncclGetLastError in torch/csrc/distributed/c10d/NCCLUtils.cpp, "Last error:" and its text on the next line.
    """
    if "NCCL error" not in error.message:
        return ""
    lines = (
        error.traceback.rpartition(_LAST_ERROR)[2].split("\n")
        if _LAST_ERROR in error.traceback
        else []
    )
    return next((line.strip() for line in lines if line.strip()), "")


# Signals that others send; one that a child's own crash brings is the program's error, as it says.
_CHILD_SIGNALS: Final = {
    9: FailureCause.KILLED,
    **dict.fromkeys((1, 2, 3, 10, 12, 15), FailureCause.USER),
}
_SIGNAL_NAMES: Final = {
    **{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "TERM": 15},
    # strsignal(3), as DataLoader.cpp prints it
    **{"Hangup": 1, "Interrupt": 2, "Quit": 3, "Terminated": 15},
    **{"User defined signal 1": 10, "User defined signal 2": 12},
}
_CHILD_ENDED: Final = re.compile(
    r"ProcessExitedException: process \d+ terminated with signal SIG([A-Z]+\d?)\b"
    r"|died with <Signals\.SIG([A-Z]+\d?): \d+>|returned non-zero exit status (1(?:29|3[0-9]|4[0-3]|59)|-\d{1,2})\."
    r"|TerminatedWorkerError: [\s\S]{0,900}?SIG([A-Z]+\d?)\(-\d+\)"
    r"|DataLoader worker[^\n]{0,40} is killed by signal: (Terminated|Hangup|Interrupt|Quit|User defined signal [12])\b"
    r"|Root Cause \(first observed failure\):[^=]{0,600}?\n +exitcode +: (-\d{1,2}|1(?:29|3[0-9]|4[0-3]))\b"
)
# Its end is known, its signal not: Ray's raylet and concurrent.futures see only that the process is gone.
_CHILD_GONE: Final = re.compile(
    r"(?:ActorDiedError|WorkerCrashedError|NodeDiedError|RayActorError|ActorUnavailableError)\b[\s\S]{0,1500}?(?:its worker process has died|worker died unexpectedly|its node has died|node is dead)"
    r"|\bBrokenProcessPool: A (?:process in the process pool was|child process) terminated abruptly"
)
_SHELL_BASE: Final = 128  # a shell exits with 128 + n after signal n ended its child


def _kill_of_child(error: ErrorText) -> FailureCause | None:
    """Return what ended the child of a rank that starts ranks itself, where that was a signal from outside.

    Sources: torch/multiprocessing/spawn.py; the table of torch/distributed/elastic/multiprocessing/errors/__init__.py,
    whose root cause is the child that ended first; subprocess.CalledProcessError, as `accelerate launch` ends, also
    of a shell (128 + n), as torchrun's child may be; joblib's loky; torch's DataLoader.cpp, whose workers a stop of the whole
    group ends.
    """
    last = error.traceback.rpartition("\nTraceback (most recent call last):")[2]
    said = last or error_line(error)
    if _WORKER_GONE.search(said):
        said = error.traceback  # how it ended stands further up
    match = _CHILD_ENDED.search(said)
    if match is None:
        return FailureCause.KILLED if _CHILD_GONE.search(said) else None
    reported = next(group for group in match.groups() if group is not None)
    if reported.lstrip("-").isdigit():
        number = -int(reported) if reported.startswith("-") else int(reported) - _SHELL_BASE
    else:
        number = _SIGNAL_NAMES.get(reported, 0)
    return _CHILD_SIGNALS.get(number)


def find_device_line(last_lines: Sequence[str]) -> str | None:
    """Return the last line in which a device reports its own fault, for a rank that left no error."""
    for line in reversed(last_lines[-LINES_MAX:]):
        cleaned = clean_line(line)
        if is_devices_own_word(cleaned):
            return cleaned
    return None
