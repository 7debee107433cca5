"""What the command line of `rankmend run` asks for, turned into the values that the parts take."""

import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from detectors.hung import HungLimits
from rankmend.errors import ConfigError
from recovery.config import read_policy
from recovery.launcher.output import OutputPlan, parse_streams
from recovery.policy import Policy

log = logging.getLogger(__name__)

_NEVER_S = 1e12
NEVER_HUNG = HungLimits(
    floor_s=_NEVER_S, ceil_s=_NEVER_S, stopped_floor_s=_NEVER_S, startup_s=_NEVER_S
)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line of `rankmend run`, parsed; meanings in rankmend/cli/run.py."""

    target: str
    arguments: tuple[str, ...] = ()
    nproc_per_node: str = "1"
    nnodes: str = "1"
    standalone: bool = True
    max_restarts: int | None = None
    is_module: bool = False
    no_python: bool = False
    python_path: str | None = None
    rdzv_id: str | None = None
    role: str = "default"
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    port_range: str | None = None
    store: str = "auto"
    standby: str | None = None
    log_dir: Path | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str | None = None
    prefix: bool = True
    job: str | None = None
    checkpoint_dir: Path | None = None
    checkpoint_marker: str | None = None
    state_dir: Path | None = None
    time_limit: float | None = None
    grace_s: float = 60.0
    hang_min_s: float | None = None
    hang_max_s: float | None = None
    hang_multiple: float | None = None
    hang_stopped_s: float | None = None
    no_hang_detection: bool = False
    auto: bool = True
    agent_socket: Path | None = None
    reset_budgets: bool = False
    config_path: Path | None = None
    quiet: bool = False


def refuse_what_is_missing(options: RunOptions) -> None:
    """Say plainly which of torchrun's flags this version can't honour."""
    if options.nnodes not in ("1", "1:1"):
        raise ConfigError(f"--nnodes {options.nnodes}: this version runs jobs on one node")


def count_ranks(text: str, environment: Mapping[str, str]) -> int:
    """Return the number of ranks for --nproc-per-node: a number, gpu, cpu or auto."""
    if text.isdigit() and int(text) > 0:
        return int(text)
    if text == "cpu":
        return len(os.sched_getaffinity(0))
    if text in ("gpu", "auto"):
        gpus = _count_gpus(environment)
        if gpus or text == "auto":
            return gpus or len(os.sched_getaffinity(0))
        raise ConfigError("--nproc-per-node gpu: no NVIDIA GPU is visible here")
    raise ConfigError(f"--nproc-per-node {text!r} is no number above 0, gpu, cpu or auto")


def _count_gpus(environment: Mapping[str, str]) -> int:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")])
    gpus = Path("/proc/driver/nvidia/gpus")  # one folder a GPU, by the driver itself
    return len(list(gpus.iterdir())) if gpus.is_dir() else 0


def make_policy(options: RunOptions) -> Policy:
    """Return the limits: the defaults, then --config, then the flags."""
    policy = read_policy(options.config_path)
    given = {
        "multiple": options.hang_multiple,
        "floor_s": options.hang_min_s,
        "ceil_s": options.hang_max_s,
        "stopped_floor_s": options.hang_stopped_s,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if options.hang_max_s is not None:  # what nobody named gives way
        for name in ("floor_s", "stopped_floor_s"):
            changes.setdefault(name, min(options.hang_max_s, getattr(policy.hung, name)))
    hung = replace(policy.hung, **changes)
    if options.max_restarts is not None:
        policy = replace(policy, restarts_max=options.max_restarts)
    return replace(policy, hung=NEVER_HUNG if options.no_hang_detection else hung)


def make_output_plan(options: RunOptions, world_size: int) -> OutputPlan:
    redirects = parse_streams(options.redirects, world_size)
    tee = parse_streams(options.tee, world_size)
    folder = options.log_dir
    if folder is None and any((*redirects, *tee)):
        folder = Path(tempfile.mkdtemp(prefix="rankmend-"))  # as torchrun does
        log.warning("the ranks' output goes to %s", folder)
    shown = None
    if options.local_ranks_filter is not None:
        words = options.local_ranks_filter.split(",")
        if not all(word.isdigit() for word in words):
            raise ConfigError(f"--local-ranks-filter {options.local_ranks_filter!r} is no list 0,1")
        shown = frozenset(int(word) for word in words)
    if folder is not None and not any((*redirects, *tee)):
        redirects = parse_streams("3", world_size)  # a folder alone asks for files
    return OutputPlan(folder.absolute() if folder else None, redirects, tee, shown, options.prefix)
