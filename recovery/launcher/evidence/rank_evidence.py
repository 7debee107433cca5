"""Evidence of one rank from the kernel, from its own Python and from PyTorch's flight recorder.

Source: proc_pid_status(5), proc_pid_wchan(5), proc_pid_syscall(5), proc_pid_stack(5), of which the last needs CAP_SYS_ADMIN;
        torch/csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorder.cpp (DebugInfoWriter) and
        ProcessGroupNCCL.cpp (DumpPipe, HeartbeatMonitor), 2.2 to 2.13. Names with NCCL in them are the older ones.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.errors import SourceError
from rankmend.hook import layout
from recovery.launcher.processes.process_tree import (
    PROC,
    KernelProcess,
    ProcessRef,
    descendants,
    read_state,
)

THREADS_MAX: Final = 512  # per rank: PyTorch, NCCL and a loader have some hundred
_FILE_BYTES_MAX: Final = 4096  # a kernel stack has at most 64 lines
_STATUS: Final = ("VmRSS:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")

STACKS_BYTES_MAX: Final = 256 << 10  # 100 frames of 100 threads, as faulthandler's own bounds, fit
_STATUS_BYTES_MAX: Final = 8192
_DEAF: Final = frozenset("TtDZXx")  # a signal reaches none of these now

ENTRIES: Final = 2000  # PyTorch's own default from 2.7 on; before that the recorder was off
_SIZE: Final = "TORCH_FR_BUFFER_SIZE"
_OLD_SIZE: Final = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_DUMPS: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPE: Final = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_ON_TIMEOUT: Final = "TORCH_NCCL_DUMP_ON_TIMEOUT"


def describe_rank(
    pid: int,
    processes: Mapping[int, KernelProcess],
    is_late: Callable[[], bool],
    root: str = PROC,
) -> str:
    """Return the kernel's view of a rank and all its descendants: states, wait channels, stacks.

    Reads nothing that takes a process's memory lock (environ, cmdline, maps), which a stuck driver
    call can hold for ever.

    ``processes``: all processes of this machine; once ``is_late``, no further thread is read.
    """
    top = processes.get(pid)
    if top is None:
        return f"process {pid} has ended\n"
    lines: list[str] = []
    left = THREADS_MAX
    for state in [top, *descendants(pid, processes)]:
        lines.append(_process_in_words(state, root))
        for thread in _threads(state.pid, root):
            if not left or is_late():
                lines.append("  more threads left out")
                return "\n".join([*lines, ""])
            left -= 1
            lines += _describe_thread(state.pid, thread, root)
    return "\n".join([*lines, ""])


def _process_in_words(state: KernelProcess, root: str) -> str:
    status = _read(f"{root}/{state.pid}/status")
    reported = [" ".join(line.split()) for line in status.splitlines() if line.startswith(_STATUS)]
    name = f"process {state.pid} ({state.command}), child of {state.ppid}"
    return f"{name}: state {state.letter}, {state.threads} threads, {', '.join(reported)}"


def _threads(pid: int, root: str) -> Collection[int]:
    try:
        return sorted(int(path.name) for path in Path(f"{root}/{pid}/task").iterdir())
    except OSError:
        return ()


def _describe_thread(pid: int, thread: int, root: str) -> list[str]:
    folder = f"{root}/{pid}/task/{thread}"
    state = read_state(thread, f"{root}/{pid}/task")
    if state is None:
        return []
    wchan = _read(f"{folder}/wchan").strip()
    # The call's number and arguments, but nothing that they point to.
    call = _read(f"{folder}/syscall").partition(" ")[0].strip()
    head = f"  thread {thread} ({state.command}): state {state.letter}"
    if wchan not in ("", "0"):
        head += f", in {wchan}"
    if call:
        head += f", {'running' if call == 'running' else f'system call {call}'}"
    stack = _read(f"{folder}/stack").splitlines()
    return [head, *(f"    {line.rpartition('] ')[2]}" for line in stack)]


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _FILE_BYTES_MAX).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""  # gone, or not for this user


def ask_for_stacks(path: Path, training: ProcessRef | None = None) -> str | None:
    """Request the stacks of the process that offers them in this file; return a reason if no request was sent.

    `rankmend.hook.stacks` records in each file which process writes its stacks there, and through
    which descriptor. A signal is sent only if that very process lives, catches it, and has the file
    open under that descriptor: a script that closed it may have another file there, and a process
    without a handler would die.

    ``training``: as this host knows that process, where it has reported its pid in a PID namespace
    of its own.
    """
    head = read_head(path)
    if head is None:
        return "it offers no Python stacks (not a Python process, or without our hook)"
    ref, descriptor = head
    if training is not None and training.start_ticks == ref.start_ticks:
        ref = training
    try:
        reason = _why_not(ref, descriptor, path)
        if reason is None:
            os.kill(ref.pid, layout.STACKS_SIGNAL)
    except (OSError, SourceError) as error:
        return f"process {ref.pid} can't be queried: {error}"
    return reason


def _why_not(ref: ProcessRef, descriptor: int, path: Path) -> str | None:
    state = read_state(ref.pid)
    if state is None or state.start_ticks != ref.start_ticks:
        return f"process {ref.pid} is gone"
    if state.letter in _DEAF:
        return f"process {ref.pid} is in state {state.letter} and handles no signals"
    if not is_open_in(ref.pid, descriptor, path):
        return f"process {ref.pid} has closed the file of its stacks"
    return (
        None if _catches(ref.pid) else f"process {ref.pid} no longer handles the signal for stacks"
    )


def is_open_in(pid: int, descriptor: int, path: Path) -> bool:
    """Return whether a process has this file open under this descriptor."""
    try:
        opened, wanted = Path(f"/proc/{pid}/fd/{descriptor}").stat(), path.stat()
    except FileNotFoundError:
        return False
    return (opened.st_dev, opened.st_ino) == (wanted.st_dev, wanted.st_ino)


def read_head(path: Path) -> tuple[ProcessRef, int] | None:
    """Return the process that offers its stacks in this file, and the number of its descriptor."""
    try:
        with path.open("rb") as file:
            words = file.read(layout.STACKS_HEAD_BYTES_MAX).partition(b"\n")[0].split()
    except OSError:
        return None
    if len(words) != 4 or words[0] != b"stacks" or not all(word.isdigit() for word in words[1:]):
        return None
    pid, descriptor, ticks = map(int, words[1:])
    return ProcessRef(pid, ticks), descriptor


def read_stacks(descriptor: int) -> bytes:
    """Return the text that the rank's `faulthandler` has written into this open file so far."""
    with contextlib.suppress(OSError):
        return os.pread(descriptor, STACKS_BYTES_MAX, 0).partition(b"\n")[2]
    return b""


def _catches(pid: int) -> bool:
    with Path(f"/proc/{pid}/status").open("rb") as file:
        status = file.read(_STATUS_BYTES_MAX)
    mask = status.partition(b"\nSigCgt:")[2].partition(b"\n")[0].strip()
    return bool(mask) and bool(int(mask, 16) >> (layout.STACKS_SIGNAL - 1) & 1)


@dataclass(frozen=True, slots=True)
class RecorderFiles:
    """The file that one rank dumps into, and the pipe that requests a dump.

    Rank r of an NCCL job makes the pipe `<pipe file>r.pipe` and dumps into `<dump file>r` soon
    after a byte arrives (its monitor looks once a second); gloo records, and never dumps.
    """

    dump: Path
    pipe: Path


def recorder_environment(
    base: Mapping[str, str], folder: Path, *, is_old: bool = False
) -> dict[str, str]:
    """Return the variables to add so that ranks record, and dump into ``folder`` on request.

    The user's own settings under either name stay. ``is_old``: this PyTorch has the recorder off by
    default and knows only the variables' older names, about which newer versions warn.
    """
    added = {}
    if _SIZE not in base and _OLD_SIZE not in base:
        added[_OLD_SIZE if is_old else _SIZE] = str(ENTRIES)
    if not any(name in base for name in _DUMPS):
        added.update(dict.fromkeys(_DUMPS, str(folder / "flight-")))
    added[_PIPE] = base.get(_PIPE, str(folder / "flight-pipe-"))
    added[_ON_TIMEOUT] = base.get(_ON_TIMEOUT, "1")
    return added


def recorder_files(environment: Mapping[str, str], rank: int, cwd: Path) -> RecorderFiles | None:
    """Return the files of a rank that was started with this environment, or None without any."""
    dump = next((environment[name] for name in _DUMPS if environment.get(name)), None)
    pipe = environment.get(_PIPE)
    if not dump or not pipe:
        return None
    return RecorderFiles(cwd / f"{dump}{rank}", cwd / f"{pipe}{rank}.pipe")


def ask_for_dump(files: RecorderFiles) -> bool:
    """Ask for a dump, and return whether a process listens at the rank's pipe."""
    try:
        pipe = os.open(files.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # no such pipe, or no reader
        return False
    try:
        os.write(pipe, b"\n")
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True
