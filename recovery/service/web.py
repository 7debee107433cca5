"""Answers requests: who is it, may he, how much is it, what does it say; then asks the worker.

Every answer to a request that was understood as HTTP is JSON of a type in `wire`, errors included. A
broken handler costs its own request only.
"""

import asyncio
import logging
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
import prometheus_client
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from rankmend.clock import Clock
from rankmend.errors import ConfigError, JournalError, MessageError, RankmendError
from recovery.api import wire
from recovery.cluster.alert_shares import Sender, node_sender
from recovery.cluster.alerts import (
    AlertsError,
    AlertTarget,
    IncomingAlert,
    decode_posted,
    decode_webhook,
    target_of,
)
from recovery.cluster.gate import PersonCommand
from recovery.cluster.limits import AlertRules
from recovery.job.spelling import find_unknown, say_unknown
from recovery.journal.cluster_records import WindowAdded
from recovery.journal.limits import restarts_left
from recovery.journal.records import JobOutcome
from recovery.messages.codec import decode_report
from recovery.messages.exchange import Report
from recovery.service import routes, views
from recovery.service.access import Doorman, Rate, Rates, peer_certificate
from recovery.service.audit import Audit
from recovery.service.controller_config import Config, Limits
from recovery.service.guard import guard_of
from recovery.service.measures import Measures
from recovery.service.newest_orders import Board
from recovery.service.pager import Pager, escalated
from recovery.service.permission import (
    Asked,
    Sight,
    Touches,
    World,
    demand,
    is_limited,
    permit,
    touch_of,
)
from recovery.service.retained import USUAL_BYTES, Retained, Room, slim
from recovery.service.roles import (
    DeniedError,
    Subject,
    TooManyError,
    UnknownError,
    UnknownNodeError,
)
from recovery.service.routes import ROUTES, RequestKind, Route
from recovery.service.served_job import NotTakenUpError
from recovery.service.worker import (
    CallConflictError,
    EndedError,
    FullError,
    KnownToWorker,
    Worker,
    check_join,
)

log = logging.getLogger(__name__)

BODY_S_MAX: Final = 30.0  # 8 MiB at 2.2 Mbit/s
ANSWER_S_MAX: Final = 15.0  # of the worker: a disk that takes longer is broken
READS_MAX: Final = 32  # from disk, that wait or are under way
# Of one sender: a message of 8 MiB takes some 150 MiB once it is decoded.
MESSAGES_MAX: Final = 4
NODE_MESSAGES_MAX: Final = 2
NODE_BODY_BYTES_MAX: Final = 2 * 1024 * 1024  # an agent's message is 500 kB at most
NODE_SHARE: Final = 16  # of all bodies under way, a node may send one part in so many
BURST_S: Final = 10.0  # a bucket holds what ten seconds bring
WAIT_SHARE_MIN: Final = 0.6  # of the wait that a poll asks for: its end is spread over 10 s of 25
ALIVE_S_MAX: Final = 60.0  # the worker's longest turn: a journal gives up on its disk after 30 s

_T = TypeVar("_T")


class NotNow(Enum):
    """Why a request is answered with 503, for programs."""

    STARTING = "starting"  # it takes up its jobs
    STOPPING = "stopping"
    BUSY = "busy"  # its queue is full, or its thread does not answer
    JOURNAL = "journal"  # it can't be written or read
    JOB = "job"  # that one job is not looked after


_NOT_NOW: Final = {
    NotNow.STARTING: "the controller has just started and still takes up its jobs",
    NotNow.STOPPING: "the controller stops",
    NotNow.BUSY: "the controller's thread does not answer now",
    NotNow.JOURNAL: "a journal can't be used now",
    NotNow.JOB: "the job is not looked after now",
}


@dataclass(slots=True)
class Call:
    """One request on its way."""

    route: Route
    request: web.Request
    subject: Subject
    body: bytes = b""
    parts: Mapping[str, str] = field(default_factory=dict)  # of the path, checked
    query: Any = None
    given: Any = None  # the body, decoded
    rules: AlertRules | None = None  # by which alerts were read
    known: Mapping[str, KnownToWorker] = field(
        default_factory=dict
    )  # when the request was permitted
    job_ids: tuple[str, ...] = ()  # jobs that the request names and the subject may touch
    detail: str = ""  # for the audit line

    def part(self, name: str) -> str:
        """Return a checked part of the path."""
        return self.parts[name]

    @property
    def job(self) -> tuple[str, KnownToWorker]:
        """Return the one job that the request names, with its id."""
        return self.job_ids[0], self.known[self.job_ids[0]]


class BadError(RankmendError):
    """The request can't be understood."""

    def __init__(self, message: str, field: str = "", value: str = "") -> None:
        super().__init__(message)
        self.field, self.value = field, value


class LargeError(RankmendError):
    """The body is larger than the path takes."""


class EncodedError(RankmendError):
    """The body is packed, and nothing is unpacked here."""


_PARTS: Final = {
    "job": wire.Uuid,
    "node": wire.Name,
    "scope": wire.Name,
    "window": wire.Name,
    "incident": wire.Name,
}


@dataclass(slots=True)
class Api:
    worker: Worker
    board: Board
    measures: Measures
    doorman: Doorman
    config: Config
    clock: Clock
    audit: Audit | None
    version: str
    connections: Callable[[], tuple[int, int]] = lambda: (0, 0)
    read_alerts: Callable[[], None] = lambda: None  # what the Alertmanagers know, once more
    pager: Pager | None = None
    is_stopping: bool = False
    _rates: Rates = field(default_factory=Rates)
    _disk: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="disk")
    )
    _reads: int = 0
    _bodies: int = 0
    _retained: Retained = field(default_factory=Retained)
    _bodies_of: Counter[str] = field(default_factory=Counter)  # by subject
    _messages: dict[str, int] = field(default_factory=dict)  # with alerts, under way, by subject

    def application(self) -> web.Application:
        """Return the aiohttp application of all routes."""
        app = web.Application(middlewares=[self._errors_of_routing], client_max_size=0)
        for route in ROUTES:
            app.router.add_route(route.method, route.path, self._serve(route))
        return app

    def close(self) -> None:
        self._disk.shutdown(wait=True, cancel_futures=True)

    # From a request to an answer.

    @web.middleware
    async def _errors_of_routing(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:  # no such path, or not with this method
            reason = f"{request.method} {request.path[:200]}: {error.reason}"
            answer = _problem(error.status, wire.Problem(reason))
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return answer

    def _serve(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        handler: Callable[[Call], Awaitable[Any]] = getattr(self, f"on_{route.handler}")
        counters: dict[
            int, prometheus_client.Counter
        ] = {}  # looked up once: 4 % of what a report costs

        async def serve(request: web.Request) -> web.StreamResponse:
            guard = guard_of(request)
            if guard is not None:
                guard.begin(route.body_bytes_max if route.body is not None else 0)
            try:
                answer = await self._answer(route, request, handler)
            finally:
                if guard is not None:
                    guard.end()
            counter = counters.get(answer.status)
            if counter is None:
                counter = self.measures.requests.labels(route.handler, answer.status)
                counters[answer.status] = counter
            counter.inc()
            return answer

        return serve

    async def _answer(
        self, route: Route, request: web.Request, handler: Callable[[Call], Awaitable[Any]]
    ) -> web.Response:
        redirect = self.config.redirect_to
        if redirect is not None and route.path.startswith(("/v1/", "/api/")):
            return web.Response(status=307, headers={"Location": redirect + request.path_qs})
        call: Call | None = None
        try:
            subject = self._identify(route, request)
            call = Call(route, request, subject)
            self._demand(call)
            if route.query is not None:
                call.query = _query(
                    request, route.query, is_strict=route.kind is not RequestKind.LAUNCH
                )
            self._limit(call)
            call.parts = _parts(request)
            if route.body is not None:
                call.body = await self._read(request, route, subject)
                call.given = self._decode(call)
            self._permit(call)
            given = await handler(call)
            answer = _answered(route, given)
        except Exception as error:  # noqa: BLE001 - one request: told to its client, or logged
            answer = self._refusal(error, route)
            if call is not None and route.kind is RequestKind.REPORT:
                result = _REPORT_RESULTS.get(type(error), "refused")
                self.measures.reports.labels(result).inc()
        await self._note(route, call, answer)
        return answer

    def _identify(self, route: Route, request: web.Request) -> Subject:
        if route.kind is RequestKind.OPEN:
            return Subject("anybody", frozenset())
        now_s, peer = self.clock.now_s(), request.remote or "?"
        failures = Rate(1.0, 100.0)  # of one address: a fleet with an old token, not a search
        header, certificate = request.headers.get("Authorization"), None
        if header is None and request.transport is not None:
            certificate = peer_certificate(request.transport.get_extra_info("ssl_object"))
        now = datetime.fromtimestamp(self.clock.unix_s(), timezone.utc)
        try:
            return self.doorman.identify(header, certificate, now)
        except DeniedError:
            self.measures.auth_failures.labels("unknown").inc()
            # Only who fails is held back: behind the same address others have tokens that hold.
            if not self._rates.has("failed logins", peer, failures, now_s):
                raise TooManyError(f"too many failed logins from {peer}", 1.0) from None
            self._rates.take("failed logins", peer, failures, now_s)
            raise

    def _demand(self, call: Call) -> None:
        if call.route.kind is RequestKind.OPEN:
            return
        try:
            demand(call.subject, *call.route.roles)
        except DeniedError:
            self.measures.auth_failures.labels("role").inc()
            raise

    def _decode(self, call: Call) -> Any:
        """Return the body as its route's type."""
        handler, body = call.route.handler, call.body
        try:
            if handler == "report":
                return decode_report(body)
            if handler == "alerts":
                return decode_posted(body, self.clock.unix_s()), 0
            if handler == "webhook":
                return decode_webhook(body)
            return msgspec.json.decode(body, type=call.route.body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadError(str(error)) from error

    def _permit(self, call: Call) -> None:
        """Raise where the request touches what lies outside the subject's limits."""
        route, desk = call.route, self.worker.desk
        call.known = self.worker.known
        call.detail = getattr(call.given, "reason", "")
        targets: tuple[AlertTarget, ...] = ()
        if route.touches is Touches.ALERTS:
            rules = call.rules = desk.policy.alerts
            targets = tuple(target_of(alert, rules) for alert in call.given[0])
        is_act = route.kind is RequestKind.ACT
        asked = Asked(call.parts, call.query, call.given, targets, is_act)
        touch = touch_of(route.touches, asked, World(call.known, desk.ledger.windows))
        try:
            call.job_ids = permit(call.subject, touch, call.known)
        except DeniedError:
            self.measures.auth_failures.labels("limit").inc()
            raise

    def _sight(self, subject: Subject, nodes: Iterable[wire.NodeView] = ()) -> Sight:
        """Return what a subject sees of lists; ``nodes`` are those of all jobs."""
        known = self.worker.known.items()
        jobs = frozenset(job_id for job_id, one in known if subject.may_use_job(one.name))
        return Sight(subject, jobs, frozenset(one.node for one in nodes if one.job_id in jobs))

    def _limit(self, call: Call) -> None:
        kind, limits = call.route.kind, self.config.limits
        if kind is RequestKind.OPEN:
            return
        who, per_s = call.subject.name, _rate(kind, limits)
        if kind is RequestKind.REPORT:  # by job: a node's own is counted once the report is decoded
            return
        self._rates.take(kind.value, who, Rate(per_s, per_s * BURST_S), self.clock.now_s())

    async def _read(self, request: web.Request, route: Route, subject: Subject) -> bytes:
        """Return the body, bounded in size, in time, and in what all bodies take together."""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise EncodedError("the body is encoded: nothing is unpacked here, send it plain")
        limit = route.body_bytes_max
        if _is_node(subject):
            limit = min(limit, NODE_BODY_BYTES_MAX)
        share = self.config.limits.bodies_bytes // (NODE_SHARE if _is_node(subject) else 2)
        length = request.content_length
        if length is not None and length > limit:
            raise LargeError(f"the body has {length} bytes, {limit} are read here")
        body = bytearray()

        async def collect() -> None:
            async for chunk in request.content.iter_any():
                self._bodies += len(chunk)
                self._bodies_of[subject.name] += len(chunk)
                body.extend(chunk)
                if len(body) > limit:
                    raise LargeError(f"the body has more than {limit} bytes")
                if self._bodies > self.config.limits.bodies_bytes:
                    raise FullError("too many bodies are under way")
                if self._bodies_of[subject.name] > share:
                    raise TooManyError(f"too many bodies of {subject.name} are under way", 1.0)

        try:
            await (
                collect() if request.content.is_eof() else asyncio.wait_for(collect(), BODY_S_MAX)
            )
            return bytes(body)
        except asyncio.TimeoutError as error:
            raise BadError(f"the body was not complete after {BODY_S_MAX:g} s") from error
        except (HttpProcessingError, RequestPayloadError, ConnectionError) as error:
            raise BadError(f"the body can't be read: {error}") from error
        finally:
            self._bodies -= len(body)
            self._bodies_of[subject.name] -= len(body)
            if not self._bodies_of[subject.name]:
                del self._bodies_of[subject.name]
            body.clear()  # a traceback may hold it until the next look for cycles

    def _refusal(self, error: Exception, route: Route) -> web.Response:
        """Return the answer to a request that was not carried out."""
        text = str(error)
        field_, value = getattr(error, "field", ""), str(getattr(error, "value", ""))[:200]
        status, headers, outcome = 500, {}, None
        refusal = getattr(error, "refusal", "")
        if isinstance(error, DeniedError):
            status = error.status
        elif isinstance(error, TooManyError):
            status, headers = 429, {"Retry-After": str(max(1, round(error.retry_after_s)))}
        elif isinstance(error, FullError | NotTakenUpError | JournalError | asyncio.TimeoutError):
            status, headers = 503, {"Retry-After": "1"}
            not_now = self._not_now(error)
            refusal, text = not_now.value, text or _NOT_NOW[not_now]
        elif isinstance(error, UnknownError):
            status = 404
        elif isinstance(error, CallConflictError):
            status = 409
        elif isinstance(error, EndedError):
            status, outcome = 410, error.outcome
        elif isinstance(error, LargeError):
            status = 413
        elif isinstance(error, EncodedError):
            status = 415
        elif isinstance(error, BadError | MessageError | AlertsError | ConfigError):
            status = 400
        else:
            log.error("request failed", extra={"route": route.handler}, exc_info=error)
            text = "the controller failed over this request; its log says how"
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="rankmend"'
        problem = wire.Problem(text[:2000], field_, value, outcome, refusal)
        return _problem(status, problem, headers)

    def _not_now(self, error: Exception) -> "NotNow":
        """Return why a request that is sound can't be answered now."""
        if self.is_stopping:
            return NotNow.STOPPING
        if not self.worker.is_taken_up:
            return NotNow.STARTING
        if isinstance(error, JournalError):
            return NotNow.JOURNAL
        return NotNow.JOB if isinstance(error, NotTakenUpError) else NotNow.BUSY

    async def _note(self, route: Route, call: Call | None, answer: web.Response) -> None:
        """Write the audit line of a request that acts, whatever came of it."""
        is_acting = route.kind is RequestKind.ACT or route.handler == "join"
        if not is_acting or call is None or self.audit is None:
            return
        what = f"{route.method} {call.request.path[:500]}"
        result = f"{answer.status} {HTTPStatus(answer.status).phrase}"
        subject, peer = call.subject, call.request.remote or "?"
        await asyncio.get_running_loop().run_in_executor(
            self._disk, self.audit.write, subject.name, subject.how, what, result, peer, call.detail
        )

    # Asking.

    async def _ask(self, act: Callable[[], _T]) -> _T:
        """Have the worker's thread do something between two batches."""
        return await asyncio.wait_for(asyncio.wrap_future(self.worker.call(act)), ANSWER_S_MAX)

    async def _from_disk(self, act: Callable[[], _T]) -> _T:
        if self._reads >= READS_MAX:
            raise FullError(f"{self._reads} reads from disk are under way")
        self._reads += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, act)
        finally:
            self._reads -= 1

    # Launchers.

    async def on_join(self, call: Call) -> wire.JoinAnswer:
        join: wire.Join = call.given
        subject = call.subject
        if abs(join.version - wire.VERSION) > 1:
            raise BadError(f"version is {join.version}", "version", str(join.version))
        if join.nodes_min > join.nodes_max:
            raise BadError(
                f"nodes_min {join.nodes_min} is above nodes_max {join.nodes_max}", "nodes_min"
            )
        worker = self.worker
        call.detail = f"job {join.name!r}, node {join.node}, launcher {join.launcher_id}"

        def act() -> wire.JoinAnswer:
            check_join(join, worker.policy_for(join.name))
            job, is_new = worker.join(subject.name, join)
            return wire.JoinAnswer(
                job.job_id,
                is_new,
                self.config.jobs.report_s,
                wire.WAIT_S_MAX,
                job.stored.secret,
                0 if job.controller is None else job.controller.ledger.attempt,
            )

        return await self._ask(act)

    async def on_report(self, call: Call) -> wire.Accepted:
        job_id, known = call.job
        report: Report = call.given
        self._check_report(job_id, report)
        _refuse_ended(job_id, known)
        self._refuse_replaced(job_id, report.node, report.launcher_id)
        self._put(known.owner, report, len(call.body))
        self.measures.reports.labels("queued").inc()
        order = self.board.newest(job_id, report.node)
        job = self.worker.jobs.get(job_id)
        epoch, controller_id, attempt = (0, "", 0) if job is None else job.decided_by
        revision = 0 if order is None else order.revision
        return wire.Accepted(revision, epoch, controller_id, attempt)

    def _check_report(self, job_id: str, report: Report) -> None:
        if report.job_id != job_id:
            raise BadError(f"job_id is not that of the path, {job_id}", "job_id", report.job_id)
        try:
            msgspec.convert(report.node, wire.Name)
        except msgspec.ValidationError as error:
            raise BadError(f"node: {error}", "node", report.node) from error
        per_s = self.config.limits.reports_per_node
        who = f"{report.node} of job {job_id}"
        self._rates.take("reports", who, Rate(per_s, per_s * BURST_S), self.clock.now_s())

    def _put(self, owner: str, report: Report, size_bytes: int) -> None:
        """Queue a report; one for which its subject has no room left loses its long texts, or is refused."""
        self._retained.keep(self.worker.jobs.keys())
        room = self._retained.look(owner, report.job_id, report.node, size_bytes)
        if room is Room.SLIM:
            report, size_bytes = slim(report), USUAL_BYTES
            room = self._retained.look(owner, report.job_id, report.node, size_bytes)
            self.measures.reports.labels("slimmed").inc()
        if room is Room.NONE:
            raise TooManyError(
                f"the newest reports of {owner}'s nodes take {self._retained.total_bytes(owner)} bytes: "
                "no further node is taken in",
                10.0,
            )
        self.worker.put_report(report, size_bytes)
        self._retained.note(owner, report.job_id, report.node, 0 if report.leaving else size_bytes)

    def _refuse_replaced(self, job_id: str, node: str, launcher_id: str) -> None:
        job = self.worker.jobs.get(job_id)
        reason = None if job is None else job.refuses(node, launcher_id)
        if reason is not None:
            raise CallConflictError(reason, "launcher_id", launcher_id)

    async def on_order(self, call: Call) -> bytes | None:
        job_id, known = call.job
        node, query = call.part("node"), call.query
        # An order to all makes all poll at once: without this they would do so again every 25 s, 2,000 in
        # half a second of the core, and reports would wait for as long.
        wait_s = query.wait * random.uniform(WAIT_SHARE_MIN, 1.0)  # noqa: S311 - spreads, hides nothing
        until_s = self.clock.now_s() + wait_s
        while True:
            _refuse_ended(job_id, known)
            self._refuse_replaced(job_id, node, query.launcher)
            body = self.board.find(job_id, node, query.launcher, query.after, query.epoch)
            left_s = until_s - self.clock.now_s()
            if body is not None or left_s <= 0 or self.is_stopping:
                return body
            if not await self.board.changed(job_id, node, left_s):
                return self.board.find(job_id, node, query.launcher, query.after, query.epoch)
            known = self.worker.known.get(job_id, known)

    # Alerts.

    async def on_alerts(self, call: Call) -> wire.Taken:
        return await self._take_alerts(call, call.given[0])

    async def on_webhook(self, call: Call) -> wire.Taken:
        alerts, left_out = call.given
        if left_out:
            log.warning("webhook left alerts out (max_alerts)", extra={"count": left_out})
            self.read_alerts()
        return await self._take_alerts(call, alerts)

    async def _take_alerts(self, call: Call, alerts: tuple[IncomingAlert, ...]) -> wire.Taken:
        subject, rules = call.subject, call.rules
        sender = node_sender(subject.name) if _is_node(subject) else Sender(subject.name)
        under_way = self._messages.get(subject.name, 0)
        if under_way >= (NODE_MESSAGES_MAX if _is_node(subject) else MESSAGES_MAX):
            raise TooManyError(f"{under_way} messages of {subject.name} are under way", 1.0)
        self._messages[subject.name] = under_way + 1
        held = [alerts]  # let go of when nobody waits any more, though the deciding thread is stuck
        count = len(alerts)
        del alerts
        call.given = None
        try:
            refused = await self._ask(lambda: self.worker.take_alerts(held[0], sender, rules))
        finally:
            held.clear()
            self._messages[subject.name] -= 1
            if not self._messages[subject.name]:
                del self._messages[subject.name]
        self.measures.alerts.inc(count - refused)
        self.measures.alerts_refused.inc(refused)
        return wire.Taken(count - refused, refused)

    # People and scripts.

    async def on_jobs(self, call: Call) -> wire.Jobs:
        worker = self.worker
        with_ended = call.query.ended

        def act() -> tuple[list[wire.JobView], tuple[Any, ...]]:
            running = [views.view_job(job) for job in worker.jobs.values()]
            return running, worker.ended() if with_ended else ()

        running, ended = await self._ask(act)
        newest = ended[-routes.INCIDENTS_MAX :]
        if newest:
            running += await self._from_disk(lambda: [views.view_ended(one) for one in newest])
        return wire.Jobs([one for one in running if call.subject.may_use_job(one.name)])

    async def on_job(self, call: Call) -> wire.JobDetail:
        job_id, _known = call.job
        worker = self.worker

        def act() -> wire.JobDetail | None:
            job = worker.jobs.get(job_id)
            if job is None:
                return None
            nodes = views.view_nodes(job, worker.desk)
            return wire.JobDetail(
                views.view_job(job), [one for one in nodes if call.subject.may_use_node(one.node)]
            )

        shown = await self._ask(act)
        if shown is not None:
            return shown
        ended = await self._ask(lambda: worker.find_ended(job_id))
        return wire.JobDetail(await self._from_disk(lambda: views.view_ended(ended)), [])

    async def on_nodes(self, call: Call) -> wire.Nodes:
        worker = self.worker

        def act() -> list[wire.NodeView]:
            jobs = worker.jobs.values()
            return [view for job in jobs for view in views.view_nodes(job, worker.desk)]

        nodes = await self._ask(act)
        sight = self._sight(call.subject, nodes)
        seen = [one for one in nodes if sight.sees_job(one.job_id) and sight.sees_node(one.node)]
        return wire.Nodes(seen)

    async def on_incidents(self, call: Call) -> wire.Incidents:
        wanted, limit = call.query.job, call.query.limit
        known = self.worker.known
        folders = [
            (one.path, one.name)
            for job_id, one in reversed(list(known.items()))
            if wanted in (None, job_id) and call.subject.may_use_job(one.name)
        ][: routes.INCIDENTS_MAX]

        def act() -> list[wire.IncidentView]:
            found: list[wire.IncidentView] = []
            for path, name in folders:
                try:
                    found += views.read_incidents(path, name)
                except RankmendError as error:
                    log.warning("journal not read", extra={"error": str(error)})
            return sorted(found, key=lambda one: one.opened_unix_s, reverse=True)[:limit]

        return wire.Incidents(await self._from_disk(act))

    async def on_story(self, call: Call) -> wire.Story:
        wanted = call.part("incident")
        story = await self._find_story(call, wanted)
        if story is None:
            raise UnknownError(f"no incident or job {wanted}")
        return story

    async def _find_story(self, call: Call, wanted: str) -> wire.Story | None:
        """Return what is on record of a job or an incident, from disk."""
        is_job = wanted in call.known
        places = [(job_id, call.known[job_id]) for job_id in call.job_ids]

        def act() -> wire.Story | None:
            for job_id, one in places:
                story = views.read_story(one.path, job_id, one.name, None if is_job else wanted)
                if story is not None:
                    return story
            return None

        return await self._from_disk(act)

    async def on_plans(self, call: Call) -> wire.Plans:
        worker, subject = self.worker, call.subject

        def act() -> list[wire.PlanView]:
            return [plan for job in worker.jobs.values() for plan in views.view_plans(job)]

        return wire.Plans([one for one in await self._ask(act) if subject.may_use_job(one.job)])

    async def on_plan(self, call: Call) -> wire.PlanView:
        job_id, known = call.job
        node = call.query.node
        _refuse_ended(job_id, known)
        return await self._ask(lambda: self.worker.dry_run(job_id, node))

    async def on_policy(self, call: Call) -> wire.PolicyView:
        worker = self.worker
        if not call.job_ids:
            return await self._ask(lambda: views.view_policy(worker.desk, worker.policy_for("")))
        job_id, known = call.job
        _refuse_ended(job_id, known)

        def act() -> wire.PolicyView:
            job = worker.jobs.get(job_id)
            if job is None:
                raise UnknownError(f"no job {job_id}")
            return views.view_policy(worker.desk, job.settings.policy, job)

        return await self._ask(act)

    async def on_cluster(self, call: Call) -> wire.Cluster:
        worker = self.worker

        def act() -> tuple[wire.Cluster, list[wire.NodeView]]:
            nodes = [
                view
                for job in worker.jobs.values()
                for view in (views.view_nodes(job, worker.desk) if is_limited(call.subject) else ())
            ]
            return views.view_cluster(worker.desk), nodes

        cluster, nodes = await self._ask(act)
        return self._sight(call.subject, nodes).part_of(cluster)

    # Acts.

    async def on_command(self, call: Call) -> wire.Done:
        job_id, _known = call.job
        asked: wire.JobCommand = call.given
        who = call.subject.name
        command = PersonCommand(
            asked.act, who, asked.reason, asked.incident_id, asked.node, asked.key
        )
        call.detail = (
            f"{asked.act.value} {asked.incident_id or ''} {asked.node or ''} {asked.reason}"
        )
        acted = await self._ask(lambda: self.worker.command(job_id, command, asked.plan_id))
        if acted.is_refused:
            raise CallConflictError(acted.result, "act", asked.act.value, acted.refusal)
        return wire.Done(acted.result)

    async def on_acknowledge(self, call: Call) -> wire.Done:
        incident, reason = call.part("incident"), self._reason(call)
        worker, who = self.worker, call.subject.name
        told = await self._ask(lambda: escalated(worker))
        if not any(one.incident_id == incident and one.job_id in call.job_ids for one in told):
            story = await self._find_story(call, incident)
            if story is None or story.incident_id is None:
                raise UnknownError(f"no incident {incident}")
            raise CallConflictError(
                f"nobody is told of incident {incident}: it has not ended its job",
                "incident",
                incident,
            )
        await self._ask(lambda: worker.desk.acknowledge(incident, who, reason))
        return wire.Done(f"nobody is told of incident {incident} any more")

    async def on_pause_cluster(self, call: Call) -> wire.Done:
        return await self._pause(call, "cluster")

    async def on_resume_cluster(self, call: Call) -> wire.Done:
        return await self._resume(call, "cluster")

    async def on_pause(self, call: Call) -> wire.Done:
        return await self._pause(call, call.part("scope"))

    async def on_resume(self, call: Call) -> wire.Done:
        return await self._resume(call, call.part("scope"))

    async def _check_nodes(self, call: Call, nodes: Sequence[str]) -> None:
        """Raise where nobody has heard of a node, unless the request says that it is yet to come."""
        if call.given.is_expected:
            return
        heard_of = await self._ask(self.worker.known_nodes)
        known = [*heard_of, *self.config.discovery.nodes]
        unknown = find_unknown(nodes, known)
        if unknown is not None:
            seen = [one for one in known if call.subject.may_use_node(one)]
            raise UnknownNodeError(say_unknown("node", unknown, seen), unknown)

    async def _pause(self, call: Call, scope: str) -> wire.Done:
        reason = self._reason(call)
        kind, _colon, name = scope.partition(":")
        if kind == "node":
            await self._check_nodes(call, [name])
        elif kind == "job":
            known = call.known.get(name)
            if known is None:
                raise UnknownError(f"no job {name}")
            _refuse_ended(name, known)
        await self._ask(lambda: self.worker.desk.pause(scope, call.subject.name, reason))
        return wire.Done(
            f"{scope} is paused: ranks run on, failures are told, and their plans wait"
        )

    async def _resume(self, call: Call, scope: str) -> wire.Done:
        reason, desk = self._reason(call), self.worker.desk

        def act() -> None:
            if scope not in desk.ledger.paused:
                raise CallConflictError(f"{scope} is not paused", "scope", scope)
            desk.resume(scope, call.subject.name, reason)

        await self._ask(act)
        return wire.Done(f"{scope} is resumed")

    async def on_drain(self, call: Call) -> wire.Done:
        node, reason = call.part("node"), self._reason(call)
        await self._check_nodes(call, [node])
        await self._ask(lambda: self.worker.desk.drain(node, call.subject.name, reason))
        return wire.Done(f"{node} gets no ranks any more; those that run there run on")

    async def on_release(self, call: Call) -> wire.Done:
        node, reason = call.part("node"), self._reason(call)
        await self._check_nodes(call, [node])
        await self._ask(lambda: self.worker.desk.release(node, call.subject.name, reason))
        return wire.Done(f"{node} may get ranks again")

    async def on_add_window(self, call: Call) -> wire.WindowView:
        asked: wire.Window = call.given
        await self._check_nodes(call, asked.nodes)
        window = WindowAdded(
            f"w{secrets.token_hex(4)}",
            tuple(asked.nodes),
            asked.from_unix_s,
            asked.until_unix_s,
            call.subject.name,
            asked.reason,
        )
        call.detail = f"{window.window_id}: {', '.join(asked.nodes[:20])} {asked.reason}"
        await self._ask(lambda: self.worker.desk.add_window(window))
        return wire.WindowView(
            window.window_id,
            asked.nodes,
            asked.from_unix_s,
            asked.until_unix_s,
            window.who,
            asked.reason,
        )

    async def on_end_window(self, call: Call) -> wire.Done:
        window_id, reason, desk = call.part("window"), self._reason(call), self.worker.desk

        def act() -> None:
            if window_id not in desk.ledger.windows:
                raise CallConflictError(f"there is no window {window_id}", "window", window_id)
            desk.remove_window(window_id, call.subject.name, reason)

        await self._ask(act)
        return wire.Done(f"window {window_id} has ended")

    def _reason(self, call: Call) -> str:
        because: wire.Because = call.given
        return because.reason

    # Discovery, metrics, health.

    async def on_agents(self, call: Call) -> list[wire.Target]:
        nodes = (await self.on_nodes(call)).nodes
        sight = self._sight(call.subject, nodes)
        named = self.config.discovery.nodes
        jobs: dict[str, list[str]] = {name: [] for name in named if sight.sees_node(name)}
        for node in nodes:
            jobs.setdefault(node.node, []).append(node.job_id)
        told = self.config.discovery
        domain = f".{told.domain}" if told.domain else ""
        return [
            wire.Target(
                [f"{name}{domain}:{told.agent_port}"],
                {"node": name, "__meta_rankmend_job_ids": ",".join(sorted(job_ids))},
            )
            for name, job_ids in sorted(jobs.items())
        ]

    async def on_metrics(self, _call: Call) -> bytes:
        measures, worker = self.measures, self.worker

        def act() -> None:
            measures.jobs.set(len(worker.jobs))
            pending = 0
            for job in worker.jobs.values():
                if job.controller is not None:
                    ledger = job.controller.ledger
                    left = restarts_left(ledger.spent, job.settings.policy)
                    measures.budget.labels(job.job_id).set(left)
                    pending += job.unacknowledged
            measures.orders.set(pending)
            for budget, left in worker.desk.budgets_left().items():
                measures.cluster_budget.labels(budget).set(left)

        try:
            await self._ask(act)
        except (FullError, asyncio.TimeoutError):
            log.warning("metrics without the jobs' own: the controller's thread does not answer")
        measures.queue.set(worker.queued)
        measures.note_hearing(worker.lateness_s, worker.hearing.unheard_s)
        measures.polls.set(self.board.waiting)
        measures.silent_s.set(max(0.0, self.clock.now_s() - worker.turned_at_s))
        if self.pager is not None:
            measures.note_pager(self.pager)
        opened, cut = self.connections()
        measures.connections.set(opened)
        measures.cut.set(cut)
        return measures.render()

    async def on_healthz(self, _call: Call) -> bytes:
        if not self.is_alive():
            raise FullError("the controller's thread stands still")
        return b"ok\n"

    async def on_readyz(self, _call: Call) -> bytes:
        if self.is_stopping or not self.worker.is_taken_up or not self.is_alive():
            raise FullError("not ready: starting, stopping or stuck")
        return b"ready\n"

    async def on_openapi(self, _call: Call) -> dict[str, Any]:
        return routes.describe(self.version)

    def is_alive(self) -> bool:
        """Return whether the deciding thread goes round."""
        age_s = self.clock.now_s() - self.worker.turned_at_s
        return self.worker.is_alive and age_s < ALIVE_S_MAX


def _is_node(subject: Subject) -> bool:
    """Return whether a node's certificate speaks, which any process of its agent's user may use."""
    return subject.how == "certificate"


def _rate(kind: RequestKind, limits: Limits) -> float:
    return {
        RequestKind.LAUNCH: limits.launches,
        RequestKind.ALERT: limits.alerts,
        RequestKind.READ: limits.reads,
        RequestKind.ACT: limits.acts,
        RequestKind.REPORT: limits.reports_per_node,
        RequestKind.OPEN: limits.reads,
    }[kind]


def _refuse_ended(job_id: str, known: KnownToWorker) -> None:
    if known.outcome is not None:
        outcome: JobOutcome = known.outcome
        raise EndedError(f"job {job_id} has ended: {outcome.kind.value}: {outcome.reason}", outcome)


_REPORT_RESULTS: Final[dict[type[Exception], str]] = {
    FullError: "full",
    TooManyError: "rate",
    EndedError: "ended",
}


def _parts(request: web.Request) -> dict[str, str]:
    """Return the parts of the path, each of the form that its name asks for."""
    parts = dict(request.match_info)
    for name, text in parts.items():
        try:
            msgspec.convert(text, _PARTS[name])
        except msgspec.ValidationError as error:
            raise BadError(f"{name}: {error}", name, text) from error
    return parts


def _query(
    request: web.Request, wanted: type[msgspec.Struct], *, is_strict: bool
) -> msgspec.Struct:
    """Return the parameters; unknown ones are a slip, but for launchers that may be newer than we."""
    unknown = [name for name in request.query if name not in wanted.__struct_fields__]
    if unknown and is_strict:
        known = ", ".join(wanted.__struct_fields__)
        raise BadError(
            f"query: no parameter {unknown[0]!r:.80}, there are {known}", unknown[0][:80]
        )
    values = {
        name: request.query[name] for name in wanted.__struct_fields__ if name in request.query
    }
    try:
        return msgspec.convert(values, wanted, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise BadError(f"query: {error}") from error


def _answered(route: Route, given: Any) -> web.Response:
    if given is None:
        return web.Response(status=204)
    if isinstance(given, bytes):
        kind = "application/json" if route.answer is not None else "text/plain"
        return web.Response(body=given, status=route.status, content_type=kind, charset="utf-8")
    body = msgspec.json.encode(given)
    return web.Response(body=body, status=route.status, content_type="application/json")


def _problem(
    status: int, problem: wire.Problem, headers: dict[str, str] | None = None
) -> web.Response:
    body = msgspec.json.encode(problem)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
