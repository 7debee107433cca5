"""The path of a request: authentication, role, rate, body, permission, and then its handler.

Every answer to valid HTTP is JSON of a type in `wire`, errors included, except metrics and health. A failing
handler fails its own request only. `recovery.service.http.routes` lists the routes, and
`recovery.service.http.permission` alone decides what a subject may touch, before any handler runs.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
import prometheus_client
from aiohttp import web

from rankmend.errors import RankmendError
from rankmend.listening import plain_address
from recovery.api import wire
from recovery.controller.cluster.incoming_alerts import AlertTarget, target_of
from recovery.journal.postgres.leases import HeldByOtherError
from recovery.service.controller_config import Limits
from recovery.service.fleet.answers import answering_peer, show_without_owner
from recovery.service.http.access import (
    BURST_S,
    SUBJECT_HEADER,
    Doorman,
    Rate,
    certificate_ends_unix_s,
    peer_certificate,
    refuse_foreign_pages,
)
from recovery.service.http.audit import Audit
from recovery.service.http.backend import READS_OF_SUBJECT_MAX, Backend
from recovery.service.http.call import (
    Accepts,
    BadError,
    BodyReader,
    Call,
    LargeError,
    read_parts,
    read_query,
)
from recovery.service.http.error_answers import AnsweredError, ErrorAnswer, answer_error
from recovery.service.http.fast_path import (
    Handler,
    PlainAnswer,
    PlainAnswers,
    Serve,
    make_straight,
    takes_plain,
)
from recovery.service.http.guard import guard_of
from recovery.service.http.handlers.alerts import AlertMessage
from recovery.service.http.permission import Asked, World, demand, permit, touch_of
from recovery.service.http.request_errors import EndedError, FullError, PeerSilentError
from recovery.service.http.route import (
    SMALL_BYTES,
    Answerer,
    GivesPage,
    RequestKind,
    Route,
    TextPage,
)
from recovery.service.http.routes import BY_NAME, ROUTES
from recovery.service.roles import DeniedError, Subject, TooManyError, UnknownError

log = logging.getLogger(__name__)

# per address: enough for a fleet with an old token, too few to guess one
_FAILED_LOGINS: Final = Rate(1.0, 100.0)
_EPOCH: Final = datetime.fromtimestamp(0, timezone.utc)
_OFTEN: Final = ("report", "order")
_REPORT_RESULTS: Final[dict[type[Exception], str]] = {
    FullError: "full",
    TooManyError: "rate",
    EndedError: "ended",
}


@runtime_checkable
class _Reasoned(Protocol):
    """A body in which a person says why."""

    reason: str


@dataclass(slots=True)
class _Attempt:
    """What is known about a request so far, for its audit line."""

    subject: Subject | None = None
    call: Call[Any] | None = None


@dataclass(slots=True)
class Api:
    backend: Backend
    doorman: Doorman
    audit: Audit | None
    _bodies: BodyReader = field(default_factory=BodyReader)
    _plain: PlainAnswers = field(default_factory=PlainAnswers)
    _second: int = 0
    _now: datetime = _EPOCH

    def application(self) -> web.Application:
        """Return the aiohttp application of all routes."""
        app = web.Application(middlewares=[_errors_of_routing], client_max_size=0)
        # Reports and polls first: routes with one beginning are tried in turn.
        for route in sorted(ROUTES, key=lambda route: route.name not in _OFTEN):
            app.router.add_route(route.method, route.path, _matched(self._serve(route)))
        return app

    def straight(self, application: Handler) -> Handler:
        """Return what answers all requests of the server: reports and polls at once, the rest by the application."""
        report, order = (self._serve(BY_NAME[name]) for name in _OFTEN)
        return make_straight(report, order, application)

    def _serve(self, route: Route[Any, Any, Any]) -> Serve:
        # Counters by status, looked up once: 4 % of what a report costs.
        counters: dict[int, prometheus_client.Counter] = {}
        body_bytes_max = 0 if route.body is None else route.body.bytes_max

        async def serve(request: web.BaseRequest, found: Mapping[str, str]) -> web.StreamResponse:
            guard = guard_of(request)
            if guard is not None:
                guard.begin(body_bytes_max)
            try:
                answer = await self._answer(route, request, found)
            finally:
                if guard is not None:
                    guard.end()
            if guard is not None and guard.is_surplus:
                answer.force_close()
            counter = counters.get(answer.status)
            if counter is None:
                counter = self.backend.measures.requests.labels(route.name, answer.status)
                counters[answer.status] = counter
            counter.inc()
            return answer

        return serve

    def serve_page(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return the handler of a page of the console, with the bounds and the count of every request."""

        async def serve(request: web.Request) -> web.StreamResponse:
            redirect = self.backend.config.redirect_to
            if redirect is not None:
                return web.Response(status=307, headers={"Location": redirect + request.path_qs})
            guard = guard_of(request)
            if guard is not None:
                guard.begin(SMALL_BYTES)
            try:
                answer = await handler(request)
            finally:
                if guard is not None:
                    guard.end()
            self.backend.measures.requests.labels("console", answer.status).inc()
            return answer

        return serve

    async def _answer(
        self, route: Route[Any, Any, Any], request: web.BaseRequest, found: Mapping[str, str]
    ) -> web.StreamResponse:
        backend, attempt = self.backend, _Attempt()
        answer: web.StreamResponse
        redirect = backend.config.redirect_to
        if redirect is not None and route.path.startswith(("/v1/", "/api/")):
            return web.Response(status=307, headers={"Location": redirect + request.path_qs})
        try:
            call = await self._read(route, request, found, attempt)
            self._permit(route, call)
            result = await self._carry(route, call)
            is_plain = route.name in _OFTEN and takes_plain(request)
            answer = self._answer_plainly(route, result) if is_plain else _answered(route, result)
        except Exception as error:  # noqa: BLE001 - one request: its client gets the error, or the log does
            answer = self._sent_on(error, request) or self._refused(error, route)
            if isinstance(error, (DeniedError, UnknownError)) and route.kind is RequestKind.LAUNCH:
                self._note_refused_launcher(found, error, attempt.subject)
            if attempt.subject is not None and route.kind is RequestKind.REPORT:
                result = _REPORT_RESULTS.get(type(error), "refused")
                backend.measures.reports.labels(result).inc()
        if route.is_audited:
            what = f"{route.method} {request.path}"
            await self._note(
                route, what, plain_address(request.remote or "?"), attempt, answer.status
            )
        return answer

    def _note_refused_launcher(
        self, found: Mapping[str, str], error: RankmendError, subject: Subject | None
    ) -> None:
        """Record with its job that a launcher's poll was turned away: no other request names both job and node in its path.

        For a token that does not reach the job it doesn't exist, so the launcher's answer does not say why.
        """
        why = str(error)
        if isinstance(error, UnknownError):
            why = f"its token, of {'nobody' if subject is None else subject.name}, does not reach the job"
        job = self.backend.worker.jobs.running.get(found.get("job", ""))
        if job is not None and "node" in found:
            at_s = self.backend.worker.hearing.of(job.stored.owner).listened_s()
            job.note_refused(found["node"], why, at_s)

    def _answer_plainly(self, route: Route[Any, Any, Any], result: Any) -> PlainAnswer:
        gives, now = route.gives, self._this_second(self.backend.clock.unix_s())
        return self._plain.make(now, route.status, gives.content_header, gives.encode(result))

    async def _carry(self, route: Route[Any, Any, Any], call: Call[Any]) -> Any:
        """Have the request answered by the controller that can."""
        if route.kind is not RequestKind.READ or call.subject.via or self.doorman.tokens is None:
            return await self._carry_now(route, call)
        with self.backend.answers.hold(call.subject.name, READS_OF_SUBJECT_MAX):
            return await self._carry_now(route, call)

    async def _carry_now(self, route: Route[Any, Any, Any], call: Call[Any]) -> Any:
        peer = answering_peer(self.backend.worker.jobs, route, call)
        if peer is None:
            return await route.handler(self.backend, call)
        assert self.backend.peers is not None, "there are peers"
        if route.kind is RequestKind.ACT:
            call.detail = f"{call.detail} (passed to the controller on {peer.title})"
        try:
            return await self.backend.peers.ask(peer, route, call)
        except PeerSilentError:
            if route.answerer is Answerer.DESK:  # what was done is in the database
                return await route.handler(self.backend, call)
            shown = show_without_owner(self.backend, route, call)
            if shown is None:
                raise
            return shown

    def _sent_on(self, error: Exception, request: web.BaseRequest) -> web.Response | None:
        """Return the redirect to the controller that manages the job, if the error names another one."""
        if not isinstance(error, HeldByOtherError) or error.url in ("", self.backend.url):
            return None  # an earlier start of this one, whose lease has not expired yet
        return web.Response(status=307, headers={"Location": error.url + request.path_qs})

    async def carry_out(
        self, name: str, subject: Subject, found: Mapping[str, str], given: Any, peer: str | None
    ) -> Any:
        """Answer what a page of the console asks, as if ``subject`` had asked the route ``name`` over HTTP.

        ``found`` are the parts of the path, ``given`` is the decoded body or query. Roles, limits, rates of what acts,
        and the audit line are those of the route. Raises AnsweredError.
        """
        route, attempt = BY_NAME[name], _Attempt(subject)
        status: int = route.status
        try:
            self._demand(route, subject)
            if (
                route.kind is RequestKind.ACT
            ):  # pages are counted by the console, and share what they read
                self._limit(route, subject)
            call = attempt.call = Call(subject, read_parts(found), given)
            if route.kind is RequestKind.ACT and isinstance(given, _Reasoned):
                call.detail = given.reason
            self._permit(route, call)
            return await self._carry(route, call)
        except Exception as error:
            answer = self._explain(error, route)
            status = answer.status
            raise AnsweredError(answer) from error
        finally:
            what = f"{route.method} {route.path.format(**found)}"
            await self._note(route, what, peer, attempt, status)

    async def _read(
        self,
        route: Route[Any, Any, Any],
        request: web.BaseRequest,
        found: Mapping[str, str],
        attempt: _Attempt,
    ) -> Call[Any]:
        """Return the request, checked for all that needs no look at what it touches."""
        subject = attempt.subject = self._identify(route, request)
        self._claim(request, subject)
        self._demand(route, subject)
        given, size_bytes = None, 0
        if route.query is not None:
            is_strict = route.kind is not RequestKind.LAUNCH
            given = read_query(
                request.query, route.query.kind, route.query.names, is_strict=is_strict
            )
        self._limit(route, subject)
        parts = read_parts(found)
        if route.body is not None:
            bodies_bytes = self.backend.config.limits.bodies_bytes
            try:
                body = await self._bodies.read(request, subject, route.body.bytes_max, bodies_bytes)
            except LargeError as error:
                # Alertmanager may drop what is refused: what fires is read from it instead.
                if route.name == "webhook" and not subject.is_node:
                    log.warning("webhook of Alertmanager refused", extra={"error": str(error)})
                    self.backend.read_alerts()
                raise
            given, size_bytes = self._decode(route.body.decode, body), len(body)
        call = attempt.call = Call(subject, parts, given, size_bytes)
        if isinstance(route.gives, GivesPage):
            headers = request.headers
            call.accepts = Accepts(
                ",".join(headers.getall("Accept", ())),
                ",".join(headers.getall("Accept-Encoding", ())),
            )
        if route.kind is RequestKind.ACT and isinstance(given, _Reasoned):
            call.detail = given.reason
        return call

    def _claim(self, request: web.BaseRequest, subject: Subject) -> None:
        """Count the connection to its subject. Without tokens all are one; other controllers speak for many."""
        guard = guard_of(request)
        if (
            guard is not None
            and self.doorman.tokens is not None
            and subject.roles
            and not subject.via
        ):
            guard.claim(subject.name)

    def _identify(self, route: Route[Any, Any, Any], request: web.BaseRequest) -> Subject:
        if route.kind is RequestKind.OPEN:
            return Subject("anybody", frozenset())
        if self.doorman.tokens is None:
            refuse_foreign_pages(request.headers, request.host)
        header, certificate = request.headers.get("Authorization"), None
        if header is None and request.transport is not None:
            certificate = peer_certificate(request.transport.get_extra_info("ssl_object"))
        spoken_for = request.headers.get(SUBJECT_HEADER)
        peer = plain_address(request.remote or "?")
        return self.admit(header, certificate, peer, spoken_for)

    def admit(
        self,
        header: str | None,
        certificate: Mapping[str, Any] | None,
        peer: str,
        spoken_for: str | None = None,
    ) -> Subject:
        """Return who speaks, or raise DeniedError, or TooManyError after too many failures of one address."""
        clock = self.backend.clock
        try:
            subject = self.doorman.identify(
                header, certificate, self._this_second(clock.unix_s()), spoken_for
            )
            if subject.is_node and certificate:
                ends_unix_s = certificate_ends_unix_s(certificate)
                self.backend.measures.note_node_certificate(
                    subject.name, ends_unix_s, clock.unix_s()
                )
            return subject
        except DeniedError:
            # Limit failures only: other clients behind the same address may have valid tokens.
            self.count_failure(peer)
            raise

    def refuse_after_failures(self, peer: str) -> None:
        """Raise TooManyError after too many failed logins of one address."""
        backend = self.backend
        if not backend.rates.has("failed logins", peer, _FAILED_LOGINS, backend.clock.now_s()):
            raise TooManyError(f"too many failed logins from {peer}", 1.0)

    def count_failure(self, peer: str) -> None:
        """Count a failed login, or raise TooManyError."""
        backend = self.backend
        backend.measures.auth_failures.labels("unknown").inc()
        self.refuse_after_failures(peer)
        backend.rates.spend("failed logins", peer, _FAILED_LOGINS, backend.clock.now_s())

    def _this_second(self, unix_s: float) -> datetime:
        """Return the time by the second, made once in each."""
        second = int(unix_s)
        if second != self._second:
            self._now = datetime.fromtimestamp(second, timezone.utc)
            self._second = second
        return self._now

    def _demand(self, route: Route[Any, Any, Any], subject: Subject) -> None:
        if route.kind is RequestKind.OPEN:
            return
        try:
            demand(subject, *route.roles)
        except DeniedError:
            self.backend.measures.auth_failures.labels("role").inc()
            raise

    def _limit(self, route: Route[Any, Any, Any], subject: Subject) -> None:
        # A node's reports are counted by job and node, once they are decoded.
        if route.kind in (RequestKind.OPEN, RequestKind.REPORT) or subject.via:
            return  # who came by way of another controller was counted there
        per_s = _rate(route.kind, self.backend.config.limits)
        rate, now_s = Rate(per_s, per_s * BURST_S), self.backend.clock.now_s()
        self.backend.rates.spend(route.kind.value, subject.name, rate, now_s)

    def _decode(self, decode: Callable[[bytes, float], Any], body: bytes) -> Any:
        try:
            return decode(body, self.backend.clock.unix_s())
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadError(str(error)) from error

    def _permit(self, route: Route[Any, Any, Any], call: Call[Any]) -> None:
        """Raise where the request touches what lies outside the subject's limits."""
        desk, given = self.backend.worker.desk, call.given
        jobs = self.backend.worker.jobs
        # A launcher must learn that its job is not here: it joins again, and is sent to where it is.
        is_launcher = route.kind in (RequestKind.REPORT, RequestKind.LAUNCH)
        call.known = jobs.known if is_launcher else jobs.everywhere
        targets: tuple[AlertTarget, ...] = ()
        if isinstance(given, AlertMessage):
            rules = call.rules = desk.policy.alerts
            targets = tuple(target_of(alert, rules) for alert in given.alerts)
        is_query = route.query is not None
        requested = Asked(
            call.parts,
            given if is_query else None,
            None if is_query else given,
            targets,
            is_act=route.kind is RequestKind.ACT,
        )
        touch = touch_of(route.touches, requested, World(call.known, desk.ledger.windows))
        try:
            call.job_ids = permit(call.subject, touch, call.known)
        except DeniedError:
            self.backend.measures.auth_failures.labels("limit").inc()
            raise

    def _refused(self, error: Exception, route: Route[Any, Any, Any]) -> web.Response:
        """Return the answer to a request that was not carried out."""
        found = self._explain(error, route)
        headers = {}
        if found.retry_after_s is not None:
            headers["Retry-After"] = str(found.retry_after_s)
        if found.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Bearer realm="rankmend"'
        return _problem(found.status, found.problem, headers)

    def _explain(self, error: Exception, route: Route[Any, Any, Any]) -> ErrorAnswer:
        backend = self.backend
        if isinstance(error, AnsweredError):  # by another controller
            return error.answer
        return answer_error(
            error,
            route.name,
            is_stopping=backend.is_stopping,
            is_taken_up=backend.worker.is_taken_up,
        )

    async def _note(
        self,
        route: Route[Any, Any, Any],
        what: str,
        peer: str | None,
        attempt: _Attempt,
        status: int,
    ) -> None:
        """Write the audit line of a request that acts, whatever its outcome."""
        subject = attempt.subject
        if not route.is_audited or subject is None or self.audit is None:
            return
        result = f"{status} {HTTPStatus(status).phrase}"
        detail = "" if attempt.call is None else attempt.call.detail
        line = (subject.name, subject.how, what[:500], result, peer or "?", detail)
        await self.backend.disk.run(partial(self.audit.write, *line))


def _matched(serve: Serve) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await serve(request, request.match_info)

    return handle


@web.middleware
async def _errors_of_routing(
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


def _rate(kind: RequestKind, limits: Limits) -> float:
    # Comparisons, not a dict: it would be made, and hash each kind, for every poll.
    if kind is RequestKind.LAUNCH:
        return limits.launches
    if kind is RequestKind.READ:
        return limits.reads
    return limits.alerts if kind is RequestKind.ALERT else limits.acts


def _answered(route: Route[Any, Any, Any], result: Any) -> web.Response:
    gives = route.gives
    if isinstance(result, TextPage):
        return web.Response(body=result.body, status=route.status, headers=result.headers)
    body = gives.encode(result)
    if body is None:
        return web.Response(status=204)
    return web.Response(
        body=body, status=route.status, content_type=gives.content_type, charset=gives.charset
    )


def _problem(
    status: int, problem: wire.Problem, headers: dict[str, str] | None = None
) -> web.Response:
    body = msgspec.json.encode(problem)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
