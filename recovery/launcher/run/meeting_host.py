"""Hosts the controller of a meeting: the service of `rankmend controller`, in threads of this launcher."""

from pathlib import Path

from rankmend.clock import SystemClock
from rankmend.errors import ConfigError
from recovery.api.wire import Join
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits_file import PolicyFile
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.launcher.run.meeting_site import Site, bind_address
from recovery.launcher.run.slurm.own_allocation import OwnAllocation
from recovery.service.controller_config import Config, ConsoleSection, Limits
from recovery.service.jobs.served_job import Parts
from recovery.service.jobs.short_jobs import ShortJobs
from recovery.service.meeting_secret import Identity
from recovery.service.server import Service, ServiceThread
from recovery.service.tokens import Tokens


class MeetingHost:
    """The controller's service in this launcher, for one job."""

    def __init__(self, site: Site, identity: Identity, epoch: int, port: int, state: Path) -> None:
        self._site = site
        self._epoch = epoch
        bind = bind_address(site.address)
        listen = f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        clock = SystemClock()
        config = Config(
            listen=listen,
            state_dir=str(state),
            limits=Limits(reports_per_node=50.0),
            console=ConsoleSection(enabled=False),  # `rankmend console` shows the state folder
        )
        self.service = Service(
            config,
            clock,
            Tokens([identity.entry()]),
            PolicyFile(policy=site.policy),
            parts_for=self._parts,
            context=identity.context(),
        )
        self._allocation: OwnAllocation | None = None
        if site.slurm is not None:
            self._allocation = OwnAllocation(site.slurm, state / "slurm")
            worker, owner = self.service.worker, self._allocation.owner
            worker.short_jobs = ShortJobs(
                worker.jobs, worker.desk, self._allocation, site.slurm.after_s, lambda _job: owner
            )
        self._thread = ServiceThread(self.service)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()
        if self._allocation is not None:
            outcome = self.outcome
            if outcome is not None and outcome.kind in (OutcomeKind.DONE, OutcomeKind.ESCALATED):
                self._allocation.leave()
            self._allocation.close()

    @property
    def outcome(self) -> JobOutcome | None:
        """The job's outcome, once it has ended."""
        ended = [item.outcome for item in self.service.worker.jobs.known.values()]
        return next((outcome for outcome in ended if outcome is not None), None)

    @property
    def is_awaited(self) -> bool:
        """Whether a launcher is waiting for an order."""
        return self.service.board.waiting > 0

    def _parts(self, desk: ClusterController, join: Join) -> Parts:
        if join.key != self._site.key.text:
            raise ConfigError(
                f"this controller manages job {self._site.key.name!r}, identified by "
                f"{self._site.key.reason}, not {join.name!r}"
            )
        return Parts(desk, desk, budget_copy=self._site.budgets, epoch_min=self._epoch)
