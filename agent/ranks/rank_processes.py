"""Finds the rank that a process is or descends from, and the processes of ranks in containers.

A wrapper or two may lie between a rank and its descendant. A rank in a container reports the pid
that it has in its own PID namespace. We look for it by that pid (NSpid in /proc/PID/status) and by
its start time, which is the same in all namespaces. We read nothing that takes the memory lock of
another process (environ, maps), since that can hang. Source: pid_namespaces(7), proc_pid_status(5).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.ranks.table import RankSample
from rankmend.hook.writer import read_start_ticks

ANCESTORS_MAX: Final = 16  # between a process on a GPU and its rank

PROCESSES_MAX: Final = 65_536
STATUS_BYTES_MAX: Final = 8192
UNKNOWN_PID: Final = -1  # it lives; it may be any of several processes


def find_rank(procfs: Path, pid: int, rank_by_pid: Mapping[int, RankSample]) -> RankSample | None:
    """Return the rank that a process is, or descends from."""
    if not rank_by_pid:
        return None
    for _ in range(ANCESTORS_MAX):
        if pid in rank_by_pid:
            return rank_by_pid[pid]
        pid = _parent(procfs, pid)
        if pid <= 1:
            break
    return None


def _parent(procfs: Path, pid: int) -> int:
    """Return the parent of a process, 0 when it is gone. Source: proc_pid_stat(5)."""
    try:
        text = (procfs / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


@dataclass(frozen=True, slots=True)
class InnerProcess:
    """A process that has a pid in a PID namespace below ours."""

    uid: int
    pid: int  # in its own namespace
    start_ticks: int


def find_pid(wanted: InnerProcess, inner: "dict[InnerProcess, list[int]]") -> int | None:
    """Return the pid here, or None where there is none. Two can be alike, started in one clock tick."""
    found = inner.get(wanted, [])
    if not found:
        return None
    return found[0] if len(found) == 1 else UNKNOWN_PID


def read_inner_processes(root: Path) -> dict[InnerProcess, list[int]]:
    """Return the processes of this machine that are in PID namespaces below ours."""
    found: dict[InnerProcess, list[int]] = {}
    for pid, uid, inner_pid in _inner_pids(root):
        ticks = read_start_ticks(pid)
        if ticks is not None:
            found.setdefault(InnerProcess(uid, inner_pid, ticks), []).append(pid)
    return found


def _inner_pids(root: Path) -> Iterator[tuple[int, int, int]]:
    try:
        names = [path.name for path in root.iterdir() if path.name.isdecimal()]
    except OSError:
        return
    for name in names[:PROCESSES_MAX]:
        try:
            with (root / name / "status").open("rb") as file:
                lines = file.read(STATUS_BYTES_MAX).splitlines()
        except OSError:
            continue
        fields = {line.partition(b":")[0]: line.partition(b":")[2].split() for line in lines}
        inner, uids = fields.get(b"NSpid", []), fields.get(b"Uid", [])
        if len(inner) > 1 and len(uids) > 1:
            yield int(name), int(uids[1]), int(inner[-1])
