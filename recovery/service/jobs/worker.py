"""The one thread that decides for all jobs.

Reports and calls wait in a bounded inbox; each turn takes out a batch, lets the jobs tick that are due, and
gives the orders of the whole batch to the polls at once. The event loop does I/O only, and this thread waits
for the disk only.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from rankmend.clock import Clock
from rankmend.errors import JournalError
from recovery.api import wire
from recovery.console.views.plan_view import foresee
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.plan_verdict import judge
from recovery.controller.job.controller import TICK_BUSY_S
from recovery.controller.job.planner import Scene
from recovery.controller.job.spare_choice import FleetState, bar_spares, gone_nodes
from recovery.controller.job.spelling import say_unknown
from recovery.controller.watched.present_jobs import PresentJobs, WordsKeeper
from recovery.controller.watched.watched_jobs import WatchedJobs, WatchListener
from recovery.journal.job_records import PersonActed
from recovery.journal.ledger import Ledger
from recovery.journal.node_records import LeaveCause, LeaveReason
from recovery.journal.open_journal import JournalSetBackError
from recovery.journal.records import NewerRecordError
from recovery.messages.outside import PersonCommand
from recovery.service.http.request_errors import CallConflictError, FullError
from recovery.service.jobs.alert_delivery import AlertDelivery
from recovery.service.jobs.job_registry import JobRegistry
from recovery.service.jobs.left_pods import LeftPods
from recovery.service.jobs.listening_clock import Hearing
from recovery.service.jobs.newest_orders import NewestOrders
from recovery.service.jobs.served_job import Job, NotTakenUpError
from recovery.service.jobs.short_jobs import ShortJobs
from recovery.service.jobs.views import view_plans
from recovery.service.jobs.worker_inbox import InboxBatch, WorkerInbox
from recovery.service.roles import UnknownNodeError

log = logging.getLogger(__name__)

IDLE_S: Final = 0.25  # longest sleep
CATCH_UP_S: Final = 1.0  # between two looks at what other controllers have written: one query

_R = TypeVar("_R")


# The plan that would be made if something failed now: the planner's own, judged as it would be, and not carried out.


def foresee_job(job: Job, desk: ClusterController, node: str | None) -> wire.PlanView:
    """Return the plan that waits, where one does; else that for the loss of ``node`` or of a rank."""
    if job.controller is None:
        raise NotTakenUpError(f"the controller can't manage job {job.job_id} now: {job.problem}")
    ledger, name = job.controller.ledger, job.stored.join.name
    if node is not None and node not in ledger.members:
        raise UnknownNodeError("the job has " + say_unknown("node", node, ledger.members), node)
    return foresee(
        ledger,
        job.settings,
        name,
        _scene(job, ledger, desk, node),
        lambda request: judge(request, name, desk.ledger, desk.policy, desk.now_unix_s()),
        node,
    )


def _scene(job: Job, ledger: Ledger, desk: ClusterController, lost: str | None) -> Scene:
    """Return the job's nodes as a plan would find them, without ``lost``."""
    placed = tuple(place.node for place in ledger.placement)
    must = {lost: LeaveReason(LeaveCause.SILENT)} if lost is not None and lost in placed else {}
    must |= {
        node: LeaveReason(LeaveCause.HELD, held)
        for node in placed
        if (held := desk.unusable(node)) is not None
    }
    silent_at_s = job.hearing.now_s() - job.settings.policy.node_silent_s
    there = {
        node for node in ledger.members if job.reported_at_s.get(node, silent_at_s) > silent_at_s
    }
    spares = {
        node
        for node in there.difference((*placed, lost))
        if (member := ledger.members[node]).left is None
        and member.slots in (0, job.settings.slots_of(member.slots))
        and desk.unusable(node) is None
    }
    if not job.settings.policy.spares_below_broken_parts:
        gone = gone_nodes(ledger, there) | must.keys() & {lost}
        spares -= bar_spares(spares, placed, gone, FleetState(desk.parts, desk.broken_parts)).keys()
    return Scene(placed, len(spares), job.settings.sizes, must)


class TurnListener(Protocol):
    """Who counts the turns (`recovery.service.metrics.measures`)."""

    def turned(self, reports: int, took_s: float) -> None: ...


class Worker:
    def __init__(
        self,
        jobs: JobRegistry,
        desk: ClusterController,
        board: NewestOrders,
        listener: TurnListener,
        clock: Clock,
        hearing: Hearing,
        watch_listener: WatchListener | None = None,
        present_file: WordsKeeper | None = None,
    ) -> None:
        self.jobs = jobs
        self.desk = desk
        self.inbox = WorkerInbox(hearing)
        self.alerts = AlertDelivery(desk, jobs, clock.now_s)
        self.watched = WatchedJobs(
            hearing.now_s, lambda name: jobs.policy_for(name).hung, desk, watch_listener
        )
        self.present = PresentJobs(present_file, hearing.now_s)
        self.on_present: Callable[[str], None] = lambda _node: (
            None
        )  # after a report of this node's agent
        self.short_jobs: ShortJobs | None = None  # set where there is a scheduler
        self.left_pods: LeftPods | None = None  # set where there is Kubernetes
        self.hearing = hearing
        self._board = board
        self._listener = listener
        self._clock = clock
        self.turned_at_s = clock.now_s()  # when the thread was last seen going round
        self.is_taken_up = False
        self._caught_up_at_s = clock.now_s()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    # Any thread.

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Finish what is queued and let go of all journals; training goes on."""
        self.inbox.close()
        if self._thread.ident is None:
            return  # it was never started: the port is taken
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("the deciding thread does not end", extra={"waited_s": timeout_s})

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, act: Callable[[], _R]) -> "Future[_R]":
        """Run ``act`` in the thread between two batches, or raise FullError."""
        if not self.is_alive:
            raise FullError("the deciding thread is not running; try again")
        return self.inbox.put_call(act)

    # The thread.

    def _run(self) -> None:
        try:
            self.jobs.take_up_all()
            self.is_taken_up = True
            while not self._turn():
                pass
        except NewerRecordError as error:
            log.error(  # noqa: TRY400 - the text says it all
                "only newer controllers can continue with this database; this one ends, and its jobs go to them",
                extra={"error": str(error)},
            )
        except JournalSetBackError as error:
            log.error(  # noqa: TRY400 - the text says it all
                "the database was set back; this controller ends, and reads at its next start what is there",
                extra={"error": str(error)},
            )
        except Exception:
            log.exception("the deciding thread failed")  # the watchdog sees that it is gone
        finally:
            self.present.save(self.hearing.now_s(), is_last=True)
            self.jobs.close()
            self.inbox.refuse_calls()

    def _turn(self) -> bool:
        """Do what is queued and due once; return whether to stop."""
        batch = self.inbox.take(self._sleep_s())
        began_s = self._clock.now_s()
        self._hear(batch)
        for call in batch.calls:
            call.answer()
        now_s = self._clock.now_s()
        self._tick(now_s)
        self.alerts.retell(now_s)
        self.watched.tick()
        self.present.save(self.hearing.now_s())
        if self.short_jobs is not None:
            self.short_jobs.tick(now_s)
        if self.left_pods is not None:
            self.left_pods.tick(now_s)
        self.jobs.drop_unreported()
        self.jobs.sweep(now_s)
        self._follow_others(now_s)
        self._board.flush()
        self.turned_at_s = self._clock.now_s()
        if batch.reports or batch.calls:
            self._listener.turned(len(batch.reports), self.turned_at_s - began_s)
        return batch.is_last

    def _follow_others(self, now_s: float) -> None:
        """Take in what other controllers have decided, and which jobs are theirs or ours by now.

        Raises NewerRecordError where only a newer controller can read that, and JournalSetBackError.
        """
        self.jobs.follow_leases()
        if now_s - self._caught_up_at_s < CATCH_UP_S:
            return
        self._caught_up_at_s = now_s
        self.desk.note_database(self.jobs.away_s)
        try:
            self.desk.catch_up()
        except (NewerRecordError, JournalSetBackError):
            raise  # budgets and drains of the cluster are not known here any more
        except JournalError:
            pass  # the database is away: said where it is noticed

    def _sleep_s(self) -> float:
        if self.jobs.has_freed:
            return 0.0
        is_busy = self.jobs.is_taking_over or any(job.is_busy for job in self.jobs.running.values())
        return TICK_BUSY_S if is_busy else IDLE_S

    def _hear(self, batch: InboxBatch) -> None:
        for queued in batch.reports:
            queued.hearing.hear_through(queued.came_s)
            job = self.jobs.running.get(queued.report.job_id)
            if job is not None:
                job.take_report(queued.report)
        for hearing, through_s in batch.through:
            hearing.hear_through(through_s)
            hearing.admit()
        self.hearing.hear_through(batch.through_s)
        self.hearing.admit()

    def _tick(self, now_s: float) -> None:
        for job in list(self.jobs.running.values()):
            if job.is_due(now_s):
                job.tick(now_s)
            outcome = job.outcome
            if outcome is not None:
                self.jobs.end(job, outcome)

    # What people ask. For the thread.

    def command(self, job_id: str, command: PersonCommand, plan_id: str = "") -> PersonActed:
        """Carry out a person's command, or return why not.

        With ``plan_id``, refuse unless that very plan is pending.
        """
        job = self.jobs.find_running(job_id)
        if plan_id and plan_id not in {plan.plan_id for plan in view_plans(job)}:
            raise CallConflictError("the named plan is no longer pending", "plan_id", plan_id)
        return job.take_command(command)

    def dry_run(self, job_id: str, node: str | None) -> wire.PlanView:
        """Return the plan that would be made if the node, or a rank, failed now."""
        return foresee_job(self.jobs.find_running(job_id), self.desk, node)

    def known_nodes(self) -> set[str]:
        """Return the nodes that a launcher, an alert or a person has named."""
        return self.members() | self.desk.known_nodes()

    def members(self) -> set[str]:
        """Return the nodes of all jobs that run, those that have left them, too."""
        return {
            node
            for job in self.jobs.running.values()
            if job.controller is not None
            for node in job.controller.ledger.members
        }
