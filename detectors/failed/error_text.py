"""Reads the error that ended a rank: from the hook's record, torchrun's error file or the last output.

The error is the uncaught exception of the main thread. The hook records it as it happens
(`rankmend.hook.own_errors`). Without that record the output decides: the block that PyTorch prefixes
with ``[rankN]:`` first. What a thread, a destructor, an exit handler, the logging module or another
process prints is shown beside the error and never takes its place.

A rank's output is text from outside: it is bounded, parsed by patterns without nested repeats, and
never raises. `detectors.failed.error_classes` says what an error means.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from detectors.failed.plain_lines import (
    ANSI,
    FRAME,
    HEADER,
    PATH_CHARS_MAX,
    clean_line,
    plain_lines,
    printable,
)

MESSAGE_CHARS_MAX: Final = 2_000  # as recovery.messages.exchange.RankError
TRACEBACK_CHARS_MAX: Final = 16_000
LINES_MAX: Final = 500  # newest lines that are looked at
ELASTIC_CHARS_MAX: Final = 1_000_000
RECORD_CHARS_MAX: Final = 262_144  # as rankmend.hook.uncaught
BESIDE_MAX: Final = 3
BESIDE_CHARS_MAX: Final = 300
FINGERPRINT_CHARS_MAX: Final = 200
_CONTINUATION_LINES_MAX: Final = 8  # lines of one message: NCCL's and CUDA's have 4
_FATAL_LINES_MAX: Final = 60
_TABLE_LINES_MAX: Final = 120  # of torchrun's table: 7 for each rank that failed
_TABLE_RULES: Final = 2
_HEAD_CHARS_MAX: Final = 6_000  # of a traceback that is too long: its start has the first cause
_RECORD_PARTS_MAX: Final = 16
_RECORD_FRAMES_MAX: Final = 64
_CHAIN_LINES_MAX: Final = 5_000  # of tracebacks that are one error; a longer chain is another one
_WEAK_GAP_LINES_MAX: Final = 20  # an error further back is another story


@dataclass(frozen=True, slots=True)
class ErrorText:
    """One error in a rank's own words."""

    type_name: str  # without its module; empty where only a message is known
    message: str  # first line
    traceback: str  # the whole chain, oldest first, with the lines of the last message
    beside: tuple[
        str, ...
    ] = ()  # errors of threads, exit handlers, other processes: `BESIDE_MAX` at most
    is_uncaught: bool = False  # known to have ended the script: what comes after it is the exit


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """One frame of a traceback."""

    path: str  # with slashes
    function: str  # empty: not printed
    code: str  # its source line; empty: not printed


@dataclass(frozen=True, slots=True)
class ErrorPart:
    """One error of a chain: what it states, and where it was raised."""

    statement: str  # without frames; of the newest error its line comes first
    frames: tuple[ErrorFrame, ...]  # the innermost first


# Heads a part of a group. Source: CPython, Lib/traceback.py, TracebackException.format.
_PART: Final = re.compile(r"^ {2,40}\+(?:-\+)?-{4,} \d+ -{4,}$")
_EXCEPTION: Final = re.compile(r"^([A-Za-z_][\w.<>]*)(?:: (.*)|:)?$")
_DURING: Final = "During handling of the above exception, another exception occurred:"
_CAUSED: Final = "The above exception was the direct cause of the following exception:"
_CHAIN: Final = frozenset({_DURING, _CAUSED})
_LOADER: Final = re.compile(r"^Original Traceback \(most recent call last\):")
_RANK_BLOCK: Final = re.compile(r"^(?:\[default\d{1,9}\]: ?)?\[rank\d{1,9}\]: ?")
# What stands before a traceback that is not the main thread's uncaught exception.
# Sources: CPython's PyErr_WriteUnraisable, threading.excepthook, atexitmodule.c, logging.Handler.handleError,
# PyErr_PrintEx, multiprocessing.process.BaseProcess._bootstrap, asyncio's default exception handler, concurrent.futures' callbacks, socketserver,
# wandb/sdk/internal/internal.py (wandb/wandb#3433).
_ASIDE_HEAD: Final = re.compile(
    r"^(?:Exception ignored (?:in|on|while|when)\b|Unhandled exception in thread|Exception in thread |Exception in threading"
    r"|Error in atexit\b|Exception ignored in atexit|--- Logging error ---|Error in sys\.|Error in (?:daemon|background) "
    r"|(?:Task|Future) exception was never retrieved|Exception in (?:async |Tkinter )?callback|Unhandled exception in event loop|Unclosed (?:client|connection)"
    r"|exception calling callback <Future|Exception (?:happened|occurred) during processing of request|Thread \w{1,40}Thread:"
    r"| {2,40}\+-{4,} (?!1 )\d+ -{4,})"  # a group's part behind the first, which brought the group about
)
# Of what asyncio's handler shows below its message, in any number of lines ("Fatal error on SSL transport": python-websockets/websockets#356).
_ASYNC_DETAIL: Final = re.compile(
    r"^(?:future|task|handle|transport|protocol|server|asyncgen): <|^source_traceback: "
)
_PROCESS_HEAD: Final = re.compile(r"^Process \S+:$")
# A traceback that was logged: the program has handled it, and it counts where there is no other.
# torch's DataLoader.cpp says so just before the loop's own error.
_LOG_HEAD: Final = re.compile(
    r"^(?!ERROR: Unexpected [\w -]{1,40} encountered in worker).{0,80}?\b(?:ERROR|CRITICAL|WARNING)\b"
    r"|^\S{1,40} (?:\S{1,20} )?\[(?:error|critical|warning) {0,8}\] |^\[[EW] \d{6} \d\d:\d\d:\d\d "  # structlog, tornado
)
_REAL_HEAD: Final = re.compile(r"^Original exception was:$")
# A line of a log, by the forms of Python's logging, glog, Slurm and wandb: no error's message has one.
_LOG_LINE: Final = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]{1,100}:|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d|[EWIF]\d{4} \d\d:\d\d:\d\d|(?:srun|slurmstepd|wandb): "
)
# Frames of processes that a rank starts: they print their own errors to the rank's stderr.
_HELPER: Final = re.compile(
    r"(?:^|/)(?:multiprocess(?:ing)?/(?:resource_tracker|forkserver|spawn|process|queues|pool|managers|popen_\w+)"
    r"|torch/utils/data/_utils/worker|torchdata/stateful_dataloader/worker|concurrent/futures/process|loky/(?:process_executor|backend/\w+)"
    r"|torch/_inductor/compile_worker/\w+)\.py$"
)
_HELPER_ENTRIES: Final = frozenset(
    {
        "main",
        "spawn_main",
        "_main",
        "_bootstrap",
        "_feed",
        "worker",
        "_worker_loop",
        "_process_worker",
    }
)
_HELPER_DEPTH: Final = 4  # outermost frames of a helper that are its own library's
# Heads the last part of torchrun's table. Source: torch/distributed/elastic/multiprocessing/errors/__init__.py.
_ROOT_CAUSE: Final = "Root Cause (first observed failure):"
# What a library's clean-up throws while the process ends: an error before it, where there is one, is the cause.
_OF_CLEAN_UP: Final = ("INTERNAL ASSERT FAILED", "driver shutting down")
_THROWN: Final = re.compile(r"^terminate called after throwing an instance of '([^']+)'?")
_TERMINATED: Final = "terminate called without an active exception"
# torch/multiprocessing/spawn.py: what a rank says that has started ranks itself. The child's error is the error.
_SPAWNED: Final = re.compile(r"-- Process \d+ terminated with the following error:\n")
# glog and absl end the process behind a line of severity F: "F0323 12:00:01.123456 140 client.h:80] Check failed", "F external/x/y.cc:34] ...".
_LOGGED_FATAL: Final = re.compile(
    r"^F(?:\d{4} \d\d:\d\d:[\d.]{2,24} +\d{1,10})? [\w./+-]{1,200}:\d{1,6}\] (.+)$"
)
_MAY_BE_FATAL: Final = re.compile(
    r"F(?:\d{4} \d\d:\d\d:[\d.]{2,24} +\d{1,10})? [\w./+-]{1,200}:\d{1,6}\] "
)
# What ended another process stands above, in that process's output. Sources: vllm/v1/engine/exceptions.py and utils.py.
_SAYS_ABOVE: Final = re.compile(
    r"(?i)\bsee (?:the )?(?:root cause|stack trace|traceback|logs?|errors?)[^\n]{0,20}\babove\b"
)
_FATAL: Final = re.compile(r"^Fatal Python error: (.+)$")
# The last line of argparse ("train.py: error: unrecognized arguments: --resume"), what is built on it, and click ("Error: ...").
_REFUSED: Final = re.compile(r"^(?:\S+: error|[Ee]rror): .+$")
# Source: hydra/_internal/utils.py, run_and_report.
_OF_HYDRA: Final = "Set the environment variable HYDRA_FULL_ERROR=1"
_HYDRA_REFUSED: Final = re.compile(
    r"^(?:Could not |Key '|In '|Primary config |You must specify '|Error merging |Cannot find |Ambiguous value |mismatched input |no viable |token recognition |Lexer)"
)
_HYDRA_LINES_MAX: Final = 12
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
    standing: int = 2  # 3: PyTorch prefixed it; 2: plain; 1: of another process; 0: a thread's, an exit handler's


_UNCAUGHT: Final = 3  # the standing of what an excepthook has printed


def parse_error(last_lines: Sequence[str]) -> ErrorText | None:
    """Return the last error that a rank wrote, or None; never raises.

    Knows Python's tracebacks (chained, in groups, prefixed by torch, cut off at the start),
    faulthandler's, C++'s uncaught exceptions, the interpreter that found no script, and a parser that refused an option.
    """
    newest = last_lines[-LINES_MAX:]
    lines = plain_lines(newest)
    found = _find_errors(lines, [_is_of_rank(line) for line in newest])
    chosen: _Found | None = None
    for error in found:
        if error.standing and _replaces(error, chosen):
            chosen = error
    if chosen is None:
        return _table_alone(lines) or _refusal(lines)
    return replace(
        chosen.error, beside=_beside(found, chosen), is_uncaught=chosen.standing == _UNCAUGHT
    )


@dataclass(frozen=True, slots=True)
class PrintedError:
    """One error among lines of output, with the places of its first line and of the line behind its last."""

    start: int
    end: int
    error: ErrorText
    is_own: bool  # not a thread's, an exit handler's or another process's
    is_weak: bool  # says that the process ended, and not why
    is_logged: bool = False  # by the program, which may have handled it


def find_errors(lines: Sequence[str]) -> list[PrintedError]:
    """Return every error in an output in its order; never raises. ``lines`` may be of any number."""
    plain = plain_lines(lines)
    found = _find_errors(plain, [_is_of_rank(line) for line in lines])
    return [
        PrintedError(
            each.start,
            each.end,
            each.error,
            each.standing >= 2,
            each.is_weak,
            each.standing == 1 and _is_logged(plain, each.start),
        )
        for each in found
    ]


def _is_logged(lines: Sequence[str], start: int) -> bool:
    head = next((line for line in reversed(lines[max(0, start - 3) : start]) if line), "")
    return _LOG_HEAD.match(head) is not None


_BEGINNINGS: Final = (
    *("raceback (most recent", 'File "', "terminate called", "Fatal Python error", "❱ "),
    *("can't open file", "No module named", "Error while finding module"),
)


def may_begin_error(line: str) -> bool:
    """Return whether `find_errors` can find an error that begins in this line; costs a tenth of it."""
    for word in _BEGINNINGS:
        if word in line:
            return True
    return "F" in line and "] " in line and _MAY_BE_FATAL.search(line) is not None


def find_refusal(lines: Sequence[str]) -> ErrorText | None:
    """Return what a parser of options refused in the last of these lines, or None."""
    return _refusal(plain_lines(lines))


def read_printed(record: ErrorText, last_lines: Sequence[str]) -> ErrorText:
    """Return a recorded error as the rank printed it, with source lines, if the output has it; never raises."""
    if _SAYS_ABOVE.search(record.message):
        above = parse_error(last_lines)
        return replace(above, is_uncaught=True) if above is not None else record
    newest = last_lines[-LINES_MAX:]
    lines = plain_lines(newest)
    for found in reversed(_find_errors(lines, [_is_of_rank(line) for line in newest])):
        if found.standing >= 2 and error_line(found.error) == error_line(record):
            return replace(found.error, is_uncaught=True)
    return record


def read_beside(last_lines: Sequence[str]) -> tuple[str, ...]:
    """Return the errors in a rank's output that threads, exit handlers and other processes printed; never raises."""
    newest = last_lines[-LINES_MAX:]
    lines = plain_lines(newest)
    return _beside(_find_errors(lines, [_is_of_rank(line) for line in newest]), None)


def is_aside(line: str) -> bool:
    """Return whether what stands below this line is not the main thread's uncaught exception."""
    return _ASIDE_HEAD.match(line) is not None


def read_exit_text(last_lines: Sequence[str]) -> str:
    """Return the text that `sys.exit(text)` printed, or nothing where the last line may be something else.

    Python prints the text to stderr and ends with code 1. A progress bar, a warning or a log line says nothing
    about the end.
    """
    last = next(
        (text for line in reversed(last_lines[-LINES_MAX:]) if (text := clean_line(line))), ""
    )
    return "" if _NO_EXIT_TEXT.search(last) else last[:BESIDE_CHARS_MAX]


_NO_EXIT_TEXT: Final = re.compile(
    r"\r|%\||it/s|s/it|^\s|\bWARN|Warning\b|\bINFO\b|\bDEBUG\b|^\[|^\d{4}-\d\d-\d\d|^\d\d:\d\d|^[IWE]\d{4} |^(?:wandb|rankmend): "
)


def _find_errors(lines: list[str], are_of_rank: list[bool]) -> list[_Found]:
    found: list[_Found] = []
    number = 0
    fruitless_end = (
        0  # of the last lines of a traceback that end in no error: any start among them ends there
    )
    while number < len(lines):
        before = found[-1] if found else None
        is_known = number < fruitless_end and _starts_traceback(lines[number])
        error = None if is_known else _error_at(lines, number, before)
        if error is None:
            if not is_known and _starts_traceback(lines[number]):
                fruitless_end = _end_of_frames(lines, number)
            number += 1
            continue
        is_chained = before is not None and error.start == before.start
        standing = _standing(lines, error.start, number, error.end)
        if standing and are_of_rank[number]:
            standing = 3
        if is_chained:
            found.pop()
        found.append(replace(error, standing=standing))
        number = max(error.end, number + 1)
    return found


def _replaces(error: _Found, chosen: _Found | None) -> bool:
    """Return whether a later error is the rank's error rather than the one chosen so far."""
    if chosen is None:
        return True
    if error.is_weak and not chosen.is_weak:
        points_up = _SAYS_ABOVE.search(error.error.message) is not None
        return not points_up and chosen.standing < 3 and _are_apart(chosen, error)
    return error.standing >= chosen.standing


def _standing(lines: list[str], start: int, newest: int, end: int) -> int:
    """Return whose an error is, by what stands above it and by the outermost frames of its newest traceback.

    An older traceback of a chain begins where the error was handled, and may be another process's.
    """
    head = next((line for line in reversed(lines[max(0, start - 3) : start]) if line), "")
    if _ASIDE_HEAD.match(head) or _ASYNC_DETAIL.match(head):
        return 0
    if _REAL_HEAD.match(head):
        return 3
    if _PROCESS_HEAD.match(head) or _LOG_HEAD.match(head):
        return 1
    frames = [match for line in lines[newest:end] if (match := FRAME.match(line))]
    outer = [(match[1].replace("\\", "/"), match[2] or "") for match in frames[:_HELPER_DEPTH]]
    is_helper = any(_HELPER.search(path) and name in _HELPER_ENTRIES for path, name in outer)
    return 1 if is_helper or (bool(outer) and outer[0][0] in ("<string>", "<stdin>")) else 2


def _beside(found: list[_Found], chosen: _Found | None) -> tuple[str, ...]:
    lines = [
        error_line(other.error)[:BESIDE_CHARS_MAX]
        for other in found
        if other is not chosen and other.standing < 2 and not other.is_weak
    ]
    return tuple(dict.fromkeys(lines[-BESIDE_MAX:]))


def _is_of_rank(line: str) -> bool:
    head = line[:200]
    return _RANK_BLOCK.match(ANSI.sub("", head) if "\x1b" in head else head) is not None


def parse_record(text: str, pids: Collection[int]) -> ErrorText | None:
    """Return the error that the hook recorded, or None if it isn't of one of these processes; never raises.

    Written by `rankmend.hook.own_errors`; a rank may write anything else into the file.
    """
    if len(text) > RECORD_CHARS_MAX:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("pid") not in pids:
        return None
    chain = value.get("chain")
    reported = chain[:_RECORD_PARTS_MAX] if isinstance(chain, list) else ()
    parts = [part for part in reported if isinstance(part, dict)]
    if not parts:
        return None
    while len(parts) > 1 and _text_of(parts[0], "type").endswith("ExceptionGroup"):
        del parts[0]  # its first exception, which comes next, brought the group about
    lines: list[str] = []
    for part in reversed(parts):
        link = _CAUSED if _text_of(part, "link") == "cause" else _DURING
        lines += ["", link, ""] if lines else []
        lines += _recorded_lines(part)
    newest = parts[0]
    text_of_child = _SPAWNED.split(_text_of(newest, "text"), maxsplit=1)[1:]
    if text_of_child and (child := parse_error(text_of_child[0].splitlines())) is not None:
        return replace(child, is_uncaught=True)
    message = _text_of(newest, "text").partition("\n")[0]
    error = _error(_text_of(newest, "type"), message, "\n".join(lines))
    return replace(error, is_uncaught=True)


def _recorded_lines(part: dict[str, object]) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    frames = part.get("frames")
    for frame in frames[:_RECORD_FRAMES_MAX] if isinstance(frames, list) else ():
        if isinstance(frame, list) and len(frame) >= 3:
            path, line, function = (printable(str(item))[:PATH_CHARS_MAX] for item in frame[:3])
            lines.append(f'  File "{path}", line {line}, in {function}'.replace("\n", " "))
    text = _text_of(part, "text")
    return [*lines, *f"{_text_of(part, 'type')}{text and ': '}{text}".split("\n")]


def _text_of(part: dict[str, object], name: str) -> str:
    value = part.get(name)
    return printable(value)[:MESSAGE_CHARS_MAX] if isinstance(value, str) else ""


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
    stack_text = printable(stack).strip("\n") if isinstance(stack, str) else ""
    if not isinstance(said, str) or not said.strip():
        return parse_error(stack_text.splitlines())
    first, _newline, rest = printable(said).strip().partition("\n")
    match = _EXCEPTION.match(first)
    type_name, message = (match[1], match[2] or "") if match else ("", first)
    return _error(type_name, message, stack_text or f"{first}\n{rest}".strip())


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


ALIKE_DIGITS: Final = {ord(digit): "0" for digit in "123456789"}


def fingerprint(error: ErrorText) -> str:
    """Return the error without what differs between ranks and attempts: equal for equal causes."""
    text = error.message[:MESSAGE_CHARS_MAX].translate(ALIKE_DIGITS)  # no number's value counts
    return _fingerprint(error.type_name, text)


@lru_cache(maxsize=128)  # thousands of ranks print one error with numbers of their own
def _fingerprint(type_name: str, text: str) -> str:
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return f"{type_name}:{text.strip()}"[:FINGERPRINT_CHARS_MAX]


def _error_at(  # noqa: PLR0911 - one return for each form
    lines: list[str], number: int, before: _Found | None
) -> _Found | None:
    line = lines[number]
    if _starts_traceback(line):
        return _traceback_at(lines, number, before)
    if line[:1] not in ("t", "F") and "python" not in line:
        return None
    if match := _THROWN.match(line):
        return _thrown_at(lines, number, match[1])
    if line == _TERMINATED:
        return _found(lines, number, number + 1, "terminate", line, is_weak=True)
    if match := _FATAL.match(line):
        end = _end_of(lines, number + 1, _FATAL_LINES_MAX)
        # a C++ exception or an error's traceback, where there is one, says why it aborted
        is_weak = match[1].startswith("Aborted")
        return _found(lines, number, end, "Fatal Python error", match[1], is_weak=is_weak)
    if match := _NOT_STARTED.match(line) or _LOGGED_FATAL.match(line):
        return _found(lines, number, number + 1, "", match[1])
    return None


def _starts_traceback(line: str) -> bool:
    if line[:1] == " ":
        return FRAME.match(line) is not None
    return line[:1] in ("T", "E") and HEADER.match(line) is not None


def _end_of_frames(lines: list[str], start: int) -> int:
    number = start + 1
    while number < len(lines) and (lines[number][:1] == " " or HEADER.match(lines[number])):
        number += 1
    return number


def _traceback_at(lines: list[str], start: int, before: _Found | None) -> _Found | None:
    """Return the traceback that starts here, with those that it is chained to."""
    number = _end_of_frames(lines, start)
    match = _EXCEPTION.match(lines[number]) if number < len(lines) else None
    if match is None:
        return None
    if match[1].endswith("ChildFailedError"):
        end = _end_of_table(lines, number + 1)
    else:
        end = _end_with_original(lines, number + 1)
    is_near = before is not None and start - before.start <= _CHAIN_LINES_MAX
    if is_near and before is not None and _is_chained(lines[before.end : start]):
        start = before.start
    if match[1].endswith("ExceptionGroup"):
        match = _bare_part(lines, number + 1, end) or match
    message = match[2] or ""
    return _found(
        lines, start, end, match[1], message, is_weak=_SAYS_ABOVE.search(message) is not None
    )


def _bare_part(lines: list[str], number: int, end: int) -> re.Match[str] | None:
    """Return the first exception of a group that was never raised, and so has no traceback."""
    places = (at for at in range(number, end) if _PART.match(lines[at - 1]))
    return next((match for at in places if (match := _EXCEPTION.match(lines[at]))), None)


def _table_alone(lines: list[str]) -> ErrorText | None:
    """Return torchrun's error by the end of its table, where many failures have pushed its head out of the output."""
    start = next((at for at in range(len(lines) - 1, -1, -1) if lines[at] == _ROOT_CAUSE), None)
    if start is None:
        return None
    below = range(start + 1, len(lines))
    table = lines[start : next((at for at in below if lines[at].startswith("=====")), len(lines))]
    reported = dict(line.split(":", 1) for line in table if line[:2] == "  " and ":" in line)
    said = {name.strip(): text.strip() for name, text in reported.items()}
    if "exitcode" not in said:
        return None
    message = f"exit code {said['exitcode']}: {said.get('traceback', '')}"
    return _error("ChildFailedError", message, "\n".join(table))


def _refusal(lines: list[str]) -> ErrorText | None:
    """Return what a script's parser of options refused. Its usage above may fill any number of lines.

    Hydra names what it refuses above its last line, which is always the same.
    """
    said = [line for line in lines if line]
    last = said[-1] if said else ""
    if last.startswith(_OF_HYDRA):
        above = said[-1 - _HYDRA_LINES_MAX : -1]
        first = next((at for at, line in enumerate(above) if _HYDRA_REFUSED.match(line)), None)
        return None if first is None else _error("", above[first], "\n".join(above[first:]))
    return _error("", last, last) if _REFUSED.match(last) else None


def _thrown_at(lines: list[str], number: int, type_name: str) -> _Found:
    end = _end_of(lines, number + 1, _CONTINUATION_LINES_MAX)
    message = ""
    for line in lines[number + 1 : end]:
        _before, what, after = line.partition("what():")
        if what:
            message = after.strip()
            break
    is_weak = any(words in message for words in _OF_CLEAN_UP)
    return _found(lines, number, end, type_name.rpartition("::")[2], message, is_weak=is_weak)


def _end_of(lines: list[str], number: int, count_max: int) -> int:
    """Return where an error's own lines end: at a blank one, a log line or the next error."""
    end = min(len(lines), number + count_max)
    for place in range(number, end):
        line = lines[place]
        if not line or line[0] == "[" or line in _CHAIN or line == _TERMINATED:
            return place
        if _ASIDE_HEAD.match(line) or _PROCESS_HEAD.match(line) or _LOG_LINE.match(line):
            return place
        if HEADER.match(line) or _THROWN.match(line) or _FATAL.match(line):
            return place
    return end


def _end_with_original(lines: list[str], number: int) -> int:
    """Return where a message ends that may hold the traceback of a data loader's worker.

    Form: torch/_utils.py, ExceptionWrapper.
    """
    end = _end_of(lines, number, _CONTINUATION_LINES_MAX)
    if not any(_LOADER.match(line) for line in lines[number:end]):
        return end
    place = number
    for place in range(number, min(len(lines), number + _TABLE_LINES_MAX)):
        line = lines[place]
        if not line and lines[place + 1 : place + 2] and lines[place + 1] not in _CHAIN:
            return place
        if line[:1] == "[" or line == _TERMINATED or _FATAL.match(line) or _THROWN.match(line):
            return place
        is_next = HEADER.match(line) and not _is_chained(lines[max(number, place - 3) : place])
        if is_next or _ASIDE_HEAD.match(line) or _PROCESS_HEAD.match(line):
            return place
    return place + 1


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


_LEFT_OUT: Final = "\n  ...\n"


def _error(type_name: str, message: str, traceback: str) -> ErrorText:
    """Return the error within its bounds: a traceback that is too long lacks its middle.

    The end has the error, the start what it came from.
    """
    if len(traceback) > TRACEBACK_CHARS_MAX:
        tail = TRACEBACK_CHARS_MAX - _HEAD_CHARS_MAX - len(_LEFT_OUT)
        traceback = traceback[:_HEAD_CHARS_MAX] + _LEFT_OUT + traceback[-tail:]
    return ErrorText(
        type_name=type_name.rpartition(".")[2][:FINGERPRINT_CHARS_MAX],
        message=message[:MESSAGE_CHARS_MAX],
        traceback=traceback[-TRACEBACK_CHARS_MAX:],
    )


# Indented lines of messages: one for each of several operations that failed, and what a program wrote that was called.
# Sources: tensorflow/core/common_runtime, StatusGroup; git/exc.py; libstdc++.
_OF_MESSAGE: Final = re.compile(r" +(?:\(\d\) +\w|(?:stderr|stdout): |what\(\):)")


def _is_said(line: str) -> bool:
    """Return whether a line of a traceback states an error, and shows no code."""
    return line[:1] != " " or _OF_MESSAGE.match(line) is not None


def read_statements(error: ErrorText) -> list[str]:
    """Return what the error and those it is chained to say, newest first, without frames."""
    said: list[list[str]] = [[]]
    for line in error.traceback[-TRACEBACK_CHARS_MAX:].splitlines():
        cleaned = clean_line(line)
        if cleaned in _CHAIN:
            said.append([])
        elif _is_said(cleaned):
            said[-1].append(cleaned)
    said[-1].insert(0, error_line(error))
    return ["\n".join(lines) for lines in reversed(said)]


def read_frames(traceback: str) -> Iterator[list[ErrorFrame]]:
    """Yield the frames of each traceback of a chain, oldest traceback first, the innermost frame first."""
    frames: list[ErrorFrame] = []
    for line in traceback.splitlines():
        match = FRAME.match(line)
        if match is not None:
            path = match[1][-PATH_CHARS_MAX:].replace("\\", "/")
            frames.append(ErrorFrame(path, (match[2] or "")[:PATH_CHARS_MAX], ""))
        elif line[:1] != " " and frames:
            yield frames[::-1]
            frames = []
        elif frames and not frames[-1].code and line.strip(" ^~"):
            code = line.strip()[:PATH_CHARS_MAX]
            frames[-1] = ErrorFrame(frames[-1].path, frames[-1].function, code)
    if frames:
        yield frames[::-1]


def read_parts(error: ErrorText) -> list[ErrorPart]:
    """Return the errors of a chain, the newest first and the first cause last.

    The error of a data loader's worker is printed behind the one that passes it on, and is its cause.
    """
    sections: list[list[str]] = [[]]
    place = newest = 0
    for line in error.traceback[-TRACEBACK_CHARS_MAX:].splitlines():
        cleaned = clean_line(line)
        if cleaned in _CHAIN:
            place += 1
            newest += 1
            sections.insert(place, [])
        elif _LOADER.match(cleaned):
            sections.insert(place, [])
            newest += 1
        else:
            sections[place].append(cleaned)
    parts = []
    for number, lines in enumerate(sections):
        said = [line for line in lines if _is_said(line)]
        frames = [frame for part in read_frames("\n".join(lines)) for frame in part]
        if number == newest:
            said.insert(0, error_line(error))
        parts.append(ErrorPart("\n".join(said), tuple(frames)))
    return parts[::-1]


def all_frames(error: ErrorText | None) -> list[ErrorFrame]:
    """Return the frames of an error and of those it came from, oldest first; of each the innermost frame first."""
    if error is None:
        return []
    return [frame for part in read_frames(error.traceback) for frame in part]


def first_line(part: ErrorPart) -> str:
    """Return the line in which an error of a chain is stated."""
    lines = (
        line for line in part.statement.split("\n") if line and not line.startswith("Traceback (")
    )
    return next(lines, "")


def first_cause(error: ErrorText) -> str:
    """Return the line of the first error of a chain; nothing where there is no chain."""
    parts = read_parts(error)
    if len(parts) < 2:
        return ""
    said = (line for line in parts[-1].statement.split("\n") if line and not HEADER.match(line))
    line = next(said, "")[:BESIDE_CHARS_MAX]
    return "" if line.endswith(error_line(error)) else line
