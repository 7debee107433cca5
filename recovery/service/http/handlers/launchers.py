"""Launchers: they join a job, report what their node runs, and wait for orders."""

import random
from typing import Annotated, Final

from msgspec import Meta, Struct

from recovery.api import wire
from recovery.messages.exchange import Report
from recovery.service.http.access import BURST_S, Rate
from recovery.service.http.backend import Backend
from recovery.service.http.call import BadError, Call, check_part
from recovery.service.http.request_errors import CallConflictError
from recovery.service.jobs.job_registry import check_join, refuse_ended
from recovery.service.jobs.retained import OVER_REPORTS_PER_S, USUAL_BYTES, Room, slim
from recovery.service.jobs.worker_inbox import CALLS_MAX
from recovery.service.kubernetes_service import PodClaim
from recovery.service.roles import TooManyError

# Shares of the wait that a poll asks for: after orders to many, which spreads the ends of 45 s polls over 18 s, and else.
WAIT_SHARE_MIN: Final = 0.6
SETTLED_SHARE_MIN: Final = 0.9
# Of one subject at once: the others' requests find room beside them.
JOINS_MAX: Final = CALLS_MAX // 2


class OrderQuery(Struct):
    launcher: wire.LauncherId
    after: Annotated[int, Meta(ge=0)] = 0
    epoch: Annotated[int, Meta(ge=0)] = 0
    wait: Annotated[float, Meta(ge=0, le=wire.WAIT_S_MAX)] = 0.0


async def join(backend: Backend, call: Call[wire.JoinRequest]) -> wire.JoinAnswer:
    requested, worker, owner = call.given, backend.worker, call.subject.name
    token, requested.pod_token = requested.pod_token, ""  # a secret: what is asked is kept on disk
    if abs(requested.version - wire.VERSION) > 1:
        raise BadError(
            f"version {requested.version} is not supported: "
            f"this controller supports {wire.VERSION - 1} to {wire.VERSION + 1}",
            "version",
            str(requested.version),
        )
    if requested.nodes_min > requested.nodes_max:
        raise BadError(
            f"nodes_min {requested.nodes_min} is above nodes_max {requested.nodes_max}", "nodes_min"
        )
    call.detail = f"job {requested.name!r}, node {requested.node}, launcher {requested.launcher_id}"
    _refuse_over_journal(backend, owner, "it can start no launchers")

    def act() -> wire.JoinAnswer:
        check_join(requested, worker.jobs.policy_for(requested.name))
        job, is_new = worker.jobs.join(owner, requested)
        return wire.JoinAnswer(
            job.job_id,
            is_new,
            backend.config.jobs.report_s,
            wire.WAIT_S_MAX,
            job.stored.secret,
            0 if job.controller is None else job.controller.ledger.attempt,
            line=0 if is_new else job.lines.newest_number,
        )

    with backend.joins.hold(owner, JOINS_MAX):
        joined = await backend.ask(act)
    job = worker.jobs.running.get(joined.job_id)
    if job is not None:
        job.note_token(requested.node, call.subject)
    if token and backend.review_pod is not None:
        launcher_id = requested.launcher_id
        backend.review_pod(PodClaim(joined.job_id, requested.node, launcher_id, owner, token))
    return joined


async def report(backend: Backend, call: Call[Report]) -> wire.Accepted:
    job_id, known = call.job
    reported = call.given
    _check_report(backend, job_id, reported)
    refuse_ended(job_id, known, backend.worker.jobs.last_lines)
    _refuse_replaced(backend, job_id, reported.node, reported.launcher_id)
    _queue(backend, known.owner, reported, call.size_bytes)
    backend.measures.reports.labels("queued").inc()
    order = backend.board.newest(job_id, reported.node)
    job = backend.worker.jobs.running.get(job_id)
    if job is not None:
        job.note_token(reported.node, call.subject)
    epoch, controller_id, attempt = (0, "", 0) if job is None else job.decided_by
    revision = 0 if order is None else order.revision
    copies = None if job is None else job.copy_request(reported.node, reported.launcher_id)
    probe = None if job is None else job.probe_request(reported.node, reported.launcher_id)
    lines = [] if job is None else job.lines.after(reported.line_printed)
    return wire.Accepted(revision, epoch, controller_id, attempt, copies, probe, lines)


async def order(backend: Backend, call: Call[OrderQuery]) -> bytes | None:
    """Return the node's newest order, encoded, as soon as it is newer than the launcher's."""
    job_id, known = call.job
    node, query, board = call.parts["node"], call.given, backend.board
    # An order to all nodes makes all launchers poll at once. Without this spread, 2,000 of them would do so
    # again every 45 s and take half a second of a core, while reports wait.
    share_min = SETTLED_SHARE_MIN if board.is_settled() else WAIT_SHARE_MIN
    wait_s = query.wait * random.uniform(share_min, 1.0)  # noqa: S311 - spreads, hides nothing
    until_s = backend.clock.now_s() + wait_s
    while True:
        refuse_ended(job_id, known, backend.worker.jobs.last_lines)
        _refuse_replaced(backend, job_id, node, query.launcher)
        body = board.find(job_id, node, query.launcher, query.after, query.epoch)
        left_s = until_s - backend.clock.now_s()
        if body is not None or left_s <= 0 or backend.is_stopping:
            return body
        if not await board.changed(job_id, node, left_s):
            return board.find(job_id, node, query.launcher, query.after, query.epoch)
        known = backend.worker.jobs.known.get(job_id, known)


def _check_report(backend: Backend, job_id: str, reported: Report) -> None:
    if reported.job_id != job_id:
        raise BadError(
            f"job_id {reported.job_id!r:.80} differs from that of the path, {job_id}",
            "job_id",
            reported.job_id,
        )
    check_part("node", reported.node)
    per_s = backend.config.limits.reports_per_node
    who = f"node {reported.node} of job {job_id}"
    backend.rates.spend("reports", who, Rate(per_s, per_s * BURST_S), backend.clock.now_s())


def _queue(backend: Backend, owner: str, reported: Report, size_bytes: int) -> None:
    """Queue a report. If its subject has used up its memory, cut the long texts or refuse the report."""
    retained = backend.retained
    retained.keep(backend.worker.jobs.running.keys())
    if backend.worker.jobs.journals.over_s(owner, backend.clock.now_s()) is not None:
        if not retained.is_known(reported.job_id, reported.node):
            _refuse_over_journal(backend, owner, "the controller accepts no further node")
        rate = Rate(OVER_REPORTS_PER_S, 2.0)
        who = f"node {reported.node} of job {reported.job_id}, whose subject has used up its share of the journals"
        backend.rates.spend("slowed reports", who, rate, backend.clock.now_s())
    room = retained.look(owner, reported.job_id, reported.node, size_bytes)
    if room is Room.SLIM:
        reported, size_bytes = slim(reported), USUAL_BYTES
        room = retained.look(owner, reported.job_id, reported.node, size_bytes)
        backend.measures.reports.labels("slimmed").inc()
    if room is Room.NONE:
        raise TooManyError(
            f"the newest reports of {owner}'s {retained.nodes(owner)} nodes take {retained.total_bytes(owner)} bytes, the "
            "limit: the controller accepts no further node",
            10.0,
        )
    backend.worker.inbox.put_report(reported, size_bytes, owner)
    retained.note(owner, reported.job_id, reported.node, 0 if reported.leaving else size_bytes)


def _refuse_over_journal(backend: Backend, owner: str, what: str) -> None:
    """Raise TooManyError where the subject's jobs have written more than their share of the journals."""
    journals = backend.worker.jobs.journals
    over_s = journals.over_s(owner, backend.clock.now_s())
    if over_s is not None:
        raise TooManyError(
            f"the jobs of {owner} have written more than {journals.per_day_bytes:.0f} bytes of journals within a day "
            f"(limits.journal_bytes_per_day): {what}",
            min(over_s, 3600.0),
        )


def _refuse_replaced(backend: Backend, job_id: str, node: str, launcher_id: str) -> None:
    job = backend.worker.jobs.running.get(job_id)
    reason = None if job is None else job.refuses(node, launcher_id)
    if reason is not None:
        raise CallConflictError(reason, "launcher_id", launcher_id)
