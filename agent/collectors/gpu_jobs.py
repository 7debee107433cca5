"""Which job uses which GPU, for jobs of any kind: the series that joins job, user and name to any series of a GPU.

Source: the processes that NVML lists on each GPU (`agent/nvml/monitor.py`) and what procfs says of them, ranks known
        here, NVIDIA's job-mapping folder, kubelet's checkpoint of devices: one file each under agent/jobs/.
Cost:   three small reads a process on a GPU.

What no source tells stays empty. A process that belongs to no job gives no series.
"""

import logging
import pwd
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from agent.collectors.gpu import FIRST_ANSWER_S_MAX, is_fresh, labels_of
from agent.jobs import job_map, kubelet
from agent.jobs.gpu_job import GpuJob, merge
from agent.jobs.processes import clean_name, read_process
from agent.metrics import Family, Metric, gauge
from agent.nvml.known_gpus import GpuView, MonitorState
from agent.nvml.monitor import GpuMonitor
from agent.ranks.rank_processes import find_rank
from agent.ranks.table import RankSample
from agent.ranks.watched import WatchedJob
from rankmend.errors import NoSourceError, SourceError

PROCESSES_OF_GPU_MAX: Final = 64  # a rank's data loaders have no context on the GPU
_GPU: Final = ("gpu", "uuid", "pci_bus_id")
_JOB: Final = (
    *("job_id", "slurm_job", "user", "job_name"),
    *("pod", "namespace", "container", "pod_uid"),
)

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "gpu_job_info",
        "",
        (*_GPU, *_JOB),
        "A job that uses the GPU, whoever started it; what is not known is empty; always 1.",
    ),
    gauge(
        "gpu_job_source_success",
        "",
        ("source",),
        "1 when a source of the jobs of GPUs (job_map, kubelet) could be read, 0 when it could not; no series where it is not there.",
    ),
)

log = logging.getLogger(__name__)

JobsByDevice = Mapping[str, tuple[GpuJob, ...]]


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """Where the node's schedulers say which job has which GPU. None: not looked at."""

    job_map: Path | None = None
    kubelet_checkpoint: Path | None = None
    pod_logs: Path | None = None
    cgroups: Path | None = None  # which pods run


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return a user's name, or the number where this node knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)


class GpuJobsCollector:
    name = "gpu_jobs"
    interval_s = 5.0

    def __init__(
        self,
        monitor: GpuMonitor,
        sampled_every_s: float,
        ranks: Callable[[], Sequence[RankSample]],
        watched: Callable[[], Sequence[WatchedJob]],
        procfs_root: Path,
        places: JobPlaces,
        name_user: Callable[[int], str] = user_name,
    ) -> None:
        self._monitor = monitor
        self._sampled_every_s = sampled_every_s
        self._ranks = ranks
        self._watched = watched
        self._procfs = procfs_root
        self._places = places
        self._name_user = name_user
        self._is_first = True
        self._problems: dict[str, str] = {}  # by source, as logged

    def collect(self) -> Iterator[Metric]:
        wait_s, self._is_first = FIRST_ANSWER_S_MAX if self._is_first else 0.0, False
        view = self._monitor.view(wait_s)
        if view.state is MonitorState.ABSENT or view.count == 0:
            raise NoSourceError(view.problem or "the driver lists no GPU")
        if view.released_s is not None:  # the collector `gpu` says so
            raise NoSourceError("an operator has released the GPUs")
        mapped, is_map_read = self._job_map()
        given, is_kubelet_read = self._kubelet()
        for source, is_read in (("job_map", is_map_read), ("kubelet", is_kubelet_read)):
            if is_read is not None:
                about = (("source", source),)
                yield Metric("rankmend_gpu_job_source_success", int(is_read), about)
        names = kubelet.read_pod_names(self._places.pod_logs) if self._places.pod_logs else {}
        rank_by_pid = {rank.pid: rank for rank in self._ranks() if rank.pid}
        watched = {str(job.job_id): job for job in self._watched()}
        for gpu in view.gpus:
            facts = [*self._of_processes(gpu, rank_by_pid, watched)]
            facts += [job for device in _names_of(gpu) for job in mapped.get(device, ())]
            facts += [job for device in _devices_of(gpu, given) for job in given[device]]
            for job in merge(_named(fact, names) for fact in facts):
                reported = tuple((label, getattr(job, label)) for label in _JOB)
                yield Metric("rankmend_gpu_job_info", 1, (*labels_of(gpu), *reported))

    def _of_processes(
        self,
        gpu: GpuView,
        rank_by_pid: Mapping[int, RankSample],
        watched: Mapping[str, WatchedJob],
    ) -> Iterator[GpuJob]:
        if gpu.processes is None or not is_fresh(gpu, self._sampled_every_s):
            return
        for pid, _memory_bytes in gpu.processes[:PROCESSES_OF_GPU_MAX]:
            job, uid = read_process(self._procfs, pid)
            rank = find_rank(self._procfs, pid, rank_by_pid)
            if rank is not None:
                job_id = str(rank.identity.job_id)
                job = replace(job, job_id=job_id, job_name=clean_name(rank.job_name))
                if (reported := watched.get(job_id)) and not job.slurm_job and not job.pod_uid:
                    job = replace(job, slurm_job=reported.slurm_job)
            if any(job.names):
                yield job if uid is None else replace(job, user=self._name_user(uid))

    def _note(self, source: str, problem: str) -> None:
        """Log what is wrong with a source, once."""
        if problem and self._problems.get(source) != problem:
            log.warning(
                "the jobs of GPUs can't be read", extra={"source": source, "reason": problem}
            )
        self._problems[source] = problem

    def _job_map(self) -> tuple[JobsByDevice, bool | None]:
        """Return the jobs by GPU, and whether they could be read; None: there is no such folder."""
        if self._places.job_map is None:
            return {}, None
        try:
            jobs, problem = job_map.read_job_map(self._places.job_map)
        except NoSourceError:
            return {}, None
        except SourceError as error:
            jobs, problem = {}, str(error)
        self._note("job_map", problem)
        return jobs, not problem

    def _kubelet(self) -> tuple[JobsByDevice, bool | None]:
        """Return the running pods by device, and whether they could be read."""
        places = self._places
        if places.kubelet_checkpoint is None or places.cgroups is None:
            return {}, None
        try:
            jobs = kubelet.read_checkpoint(places.kubelet_checkpoint)
        except NoSourceError:
            return {}, None
        except SourceError as error:
            self._note("kubelet", str(error))
            return {}, False
        self._note("kubelet", "")
        uids = {job.pod_uid for of_device in jobs.values() for job in of_device}
        running = {uid for uid in uids if kubelet.is_running(places.cgroups, uid)}
        return {
            device: tuple(job for job in of_device if job.pod_uid in running)
            for device, of_device in jobs.items()
        }, True


def _names_of(gpu: GpuView) -> tuple[str, ...]:
    """Return the names of a GPU and its MIG instances in a job map."""
    instances = (
        texts[2]
        for group in gpu.groups.values()
        for name, texts, _value in group.values
        if name == "mig_info"
    )
    return (str(gpu.index), *(uuid for uuid in (gpu.uuid, *instances) if uuid))


def _devices_of(gpu: GpuView, given: JobsByDevice) -> list[str]:
    """Return kubelet's devices on a GPU; drivers before 470 named instances MIG-GPU-<UUID>/1/0."""
    names, before = _names_of(gpu)[1:], f"MIG-{gpu.uuid}/"
    return [device for device in given if device in names or device.startswith(before)]


def _named(job: GpuJob, names: Mapping[str, tuple[str, str]]) -> GpuJob:
    if job.pod_uid not in names:
        return job
    namespace, pod = names[job.pod_uid]
    return replace(job, namespace=namespace, pod=pod)
