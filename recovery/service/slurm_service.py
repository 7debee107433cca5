"""Slurm as the service has it: its journal, the thread that works on it, and what jobs and nodes of ours ask of it.

A node that a job has left because it was blamed is drained; the request's key names the incident, so it is asked once.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rankmend.clock import Clock, read_boot_id
from rankmend.errors import ConfigError, RankmendError
from rankmend.foreign_links import make_private
from recovery.cluster.gate import PlanRequest
from recovery.journal.store import Journal
from recovery.slurm.client import SlurmClient
from recovery.slurm.commands import SlurmCommands
from recovery.slurm.desk import SlurmDesk
from recovery.slurm.limits import SlurmLimits
from recovery.slurm.requests import SchedulerAction, SchedulerRequest

log = logging.getLogger(__name__)

STOP_S_MAX: Final = 5.0  # a command that is under way ends by itself


class SlurmService:
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
        make_private(folder, ConfigError)
        self._journal = Journal(folder / "journal.db", clock, read_boot_id())
        run = SlurmCommands(limits.timeout_s, os.environ, limits.folder)
        self.desk = SlurmDesk(
            self._journal,
            SlurmClient(run),
            limits,
            clock,
            folder / "scripts",
            may_act=may_act,
            is_gone=is_gone,
            observes=observes,
            of_interest=of_interest,
        )
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slurm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the command that is under way; what is open goes on at the next start."""
        self._should_stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S_MAX)
        self.desk.returns.stop()
        self._journal.close()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._should_stop.wait(wait_s):
            try:
                wait_s = self.desk.turn()
            except Exception:
                log.exception("cannot work on Slurm")
                wait_s = 10.0

    def leave_nodes(self, request: PlanRequest) -> None:
        """Have the nodes drained that a job leaves. Never raises: the recovery of the job goes on."""
        asked = SchedulerRequest(
            f"leave/{request.incident_id}/{request.try_number}",
            SchedulerAction.DRAIN,
            request.without,
            reason=f"{request.finding.summary} ({request.incident_id})",
        )
        try:
            self.desk.ask(asked)
        except RankmendError as error:
            log.warning("cannot ask Slurm for a drain", extra={"error": str(error)})
