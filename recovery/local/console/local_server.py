"""Serves the console of a state folder on this machine's loopback address until it is told to end."""

import asyncio
import getpass
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from rankmend.clock import Clock, SystemClock
from rankmend.errors import ConfigError
from rankmend.listening import hide_versions
from rankmend.node import node_name
from recovery.api import wire
from recovery.console.rendering import environment
from recovery.console.site import ConsoleSite
from recovery.local.console.folder_source import FolderSource
from recovery.local.console.local_door import LocalDoor


def serve(
    state: Path,
    port: int,
    reported: Callable[[str], None],
    watched: Callable[[], Sequence[wire.WatchedView]] = lambda: (),
) -> None:
    """Serve until SIGINT or SIGTERM; ``told`` gets each address that opens it once, ``watched`` looks at jobs of other launchers."""
    environment()  # a missing Jinja2 is said before anything else
    asyncio.run(_serve(FolderSource(state, node_name(), watched), port, reported, SystemClock()))


async def _serve(
    source: FolderSource, port: int, reported: Callable[[str], None], clock: Clock
) -> None:
    listener = _listen(port)
    door = LocalDoor(
        clock,
        lambda secret: reported(f"http://127.0.0.1:{door.port}/open/{secret}"),
        getpass.getuser(),
    )
    door.port = int(listener.getsockname()[1])
    site = ConsoleSite(source, door, clock)
    hide_versions()
    app = web.Application(client_max_size=0)
    app.router.add_get("/open/{secret}", site.serve(door.open))
    site.add_routes(app)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    should_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, should_stop.set)
    try:
        await web.SockSite(runner, listener).start()
        door.begin()
        await should_stop.wait()
    finally:
        site.close()
        await runner.cleanup()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # two may bind one port, and the first to listen has it
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from error
    return listener
