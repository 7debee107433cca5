"""An HTTP server in the place of a node's agent, which may send whatever a test wants."""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.support.eventually import DEADLINE_S

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class AgentServer:
    port: int = 0
    asked: list[str] = field(default_factory=list)  # paths


@contextmanager
def serve_agent(handler: Handler, context: ssl.SSLContext | None = None) -> Iterator[AgentServer]:
    """Serve every path by ``handler`` on 127.0.0.1; with a context over https."""
    server, loop, is_up = AgentServer(), asyncio.new_event_loop(), threading.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        server.asked.append(request.path)
        return await handler(request)

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        server.port = runner.addresses[0][1]
        return runner

    def run() -> None:
        runner = loop.run_until_complete(start())
        is_up.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_up.wait(DEADLINE_S)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
