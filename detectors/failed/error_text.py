"""Reads what a rank said about its own end: the last error in its output, and the class of its cause.

A rank's output is text from outside: it is bounded, parsed by patterns without nested repeats, and
never raises. An error that matches no row of `ROWS` is an ordinary exception.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detectors.failed.said_error import FailureCause, SaidAtEnd, SaidError

MESSAGE_CHARS_MAX: Final = 2_000  # as recovery.messages.exchange.RankError
TRACEBACK_CHARS_MAX: Final = 16_000
LINES_MAX: Final = 500  # newest lines that are looked at
LINE_CHARS_MAX: Final = 4_000
ELASTIC_CHARS_MAX: Final = 1_000_000
FINGERPRINT_CHARS_MAX: Final = 200
SAID_CHARS_MAX: Final = 400  # length of the text for people
_CONTINUATION_LINES_MAX: Final = 8  # lines of one message: NCCL's and CUDA's have 4
_FATAL_LINES_MAX: Final = 60
_TABLE_LINES_MAX: Final = 120  # of torchrun's table: 7 for each rank that failed
_TABLE_RULES: Final = 2
_WEAK_GAP_LINES_MAX: Final = 20  # an error further back is another story


@dataclass(frozen=True, slots=True)
class ErrorText:
    """One error in a rank's own words."""

    type_name: str  # without its module; empty where only a message is known
    message: str  # first line
    traceback: str  # the whole chain, oldest first, with the lines of the last message


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """One class of errors, known by their words."""

    pattern: re.Pattern[str]
    cause: FailureCause
    source: str


def _row(pattern: str, cause: FailureCause, source: str) -> ErrorPattern:
    return ErrorPattern(re.compile(pattern), cause, source)


# The first row that matches decides. Cause before consequence: a device error is told inside
# a DistBackendError, and running out of memory inside a "CUDA error:". PyTorch ends each CUDA error with
# "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions", which tells nothing.
ROWS: Final = (
    _row(r"(?m)^KeyboardInterrupt\b", FailureCause.USER, "Python: SIGINT's default handler"),
    _row(
        r"(?:CUDA|HIP|NPU|XPU) out of memory|CUDA error: out of memory|\bOutOfMemoryError\b"
        r"|CUDA_ERROR_OUT_OF_MEMORY|Cuda failure[^\n]*out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|RESOURCE_EXHAUSTED: Out of memory",
        FailureCause.DEVICE_MEMORY,
        "torch.OutOfMemoryError; cudaErrorMemoryAllocation (2); NCCL WARN; cuBLAS; XLA",
    ),
    _row(
        r"(?m)^MemoryError\b|ArrayMemoryError|[Cc]annot allocate memory|can't allocate memory"
        r"|std::bad_alloc|out of shared memory|DataLoader worker[^\n]*killed by signal: Killed",
        FailureCause.HOST_MEMORY,
        "Python; numpy; errno ENOMEM; torch DefaultCPUAllocator and DataLoader.cpp",
    ),
    _row(
        r"device-side assert triggered|no kernel image is available|invalid configuration argument"
        r"|invalid device (?:ordinal|function)|CUDA error: invalid argument"
        r"|CUBLAS_STATUS_(?:INVALID_VALUE|NOT_SUPPORTED)",
        FailureCause.PROGRAM,
        "CUDA runtime API, cudaError 710, 209, 9, 101, 98, 1: launched wrongly by the program",
    ),
    _row(
        r"illegal memory access|misaligned address|illegal instruction was encountered"
        r"|unspecified launch failure|hardware stack error",
        FailureCause.KERNEL_FAULT,
        "CUDA runtime API, cudaError 700, 716, 715, 719, 714; XID 13 and 31 are either's fault",
    ),
    _row(
        r"uncorrectable ECC|fallen off the bus|\bXid\b|NVLink|CUDA error:|[Cc]uda failure"
        r"|cuda runtime error|CUDA driver error|CUDNN_STATUS_|CUBLAS_STATUS_|HIP error:"
        r"|ncclUnhandledCudaError|No CUDA GPUs are available|no CUDA-capable device",
        FailureCause.DEVICE,
        "cudaError 214, 220, 100, 46, 802 ...; NVRM log; torch NCCLUtils; kohya-ss/sd-scripts#1434",
    ),
    _row(
        r"Mismatched NCCL version detected",
        FailureCause.MIXED_NCCL,
        "NCCL src/init.cc, initTransportsRank: versions of all ranks of a communicator are compared",
    ),
    _row(
        r"ncclInvalid(?:Usage|Argument)|Duplicate GPU detected|op\.preamble\."
        r"|Detected mismatch between collectives",
        FailureCause.PROGRAM,
        "NCCL; gloo tcp/pair.cc when sizes differ; torch with TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
    _row(
        r"HTTPS?ConnectionPool|requests\.exceptions|urllib3?\.|botocore|aiohttp\.",
        FailureCause.EXCEPTION,
        "clients of storage and trackers: 'Connection refused' there is no word about a rank",
    ),
    _row(
        r"Connection (?:closed by peer|reset by peer|refused|was likely closed|timed out)"
        r"|[Bb]roken pipe|remote process exit|ncclRemoteError|ncclSystemError|ncclInternalError"
        r"|Timed out waiting \d+ ?ms|wait timeout after|Socket Timeout|before timing out"
        r"|client socket has (?:timed out|failed)|Application timeout caused pair closure"
        r"|Stop_waiting response|failed to listen|EADDRINUSE|[Nn]o route to host",
        FailureCause.COMMUNICATION,
        "gloo 2.13 pair.cc:537 and :553, unbound_buffer.cc:78 and :129 (a rank was killed, raised, "
        "hung); torch TCPStore and socket.cpp; NCCL; NCCL watchdog (Megatron-LM#935); errno",
    ),
    _row(
        r"(?m)^(?:[\w.]+\.)?(?:Dist(?:Backend|Network|Store)?Error|ConnectionError"
        r"|Connection(?:Reset|Refused|Aborted)Error|BrokenPipeError|TimeoutError|timeout)\b",
        FailureCause.COMMUNICATION,
        "torch.distributed exceptions; Python's sockets",
    ),
    _row(
        r"(?m)^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|TypeError"
        r"|AttributeError|NotImplementedError)\b",
        FailureCause.PROGRAM,
        "Python: code that is wrong wherever it runs (Acme, NSDI'24: 620 type, 67 attribute errors)",
    ),
)

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# torch.distributed prefixes a traceback with "[rank1]: ", its elastic agent with "[default0]:"
_PREFIX: Final = re.compile(r"^(?:\[(?:default|rank)\d{1,9}\]: ?)+")
_GROUP: Final = re.compile(r"^ {2,40}(?:\| |\+ (?=Exception Group))")
_HEADER: Final = re.compile(r"^(?:Exception Group )?Traceback \(most recent call last\):")
_FRAME: Final = re.compile(r'^ +File "[^"]+", line \d+(?:, in .+)?$')
_EXCEPTION: Final = re.compile(r"^([A-Za-z_][\w.<>]*)(?:: (.*)|:)?$")
_CHAIN: Final = frozenset(
    {
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    }
)
_THROWN: Final = re.compile(r"^terminate called after throwing an instance of '([^']+)'?")
_LAST_ERROR: Final = "\nLast error:"
_TERMINATED: Final = "terminate called without an active exception"
_FATAL: Final = re.compile(r"^Fatal Python error: (.+)$")
# The last line of argparse ("train.py: error: unrecognized arguments: --resume"), what is built on it, and click ("Error: ...").
_REFUSED: Final = re.compile(r"^(?:\S+: error|[Ee]rror): .+$")
_NOT_STARTED: Final = re.compile(
    r"^\S*python[\d.]*: ((?:can't open file|No module named|Error while finding module).*)$"
)


@dataclass(frozen=True, slots=True)
class _Found:
    """One error among the lines, from ``start`` up to and without ``end``."""

    start: int
    end: int
    error: ErrorText
    is_weak: bool = False  # says less than the error before it, which brought it about


def parse_error(last_lines: Sequence[str]) -> ErrorText | None:
    """Return the last error that a rank wrote, or None; never raises.

    Knows Python's tracebacks (chained, in groups, prefixed by torch, cut off at the start),
    faulthandler's, C++'s uncaught exceptions, the interpreter that found no script, and a parser that refused an option.
    """
    lines = [_clean(line) for line in last_lines[-LINES_MAX:]]
    last: _Found | None = None
    number = 0
    while number < len(lines):
        found = _error_at(lines, number, last)
        if found is None:
            number += 1
            continue
        number = max(found.end, number + 1)
        if not found.is_weak or last is None or last.is_weak or _are_apart(last, found):
            last = found
    return last.error if last else _refusal(lines)


def parse_elastic_error(text: str) -> ErrorText | None:
    """Return the error in a file written for TORCHELASTIC_ERROR_FILE, or None; never raises.

    Form: torch/distributed/elastic/multiprocessing/errors/error_handler.py; an older one has
    plain text for its message.
    """
    if len(text) > ELASTIC_CHARS_MAX:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    body = value.get("message") if isinstance(value, dict) else None
    extra = body.get("extraInfo") if isinstance(body, dict) else None
    said = body.get("message") if isinstance(body, dict) else body
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    stack_text = _printable(stack).strip("\n") if isinstance(stack, str) else ""
    if not isinstance(said, str) or not said.strip():
        return parse_error(stack_text.splitlines())
    first, _newline, rest = _printable(said).strip().partition("\n")
    match = _EXCEPTION.match(first)
    type_name, message = (match[1], match[2] or "") if match else ("", first)
    return _error(type_name, message, stack_text or f"{first}\n{rest}".strip())


def read_end(error: ErrorText | None, last_lines: Sequence[str]) -> SaidAtEnd:
    """Return what a rank said at its end; ``error`` is from its error file, if it wrote one."""
    error = error or parse_error(last_lines)
    if error is not None:
        return SaidAtEnd(error=_said(error, classify(error)))
    line = find_device_line(last_lines)
    if line is None:
        return SaidAtEnd()
    return SaidAtEnd(device=_said(ErrorText("", line, line), FailureCause.DEVICE))


def _said(error: ErrorText, cause: FailureCause) -> SaidError:
    line, last = error_line(error), _last_error_of_nccl(error)
    said = f"{line}; NCCL says: {last}" if last else line
    return SaidError(cause, fingerprint(error), said[:SAID_CHARS_MAX])


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


_KILLS: Final = {
    **dict.fromkeys(("9", "KILL"), FailureCause.KILLED),
    **dict.fromkeys(("15", "TERM"), FailureCause.USER),
}
_CHILD_KILLED: Final = re.compile(
    r"ProcessExitedException: process \d+ terminated with signal SIG(KILL|TERM)\b"
    r"|died with <Signals\.SIG(KILL|TERM): \d+>"
    r"|Root Cause \(first observed failure\):[^=]{0,600}?\n +exitcode +: -(9|15)\b"
)


def _kill_of_child(error: ErrorText) -> FailureCause | None:
    """Return what ended the child of a rank that starts ranks itself, where that was a signal from outside.

    Sources: torch/multiprocessing/spawn.py; the table of torch/distributed/elastic/multiprocessing/errors/__init__.py,
    whose root cause is the child that ended first; subprocess.CalledProcessError, as `accelerate launch` ends.
    """
    last = error.traceback.rpartition("\nTraceback (most recent call last):")[2]
    match = _CHILD_KILLED.search(last)
    if match is None:
        return None
    return _KILLS[next(group for group in match.groups() if group is not None)]


def classify(error: ErrorText) -> FailureCause:
    """Return the class of an error; one that says nothing takes that of what it came from."""
    if (killed := _kill_of_child(error)) is not None:
        return killed
    for statement in read_statements(error):
        for row in ROWS:
            if row.pattern.search(statement):
                return row.cause
    return FailureCause.EXCEPTION


def find_device_line(last_lines: Sequence[str]) -> str | None:
    """Return the last line that tells of a device error, for a rank that left no error."""
    patterns = [row.pattern for row in ROWS if row.cause is FailureCause.DEVICE]
    for line in reversed(last_lines[-LINES_MAX:]):
        cleaned = _clean(line)
        if any(pattern.search(cleaned) for pattern in patterns):
            return cleaned
    return None


def error_line(error: ErrorText) -> str:
    """Return the error as Python prints it: type, colon, message."""
    if error.type_name and error.message:
        return f"{error.type_name}: {error.message}"
    return error.type_name or error.message


_VARIABLE: Final = (
    # anything that differs between two ranks or two attempts of the same failure
    (re.compile(r"/(?:tmp|var/tmp|dev/shm|proc|run)/[^\s'\",:\])]+"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "#"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "#"),
    (re.compile(r"\[[0-9a-fA-F:.%]{2,60}\]"), "#"),  # an address, as gloo and torch print it
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{6,}\b"), "#"),
    (re.compile(r"[+-]?\d+(?:[.:,eE_][+-]?\d+)*"), "#"),
    (re.compile(r"\b(?:nan|inf|NaN|Inf)\b"), "#"),
    (re.compile(r"#(?:[.:,/ ]*#)+"), "#"),
    (re.compile(r"\s+"), " "),
)


def fingerprint(error: ErrorText) -> str:
    """Return the error without what differs between ranks and attempts: equal for equal causes."""
    text = error.message[:MESSAGE_CHARS_MAX]
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return f"{error.type_name}:{text.strip()}"[:FINGERPRINT_CHARS_MAX]


def _error_at(lines: list[str], number: int, before: _Found | None) -> _Found | None:
    line = lines[number]
    if _HEADER.match(line) or _FRAME.match(line):
        return _traceback_at(lines, number, before)
    if match := _THROWN.match(line):
        return _thrown_at(lines, number, match[1])
    if line == _TERMINATED:
        return _found(lines, number, number + 1, "terminate", line, is_weak=True)
    if match := _FATAL.match(line):
        end = _end_of(lines, number + 1, _FATAL_LINES_MAX)
        # a C++ exception or an error's traceback, where there is one, says why it aborted
        is_weak = match[1].startswith("Aborted")
        return _found(lines, number, end, "Fatal Python error", match[1], is_weak=is_weak)
    if match := _NOT_STARTED.match(line):
        return _found(lines, number, number + 1, "", match[1])
    return None


def _traceback_at(lines: list[str], start: int, before: _Found | None) -> _Found | None:
    """Return the traceback that starts here, with those that it is chained to."""
    number = start + 1
    while number < len(lines) and (lines[number][:1] == " " or _HEADER.match(lines[number])):
        number += 1
    match = _EXCEPTION.match(lines[number]) if number < len(lines) else None
    if match is None:
        return None
    if match[1].endswith("ChildFailedError"):
        end = _end_of_table(lines, number + 1)
    else:
        end = _end_of(lines, number + 1, _CONTINUATION_LINES_MAX)
    if before is not None and _is_chained(lines[before.end : start]):
        start = before.start
    return _found(lines, start, end, match[1], match[2] or "")


def _refusal(lines: list[str]) -> ErrorText | None:
    """Return what a script's parser of options refused. Its usage above may fill any number of lines."""
    last = next((line for line in reversed(lines) if line), "")
    return _error("", last, last) if _REFUSED.match(last) else None


def _thrown_at(lines: list[str], number: int, type_name: str) -> _Found:
    end = _end_of(lines, number + 1, _CONTINUATION_LINES_MAX)
    message = ""
    for line in lines[number + 1 : end]:
        _before, what, after = line.partition("what():")
        if what:
            message = after.strip()
            break
    return _found(lines, number, end, type_name.rpartition("::")[2], message)


def _end_of(lines: list[str], number: int, count_max: int) -> int:
    """Return where an error's own lines end: at a blank one, a log line or the next error."""
    end = min(len(lines), number + count_max)
    for place in range(number, end):
        line = lines[place]
        if not line or line[0] == "[" or line in _CHAIN or line == _TERMINATED:
            return place
        if _HEADER.match(line) or _THROWN.match(line) or _FATAL.match(line):
            return place
    return end


def _end_of_table(lines: list[str], number: int) -> int:
    """Return where the table ends that torchrun prints of the ranks that failed: at its second double rule."""
    rules = 0
    for place in range(number, min(len(lines), number + _TABLE_LINES_MAX)):
        rules += lines[place].startswith("=====")
        if rules == _TABLE_RULES:
            return place + 1
    return _end_of(lines, number, _CONTINUATION_LINES_MAX)


def _are_apart(earlier: _Found, later: _Found) -> bool:
    return later.start - earlier.end > _WEAK_GAP_LINES_MAX


def _is_chained(between: list[str]) -> bool:
    said = [line for line in between if line]
    return len(said) == 1 and said[0] in _CHAIN


def _found(
    lines: list[str], start: int, end: int, type_name: str, message: str, *, is_weak: bool = False
) -> _Found:
    return _Found(start, end, _error(type_name, message, "\n".join(lines[start:end])), is_weak)


def _error(type_name: str, message: str, traceback: str) -> ErrorText:
    """Return the error within its bounds. The end of a traceback says more than its start."""
    return ErrorText(
        type_name=type_name.rpartition(".")[2][:FINGERPRINT_CHARS_MAX],
        message=message[:MESSAGE_CHARS_MAX],
        traceback=traceback[-TRACEBACK_CHARS_MAX:],
    )


def read_statements(error: ErrorText) -> list[str]:
    """Return what the error and those it is chained to say, newest first, without frames."""
    said: list[list[str]] = [[]]
    for line in error.traceback[-TRACEBACK_CHARS_MAX:].splitlines():
        cleaned = _clean(line)
        if cleaned in _CHAIN:
            said.append([])
        elif cleaned[:1] != " " or "what():" in cleaned:
            said[-1].append(cleaned)
    said[-1].insert(0, error_line(error))
    return ["\n".join(lines) for lines in reversed(said)]


def _clean(line: str) -> str:
    """Return a line without colours, prefixes and what no text file can hold."""
    text = _ANSI.sub("", _printable(line[:LINE_CHARS_MAX])).rstrip()
    return _GROUP.sub("", _PREFIX.sub("", text))


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
