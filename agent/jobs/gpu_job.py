"""Which jobs use a GPU, put together from what several sources know. Pure.

Facts are of one job if they share a name of it (our job id, Slurm's number, a pod's UID) and contradict
each other in none. What sources contradict each other in (the user, the container) stays empty: no
value is better than a wrong one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

JOBS_OF_GPU_MAX: Final = 32  # 7 MIG instances, or a GPU that many share
_NAMES: Final = ("job_id", "slurm_job", "pod_uid")


@dataclass(frozen=True, slots=True)
class GpuJob:
    """One job as a source knows it; empty: the source does not know."""

    job_id: str = ""  # of a launcher of ours or a watched job, or what a site's job map says
    slurm_job: str = ""
    user: str = ""
    job_name: str = ""
    pod_uid: str = ""
    pod: str = ""
    namespace: str = ""
    container: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in _NAMES)


def merge(facts: Iterable[GpuJob]) -> tuple[GpuJob, ...]:
    """Return one job for all facts of it, at most JOBS_OF_GPU_MAX, in a stable order."""
    groups: list[list[GpuJob]] = []
    joined: list[GpuJob] = []  # each group as one job
    groups_of: dict[tuple[int, str], list[int]] = {}  # by a name: which of the three, and its text
    # What says most comes first, so that what says less finds where it belongs.
    for fact in sorted(facts, key=lambda fact: (-sum(map(bool, fact.names)), fact.names)):
        if not any(fact.names):
            continue
        named = [name for name in enumerate(fact.names) if name[1]]
        near = sorted({group for name in named for group in groups_of.get(name, ())})
        group = next((near for near in near if _is_same_job(joined[near], fact)), len(groups))
        if group == len(groups):
            groups.append([])
            joined.append(fact)
        groups[group].append(fact)
        joined[group] = _joined(groups[group])
        for name in named:
            if group not in (known := groups_of.setdefault(name, [])):
                known.append(group)
    return tuple(joined[:JOBS_OF_GPU_MAX])


def _is_same_job(job: GpuJob, other: GpuJob) -> bool:
    pairs = [(a, b) for a, b in zip(job.names, other.names, strict=True) if a and b]
    return bool(pairs) and all(a == b for a, b in pairs)


def _joined(group: Sequence[GpuJob]) -> GpuJob:
    def first(field: str) -> str:
        return next((value for fact in group if (value := getattr(fact, field))), "")

    def only(field: str) -> str:
        values = {value for fact in group if (value := getattr(fact, field))}
        return values.pop() if len(values) == 1 else ""

    return GpuJob(
        job_id=first("job_id"),
        slurm_job=first("slurm_job"),
        # An account inside a container says nothing about whose pod it is, unless slurmd runs there.
        user="" if first("pod_uid") and not first("slurm_job") else only("user"),
        job_name=first("job_name"),
        pod_uid=first("pod_uid"),
        pod=first("pod"),
        namespace=first("namespace"),
        container=only("container"),
    )
