"""How rankmend recognises a job that starts again. docs/use/run.md, "What makes two starts one job".

The key must be the same when the same job comes back (the same line again, a requeue) and different
for every other job that may run at the same time. A number that all lines of an allocation share
(SLURM_JOB_ID) or that people copy (--rdzv-id) can't do the second alone. The checkpoint folder can:
two jobs that write to one folder are a mistake in any case.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

ANONYMOUS: Final = "anonymous:"
_OTHER_NAME: Final = "give this one another name with --job"
_OTHER_FOLDER: Final = "give this one its own --checkpoint-dir"
_READABLE_MAX: Final = 48
_PATH_MAX: Final = 256  # a service accepts keys of 512 characters (recovery/api/wire.py)
_DIGEST_CHARACTERS: Final = 12

_UNREADABLE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_TITLE_PART_MAX: Final = 28  # two of them, a dash and a suffix fit into 63 characters


@dataclass(frozen=True, slots=True)
class JobKey:
    """The identity of a job across its starts."""

    text: str
    name: str  # for people
    reason: str  # what the key was made from
    remedy: str = _OTHER_NAME  # what to do about a job that has this key by mistake
    label: str = ""  # names the state folder, if `name` may differ between two starts
    is_derived: bool = False  # not chosen by the user: a start beside a running one is another job
    is_default_name: bool = False  # nobody chose `name`: it gets a suffix where another job has it

    @property
    def folder_name(self) -> str:
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label or self.name).strip("-.")
        return f"{readable[:_READABLE_MAX] or 'job'}-{_digest(self.text)}"

    @property
    def is_anonymous(self) -> bool:
        """Whether nothing identifies the job, so each start is a separate job."""
        return self.text.startswith(ANONYMOUS)

    def instance(self, number: int) -> "JobKey":
        """Return the key of the ``number``-th job that runs under a derived key at one time."""
        if number == 1:
            return self
        return replace(self, text=f"{self.text}#{number}", name=f"{self.name}-{number}")


def key_of_one_node(
    job: str | None,
    rdzv_id: str | None,
    environment: Mapping[str, str],
    checkpoint_folder: Path | None,
    command: Sequence[str] = (),
    title: str = "",
) -> JobKey:
    """Return the key of a job that runs on this node alone.

    --job, else the checkpoint folder, else --rdzv-id and the Slurm task together with the
    ``command`` (working folder, script, arguments), so that the runs of a sweep stay apart.
    ``title``: what to call the job where nobody has named it (`default_title`).
    """
    if job:
        return _named(job)
    if checkpoint_folder is not None:
        return _of_folder(checkpoint_folder, rdzv_id, title)
    task = _slurm_task(environment)
    parts = [f"rdzv:{rdzv_id}"] if rdzv_id else []
    parts += [task] if task else []
    if not parts:
        return _anonymous(title)
    digest = _digest(_joined(command))
    label = rdzv_id or slurm_name(environment) or ""
    name = rdzv_id or slurm_title(environment) or label
    reason = "--rdzv-id and its command line" if rdzv_id else "SLURM_JOB_ID and its command line"
    return JobKey(":".join((*parts, digest)), name, reason, label=label, is_derived=True)


def key_of_meeting(
    job: str | None,
    rdzv_id: str | None,
    environment: Mapping[str, str],
    checkpoint_folder: Path | None,
    command: Sequence[str] = (),
    title: str = "",
) -> JobKey:
    """Return the key of a job whose launchers meet, the same on every node.

    ``command``: working folder, script and arguments, where the place of the meeting does not tell the
    runs of an allocation apart. They are the same on every node, and after a requeue.
    """
    if job:
        return _named(job)
    if checkpoint_folder is not None:
        return _of_folder(checkpoint_folder, rdzv_id, title)
    return _of_scheduler(rdzv_id, environment, command) or _anonymous(title)


def key_at_service(
    job: str | None,
    rdzv_id: str | None,
    environment: Mapping[str, str],
    checkpoint_folder: Path | None,
    command: Sequence[str] = (),
    title: str = "",
) -> JobKey:
    """Return the key by which a controller's service knows the job, the same on every node.

    ``command`` tells the runs of one allocation apart that name no checkpoint folder. One service has jobs of many nodes and containers, in which one path can be many folders. So
    the folder alone is the key only where there is neither --rdzv-id nor a Slurm job.
    """
    if job:
        return _named(job)
    if checkpoint_folder is None:
        return _of_scheduler(rdzv_id, environment, command) or _anonymous(title)
    outer = _of_scheduler(rdzv_id, environment, ())
    inner = _of_folder(checkpoint_folder, rdzv_id, title)
    if outer is None:
        return inner
    reason = f"{outer.reason} and {inner.reason}"
    text = f"{outer.text}:{inner.text}"
    return replace(inner, text=text, name=outer.name, reason=reason, is_default_name=False)


def default_title(folder: Path, target: str, *, is_module: bool = False) -> str:
    """Return what to call a job that nobody has named: `gpt2-train` for `gpt2/train.py`.

    A dash, because pods carry the name in a label of Kubernetes (rankmend.io/job), which takes no slash and at most
    63 characters. ``folder``: in which the job is started; ``target``: its script, module or program.
    """
    if is_module:
        words = target.split(".")[-2:]
    else:
        path = folder / target
        # What is started by a bare name may lie in a folder of all programs: where it is started says more.
        words = [path.parent.name, path.stem]
    readable = [_UNREADABLE.sub("-", word).strip("-._")[:_TITLE_PART_MAX] for word in words]
    return "-".join(filter(None, readable))


def slurm_name(environment: Mapping[str, str]) -> str | None:
    """Return the cluster and number of the Slurm job that this process belongs to, or None."""
    number = environment.get("SLURM_JOB_ID")
    return f"{environment.get('SLURM_CLUSTER_NAME', 'slurm')}-{number}" if number else None


def slurm_title(environment: Mapping[str, str]) -> str | None:
    """Return the Slurm job's name and number for people, as in train-12, or train-12_3 of an array; None: no name."""
    name, number = environment.get("SLURM_JOB_NAME"), environment.get("SLURM_JOB_ID")
    if not name or not number:
        return None
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{name}-{array}_{task}" if array and task else f"{name}-{number}"


def _named(job: str) -> JobKey:
    return JobKey(f"job:{job}", job, "--job")


def _of_folder(folder: Path, rdzv_id: str | None, title: str) -> JobKey:
    path = folder.resolve()
    text = str(path) if len(str(path)) <= _PATH_MAX else f"{path.name}:{_digest(str(path))}"
    return JobKey(
        f"checkpoints:{text}",
        rdzv_id or title or path.name or "job",
        "the checkpoint folder",
        _OTHER_FOLDER,
        label=path.name or "job",
        is_default_name=not rdzv_id,
    )


def _of_scheduler(
    rdzv_id: str | None, environment: Mapping[str, str], command: Sequence[str]
) -> JobKey | None:
    if rdzv_id:
        return JobKey(f"rdzv:{rdzv_id}", rdzv_id, "--rdzv-id")
    label = slurm_name(environment)
    if label is None:
        return None
    cluster, _dash, number = label.rpartition("-")
    text = f"slurm:{cluster}:{number}"
    title = slurm_title(environment) or label
    if not command:
        return JobKey(text, title, "SLURM_JOB_ID", label=label)
    reason = "SLURM_JOB_ID and its command line"
    return JobKey(f"{text}:{_digest(_joined(command))}", title, reason, label=label)


def _slurm_task(environment: Mapping[str, str]) -> str | None:
    """Return the Slurm job, and the place of this process among those that one srun started."""
    number = environment.get("SLURM_JOB_ID")
    if not number:
        return None
    cluster = environment.get("SLURM_CLUSTER_NAME", "slurm")
    return f"slurm:{cluster}:{number}:{environment.get('SLURM_PROCID', '0')}"


def _anonymous(title: str) -> JobKey:
    key = f"{ANONYMOUS}{uuid.uuid4().hex[:8]}"
    return JobKey(key, title or "job", "nothing names it", is_default_name=True)


def _joined(command: Sequence[str]) -> str:
    return "\0".join(command)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGEST_CHARACTERS]
