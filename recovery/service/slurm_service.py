"""Slurm as the service has it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rankmend.clock import Clock
from rankmend.errors import ConfigError
from rankmend.foreign_links import make_private
from recovery.journal.open_journal import OpenJournal
from recovery.service.desk_service import DeskService
from recovery.slurm.client import SlurmClient
from recovery.slurm.commands import SlurmCommands
from recovery.slurm.desk import SlurmDesk
from recovery.slurm.desk_lease import DeskLease, OwnDesk
from recovery.slurm.limits import SlurmLimits
from recovery.slurm.requests import SchedulerRequest


class SlurmService(DeskService):
    def __init__(
        self,
        state: Path,
        journal: OpenJournal,
        limits: SlurmLimits,
        clock: Clock,
        may_act: Callable[[SchedulerRequest], str],
        is_gone: Callable[[str, str], bool],
        observes: Callable[[SchedulerRequest], str | None] = lambda _request: None,
        of_interest: Callable[[], Sequence[str]] = lambda: (),
        lease: DeskLease | None = None,
    ) -> None:
        """``journal`` is closed at the end; ``state``: the folder for scripts; ``lease``: None where no other controller may act."""
        folder = state / "slurm"
        make_private(folder, ConfigError)
        run = SlurmCommands(
            limits.timeout_s, os.environ, limits.folder, (lease or OwnDesk()).left_s
        )
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
            left_s=(lease or OwnDesk()).left_s,
        )
        super().__init__(journal, desk, lease)
