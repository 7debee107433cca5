"""Asks other controllers of one database, on behalf of people: what they show of their jobs, and acts on these.

A controller proves itself by the other one's secret, which only who reads the database knows, and knows the other one by its certificate,
from there too. It says for whom it asks; that one's limits hold there as here. Whoever doesn't answer in time costs each
page `VIEW_S_MAX` once, then nothing for a while: what it said last is shown with its age.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec

from rankmend.clock import Clock
from rankmend.cut_paths import make_client_socket
from rankmend.errors import ConfigError, RankmendError
from recovery.api import wire
from recovery.api.connection import BODY_BYTES_MAX
from recovery.api.contact import check_url
from recovery.journal.postgres.leases import HeldByOtherError
from recovery.service.http.access import SUBJECT_HEADER, peer_headers
from recovery.service.http.call import Call
from recovery.service.http.error_answers import AnsweredError, ErrorAnswer
from recovery.service.http.request_errors import PeerSilentError
from recovery.service.http.route import RequestKind, Route
from recovery.service.jobs.job_store import ControllerFleet, OtherController
from recovery.service.roles import Role, Subject

log = logging.getLogger(__name__)

FRESH_S: Final = 1.0  # an answer is shared for so long by all who may see the same
VIEW_S_MAX: Final = 2.0  # for what is shown
ACT_S_MAX: Final = 15.0  # for what is done, and for one job
PASS_ON_S_MAX: Final = 5.0  # Prometheus waits 10 s for the answer to its alerts
AGAIN_S: Final = 3.0  # to a silent controller, before it is asked again for a page
LOOK_S: Final = (
    5.0  # at the jobs of all, so that there is something to show of one that falls silent
)
NODES_S: Final = 30.0  # between two questions for nodes: the nodes of 10,000 take 10 MB
AGE_S_MAX: Final = 600.0  # of an answer that is still shown
_HELD_MAX: Final = 32  # answers; the nodes of 10,000 take 10 MB
_CONNECTIONS: Final = 4  # to each
_HEADER_BYTES_MAX: Final = 7_000  # aiohttp takes 8,190


@dataclass(frozen=True, slots=True)
class ToldElsewhere:
    """What a controller said last."""

    peer: OtherController
    answer: Any  # None: nothing
    age_s: float  # 0: just now
    problem: str = ""  # why it is not new


@dataclass(frozen=True, slots=True)
class JobSeen:
    view: wire.JobView
    at_s: float


class OtherControllers:
    """Belongs to the event loop."""

    def __init__(
        self,
        fleet: Callable[[], ControllerFleet],
        routes: Callable[[str], Route[Any, Any, Any]],
        clock: Clock,
        title: str,
        asks_for_nodes: Callable[[], bool] = lambda: False,
        learn_nodes: Callable[[frozenset[str]], None] = lambda _nodes: None,
    ) -> None:
        """``routes`` gives a route by its name; ``title``: of this controller, for the others' audit logs.

        ``learn_nodes`` is told which nodes the others have, every few seconds while ``asks_for_nodes`` says so.
        """
        self.fleet = fleet
        self._route = routes
        self._clock = clock
        self._title = title
        self._myself = Subject(title, frozenset({Role.FLEET_READ}), how="controller")
        self._session: aiohttp.ClientSession | None = None
        self._held: OrderedDict[tuple[Any, ...], tuple[Any, float]] = OrderedDict()
        self._under_way: dict[tuple[Any, ...], asyncio.Task[Any]] = {}
        self._silent: dict[str, tuple[float, str]] = {}  # controller_id -> since when, why
        self._failed_at_s: dict[str, float] = {}
        self.jobs_seen: dict[str, JobSeen] = {}
        self.changes = 0  # of how jobs stand elsewhere, as far as they were noticed
        self._asks_for_nodes, self._learn_nodes = asks_for_nodes, learn_nodes
        self._nodes_at_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for task in self._under_way.values():
            task.cancel()
        if self._session is not None:
            await self._session.close()

    async def _look(self) -> None:
        """Keep what the others say of their jobs."""
        while True:
            await asyncio.sleep(LOOK_S)
            fleet = self.fleet()
            if fleet.peers:
                await self.jobs()
                await self._look_for_nodes()
            self.jobs_seen = {
                item: seen for item, seen in self.jobs_seen.items() if item in fleet.jobs
            }
            self._silent = {item: why for item, why in self._silent.items() if item in fleet.peers}
            self._failed_at_s = {
                item: s for item, s in self._failed_at_s.items() if item in fleet.peers
            }

    async def _look_for_nodes(self) -> None:
        """Learn the nodes of the others, unless one of them has never reported."""
        if not self._asks_for_nodes() or self._clock.now_s() - self._nodes_at_s < NODES_S:
            return
        answers = await self.gather("nodes", self._myself)
        if all(answer.answer is not None for answer in answers):
            self._nodes_at_s = self._clock.now_s()
            self._learn_nodes(
                frozenset(node.node for answer in answers for node in answer.answer.nodes)
            )

    async def jobs(self) -> list[ToldElsewhere]:
        """Return what the others say of all their jobs: the caller leaves out what its subject may not see."""
        answers = await self.gather("jobs", self._myself)
        now_s = self._clock.now_s()
        for answer in answers:
            for view in () if answer.answer is None else answer.answer.jobs:
                seen = self.jobs_seen.get(view.job_id)
                self.changes += seen is None or _standing(seen.view) != _standing(view)
                self.jobs_seen[view.job_id] = JobSeen(view, now_s - answer.age_s)
        return answers

    def silent(self) -> list[tuple[OtherController, float, str]]:
        """Return who doesn't answer now, for how long, and why."""
        now_s, peers = self._clock.now_s(), self.fleet().peers
        return [
            (peers[item], now_s - since_s, why)
            for item, (since_s, why) in self._silent.items()
            if item in peers
        ]

    async def gather(self, name: str, subject: Subject) -> list[ToldElsewhere]:
        """Return what all the others answer to a route of lists, each in time or with its last answer."""
        if subject.via:  # asked by one of them: for what is here
            return []
        peers = list(self.fleet().peers.values())
        return list(
            await asyncio.gather(*(self._view(peer, self._route(name), subject) for peer in peers))
        )

    async def _view(
        self, peer: OtherController, route: Route[Any, Any, Any], subject: Subject
    ) -> ToldElsewhere:
        key = (peer.controller_id, route.name, subject.roles, subject.sees)
        now_s = self._clock.now_s()
        answer, at_s = self._held.get(key, (None, now_s))
        if answer is not None and now_s - at_s < FRESH_S:
            return ToldElsewhere(peer, answer, 0.0)
        problem = ""
        if now_s - self._failed_at_s.get(peer.controller_id, float("-inf")) < AGAIN_S:
            problem = self._silent.get(peer.controller_id, (0.0, "it does not answer"))[1]
        else:
            try:
                return ToldElsewhere(peer, await self._shared(key, peer, route, subject), 0.0)
            except RankmendError as error:
                problem = str(error)
        age_s = self._clock.now_s() - at_s
        if age_s > AGE_S_MAX:
            answer = None
        return ToldElsewhere(peer, answer, age_s, problem)

    async def _shared(
        self,
        key: tuple[Any, ...],
        peer: OtherController,
        route: Route[Any, Any, Any],
        subject: Subject,
    ) -> Any:
        """Ask once for all who want the same at this moment."""
        task = self._under_way.get(key)
        if task is None:
            call = Call[Any](subject, {}, None)
            task = asyncio.get_running_loop().create_task(self.ask(peer, route, call, VIEW_S_MAX))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    def _keep(self, key: tuple[Any, ...], done: "asyncio.Task[Any]") -> None:
        self._under_way.pop(key, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._held.pop(key, None)
        self._held[key] = (done.result(), self._clock.now_s())
        while len(self._held) > _HELD_MAX:
            self._held.popitem(last=False)

    async def pass_on(self, name: str, subject: Subject, body: bytes) -> None:
        """Send the body of a request to all the others. Raises PeerSilentError or AnsweredError once each has been tried.

        Whoever did not answer within the last `AGAIN_S` is not waited for again.
        """
        if subject.via:  # one of them has sent it to all
            return
        call, now_s = Call[Any](subject, {}, body), self._clock.now_s()
        requested, missed = [], ""
        for peer in self.fleet().peers.values():
            if not peer.secret:  # of an older version, which can't be told
                continue
            if now_s - self._failed_at_s.get(peer.controller_id, float("-inf")) < AGAIN_S:
                missed = peer.title
            else:
                requested.append(self.ask(peer, self._route(name), call, PASS_ON_S_MAX))
        for outcome in await asyncio.gather(*requested, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        if missed:
            raise PeerSilentError(f"the controller on {missed} does not answer")

    async def ask(
        self,
        peer: OtherController,
        route: Route[Any, Any, Any],
        call: Call[Any],
        answer_s: float = ACT_S_MAX,
    ) -> Any:
        """Return what a controller answers to this call. Raises PeerSilentError, AnsweredError, or HeldByOtherError of an older one.

        What the call was given is sent as it is where it is bytes.
        """
        if not peer.secret:
            raise HeldByOtherError("this", peer.name, peer.url, 0.0)
        try:
            status, retry_s, body = await asyncio.wait_for(self._send(peer, route, call), answer_s)
            answer = _judge(route, status, retry_s, body)
        except (
            aiohttp.ClientError,
            OSError,
            ValueError,
            ConfigError,
            asyncio.TimeoutError,
            msgspec.DecodeError,
        ) as error:
            text = (
                getattr(error, "strerror", None) or str(error) or f"no answer after {answer_s:g} s"
            )
            now_s = self._clock.now_s()
            if peer.controller_id not in self._silent:
                log.warning(
                    "another controller does not answer", extra={"peer": peer.title, "error": text}
                )
            self._silent.setdefault(peer.controller_id, (now_s, text))
            self._failed_at_s[peer.controller_id] = now_s
            also = "; it may have been carried out anyway" if route.kind is RequestKind.ACT else ""
            raise PeerSilentError(
                f"the controller on {peer.title} does not answer: {text}{also}"
            ) from error
        self._silent.pop(peer.controller_id, None)
        self._failed_at_s.pop(peer.controller_id, None)
        return answer

    async def _send(
        self, peer: OtherController, route: Route[Any, Any, Any], call: Call[Any]
    ) -> tuple[int, int | None, bytes]:
        base = check_url(peer.url, has_token=True)
        if base.startswith("https") and not peer.certificate:
            raise ConfigError("it names no certificate")
        headers = peer_headers(peer.secret, call.subject, self._title)
        if len(headers[SUBJECT_HEADER]) > _HEADER_BYTES_MAX:
            raise ConfigError(f"the limits of {call.subject.name} are too long to be passed on")
        path = route.path.format(
            **{name: quote(text, safe="") for name, text in call.parts.items()}
        )
        query = _query_of(call.given) if call.given is not None and route.query is not None else {}
        body = None
        if route.body is not None:
            given = call.given
            body = given if isinstance(given, bytes) else msgspec.json.encode(given)
        pinned = aiohttp.Fingerprint(bytes.fromhex(peer.certificate)) if peer.certificate else True
        async with self._open().request(
            route.method,
            base + path,
            params=query,
            data=body,
            headers=headers,
            ssl=pinned,
            allow_redirects=False,
        ) as answer:
            text = (
                await answer.content.read(BODY_BYTES_MAX + 1) if answer.content_length != 0 else b""
            )
            while len(text) <= BODY_BYTES_MAX and (more := await answer.content.read(1 << 20)):
                text += more
            if len(text) > BODY_BYTES_MAX:
                raise ValueError(f"an answer of over {BODY_BYTES_MAX} bytes is too long")
            retry = answer.headers.get("Retry-After", "")
            return answer.status, int(retry) if retry.isdigit() and len(retry) < 6 else None, text

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit_per_host=_CONNECTIONS, socket_factory=make_client_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "rankmend-controller", "Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        return self._session


def _standing(view: wire.JobView) -> tuple[object, ...]:
    return view.state, view.attempt, view.restarts, view.incidents, view.incident_id, view.is_paused


def _query_of(given: Any) -> dict[str, str]:
    found = msgspec.to_builtins(given)
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in found.items()
        if value is not None
    }


def _judge(route: Route[Any, Any, Any], status: int, retry_s: int | None, body: bytes) -> Any:
    if status == route.status:
        return msgspec.json.decode(body, type=route.gives.schema)
    problem = msgspec.json.decode(body, type=wire.Problem)
    if (
        status == HTTPStatus.UNAUTHORIZED
    ):  # it has started anew: the next picture has its new secret
        raise ValueError(problem.error)
    if status == HTTPStatus.TEMPORARY_REDIRECT:
        raise ValueError("it sends us on")
    raise AnsweredError(ErrorAnswer(status, problem, retry_s))
