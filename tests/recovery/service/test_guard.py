"""How long a connection may be silent: before a request, within its head, and while it is answered."""

import asyncio
from typing import Any, cast

from recovery.service.http.guard import HEAD_S_MAX, IDLE_S_MAX, ConnectionGuard, ConnectionRoom
from recovery.service.roles import TooManyError


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False

    def abort(self) -> None:
        self.is_cut = True


class Silent:
    """Takes what comes and answers nothing."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def connection_made(self, _transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, _error: BaseException | None) -> None: ...
    def data_received(self, data: bytes) -> None:
        self.read.append(data)


class WatchedRoom(ConnectionRoom):
    """Says when it has looked for connections that are late."""

    looked: asyncio.Event | None = None

    def _look(self) -> None:
        super()._look()
        if self.looked is not None:
            self.looked.set()


class Bench:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.handlers: list[Silent] = []
        self.room = WatchedRoom(cast(Any, self.handle), lambda: self.now_s)
        self.wires: list[Wire] = []

    def handle(self) -> Silent:
        self.handlers.append(Silent())
        return self.handlers[-1]

    def connect(self) -> ConnectionGuard:
        guard, wire = self.room.make(lambda: None), Wire()
        guard.connection_made(wire)
        self.wires.append(wire)
        return guard

    async def cut_at(self, now_s: float) -> list[bool]:
        """Return which connections are cut once the room has looked at that time."""
        self.room.looked = asyncio.Event()
        self.now_s = now_s
        await self.room.looked.wait()
        return [wire.is_cut for wire in self.wires]


def test_two_subjects_that_agree_leave_connections_to_a_third() -> None:
    async def run() -> None:
        bench = Bench()
        bench.room.take_limits(640)

        def open_all(subject: str, count: int) -> int:
            opened = 0
            for _ in range(count):
                try:
                    bench.connect().claim(subject)
                except TooManyError:
                    continue
                opened += 1
            return opened

        assert open_all("mallory", 700) == 560  # seven eighths
        assert open_all("eve", 700) == 10  # few
        assert open_all("alice", 20) == 10
        bench.room.close()

    asyncio.run(run())


def test_silence_is_bounded_within_a_head_and_between_requests_but_not_while_an_answer_is_due() -> (
    None
):
    async def run() -> None:
        bench = Bench()
        half_a_head, polling, idle, gone = (bench.connect() for _ in range(4))
        for guard in (half_a_head, polling, idle, gone):
            guard.data_received(b"GET /")
        for guard in (polling, idle, gone):
            guard.begin(0)
        idle.end()
        gone.connection_lost(None)
        gone.end()  # its answer came too late
        assert await bench.cut_at(100.0 + HEAD_S_MAX) == [True, False, False, False]
        assert await bench.cut_at(100.0 + IDLE_S_MAX) == [True, False, True, False]
        assert bench.room.cut == 2
        bench.room.close()

    asyncio.run(run())


def test_connections_that_are_read_into_one_buffer_keep_what_they_have_read() -> None:
    async def run() -> None:
        bench = Bench()
        first, second = bench.connect(), bench.connect()
        for guard, text in ((first, b"GET /a"), (second, b"GET /bc"), (first, b" HTTP")):
            guard.get_buffer(-1)[: len(text)] = text
            guard.buffer_updated(len(text))
        assert [one.read for one in bench.handlers] == [[b"GET /a", b" HTTP"], [b"GET /bc"]]
        bench.room.close()

    asyncio.run(run())
