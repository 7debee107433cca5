"""Slurm as the service has it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rankmend.clock import Clock
from recovery.service.desk_service import DeskService, open_journal
from recovery.slurm.client import SlurmClient
from recovery.slurm.commands import SlurmCommands
from recovery.slurm.desk import SlurmDesk
from recovery.slurm.limits import SlurmLimits
from recovery.slurm.requests import SchedulerRequest


class SlurmService(DeskService):
    def __init__(
        self,
        state: Path,
        limits: SlurmLimits,
        clock: Clock,
        may_act: Callable[[SchedulerRequest], str],
        is_gone: Callable[[str, str], bool],
        observes: Callable[[SchedulerRequest], str | None] = lambda _request: None,
        of_interest: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        folder = state / "slurm"
        journal = open_journal(folder, clock)
        run = SlurmCommands(limits.timeout_s, os.environ, limits.folder)
        desk = SlurmDesk(
            journal,
            SlurmClient(run),
            limits,
            clock,
            folder / "scripts",
            may_act=may_act,
            is_gone=is_gone,
            observes=observes,
            of_interest=of_interest,
        )
        super().__init__(journal, desk)
