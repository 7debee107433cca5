"""How many pages are told of changes."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from recovery.console.live import STREAMS_MAX, STREAMS_OF_VIEWER_MAX, Live, LiveFullError


async def open_stream(
    live: Live, who: str, is_gone: Callable[[], bool] = lambda: False
) -> AsyncGenerator[bytes, None]:
    stream = live.events(who, is_gone)
    await anext(stream)
    return stream


async def close(live: Live, streams: list[AsyncGenerator[bytes, None]]) -> None:
    live.close()
    for one in streams:
        await one.aclose()


def test_one_viewer_leaves_room_for_others() -> None:
    async def act() -> None:
        live = Live(lambda: "1")
        streams = [await open_stream(live, "alice") for _ in range(STREAMS_OF_VIEWER_MAX)]
        with pytest.raises(LiveFullError):
            await open_stream(live, "alice")
        while len(live) < STREAMS_MAX:
            streams.append(await open_stream(live, f"viewer-{len(live) // STREAMS_OF_VIEWER_MAX}"))
        with pytest.raises(LiveFullError):
            await open_stream(live, "bob")

        await close(live, streams)
        assert len(live) == 0

    asyncio.run(act())


def test_pages_that_were_left_take_no_room() -> None:
    async def act() -> None:
        live, left = Live(lambda: "1"), set[int]()
        streams = [
            await open_stream(live, "alice", lambda number=number: number in left)  # type: ignore[misc]
            for number in range(STREAMS_OF_VIEWER_MAX)
        ]
        left.update(range(5))

        streams += [await open_stream(live, "alice") for _ in range(5)]

        with pytest.raises(LiveFullError):
            await open_stream(live, "alice")
        await close(live, streams)

    asyncio.run(act())
