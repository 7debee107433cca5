"""A desk as the service has it: its journal, the thread that works on it, and what jobs that leave nodes ask of it.

Slurm as the service has it.
"""

import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import ConfigError, JournalError, RankmendError
from rankmend.own_folder import make_private
from recovery.controller.cluster.gate import PlanRequest
from recovery.journal.open_journal import OpenJournal
from recovery.journal.postgres.database import CommitUnknownError, LeaseLostError
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmCommands
from recovery.schedulers.slurm.desk import RequestDesk, SlurmDesk
from recovery.schedulers.slurm.desk_lease import DeskLease, OwnDesk
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest

log = logging.getLogger(__name__)

FOLLOW_S: Final = 1.0  # between two looks at what the controller has done that works on the desk
STOP_S_MAX: Final = 5.0  # a call that is under way ends by itself


class DeskService:
    """A node that a job has left for what counts against it is drained; the request's key names the incident, so it is asked once."""

    def __init__(
        self, journal: OpenJournal, desk: RequestDesk, lease: DeskLease | None = None
    ) -> None:
        """``lease``: which controller works on the desk; None: it is this one's own."""
        self._journal = journal
        self._lease = lease or OwnDesk()
        self.desk = desk
        self.desk.works_here = lease is None
        self._epoch: int | None = self._lease.hold() if lease is None else None
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=desk.limits.table, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the call that is under way; what is open goes on at the next start."""
        self._should_stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S_MAX)
        self.desk.returns.stop()
        self._journal.close()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._should_stop.wait(wait_s):
            try:
                wait_s = self._turn()
            except (JournalError, LeaseLostError, CommitUnknownError) as error:
                self.desk.trouble.note(error)
                wait_s = FOLLOW_S
            except Exception:
                log.exception("cannot work on %s", self.desk.limits.manager)
                wait_s = 10.0

    def _turn(self) -> float:
        """Work on the desk, or follow what the controller does that works on it; return when to come again."""
        before, self._epoch = self._epoch, self._lease.hold()
        if self._epoch is None:
            if before is not None:
                self.desk.leave()
            self.desk.bench.catch_up()
            self.desk.trouble.end()
            return FOLLOW_S
        return self.desk.turn() if self._epoch == before else self.desk.take_over()

    def leave_nodes(
        self, request: PlanRequest, owner: str, vouched: Collection[str], sharer: str = ""
    ) -> None:
        """Have the nodes drained that a job leaves and that evidence counts against. Never raises: the recovery of the job goes on.

        ``owner``: of the job, whom the manager must have on each node that is not among ``vouched``; ``sharer``: to whose share of the
        bounds the drains count.
        """
        nodes = request.without if request.suspect is None else request.suspect
        if not nodes:
            return
        pods = (self.desk.ledger.proved_pod(request.job_id, node) for node in nodes)
        requested = SchedulerRequest(
            f"leave/{request.incident_id}/{request.try_number}",
            SchedulerAction.DRAIN,
            nodes,
            reason=f"{request.finding.summary} ({request.incident_id})",
            subject=owner,
            vouched=tuple(node for node in nodes if node in vouched),
            pods=tuple(pod for pod in pods if pod),
            job_id=request.job_id,
            sharer=sharer,
        )
        try:
            self.desk.ask(requested)
        except RankmendError as error:
            manager = self.desk.limits.manager
            log.warning("cannot ask %s for a drain", manager, extra={"error": str(error)})


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
