"""The rank that a process is, or descends from: a wrapper or two may lie between."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agent.ranks.table import RankSample

ANCESTORS_MAX: Final = 16  # between a process on a GPU and its rank


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
