"""Each connection that lasts is ended by the kernel once its path is cut in silence."""

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from rankmend.cut_paths import CUT_S_MAX, SERVED_CUT_S_MAX
from rankmend.kubernetes_api import connect
from recovery.api.launcher_client import LauncherClient
from recovery.journal.limits import Policy
from recovery.service.controller_config import Limits
from recovery.service.fleet.peers import OtherControllers
from recovery.service.http.guard import ConnectionRoom, Entrance
from tests.support.clocks import FakeClock

pytestmark = pytest.mark.process

KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: here,
 clusters: [{name: here, cluster: {server: "http://127.0.0.1:1"}}],
 users: [{name: me, user: {}}], contexts: [{name: here, context: {cluster: here, user: me}}]}
"""


def cut_s(connection: socket.socket) -> float:
    """Return after which time the kernel ends a connection that it probes; 0: never."""
    if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return 0.0
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000


def test_a_cut_path_ends_a_launchers_connection_before_its_node_counts_as_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = LauncherClient([url])
        made = cast(Any, client._pool.connection_from_url(url)._get_conn())
        made.connect()

        ends_s = cut_s(made.sock)
        made.close()
        client.close()

    assert ends_s == CUT_S_MAX
    assert Policy().node_silent_s / 2 >= CUT_S_MAX  # it has to connect anew, too


def test_a_cut_path_ends_a_controllers_connection_to_another_one() -> None:
    async def ask() -> float:
        made: list[float] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            await writer.drain()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        others = OtherControllers(cast(Any, dict), cast(Any, dict), FakeClock(), "ctl")
        async with others._open().get(f"http://127.0.0.1:{port}") as given:
            assert given.connection is not None
            assert given.connection.transport is not None
            made.append(cut_s(given.connection.transport.get_extra_info("socket")))
        await others.stop()
        server.close()
        return made[0]

    assert asyncio.run(ask()) == CUT_S_MAX


def test_a_cut_path_ends_a_connection_that_a_controller_has_accepted() -> None:
    class Handler:
        def __init__(self) -> None:
            self.made: asyncio.Future[asyncio.BaseTransport] = asyncio.Future()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.made.set_result(transport)

        def connection_lost(self, _error: BaseException | None) -> None: ...

    async def accept() -> float:
        handler, clock = Handler(), FakeClock()
        room = ConnectionRoom(cast(Any, lambda: handler), clock.now_s)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        gate = Entrance(room=room, listener=listener, limits=Limits(), context=None, backlog=8)
        _reader, writer = await asyncio.open_connection(*listener.getsockname())
        ends_s = cut_s((await handler.made).get_extra_info("socket"))
        writer.close()
        gate.close()
        room.close()
        listener.close()
        return ends_s

    assert asyncio.run(accept()) == SERVED_CUT_S_MAX


def test_a_cut_path_ends_a_connection_to_kubernetes(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        pool = connect(str(file), None, 5.0)._api.rest_client.pool_manager
        made = pool.connection_from_url(url)._get_conn()
        made.connect()
        ends_s = cut_s(made.sock)
        made.close()

    assert ends_s == CUT_S_MAX
