"""Finds what a target names: the process of a rank by its launcher's record, a service by its program.

A pid is taken only where it is that of a rank in such a record, and the process itself carries the job's mark. Ranks of other
launchers that are watched are found by their progress files (`recovery.lab.inject.watched_targets`).
"""

import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError, NoSourceError, RankmendError
from recovery.journal.folder.job_folder import find_launchers, is_held, read_json
from recovery.lab.inject.fault import TargetKind
from recovery.lab.inject.permission import JobMark
from recovery.lab.inject.request import FaultTarget
from recovery.lab.inject.watched_targets import WatchedRank, find_watched_ranks
from recovery.launcher.processes.process_tree import (
    PROC,
    ProcessRef,
    pids,
    read_mark,
    read_processes,
    read_state,
)
from recovery.local.report.overview import view_ranks

_CMDLINE_BYTES_MAX: Final = 65_536
_PROGRAMS: Final[Mapping[str, frozenset[bytes]]] = {
    "postgresql": frozenset((b"postgres",)),
    "alertmanager": frozenset((b"alertmanager", b"prometheus-alertmanager")),  # Debian's
}
_AGENT_COMMANDS: Final = frozenset((b"forget", b"init", b"release", b"resume"))
"""`rankmend agent` with one of these does something, and is no service."""


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """What is really there."""

    process: ProcessRef | None = None
    job: JobMark | None = None
    drill_file: Path | None = None  # of the rank, where its job allows drills
    path: str | None = None  # without links
    unit: str | None = None  # of systemd, that keeps the service


@dataclass(frozen=True, slots=True)
class _Job:
    """One job that runs on this machine, as its launcher has written it down."""

    job_id: str
    mark: JobMark
    runtime: Path
    launcher_pid: int | None


def find_target(target: FaultTarget, state: Path) -> FoundTarget:
    """Return what the target names; raise ConfigError or NoSourceError where there is no such thing."""
    match target.kind:
        case TargetKind.RANK:
            return _find_rank(target, state)
        case TargetKind.PATH:
            return _find_path(target, state)
        case TargetKind.SERVICE:
            return _find_service(target, state)
        case TargetKind.INTERFACE:
            if not Path("/proc/sys/net/ipv4/conf", target.name).exists():
                raise NoSourceError(f"there is no interface {target.name} here")
            return FoundTarget()
        case _:
            return FoundTarget()


def _jobs(state: Path, wanted: str | None) -> Iterator[_Job]:
    for folder in find_launchers(state, wanted):
        try:
            run, about = read_json(folder / "run.json"), read_json(folder / "job.json")
            is_running = is_held(folder)
            uid = folder.stat().st_uid
        except (RankmendError, OSError):
            continue  # a damaged one hides no other
        if not is_running or run is None or about is None:
            continue
        runtime, checkpoints, pid = (run.get(key) for key in ("runtime", "checkpoints", "pid"))
        if isinstance(runtime, str) and isinstance(about.get("job_id"), str):
            mark = JobMark(
                name=str(about.get("name", "")),
                uid=uid,
                allows_drills=run.get("allows_drills") is True,
                checkpoints=os.path.realpath(checkpoints) if isinstance(checkpoints, str) else None,
            )
            yield _Job(about["job_id"], mark, Path(runtime), pid if isinstance(pid, int) else None)


def _find_rank(target: FaultTarget, state: Path) -> FoundTarget:
    matches = []
    for job in _jobs(state, target.name or None):
        for view in view_ranks(job.runtime, time.monotonic):
            wanted = view.rank if target.name else view.pid
            if wanted == target.number:
                matches.append((job, view.rank, view.pid))
    watched = [item for item in find_watched_ranks() if _is_meant(item, target)]
    same_name = [item for item in matches if target.name in (item[0].mark.name, item[0].job_id)]
    same_watched = [item for item in watched if target.name in (item.job_name, item.job_id)]
    if same_name or same_watched:  # a whole name goes before the beginning of others
        matches, watched = same_name, same_watched
    if not matches and not watched:
        raise NoSourceError(
            f"{target} is not a rank of a job that rankmend runs or watches on {platform.node()} (rankmend status lists those that it runs; --state-dir names another user's)"
        )
    if len(matches) + len(watched) > 1:
        names = ", ".join(
            [
                *(job.mark.name for job, _rank, _pid in matches),
                *(f"{item.job_name} ({item.job_id}, watched)" for item in watched),
            ]
        )
        raise ConfigError(f"{target} fits ranks of several jobs: {names}")
    if watched:
        return _watched_target(watched[0])
    job, rank, pid = matches[0]
    try:
        mark = read_mark(pid, job.job_id)
    except PermissionError as error:
        raise NoSourceError(f"process {pid} of {target} is not yours to look at") from error
    if mark is None:
        living = read_state(pid)
        if living is None or living.is_gone:
            raise NoSourceError(f"{target} has gone: its process {pid} has ended")
        raise NoSourceError(
            f"process {pid} is not rank {rank} of job {job.mark.name}: it has no mark of it"
        )
    process = mark[1]
    attempt = process.attempt
    file = None
    if job.mark.allows_drills and attempt is not None:
        file = job.runtime / f"attempt-{attempt}" / f"rank-{rank}.drill"
    return FoundTarget(process, job.mark, file)


def _is_meant(rank: WatchedRank, target: FaultTarget) -> bool:
    if not target.name:
        return rank.process.pid == target.number
    names = (rank.job_name, rank.job_id)
    return rank.rank == target.number and any(name.startswith(target.name) for name in names)


def _watched_target(rank: WatchedRank) -> FoundTarget:
    mark = JobMark(rank.job_name, rank.uid, rank.allows_drills, is_watched=True)
    return FoundTarget(rank.process, mark, rank.drill_file if rank.allows_drills else None)


def _find_path(target: FaultTarget, state: Path) -> FoundTarget:
    real = os.path.realpath(target.name)
    if not os.path.lexists(real):
        raise NoSourceError(f"there is no {target.name}")
    for job in _jobs(state, None):
        below = job.mark.checkpoints
        if below is not None and (real == below or real.startswith(below + "/")):
            return FoundTarget(job=job.mark, path=real)
    return FoundTarget(path=real)


def _find_service(target: FaultTarget, state: Path) -> FoundTarget:
    service, _, job_name = target.name.partition("/")
    if service == "launcher":
        found = [job for job in _jobs(state, job_name) if job.launcher_pid is not None]
        if len(found) != 1:
            raise NoSourceError(f"{len(found)} jobs that run here fit {job_name!r:.80}, not one")
        pid = found[0].launcher_pid
        assert pid is not None, "chosen so"
        return FoundTarget(_process(pid), found[0].mark)
    candidates = _services(service)
    if target.number is not None:
        candidates = [pid for pid in candidates if pid == target.number]
    if len(candidates) != 1:
        shown = ", ".join(map(str, candidates[:10])) or "none"
        raise NoSourceError(
            f"want one process of {service}, found {shown}: name it as service:{service}/PID"
        )
    return FoundTarget(_process(candidates[0]), unit=_unit_of(candidates[0]))


def _process(pid: int) -> ProcessRef:
    state = read_state(pid)
    if state is None or state.is_gone:
        raise NoSourceError(f"process {pid} has gone")
    return ProcessRef(pid, state.start_ticks)


def _services(service: str) -> list[int]:
    """Return the main processes of a service: those whose parent is none of it."""
    processes = read_processes()
    found = {pid for pid in pids() if pid in processes and _is_service(pid, service)}
    return sorted(pid for pid in found if processes[pid].ppid not in found)


def _is_service(pid: int, service: str) -> bool:
    try:
        with Path(PROC, str(pid), "cmdline").open("rb") as file:
            words = file.read(_CMDLINE_BYTES_MAX).split(b"\0")[:-1]
    except OSError:
        return False
    names = [word.rpartition(b"/")[2] for word in words]
    if service in _PROGRAMS:
        return not _PROGRAMS[service].isdisjoint(names[:1])
    starts = [place for place, name in enumerate(names) if name in (b"rankmend", b"rankmend.cli")]
    reported = [names[place + 1 :] for place in starts]
    if service == "controller":
        return any(words[:2] == [b"controller", b"run"] for words in reported)
    return any(words[:1] == [b"agent"] and _AGENT_COMMANDS.isdisjoint(words) for words in reported)


def _unit_of(pid: int) -> str | None:
    """Return the unit of systemd that a process is in, or None."""
    try:
        lines = Path(PROC, str(pid), "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        number, kinds, path = line.split(":", 2)
        if (number == "0" or kinds == "name=systemd") and path.startswith("/system.slice/"):
            name = path.removeprefix("/system.slice/").split("/")[0]
            if name.endswith(".service"):
                return name
    return None
