"""Whether a fault may be made here: the job states it, or the node is marked for it. Pure.

Nothing is allowed by default. A job that was started with `rankmend run --drills`, or is watched with RANKMEND_WATCH_DRILLS=1, allows what breaks its own processes and
its own checkpoints. Everything else needs a node that root has marked for drills, and root.
"""

from dataclasses import dataclass
from typing import Final

from recovery.lab.inject.fault import FACTS, FaultGroup, FaultKind, TargetKind
from recovery.lab.inject.request import FaultRequest

OF_JOB: Final = frozenset(
    (
        *(
            FaultKind.KILL,
            FaultKind.STOP,
            FaultKind.EXIT_CODE,
            FaultKind.EXCEPTION,
            FaultKind.MEMORY_LEAK,
        ),
        *(FaultKind.GRANDCHILD, FaultKind.CPU_QUOTA, FaultKind.CORE_LOAD, FaultKind.FILE_LIMIT),
        *(FaultKind.TORN_CHECKPOINT, FaultKind.BIT_FLIP),
        *(FaultKind.SERVICE_KILL, FaultKind.SERVICE_STOP, FaultKind.JOURNAL_FULL),
    )
)
"""What a job may allow for itself."""


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """What root allows on this node (/etc/rankmend/drills.toml)."""

    allow: tuple[FaultGroup, ...] = ()
    interfaces: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    for_s_max: float = 600.0
    # of a file system that disk-full fills; a larger one is only covered
    fill_bytes_max: int = 1 << 30


@dataclass(frozen=True, slots=True)
class JobMark:
    """What the job that is the target says of itself."""

    name: str
    uid: int  # of its ranks
    allows_drills: bool
    checkpoints: str | None = None
    is_watched: bool = False  # another launcher has started it


def why_refused(
    request: FaultRequest, marks: NodeMarks | None, job: JobMark | None, uid: int
) -> str | None:
    """Return why the fault may not be made, or None where it may. ``marks``: None where the node has none."""
    if job is not None and uid not in (0, job.uid):
        return f"job {job.name} is of uid {job.uid}, and you are uid {uid}"
    if job is not None and job.allows_drills and _is_of_job(request, job):
        return None
    if marks is None:
        if job is not None and request.fault in OF_JOB:
            switch = "RANKMEND_WATCH_DRILLS=1" if job.is_watched else "--drills"
            return f"job {job.name} was not started with {switch}, and this node is not marked for drills"
        return "this node is not marked for drills"
    if uid != 0:
        return "what breaks a node needs root"
    return _why_not_marked(request, marks)


def _is_of_job(request: FaultRequest, job: JobMark) -> bool:
    if request.fault not in OF_JOB:
        return False
    if request.target.kind is not TargetKind.PATH:
        return True
    return job.checkpoints is not None and is_below(request.target.name, (job.checkpoints,))


def _why_not_marked(request: FaultRequest, marks: NodeMarks) -> str | None:
    group = FACTS[request.fault].group
    if group not in marks.allow:
        allowed = ", ".join(item.value for item in marks.allow) or "nothing"
        return f"this node is marked for {allowed}, not for {group.value}"
    if request.for_s > marks.for_s_max:
        return (
            f"this node allows at most {marks.for_s_max:g} s (for_s_max), not {request.for_s:g} s"
        )
    target = request.target
    if target.kind is TargetKind.INTERFACE and target.name not in marks.interfaces:
        return f"interface {target.name} is not among this node's interfaces for drills"
    if target.kind is TargetKind.PATH and not is_below(target.name, marks.paths):
        return f"{target.name} is not below one of this node's paths for drills"
    return None


def is_below(path: str, folders: tuple[str, ...]) -> bool:
    """Return whether a path without links or dots is one of the folders, or in one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
