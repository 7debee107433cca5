"""What API handlers use: the deciding thread, threads beside it, settings, limits and metrics."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rankmend.clock import Clock
from recovery.api import wire
from recovery.schedulers.kubernetes.node_states import SeenNode
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.service.controller_config import Config
from recovery.service.http.access import Rates, UnderWay
from recovery.service.http.permission import Sight, may_read_job
from recovery.service.http.request_errors import FullError
from recovery.service.jobs.known_incidents import KnownIncidents
from recovery.service.jobs.newest_orders import NewestOrders
from recovery.service.jobs.retained import Retained
from recovery.service.jobs.served_job import Job
from recovery.service.jobs.worker import Worker
from recovery.service.metrics.measures import Measures
from recovery.service.pager import Pager
from recovery.service.roles import Subject

if TYPE_CHECKING:
    from recovery.service.fleet.peers import OtherControllers
    from recovery.service.kubernetes_service import PodClaim

ANSWER_S_MAX: Final = 15.0  # the worker's answer; a disk that takes longer is broken
READS_MAX: Final = 32  # of one kind of thread, queued and running
READS_OF_SUBJECT_MAX: Final = 24  # the others find room beside them
ALIVE_S_MAX: Final = 60.0  # the worker's longest turn: a journal gives up on its disk after 30 s

_T = TypeVar("_T")


class SideThreads:
    """Threads that work for the event loop, beside the deciding one."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._reads = 0

    async def run(self, act: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def read(self, act: Callable[[], _T]) -> _T:
        """Run a read, or raise FullError where READS_MAX of them wait."""
        if self._reads >= READS_MAX:
            raise FullError(f"{self._reads} reads wait for the {self._name} already; try again")
        self._reads += 1
        try:
            return await self.run(act)
        finally:
            self._reads -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True)
class Backend:
    """Belongs to the event loop. A reload replaces ``config``."""

    worker: Worker
    board: NewestOrders
    measures: Measures
    config: Config
    clock: Clock
    describe: Callable[[], dict[str, Any]]  # the API, for /openapi.json
    connections: Callable[[], tuple[int, int]] = lambda: (0, 0)
    read_alerts: Callable[[], None] = lambda: None  # asks the Alertmanagers once more
    pager: Pager | None = None
    slurm: RequestDesk | None = None
    kubernetes: RequestDesk | None = None
    peers: "OtherControllers | None" = None  # the other controllers of the database
    kubernetes_states: Callable[[], Mapping[str, SeenNode]] = dict  # of nodes of jobs, by name
    review_pod: "Callable[[PodClaim], None] | None" = None  # None: there is no Kubernetes to ask
    url: str = ""  # of this controller, for launchers that ask another one
    database_away_s: Callable[[], float | None] = lambda: None
    is_stopping: bool = False
    disk: SideThreads = field(default_factory=lambda: SideThreads("disk", 2))
    # One thread: views must not take the interpreter from the deciding thread more than one at a time.
    views: SideThreads = field(default_factory=lambda: SideThreads("views", 1))
    rates: Rates = field(default_factory=Rates)
    retained: Retained = field(default_factory=Retained)
    incidents: KnownIncidents = field(default_factory=KnownIncidents)
    alert_messages: UnderWay = field(default_factory=lambda: UnderWay("alert messages"))
    joins: UnderWay = field(default_factory=lambda: UnderWay("joins"))
    answers: UnderWay = field(default_factory=lambda: UnderWay("reads"))

    async def ask(self, act: Callable[[], _T]) -> _T:
        """Run ``act`` in the deciding thread between two batches of reports, and return its result."""
        return await asyncio.wait_for(asyncio.wrap_future(self.worker.call(act)), ANSWER_S_MAX)

    async def look(self, view: Callable[[Sequence[Job]], _T]) -> _T:
        """Return a view of the jobs that run, as they are after all reports that have come.

        It is made outside of the deciding thread: that of 2,000 nodes takes as long as 20 turns.
        """
        running = await self.ask(lambda: tuple(self.worker.jobs.running.values()))
        return await self.views.read(lambda: view(running))

    def is_alive(self) -> bool:
        """Return whether the deciding thread is making progress."""
        age_s = self.clock.now_s() - self.worker.turned_at_s
        return self.worker.is_alive and age_s < ALIVE_S_MAX

    def sight(self, subject: Subject, nodes: Iterable[wire.NodeView] = ()) -> Sight:
        """Return what a subject sees of lists; ``nodes`` are those of all jobs."""
        known = self.worker.jobs.everywhere.items()
        jobs = frozenset(job_id for job_id, item in known if may_read_job(subject, item))
        return Sight(subject, jobs, frozenset(node.node for node in nodes if node.job_id in jobs))
