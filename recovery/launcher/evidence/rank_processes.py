"""The kernel's view of a rank's processes and threads: states, wait channels, stacks.

Reads nothing that takes a process's memory lock (environ, cmdline, maps), which a stuck driver
call can hold for ever. Source: proc_pid_status(5), proc_pid_wchan(5), proc_pid_syscall(5),
proc_pid_stack(5); the last needs CAP_SYS_ADMIN.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from recovery.launcher.processes.process_tree import (
    PROC,
    KernelProcess,
    descendants,
    read_state,
)

THREADS_MAX: Final = 512  # per rank: PyTorch, NCCL and a loader have some hundred
_FILE_BYTES_MAX: Final = 4096  # a kernel stack has at most 64 lines
_STATUS: Final = ("VmRSS:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


def describe_rank(
    pid: int,
    processes: Mapping[int, KernelProcess],
    is_late: Callable[[], bool],
    root: str = PROC,
) -> str:
    """Return the kernel's view of a rank and all its descendants.

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
    told = [" ".join(line.split()) for line in status.splitlines() if line.startswith(_STATUS)]
    name = f"process {state.pid} ({state.command}), child of {state.ppid}"
    return f"{name}: state {state.letter}, {state.threads} threads, {', '.join(told)}"


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
