"""Finds the process of a rank that told its pid in a PID namespace of its own, by the pid that it has here.

Its start time is the same everywhere, and /proc/PID/status tells the innermost pid (NSpid). Two containers can start a
process in one clock tick under one inner pid. So it also has to be below the process that was started for the rank, or to
have a file open under a descriptor as it told: where a daemon has started the container.

Takes no process's memory lock (environ, maps). Source: pid_namespaces(7), proc_pid_status(5).
"""

from collections.abc import Callable
from typing import Final

from rankmend.errors import SourceError
from recovery.launcher.processes.process_tree import (
    PROC,
    ProcessRef,
    ancestors,
    read_processes,
    read_status,
)

LOOK_S: Final = 2.0  # between two looks for a process that was not found


def find_outer(
    inner: ProcessRef, below: int, is_it: Callable[[int], bool], root: str = PROC
) -> ProcessRef | None:
    """Return the process whose innermost pid and start time are ``inner``; None where none is told apart.

    ``below``: an ancestor that proves it; ``is_it``: another proof, for one that has another parent.
    """
    try:
        processes = read_processes(root)
    except (OSError, SourceError):
        return None
    found = [
        state.pid
        for state in processes.values()
        if state.start_ticks == inner.start_ticks
        and not state.is_gone
        and read_status(state.pid, root).get("NSpid", "").split()[-1:] == [str(inner.pid)]
    ]
    own = [pid for pid in found if pid == below or below in ancestors(pid, processes)]
    own = own or [pid for pid in found if is_it(pid)]
    return ProcessRef(own[0], inner.start_ticks) if len(own) == 1 else None
