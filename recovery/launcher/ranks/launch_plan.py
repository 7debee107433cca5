"""What to run, as the user asked; the same for every attempt."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recovery.launcher.ranks.command import RankCommand
from recovery.launcher.ranks.stated_work import StatedWork

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun's


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    job_id: str
    job_name: str
    node: str
    boot_id: str
    command: RankCommand
    environment: Mapping[str, str]
    folder: Path  # working directory of the ranks
    run_id: str
    role: str
    fence_file: Path | None
    is_auto: bool
    time_limit_s: float | None
    mark_node: str | None = None  # this node's name, if the machine may run other nodes of the job
    is_old_torch: bool = False  # the flight recorder of this PyTorch is off by default
    grace_s: float = 30.0  # for a planned stop without a controller
    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS  # each asks for a planned stop
    is_virtual_local_rank: bool = False  # each rank sees one GPU
    cpus: tuple[tuple[int, ...], ...] = ()  # by local rank; empty: not bound
    stdin: int | None = None  # the ranks' standard input; None: /dev/null
    keeps_snapshots: bool = True  # of the ranks' state, in memory
    step_work: StatedWork | None = None  # where the script tells none itself
    allows_drills: bool = False  # `rankmend inject` may break its ranks
