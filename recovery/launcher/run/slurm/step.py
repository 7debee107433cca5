"""What Slurm's variables tell a process about its job step, which `srun` started. Pure.

Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES". In a batch script there is no step; neither is there where the
variables are those of another step, as sbatch hands on the environment in which it was typed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from detectors.formats.site.host_list import HOSTS_MAX, expand_hosts
from rankmend.errors import ConfigError, SourceError

_DIGITS_MAX = 10


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """A step of a Slurm job, and this node's place in it."""

    job: int
    number: int
    restarts: int  # how often Slurm has started the job anew
    nodes: tuple[str, ...]
    place: int  # of this node among them
    task_count: int
    title: str  # the job's name in Slurm

    @property
    def is_first(self) -> bool:
        return self.place == 0

    @property
    def run(self) -> str:
        """Return what names this start of the step: no other start of any step has it."""
        return f"{self.job}:{self.restarts}:{self.number}"


def read_step(environment: Mapping[str, str]) -> SlurmStep | None:
    """Return the step that this process is a task of; None outside of one."""
    job, number = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    names = environment.get("SLURM_STEP_NODELIST")
    if not job or not number or not names:
        return None
    nodes = _hosts("SLURM_STEP_NODELIST", names)
    own = environment.get("SLURMD_NODENAME")
    allocated = environment.get("SLURM_JOB_NODELIST")
    if allocated and not set(nodes) <= set(_hosts("SLURM_JOB_NODELIST", allocated)):
        return None
    if own and own not in nodes:
        return None
    place = nodes.index(own) if own else _number("SLURM_NODEID", environment)
    if place >= len(nodes):
        raise ConfigError(f"SLURM_NODEID={place}, but SLURM_STEP_NODELIST names {len(nodes)} nodes")
    return SlurmStep(
        job=_number("SLURM_JOB_ID", environment),
        number=_number("SLURM_STEP_ID", environment),
        restarts=_number("SLURM_RESTART_COUNT", environment, "0"),
        nodes=nodes,
        place=place,
        task_count=_number("SLURM_STEP_NUM_TASKS", environment, str(len(nodes))),
        title=environment.get("SLURM_JOB_NAME", ""),
    )


def _hosts(variable: str, text: str) -> tuple[str, ...]:
    try:
        return expand_hosts(text)
    except SourceError as error:
        raise ConfigError(f"{variable}: {error}") from error


def count_allocated(environment: Mapping[str, str]) -> int:
    """Return the number of nodes of the Slurm job; 0 outside of one."""
    text = environment.get("SLURM_JOB_NUM_NODES", "")
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    return min(int(text), HOSTS_MAX) if is_number and environment.get("SLURM_JOB_ID") else 0


def count_gpus(environment: Mapping[str, str]) -> int | None:
    """Return how many GPUs Slurm gave to this node's task; None where it gave none."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        visible = environment.get(name)
        if visible is not None:
            return (
                len([word for word in visible.split(",") if word.strip() not in ("", "-1")]) or None
            )
    text = environment.get("SLURM_GPUS_ON_NODE", "")
    is_number = text.isascii() and text.isdigit() and len(text) <= 4
    return int(text) or None if is_number else None


def _number(name: str, environment: Mapping[str, str], default: str | None = None) -> int:
    text = environment.get(name, default)
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ConfigError(f"{name}={text!r} is not a number; --no-slurm ignores Slurm's variables")
    return int(text)
