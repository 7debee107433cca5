"""The processes of one Slurm job of one user on this node.

A process belongs to the job if the user runs it and its environment names the job; or names no job, but carries the
rankmend mark of a run of this job, or descends from such a process, or a guardian of the job listed it. A process whose
environment names another job belongs to that one, whatever its parent. One that changes its user (sudo) is left alone.

Reading /proc/PID/environ can block for ever: call `find_job_processes` in a child that can be left behind.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankmend.hook.layout import ENV_JOB_ID
from recovery.launcher.processes.process_tree import (
    ENV_GUARDIAN,
    PROC,
    KernelProcess,
    ProcessRef,
    ancestors,
    descendants,
    read_environ,
    read_processes,
)

_JOB_VARIABLES: Final = (b"SLURM_JOB_ID", b"SLURM_JOBID")
_MARK_VARIABLES: Final = (ENV_JOB_ID.encode(), ENV_GUARDIAN.encode())


@dataclass(frozen=True, slots=True)
class JobProcesses:
    """What one look at /proc found."""

    processes: tuple[KernelProcess, ...] = ()  # of the job
    other_jobs: frozenset[str] = frozenset()  # Slurm jobs of the same user that have processes here
    # rankmend's job ids that have processes outside of the job
    other_runs: frozenset[str] = frozenset()
    outsiders: tuple[int, ...] = ()  # the user's processes that no Slurm job started
    unreadable: tuple[int, ...] = ()  # pids of the user whose environment could not be read


@dataclass(slots=True)
class _Sorted:
    own: dict[int, KernelProcess] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    unnamed: dict[int, frozenset[str]] = field(default_factory=dict)  # pid to its marks
    unreadable: list[int] = field(default_factory=list)


def find_job_processes(
    job: str,
    uid: int,
    *,
    runs: Collection[str] = (),
    listed: Iterable[ProcessRef] = (),
    spared: Collection[int] = (),
    root: str = PROC,
) -> JobProcesses:
    """Return the job's processes. ``runs``: rankmend's job ids that files tie to the job; ``spared``: left out, with all above."""
    processes = read_processes(root)
    found, own_runs = _Sorted(), set(runs)
    other_runs: set[str] = set()
    other_jobs: set[str] = set()
    for pid, state in processes.items():
        if state.is_gone or not runs_as(pid, uid, root):
            continue
        environment = _read_environment(pid, root)
        if environment is None:
            found.unreadable.append(pid)
            continue
        jobs, marks = environment
        if job in jobs:
            found.own[pid] = state
            own_runs |= marks
        elif jobs:
            found.foreign.add(pid)
            other_jobs |= jobs
            other_runs |= marks
        else:
            found.unnamed[pid] = marks
    own_runs -= other_runs
    _add_unnamed(found, processes, own_runs, listed)
    above = {ancestor for pid in spared for ancestor in (pid, *ancestors(pid, processes))}
    outsiders = {pid: marks for pid, marks in found.unnamed.items() if pid not in found.own}
    for marks in outsiders.values():  # a run by hand, beside Slurm
        other_runs |= marks
    return JobProcesses(
        tuple(state for pid, state in sorted(found.own.items()) if pid not in above),
        frozenset(other_jobs),
        frozenset(other_runs),
        tuple(sorted(outsiders.keys() - above)),
        tuple(found.unreadable),
    )


def runs_as(pid: int, uid: int, root: str = PROC) -> bool:
    """Return whether real, effective and saved user of a process are all this one."""
    try:
        status = Path(root, str(pid), "status").read_bytes()
    except OSError:
        return False
    words = status.partition(b"\nUid:")[2].partition(b"\n")[0].split()
    return words[:3] == [str(uid).encode()] * 3


def _add_unnamed(
    found: _Sorted,
    processes: dict[int, KernelProcess],
    runs: Collection[str],
    listed: Iterable[ProcessRef],
) -> None:
    keys = {(ref.pid, ref.start_ticks) for ref in listed}
    for pid, marks in found.unnamed.items():
        state = processes[pid]
        if marks & set(runs) or (not marks and (pid, state.start_ticks) in keys):
            found.own[pid] = state
    for pid in list(found.own):
        for state in descendants(pid, processes):
            if state.pid in found.unnamed and not state.is_gone:
                found.own[state.pid] = state


def _read_environment(pid: int, root: str) -> tuple[set[str], frozenset[str]] | None:
    """Return the Slurm jobs and the rankmend runs that a process was started with; None: unreadable."""
    try:
        words = read_environ(pid, root).split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return set(), frozenset()
    except OSError:
        return None
    pairs = [word.partition(b"=") for word in words]
    jobs = {_text(value) for name, _sign, value in pairs if name in _JOB_VARIABLES and value}
    marks = {_text(value) for name, _sign, value in pairs if name in _MARK_VARIABLES and value}
    return jobs, frozenset(marks)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
