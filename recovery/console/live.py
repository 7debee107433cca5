"""Server-sent events: tell open pages that something has changed, and that they should look again.

One task looks at the revision twice a second while anybody listens. An event carries no data of jobs: the page asks for its
newer self, with its own permissions.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Final

STREAMS_MAX: Final = 200
STREAMS_OF_VIEWER_MAX: Final = 20  # tabs of one person
LOOK_S: Final = 0.5
BEAT_S: Final = 5.0  # figures such as steps move without a record


class LiveFullError(Exception):
    """There are as many streams as there may be."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    is_gone: Callable[[], bool]


def _living(streams: list[_Stream]) -> int:
    return sum(not stream.is_gone() for stream in streams)


class Live:
    """Belongs to the event loop."""

    def __init__(
        self, revision: Callable[[], str], pace_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """``pace_s``: for how long pages would get the same answer again, so that telling them earlier is no use."""
        self._revision = revision
        self._pace_s = pace_s
        self._changed = asyncio.Event()
        self._streams: defaultdict[str, list[_Stream]] = defaultdict(list)  # by viewer
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return sum(map(_living, self._streams.values()))

    @contextlib.contextmanager
    def _hold(self, who: str, is_gone: Callable[[], bool]) -> Iterator[None]:
        if len(self) >= STREAMS_MAX or _living(self._streams.get(who, [])) >= STREAMS_OF_VIEWER_MAX:
            raise LiveFullError
        stream = _Stream(is_gone)
        self._streams[who].append(stream)
        try:
            yield
        finally:
            self._streams[who].remove(stream)
            if not self._streams[who]:
                del self._streams[who]

    async def events(
        self, who: str, is_gone: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[bytes, None]:
        """Give the events of one page: the revision, at each change and at each beat.

        ``is_gone`` tells that the page has been left. Its stream ends with the next event, and counts no more until then.
        """
        with self._hold(who, is_gone):
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._look())
            yield b"retry: 2000\n\n"
            while not self._is_closed:
                yield f"event: revision\ndata: {self._revision()}\n\n".encode()
                # All pages ask at the same moment, and share the answer.
                wait_s = BEAT_S - asyncio.get_running_loop().time() % BEAT_S
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), max(LOOK_S, wait_s))

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        seen, told_at_s = self._revision(), loop.time()
        while self._streams and not self._is_closed:
            await asyncio.sleep(LOOK_S)
            now = self._revision()
            if now != seen and is_due(loop.time(), told_at_s, self._pace_s()):
                seen, told_at_s = now, loop.time()
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._changed.set()
        if self._task is not None:
            self._task.cancel()


def is_due(now_s: float, told_at_s: float, pace_s: float) -> bool:
    """Return whether pages are to be told of a change now: neither soon after the last time nor soon after a beat."""
    return min(now_s - told_at_s, now_s % BEAT_S) >= min(pace_s, BEAT_S - LOOK_S)
