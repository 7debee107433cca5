"""Answers that all viewers share for a moment, so that the number of viewers costs next to nothing."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

KEPT_MAX: Final = 256

_T = TypeVar("_T")


@dataclass(slots=True)
class _Kept:
    answer: "asyncio.Future[Any]"
    until_s: float


class SharedReads:
    """Belongs to the event loop. Whoever asks for what is being read already waits for that."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def get(self, key: Hashable, kept_s: float, read: Callable[[], Awaitable[_T]]) -> _T:
        """Return what ``read`` gave at most ``kept_s`` ago, or what it gives now. An error is not kept."""
        now_s = self._now_s()
        kept = self._kept.get(key)
        if kept is None or (kept.answer.done() and kept.until_s <= now_s):
            task = asyncio.ensure_future(read())
            kept = _Kept(task, now_s + kept_s)
            self._kept[key] = kept
            self._kept.move_to_end(key)
            task.add_done_callback(lambda done: self._drop_failed(key, done))
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        # shielded: one viewer who leaves must not take the answer from the others
        return cast(_T, await asyncio.shield(kept.answer))

    def forget(self) -> None:
        """Read everything anew from now on: something was just changed from here."""
        self._kept.clear()

    def _drop_failed(self, key: Hashable, done: "asyncio.Future[Any]") -> None:
        kept = self._kept.get(key)
        is_failed = done.cancelled() or done.exception() is not None
        if is_failed and kept is not None and kept.answer is done:
            del self._kept[key]
