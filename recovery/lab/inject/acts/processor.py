"""Faults of a processor: a share of a core for a rank, and load on its cores.

Source: Linux Documentation/scheduler/sched-bwc.rst (v1: cpu.cfs_quota_us), admin-guide/cgroup-v2.rst (cpu.max).
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from rankmend.errors import NoSourceError, SourceError
from recovery.lab.inject.fault import FaultKind
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.undo import LeaveGroup
from recovery.launcher.processes.process_tree import ProcessRef, descendants, read_processes

_PERIOD_US: Final = 100_000  # the kernel's own
_QUOTA_US_MIN: Final = 1_000  # the kernel takes no less
NAME: Final = "rankmend-inject-"


def plan(place: FaultPlace) -> FaultPlan:
    if place.request.fault is FaultKind.CPU_QUOTA:
        return _limit(place)
    return _load(place)


def _load(place: FaultPlace) -> FaultPlan:
    workers, process = place.request.options.workers, place.found.process
    try:
        cores = sorted(os.sched_getaffinity(0 if process is None else process.pid))
    except OSError as error:
        raise SourceError(f"cannot read the cores of {place.request.target}: {error}") from error
    shown = ",".join(map(str, cores))
    module = "recovery.lab.inject.faulty.core_load"
    return FaultPlan(
        (f"keep {workers} processes busy on the cores {shown}",),
        helper=(module, str(workers), shown, str(place.until_boot_s)),
        ends_with_pid=None if process is None else process.pid,
    )


def _limit(place: FaultPlace) -> FaultPlan:
    process, share = place.found.process, place.request.options.share
    assert process is not None, "a rank is a process"
    assert share is not None, "checked with the request"
    root, home, is_v2 = _cpu_group(process.pid)
    group = root / f"{NAME}{place.injection_id}"
    if not os.access(root, os.W_OK):
        raise NoSourceError(f"you may make no control group in {root}: this needs root")
    quota_us = max(_QUOTA_US_MIN, round(share * _PERIOD_US))

    def make() -> None:
        group.mkdir()
        if is_v2:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}", encoding="ascii")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
        _move(process, group)

    return FaultPlan(
        (
            f"make the control group {group} with {quota_us / _PERIOD_US:g} of a core",
            f"move process {process.pid} and those below it there from {home}",
        ),
        (LeaveGroup(str(group), str(home)),),
        make,
        ends_with_pid=process.pid,
    )


def _move(process: ProcessRef, group: Path) -> None:
    below = [state.pid for state in descendants(process.pid, read_processes())]
    (group / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid), encoding="ascii")


def _cpu_group(pid: int) -> tuple[Path, Path, bool]:
    """Return the root of the cpu controller's hierarchy, a process's folder in it, and whether it is version 2."""
    mounts = [
        line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    ]
    lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    paths = {kinds: path for _number, kinds, path in (line.split(":", 2) for line in lines)}
    for words in mounts:
        if words[2] == "cgroup" and "cpu" in words[3].split(","):
            own = next((path for kinds, path in paths.items() if "cpu" in kinds.split(",")), None)
            if own is not None:
                return Path(words[1]), Path(words[1]) / own.lstrip("/"), False
    for words in mounts:
        if words[2] == "cgroup2":
            root = Path(words[1])
            enabled = (root / "cgroup.subtree_control").read_text(encoding="ascii").split()
            if "cpu" in enabled and "" in paths:
                return root, root / paths[""].lstrip("/"), True
    raise NoSourceError(
        "no control group here limits processors: the cpu controller is not enabled"
    )
