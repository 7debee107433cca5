"""Tells whether a process identified earlier, perhaps in another container, still lives.

A process that can't be seen from here (in another container) is UNKNOWN, never GONE.

Source: proc(5), pid_namespaces(7), time_namespaces(7). The guardian runs this without site-packages.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankmend.clock import read_boot_id
from rankmend.errors import SourceError
from recovery.launcher.processes.identity import (
    INITIAL_PID_NAMESPACE,
    ProcessIdentity,
    Standing,
    parse_mark,
)
from recovery.launcher.processes.process_tree import PROC, KernelProcess, pids, read_state

_STATUS_BYTES_MAX: Final = 8192


def identify(pid: int | None = None, root: str = PROC) -> ProcessIdentity:
    """Return the identity of a process in this process's own namespaces; by default of this one.

    Raise SourceError if there is no such process, or no /proc.
    """
    number = os.getpid() if pid is None else pid
    # Itself by name: /proc may be mounted from outside our PID namespace, and has other pids.
    state = read_state("self" if pid is None else number, root)
    if state is None:
        raise SourceError(f"no process {number} in {root}")
    return ProcessIdentity(
        number,
        state.start_ticks,
        _namespace("pid", root),
        _namespace("time", root),
        read_boot_id(),
    )


def shows_other_namespace(root: str = PROC) -> bool:
    """Return whether /proc shows the processes of another PID namespace than ours: it was mounted outside."""
    try:
        return str(Path(root, "self").readlink()) != str(os.getpid())
    except OSError:
        return False


def own_mark() -> str:
    """Return this process's mark as a launcher, or "" without /proc."""
    try:
        return identify().mark()
    except SourceError:
        return ""


def is_there(pid: int) -> bool:
    """Return whether this pid exists in our own namespace, under any user.

    /proc may hide other users' processes (hidepid); a signal finds them.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def judge(
    process: ProcessIdentity,
    here: ProcessIdentity,
    root: str = PROC,
    exists: Callable[[int], bool] = is_there,
) -> Standing:
    """Return whether ``process`` lives, as seen by ``here``, which is this process."""
    if process.boot_id != here.boot_id or here.boot_id in ("", "unknown"):
        return Standing.UNKNOWN
    if process.time_namespace != here.time_namespace or not process.pid_namespace:
        return Standing.UNKNOWN
    if not _is_own_proc(here, root):
        return Standing.UNKNOWN
    if process.pid_namespace == here.pid_namespace:
        return _judge_here(process, root, exists)
    return _judge_elsewhere(process, here, root)


def _judge_here(process: ProcessIdentity, root: str, exists: Callable[[int], bool]) -> Standing:
    state = _read(process.pid, root)
    if state is not None:
        return _is_it(process, state)
    return Standing.UNKNOWN if exists(process.pid) else Standing.GONE


def _judge_elsewhere(process: ProcessIdentity, here: ProcessIdentity, root: str) -> Standing:
    """Search the processes of containers below ours: each shows its inner pids in NSpid."""
    for pid in pids(root):
        state = _read(pid, root)
        if state is None or state.start_ticks != process.start_ticks or state.is_gone:
            continue
        if _inner_pid(pid, root) == process.pid:
            return Standing.ALIVE
    sees_all = here.pid_namespace == INITIAL_PID_NAMESPACE and _read(1, root) is not None
    return Standing.GONE if sees_all else Standing.UNKNOWN


def _is_it(process: ProcessIdentity, state: KernelProcess) -> Standing:
    is_same = state.start_ticks == process.start_ticks and not state.is_gone
    return Standing.ALIVE if is_same else Standing.GONE


def _is_own_proc(here: ProcessIdentity, root: str) -> bool:
    """Return whether /proc belongs to our own PID namespace: it may be mounted from outside."""
    try:
        return str(Path(root, "self").readlink()) == str(here.pid)
    except OSError:
        return False


def _inner_pid(pid: int, root: str) -> int | None:
    """Return a process's pid in its innermost namespace."""
    try:
        with open(f"{root}/{pid}/status", "rb") as file:  # noqa: PTH123 - hot, as in tree.py
            status = file.read(_STATUS_BYTES_MAX)
    except OSError:
        return None
    _before, _name, after = status.partition(b"\nNSpid:")
    words = after.partition(b"\n")[0].split()
    return int(words[-1]) if words and words[-1].isdigit() else None


def _read(pid: int, root: str) -> KernelProcess | None:
    try:
        return read_state(pid, root)
    except SourceError:
        return None


def _namespace(kind: str, root: str) -> int:
    try:
        target = str(Path(root, "self", "ns", kind).readlink())
    except OSError:
        return 0
    number = target.partition("[")[2].rstrip("]")
    return int(number) if number.isdigit() else 0


class ForeignMarks:
    """Tells by the mark which processes belong to another launcher that lives or may live."""

    def __init__(self, own: ProcessIdentity, root: str = PROC) -> None:
        """``own``: the launcher whose processes are never foreign, alive or not."""
        self._own = own
        self._here = identify(root=root)
        self._root = root
        self._known: dict[str, bool] = {}

    def __call__(self, mark: str) -> bool:
        """Return whether processes with this mark must not be killed."""
        if mark in ("", self._own.mark()):
            return False
        if mark not in self._known:
            self._known[mark] = self._is_foreign(mark)
        return self._known[mark]

    def launcher(self, mark: str) -> ProcessIdentity | None:
        return parse_mark(mark, self._here.boot_id)

    def _is_foreign(self, mark: str) -> bool:
        launcher = parse_mark(mark, self._here.boot_id)
        if launcher is None:
            return False
        return judge(launcher, self._here, self._root) is not Standing.GONE
