"""Answers that all viewers share for a moment, so that the number of viewers costs next to nothing."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

KEPT_MAX: Final = 256
# Steps and ages move without a record, and pages ask again at every beat of recovery.console.live, all at the same moment.
# The nodes of 2,000 take the deciding thread 20 ms: so they are asked for once a beat, and once a second in troubled times.
KEPT_S: Final = 4.0
CHANGED_S: Final = 1.0

_T = TypeVar("_T")


@dataclass(slots=True)
class _Kept:
    answer: "asyncio.Future[Any]"
    asked_at_s: float
    revision: str


class SharedReads:
    """Belongs to the event loop. Whoever asks for what is being read already waits for that."""

    def __init__(self, now_s: Callable[[], float], revision: Callable[[], str]) -> None:
        """``revision`` changes when anything is journaled."""
        self._now_s = now_s
        self._revision = revision
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def get(
        self,
        key: Hashable,
        read: Callable[[], Awaitable[_T]],
        kept_s: float = KEPT_S,
        changed_s: float = CHANGED_S,
    ) -> _T:
        """Return what ``read`` gave before, or what it gives now. An error is not kept.

        An answer is kept for ``kept_s``, and for ``changed_s`` once something was journaled.
        """
        now_s, revision = self._now_s(), self._revision()
        kept = self._kept.get(key)
        if kept is not None and kept.answer.done():
            limit_s = kept_s if kept.revision == revision else changed_s
            if now_s - kept.asked_at_s >= limit_s:
                kept = None
        if kept is None:
            task = asyncio.ensure_future(read())
            kept = self._kept[key] = _Kept(task, now_s, revision)
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
