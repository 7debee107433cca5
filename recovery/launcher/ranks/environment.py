"""The environment of a rank: torchrun's variables, and those of the hook.

Names and values as in torch.distributed.elastic (2.13, agent/server/local_elastic_agent.py),
so that scripts written for torchrun work. docs/reference/environment.md lists all.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankmend.errors import LaunchError
from rankmend.hook import layout
from recovery.launcher.evidence.rank_evidence import recorder_environment
from recovery.launcher.processes.process_tree import ENV_LAUNCHER, ENV_NODE
from recovery.messages.exchange import Order


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one attempt meet."""

    address: str
    port: int
    is_hosted: bool  # True: we host the store; False: rank 0 does
    # TORCHELASTIC_USE_AGENT_STORE; docs/use/several-nodes.md explains the values
    agent_store: str = "False"


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Files of one rank and attempt, made by the launcher."""

    progress: Path
    error: Path
    stacks: Path | None = None  # where it writes its Python stacks on request; None: nowhere
    recorder: Path | None = None  # folder for its flight-recorder dumps; None: PyTorch's default
    imports: Path | None = None  # where it reports its imports, on request; None: nowhere

    @property
    def raised(self) -> Path:
        """Return where the hook records the uncaught exception of the rank's main thread."""
        return self.progress.with_name(self.progress.name + layout.RAISED_SUFFIX)


def rank_environment(
    base: Mapping[str, str],
    order: Order,
    local_rank: int,
    rendezvous: Rendezvous,
    files: RankFiles,
    *,
    run_id: str,
    role: str,
    site_folder: Path,
    fence_file: Path | None,
    is_auto: bool,
    node: str | None = None,
    is_old_torch: bool = False,
    is_virtual_local_rank: bool = False,
    launcher: str = "",
    tells_imports: bool = False,
    snapshots: Path | None = None,
    drill_file: Path | None = None,
) -> dict[str, str]:
    """Return the whole environment of the rank at place ``local_rank`` of ``order``.

    ``node``: a mark beside the job's, if several nodes may be on one machine.
    ``is_old_torch``: its flight recorder is off by default. ``is_virtual_local_rank``: the rank sees
    one GPU, as number 0. ``launcher``: the launcher's mark. ``tells_imports``: for the fork server.
    ``snapshots``: the folder in which ranks keep their state; None: they keep none.
    ``drill_file``: where the rank says that it listens for faults to make; None: the job allows no drills.
    """
    local_world_size = len(order.ranks)
    role_rank, role_world_size = order.ranks[local_rank], order.world_size
    if order.role_world_size:
        role_rank, role_world_size = order.role_rank + local_rank, order.role_world_size
    environment = {name: value for name, value in base.items() if not name.startswith("RANKMEND_")}
    environment.update(
        {
            "RANK": str(order.ranks[local_rank]),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(order.world_size),
            "LOCAL_WORLD_SIZE": str(local_world_size),
            "GROUP_RANK": str(order.group_rank),
            "GROUP_WORLD_SIZE": str(order.group_count),
            "ROLE_NAME": role,
            "ROLE_RANK": str(role_rank),
            "ROLE_WORLD_SIZE": str(role_world_size),
            "MASTER_ADDR": rendezvous.address,
            "MASTER_PORT": str(rendezvous.port),
            "TORCHELASTIC_RESTART_COUNT": str(order.restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(order.restarts_max),
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_USE_AGENT_STORE": rendezvous.agent_store,
            "TORCHELASTIC_ERROR_FILE": str(files.error),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "PYTHONPATH": _prepend(site_folder, base.get("PYTHONPATH")),
            layout.ENV_PROGRESS_FILE: str(files.progress),
            layout.ENV_JOB_ID: order.job_id,
            layout.ENV_ATTEMPT: str(order.attempt),
            layout.ENV_AUTO: "1" if is_auto else "0",
        }
    )
    if local_world_size > 1:
        # As torchrun does: several ranks with a thread per core each would get in each
        # other's way.
        environment.setdefault("OMP_NUM_THREADS", "1")
    if is_virtual_local_rank:
        environment["LOCAL_RANK"] = "0"
        environment["CUDA_VISIBLE_DEVICES"] = _only_gpu(base, local_rank)
    environment.update(
        {name: mark for name, mark in ((ENV_NODE, node), (ENV_LAUNCHER, launcher)) if mark}
    )
    if files.stacks is not None:
        environment[layout.ENV_STACKS_FILE] = str(files.stacks)
    if tells_imports and files.imports is not None:
        environment[layout.ENV_IMPORTS_FILE] = str(files.imports)
    if files.recorder is not None:
        environment.update(recorder_environment(base, files.recorder, is_old=is_old_torch))
    if snapshots is not None:
        environment[layout.ENV_SNAPSHOTS] = str(snapshots)
        if order.snapshot is not None:
            environment[layout.ENV_SNAPSHOT] = f"{order.snapshot.attempt}:{order.snapshot.step}"
    for name, path in ((layout.ENV_DRILL_FILE, drill_file), (layout.ENV_FENCE_FILE, fence_file)):
        if path is not None:
            environment[name] = str(path)
    if order.restore is not None:
        environment[layout.ENV_RESUME_PATH] = order.restore.path
        if order.restore.step is not None:
            environment[layout.ENV_RESUME_STEP] = str(order.restore.step)
    return environment


def _only_gpu(base: Mapping[str, str], local_rank: int) -> str:
    visible = base.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank)
    names = [name.strip() for name in visible.split(",")]
    if local_rank >= len(names):
        raise LaunchError(
            f"--virtual-local-rank: there is no GPU for local rank {local_rank}, as "
            f"CUDA_VISIBLE_DEVICES={visible} names {len(names)}"
        )
    return names[local_rank]


def _prepend(folder: Path, existing: str | None) -> str:
    return f"{folder}{os.pathsep}{existing}" if existing else str(folder)
