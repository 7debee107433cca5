"""Sends a signal to a rank behind `--rank-prefix`: to its own processes, not to the tool in front of them.

A tool that ends by the signal would take the rank with it, before it has saved; one that forwards it would have the rank
get it twice. The kernel keeps a signal without a handler from the first process of a PID namespace, where outside it would
end the process: there SIGKILL takes its place.

Reading /proc/PID/environ can hang, so a child of the guardian does it.
Source: pid_namespaces(7), proc_pid_status(5). The guardian runs this without site-packages.
"""

import contextlib
import os
import signal
from typing import Final

from rankmend.hook.layout import ENV_ATTEMPT, ENV_JOB_ID
from recovery.launcher.guardian.kill import become_child
from recovery.launcher.processes.process_tree import (
    ENV_INSIDE,
    PROC,
    pids,
    read_environ,
    read_status,
)

_RANK: Final = "RANK"
# What a process without a handler lives through (signal(7), default actions).
_HARMLESS: Final = frozenset(
    (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP)
)


def signal_inside(job_id: str, attempt: int, rank: int, group: int, signum: int) -> None:
    """Send a signal to a rank's own processes; to the group of what is in front where none is there yet."""
    guardian_pid = os.getpid()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            become_child(guardian_pid)
            wanted = {ENV_JOB_ID: job_id, ENV_ATTEMPT: str(attempt), _RANK: str(rank)}
            found = find_inside(wanted)
            for pid in found:
                _send(pid, signum)
            if not found:
                os.killpg(group, signum)
        os._exit(0)


def find_inside(wanted: dict[str, str], root: str = PROC) -> list[int]:
    """Return the processes behind a prefix whose environment has these values."""
    lines = [f"\0{name}={value}\0".encode() for name, value in {**wanted, ENV_INSIDE: "1"}.items()]
    found = []
    for pid in pids(root):
        with contextlib.suppress(OSError):
            environ = b"\0" + read_environ(pid, root)
            if all(line in environ for line in lines):
                found.append(pid)
    return found


def _send(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL if _is_kept_from(pid, signum) else signum)


def _is_kept_from(pid: int, signum: int) -> bool:
    """Return whether the kernel drops a signal that would end this process in no PID namespace of its own."""
    status = read_status(pid)
    inner = status.get("NSpid", "").split()
    if len(inner) < 2 or inner[-1] != "1" or signum in _HARMLESS:
        return False
    masks = [int(status.get(name, "0"), 16) for name in ("SigCgt", "SigIgn")]
    return not any(mask >> (signum - 1) & 1 for mask in masks)
