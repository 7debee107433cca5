"""Removes what one Slurm job has left on this node. Order: processes, then files, so that no process makes them anew.

SIGTERM, a grace period, SIGKILL; it searches again until nothing is left or the time is over. What
can't be proved to be this job's alone stays, with the reason.
"""

import os
import pwd
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankmend.child_call import call_in_child
from rankmend.errors import ConfigError, RankmendError
from recovery.launcher.cleanup.job_processes import JobProcesses, find_job_processes
from recovery.launcher.cleanup.leftover_files import (
    ROOTS,
    Leftover,
    LeftoverKind,
    find_leftovers,
    remove_leftovers,
)
from recovery.launcher.processes.process_list import NAME as PROCESS_LIST
from recovery.launcher.processes.process_list import read_list
from recovery.launcher.processes.process_tree import (
    KernelProcess,
    ProcessRef,
    ancestors,
    read_processes,
    send_signal,
)

_NOGROUP: Final = 65534

LOOK_S_MAX: Final = 5.0  # /proc of 5,000 processes takes 0.1 s
_PAUSE_S: Final = 0.05

OtherJobs = Callable[[], Sequence[str]]  # raises SourceError where Slurm does not answer


def call_as_user(uid: int, function: Callable[[], Any], timeout_s: float) -> Any:
    """Return what the function returns, which must be JSON; raise SourceError.

    A child process with the rights of the job's user calls it. Root sees all of a job, but a user
    may exchange a folder for a link at any moment. With the user's own rights the function reaches
    nothing that the user could not remove, and no other user's process gets a signal.
    """
    group = _group_of(uid)

    def act() -> Any:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(uid, uid, uid)
        assert os.getresuid() == (uid, uid, uid), "the rights are the user's alone"
        return function()

    return call_in_child(act, timeout_s)


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return _NOGROUP


@dataclass(frozen=True, slots=True)
class Cleanup:
    """One clean-up: of which job, and within what."""

    job: str
    uid: int
    grace_s: float
    timeout_s: float
    is_dry: bool = False
    roots: tuple[Path, ...] = ROOTS


@dataclass(frozen=True, slots=True)
class LeftProcess:
    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class Kept:
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class CleanupResult:
    ended: tuple[LeftProcess, ...] = ()  # in a dry run: that would be
    alive: tuple[LeftProcess, ...] = ()  # not even SIGKILL has ended them yet
    removed: tuple[str, ...] = ()
    freed_bytes: int = 0
    kept: tuple[Kept, ...] = ()  # what looks like the job's, and stays
    errors: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not self.alive and not self.errors

    @property
    def is_empty(self) -> bool:
        return self == CleanupResult()


def clean_up(requested: Cleanup, other_jobs: OtherJobs) -> CleanupResult:
    """Remove what the job has left; ``other_jobs``: queries Slurm for the user's other jobs on this node."""
    if requested.uid == 0:
        raise ConfigError(
            f"job {requested.job} is root's: nothing is removed, since root runs the node"
        )
    until_s = time.monotonic() + requested.timeout_s
    files = find_leftovers(requested.job, requested.uid, requested.roots)
    listed = _listed(files, requested.uid)
    runs = frozenset(file.run for file in files if file.kind is LeftoverKind.RUN)

    def look() -> JobProcesses:
        return _look(requested, runs, listed)

    try:
        first = look()
        if not requested.is_dry:
            refuse_from_inside(
                requested.job, first.processes, ancestors(os.getpid(), read_processes())
            )
        ended, alive = ({}, []) if requested.is_dry else _end_all(requested, look, first, until_s)
        last = first if requested.is_dry else look()
    except ConfigError:
        raise
    except RankmendError as error:
        return CleanupResult(errors=(f"processes: {error}; files stay",))
    if requested.is_dry:
        ended = {process.pid: process for process in first.processes}
    else:  # a launcher that ended properly has removed its own; a killed launcher has not
        files = find_leftovers(requested.job, requested.uid, requested.roots)
    chosen, retained = _choose(requested, files, last, other_jobs)
    removed, errors = _remove(requested, chosen, until_s)
    retained += [Kept(f"process {pid}", "its environment can't be read") for pid in last.unreadable]
    return CleanupResult(
        tuple(_shown(item) for item in ended.values() if item not in alive),
        tuple(_shown(item) for item in alive),
        tuple(item.path for item in removed),
        sum(item.size_bytes for item in removed),
        tuple(retained),
        tuple(errors),
    )


def refuse_from_inside(
    job: str, processes: Sequence[KernelProcess], above: Collection[int]
) -> None:
    """Raise where a process of the job has started this command: somebody has typed it in the job's own shell."""
    for process in processes:
        if process.pid in above:
            raise ConfigError(
                f"process {process.pid} ({process.command}) of job {job} has started this command, and would be ended. "
                "Run it after the job, outside of it"
            )


def _shown(process: KernelProcess) -> LeftProcess:
    return LeftProcess(process.pid, process.command)


def _listed(files: Sequence[Leftover], uid: int) -> list[ProcessRef]:
    paths = [str(Path(file.path, PROCESS_LIST)) for file in files if file.kind is LeftoverKind.RUN]
    if not paths:
        return []

    def read() -> list[list[int]]:
        return [[ref.pid, ref.start_ticks] for path in paths for ref in read_list(path)]

    try:
        return [ProcessRef(pid, ticks) for pid, ticks in call_as_user(uid, read, LOOK_S_MAX)]
    except RankmendError:
        return []


def _look(requested: Cleanup, runs: frozenset[str], listed: Sequence[ProcessRef]) -> JobProcesses:
    """Look in a child: a process in a stuck driver call can block the reader of its environment."""

    def find() -> dict[str, Any]:
        own = os.getpid()
        found = find_job_processes(
            requested.job, requested.uid, runs=runs, listed=listed, spared=[own]
        )
        return {
            "processes": [
                [getattr(process, name) for name in KernelProcess.__slots__]
                for process in found.processes
            ],
            "other_jobs": sorted(found.other_jobs),
            "other_runs": sorted(found.other_runs),
            "outsiders": list(found.outsiders),
            "unreadable": list(found.unreadable),
        }

    reported = call_in_child(find, LOOK_S_MAX)
    return JobProcesses(
        tuple(KernelProcess(*item) for item in reported["processes"]),
        frozenset(reported["other_jobs"]),
        frozenset(reported["other_runs"]),
        tuple(reported["outsiders"]),
        tuple(reported["unreadable"]),
    )


def _end_all(
    requested: Cleanup, look: Callable[[], JobProcesses], first: JobProcesses, until_s: float
) -> tuple[dict[int, KernelProcess], list[KernelProcess]]:
    """Return the processes that were there, and those that are still."""
    seen: dict[int, KernelProcess] = {}
    left = list(first.processes)
    number = signal.SIGTERM
    grace_until_s = min(until_s, time.monotonic() + requested.grace_s)
    signalled: set[tuple[int, int, int]] = set()
    while left:
        seen |= {process.pid: process for process in left}
        keys = {(process.pid, process.start_ticks, int(number)) for process in left}
        if fresh := keys - signalled:
            _signal(requested.uid, [(pid, ticks) for pid, ticks, _number in fresh], number)
            signalled |= fresh
        if time.monotonic() >= until_s:
            return seen, left
        time.sleep(_PAUSE_S)
        if number == signal.SIGTERM and time.monotonic() >= grace_until_s:
            number = signal.SIGKILL
        left = list(look().processes)
    return seen, []


def _signal(uid: int, refs: Sequence[tuple[int, int]], number: signal.Signals) -> None:
    call_as_user(
        uid,
        lambda: [send_signal(ProcessRef(pid, ticks), number) for pid, ticks in refs],
        LOOK_S_MAX,
    )


def _choose(
    requested: Cleanup, files: Sequence[Leftover], last: JobProcesses, other_jobs: OtherJobs
) -> tuple[list[Leftover], list[Kept]]:
    """Return the files to remove, and those that stay with the reason."""
    chosen, retained, segments = [], [], []
    for file in files:
        if file.kind is LeftoverKind.SEGMENT:
            segments.append(file)
        elif file.run in last.other_runs:
            retained.append(Kept(file.path, "a process outside of this job runs it"))
        elif file.is_in_use and not requested.is_dry:
            retained.append(Kept(file.path, "a launcher holds its snapshots"))
        else:
            chosen.append(file)
    if segments:
        if why := _why_shared(last, other_jobs):
            retained += [Kept(segment.path, why) for segment in segments]
        else:
            chosen += segments
    return chosen, retained


def _why_shared(last: JobProcesses, other_jobs: OtherJobs) -> str:
    """Return why a segment that names no job may be another job's, or nothing."""
    others: Sequence[str] = sorted(last.other_jobs)
    if not others:
        try:
            others = other_jobs()
        except RankmendError as error:
            return f"it may be another job's: {error}"
    if others:
        return f"it may be another job's: {', '.join(others)}"
    if last.outsiders:
        return f"process {last.outsiders[0]} of the same user, outside of this job, may use it"
    return ""


def _remove(
    requested: Cleanup, chosen: list[Leftover], until_s: float
) -> tuple[list[Leftover], list[str]]:
    if requested.is_dry or not chosen:
        return chosen, []

    def remove() -> list[str]:
        return [leftover.error for leftover in remove_leftovers(chosen, requested.uid)]

    try:
        errors = call_as_user(requested.uid, remove, max(LOOK_S_MAX, until_s - time.monotonic()))
    except RankmendError as error:
        return [], [f"files: {error}"]
    pairs = list(zip(chosen, errors, strict=True))
    return [item for item, error in pairs if not error], [
        f"{item.path}: {error}" for item, error in pairs if error
    ]
