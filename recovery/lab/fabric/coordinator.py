"""The coordinator's door: peers join, wait for work and tell results. HTTP over TLS, as a job's host serves its launchers.

`Coordinator` lives in the first node's process, with an event loop in a thread of its own. It holds one work for each peer at a time; the
caller hands out a round and gets what the peers reported within the time.
"""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

import msgspec
from aiohttp import web

from detectors.wording import ranks_in_words
from rankmend.errors import ConfigError, LaunchError
from rankmend.listening import hide_versions
from recovery.lab.fabric.fabric_messages import (
    BODY_BYTES_MAX,
    FinishedWork,
    JoinedFabric,
    JoinFabric,
    PeerFindings,
    Work,
)
from recovery.service.meeting_secret import Identity
from recovery.service.tokens import TokenRefusedError, Tokens

log = logging.getLogger(__name__)

POLL_S: Final = 20.0
START_S_MAX: Final = 10.0
FAREWELL_S: Final = 5.0  # for peers to fetch their last work


class Coordinator:
    def __init__(self, identity: Identity, count: int, bind: str, port: int) -> None:
        self.joined: dict[int, JoinFabric] = {}
        self._count = count
        self._tokens = Tokens([identity.entry()])
        self._context = identity.context()
        self._listener = _listen(bind, port)
        self.port = int(self._listener.getsockname()[1])
        self._works: dict[int, Work] = {}
        self._told: dict[int, PeerFindings] = {}
        self._fetched: set[int] = set()
        self._number = 0
        self._refusal = ""
        self._changed: asyncio.Condition
        self._runner: web.AppRunner | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._is_up = threading.Event()

    def start(self) -> None:
        self._thread.start()
        if not self._is_up.wait(START_S_MAX):
            raise LaunchError(f"the coordinator is not ready after {START_S_MAX:g} s")

    def wait_for_peers(self, limit_s: float) -> dict[int, JoinFabric]:
        """Return all peers, or raise LaunchError that names the ranks that did not come."""
        self._call(
            self._wait(lambda: bool(self._refusal) or len(self.joined) == self._count, limit_s)
        )
        if self._refusal:
            raise ConfigError(self._refusal)
        if len(self.joined) < self._count:
            missing = [rank for rank in range(self._count) if rank not in self.joined]
            raise LaunchError(
                f"{len(missing)} of {self._count} nodes did not join within {limit_s:g} s: "
                f"{ranks_in_words(missing)}"
            )
        return self.joined

    def run(self, works: Mapping[int, Work], limit_s: float) -> dict[int, PeerFindings]:
        """Hand out works, one for each rank, and return what was told of them within the time."""
        return self._call(self._hand_out(works, limit_s))  # type: ignore[no-any-return]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def finish(self, works: Mapping[int, FinishedWork]) -> None:
        """Tell every peer the end, and wait for them to hear it."""
        with contextlib.suppress(Exception):  # whatever a peer does, this end is final
            self._call(self._say_farewell(works))

    def close(self) -> None:
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                self._call(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_S_MAX)
        self._listener.close()

    # ------------------------------------------------------------------------ in the event loop

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        self._is_up.set()
        self._loop.run_forever()
        self._loop.close()

    async def _open(self) -> None:
        self._changed = asyncio.Condition()
        hide_versions()
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/v1/fabric/join", self._join)
        app.router.add_get("/v1/fabric/work/{rank}/{after}", self._give)
        app.router.add_post("/v1/fabric/told", self._take)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener, ssl_context=self._context).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _wait(self, until: Any, limit_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(until), limit_s)

    async def _hand_out(self, works: Mapping[int, Work], limit_s: float) -> dict[int, PeerFindings]:
        async with self._changed:
            self._told, self._works = {}, dict(works)
            self._changed.notify_all()
        await self._wait(lambda: len(self._told) == len(works), limit_s)
        async with self._changed:
            reported, self._told, self._works = self._told, {}, {}
        return reported

    async def _say_farewell(self, works: Mapping[int, FinishedWork]) -> None:
        async with self._changed:
            self._fetched, self._works = set(), dict(works)
            self._changed.notify_all()
        await self._wait(lambda: self._fetched >= set(works) & set(self.joined), FAREWELL_S)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        scheme, _blank, token = request.headers.get("Authorization", "").partition(" ")
        try:
            if scheme != "Bearer":
                raise TokenRefusedError("no token")
            self._tokens.find(token, datetime.now(timezone.utc))
            return await handler(request)  # type: ignore[no-any-return]
        except TokenRefusedError as error:
            return _problem(401, str(error))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _problem(400, str(error)[:500])

    async def _join(self, request: web.Request) -> web.Response:
        peer = msgspec.json.decode(await request.read(), type=JoinFabric)
        known = self.joined.get(peer.rank)
        others = [item for item in self.joined.values() if item.rank != peer.rank]
        problem = ""
        if peer.rank >= self._count:
            problem = f"rank {peer.rank}, but this test has {self._count} nodes"
        elif known is not None and known != peer:
            problem = f"two nodes say that they are rank {peer.rank}: {known.node} and {peer.node}"
        elif any(other.node == peer.node for other in others):
            problem = f"two ranks are on node {peer.node}: start one process on each node"
        elif others and len(others[0].rails) != len(peer.rails):
            problem = (
                f"{peer.node} has {len(peer.rails)} rails ({', '.join(rail.name for rail in peer.rails)}), "
                f"{others[0].node} has {len(others[0].rails)}"
            )
        async with self._changed:
            if problem:
                self._refusal = self._refusal or problem
            else:
                self.joined[peer.rank] = peer
            self._changed.notify_all()
        return _problem(409, problem) if problem else _answer(JoinedFabric(self._count))

    async def _give(self, request: web.Request) -> web.Response:
        rank, after = int(request.match_info["rank"]), int(request.match_info["after"])

        def is_new() -> bool:
            work = self._works.get(rank)
            return work is not None and work.number > after

        await self._wait(is_new, POLL_S)
        work = self._works.get(rank)
        if work is None or work.number <= after:
            return web.Response(status=204)
        if isinstance(work, FinishedWork):
            async with self._changed:
                self._fetched.add(rank)
                self._changed.notify_all()
        return _answer(work)

    async def _take(self, request: web.Request) -> web.Response:
        reported = msgspec.json.decode(await request.read(), type=PeerFindings)
        async with self._changed:
            work = self._works.get(reported.rank)
            if work is not None and work.number == reported.number:
                self._told[reported.rank] = reported
                self._changed.notify_all()
        return web.Response(status=204)


def _answer(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _problem(status: int, text: str) -> web.Response:
    body = msgspec.json.encode({"error": text})
    return web.Response(body=body, status=status, content_type="application/json")


def _listen(bind: str, port: int) -> socket.socket:
    try:
        if not bind and socket.has_dualstack_ipv6():
            family, is_dual = (
                socket.AF_INET6,
                True,
            )  # nodes come over IPv4, or rails with IPv6 alone
        else:
            family, is_dual = socket.AF_INET6 if ":" in bind else socket.AF_INET, False
        return socket.create_server((bind, port), family=family, backlog=1024, dualstack_ipv6=is_dual)  # fmt: skip
    except OSError as error:
        raise ConfigError(f"cannot listen on {bind or '*'}:{port}: {error.strerror}") from error
