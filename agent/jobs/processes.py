"""Finds the job, the user and the pod of a process, by its control group.

Source: <procfs>/<pid>/cgroup, status (Uid) and environ: proc_pid_cgroup(5), proc_pid_status(5), proc_pid_environ(5).
        Slurm's cgroup.conf(5): `uid_<uid>/job_<id>` (v1), `slurmstepd.scope/job_<id>` (v2). kubelet's
        pkg/kubelet/cm: `kubepods/burstable/pod<UID>`, or `kubepods-burstable-pod<UID>.slice`, `-` as `_`.
        /var/log/pods/<namespace>_<name>_<UID> (`agent.jobs.kubelet`): the names of a pod.
Cost:   one small read a rank, and one listing of the folder where a rank is in a pod.

The system vouches for a control group; the environment is only what somebody gave to the process.
So the environment names Slurm's job only where no control group can: without Slurm's cgroup
plugins, and not in a login session, where the variables of an old job may live on. Only an agent
that runs as root or has CAP_SYS_PTRACE can read the environments of other users.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from agent.jobs.gpu_job import GpuJob
from agent.jobs.kubelet import read_pod_names
from agent.sources.regular_file import read_regular
from rankmend.errors import NoSourceError, SourceError

_BYTES_MAX: Final = 65_536
_ENVIRONMENT_BYTES_MAX: Final = 2_097_152  # execve(2): a quarter of the stack's limit of 8 MiB
NAME_CHARACTERS_MAX: Final = 200
_SLURM_NUMBER: Final = r"[1-9][0-9]{0,9}"
_SLURM_JOB: Final = re.compile(rf"job_({_SLURM_NUMBER})")
_SLURM_ABOVE: Final = re.compile(r"uid_[0-9]{1,10}|(?:[^/]*_)?slurmstepd\.scope")
_POD: Final = re.compile(
    r"(?:[a-z-]*kubepods-(?:[a-z]+-)?)?pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice)?"
)
_SESSION: Final = "user.slice"  # delegated to users: names below it are theirs
_UID: Final = re.compile(r"^Uid:\t([0-9]{1,10})\t", re.MULTILINE)


def slurm_job_of(cgroups: str) -> str:
    """Return Slurm's job number in the text of ``/proc/PID/cgroup``, empty for none."""
    return _only(map(_slurm_job_in, _paths(cgroups)))


def pod_uid_of(cgroups: str) -> str:
    """Return the UID of the pod in the text of ``/proc/PID/cgroup``, empty for none."""
    return _only(map(_pod_uid_in, _paths(cgroups)))


def _paths(cgroups: str) -> Iterator[list[str]]:
    """Return the folders of each path that the system named, not those that a user did."""
    for line in cgroups.split("\n"):
        parts = line.partition(":")[2].partition(":")[2].split("/")
        yield parts[: parts.index(_SESSION)] if _SESSION in parts else parts


def _slurm_job_in(parts: list[str]) -> str:
    for above, name in pairwise(parts):
        if (match := _SLURM_JOB.fullmatch(name)) and _SLURM_ABOVE.fullmatch(above):
            return match[1]
    return ""


def _pod_uid_in(parts: list[str]) -> str:
    is_below = False
    for name in parts:
        if is_below and (match := _POD.fullmatch(name)):
            return match[1].replace("_", "-")
        is_below = is_below or name.removesuffix(".slice").endswith("kubepods")
    return ""


def _only(found: Iterable[str]) -> str:
    """Return the one name that the control groups give; two different ones are none."""
    names = set(found) - {""}
    return names.pop() if len(names) == 1 else ""


def uid_of(status: str) -> int | None:
    """Return the real user id in the text of ``/proc/PID/status``."""
    match = _UID.search(status)
    return int(match[1]) if match else None


def slurm_environment(data: bytes) -> tuple[str, str]:
    """Return the job's number and name in the bytes of ``/proc/PID/environ``, empty for none."""
    values = {}
    for entry in data.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in (b"SLURM_JOB_ID", b"SLURM_JOB_NAME"):
            values[name] = value.decode("utf-8", errors="replace")
    number = values.get(b"SLURM_JOB_ID", "")
    if not re.fullmatch(_SLURM_NUMBER, number):
        return "", ""
    return number, clean_name(values.get(b"SLURM_JOB_NAME", ""))


def clean_name(text: str) -> str:
    """Return a name that somebody chose, fit for a label."""
    return "".join(c if c.isprintable() else "?" for c in text.strip())[:NAME_CHARACTERS_MAX]


def read_process(procfs: Path, pid: int) -> tuple[GpuJob, int | None]:
    """Return the job that a process names, and its user id; nothing for a process that has ended."""
    folder = procfs / str(pid)
    cgroups = _read(folder / "cgroup").decode("utf-8", errors="replace")
    slurm_job, pod_uid = slurm_job_of(cgroups), pod_uid_of(cgroups)
    reported, name = slurm_environment(_read(folder / "environ", _ENVIRONMENT_BYTES_MAX))
    if not slurm_job and cgroups and f"/{_SESSION}" not in cgroups:
        slurm_job = reported
    status = _read(folder / "status").decode("utf-8", errors="replace")
    is_told = bool(reported) and reported == slurm_job
    return GpuJob(slurm_job=slurm_job, job_name=name if is_told else "", pod_uid=pod_uid), uid_of(
        status
    )


def pod_uid_of_process(procfs: Path, pid: int) -> str:
    """Return the UID of the pod that a process is in, empty for none and for a process that has ended."""
    return pod_uid_of(_read(procfs / str(pid) / "cgroup").decode("utf-8", errors="replace"))


def _read(path: Path, bytes_max: int = _BYTES_MAX) -> bytes:
    try:
        return read_regular(path, bytes_max)
    except (NoSourceError, SourceError):  # it has ended, or is not ours to see
        return b""


@dataclass(frozen=True, slots=True)
class RankPod:
    """The pod of a rank."""

    uid: str
    namespace: str = ""  # empty: its folder of logs is not there, or can't be read
    name: str = ""


class RankPods:
    """Finds the pods of ranks; keeps the names of pods that it has read."""

    def __init__(self, procfs_root: Path, pod_logs: Path | None) -> None:
        self._procfs = procfs_root
        self._pod_logs = pod_logs
        self._names: Mapping[str, tuple[str, str]] = {}

    def of(self, pid: int) -> RankPod | None:
        """Return the pod of a process of this node, or None where it is in none."""
        uid = pod_uid_of_process(self._procfs, pid)
        if not uid:
            return None
        if uid not in self._names and self._pod_logs is not None:
            self._names = read_pod_names(self._pod_logs)
        return RankPod(uid, *self._names.get(uid, ("", "")))
