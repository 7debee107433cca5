"""The controller itself: whether it works, its metrics, and the description of its API."""

import asyncio
import gzip
import logging
from collections.abc import Callable
from typing import Any, Final

from prometheus_client.exposition import choose_encoder, gzip_accepted

from recovery.console.views.checkpoint_view import view_checkpoint, view_unsaved
from recovery.console.views.snapshot_view import view_snapshots
from recovery.journal.limits import restarts_left
from recovery.service.http.backend import Backend
from recovery.service.http.call import Accepts, Call
from recovery.service.http.request_errors import FullError
from recovery.service.http.route import TextPage
from recovery.service.metrics.measures import Measures

log = logging.getLogger(__name__)

# 2,000 jobs have 3 MB, which takes 0.2 s as text and a fifth more as OpenMetrics. Level 1 makes 0.21 MB of it in 5 ms;
# level 9, prometheus-client's own, 0.18 MB in 70 ms.
GZIP_LEVEL: Final = 1


def metrics_page(measures: Measures, accepts: Accepts) -> TextPage:
    """Return all metrics in the form that a client takes: text or OpenMetrics, gzip on request, as prometheus-client answers.

    Not for the event loop.
    """
    encode, content_header = _choose(accepts.forms)
    body = measures.render(encode)
    if not gzip_accepted(accepts.encodings):
        return TextPage(body, content_header)
    return TextPage(gzip.compress(body, GZIP_LEVEL, mtime=0), content_header, is_gzipped=True)


def _choose(accept: str) -> tuple[Callable[[Any], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # it asks for a version that is no number
        return choose_encoder("")


async def healthz(backend: Backend, _call: Call[None]) -> bytes:
    if not backend.is_alive():
        raise FullError("the controller's deciding thread is stuck")
    return b"ok\n"


async def readyz(backend: Backend, _call: Call[None]) -> bytes:
    if backend.is_stopping or not backend.worker.is_taken_up or not backend.is_alive():
        raise FullError("not ready: starting, stopping or stuck")
    return b"ready\n"


async def openapi(backend: Backend, _call: Call[None]) -> dict[str, Any]:
    return backend.describe()


async def metrics(backend: Backend, call: Call[None]) -> TextPage:
    measures, worker = backend.measures, backend.worker
    try:
        await backend.ask(lambda: _measure_jobs(backend))
    except (FullError, asyncio.TimeoutError):
        log.warning("metrics of jobs are missing: the deciding thread does not answer")
    measures.queue.set(worker.inbox.queued)
    measures.note_hearing(worker.inbox.lateness_s, worker.hearing.unheard_s)
    measures.polls.set(backend.board.waiting)
    measures.silent_s.set(max(0.0, backend.clock.now_s() - worker.turned_at_s))
    measures.database_away_s.set(backend.database_away_s() or 0.0)
    if backend.pager is not None:
        measures.note_pager(backend.pager, backend.clock.unix_s())
    opened, cut = backend.connections()
    measures.connections.set(opened)
    measures.cut.set(cut)
    # Of 10,000 nodes with a BMC these are 2 MB and 0.3 s, in which the event loop must not stand still.
    return await asyncio.to_thread(metrics_page, measures, call.accepts)


def _measure_jobs(backend: Backend) -> None:
    """Set what is measured of jobs and budgets. Runs in the deciding thread."""
    measures, worker = backend.measures, backend.worker
    measures.jobs.set(len(worker.jobs.running))
    pending = 0
    for job in worker.jobs.running.values():
        if job.controller is not None:
            left = restarts_left(job.controller.ledger.spent, job.settings.policy)
            measures.budget.labels(job.job_id).set(left)
            checkpoint = view_checkpoint(job.controller.ledger, backend.clock.unix_s())
            measures.note_checkpoint(job.job_id, checkpoint)
            unsaved = view_unsaved(job.controller.ledger, backend.clock.unix_s())
            measures.snapshots.note_unsaved(job.job_id, unsaved)
            measures.note_numbers(job.controller.ledger)
            snapshots = view_snapshots(job.controller.memories(), job.controller.ledger)
            measures.snapshots.note(job.job_id, snapshots)
            pending += job.unacknowledged
    measures.orders.set(pending)
    measures.names.note(worker.desk.told_names)
    measures.watched.note(worker.watched.counts(), worker.watched.found)
    for budget, left in worker.desk.budgets_left().items():
        measures.cluster_budget.labels(budget).set(left)
