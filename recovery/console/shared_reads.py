"""Answers that all viewers share for a moment, so that the number of viewers costs next to nothing."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

KEPT_MAX: Final = 256
# Steps and ages move without a record, and pages ask again at every beat of recovery.console.live, all at the same moment.
# The nodes of 2,000 take the deciding thread 20 ms: so they are requested once a beat, and once a second in troubled times.
KEPT_S: Final = 4.0
CHANGED_S: Final = 1.0
# The larger the fleet, the slower its pages get news: an answer is kept for 20 times as long as it took, so that making it
# takes a twentieth of the time. On an idle machine the fleet of 2,000 nodes takes 60 ms.
_PAUSES: Final = 20.0
_PACE_S_MAX: Final = 10.0  # two beats

_T = TypeVar("_T")


@dataclass(slots=True)
class _Kept:
    answer: "asyncio.Future[Any]"
    asked_at_s: float
    revision: str
    took_s: float = 0.0


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

        An answer is kept for ``kept_s``, and for ``changed_s`` once something was journaled; longer if it took long.
        """
        now_s, revision = self._now_s(), self._revision()
        retained = self._kept.get(key)
        if retained is not None and retained.answer.done():
            limit_s = kept_s if retained.revision == revision else changed_s
            pace_s = min(_PACE_S_MAX, _PAUSES * retained.took_s)
            if now_s - retained.asked_at_s >= max(limit_s, pace_s):
                retained = None
        if retained is None:
            task = asyncio.ensure_future(read())
            retained = self._kept[key] = _Kept(task, now_s, revision)
            self._kept.move_to_end(key)
            task.add_done_callback(lambda done: self._note_done(key, done))
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        # shielded: one viewer who leaves must not take the answer from the others
        return cast(_T, await asyncio.shield(retained.answer))

    def pace_s(self) -> float:
        """Return for how long the answer that took longest is kept for that reason."""
        return min(
            _PACE_S_MAX, _PAUSES * max((item.took_s for item in self._kept.values()), default=0.0)
        )

    def forget(self) -> None:
        """Read everything anew from now on: something was just changed from here."""
        self._kept.clear()

    def _note_done(self, key: Hashable, done: "asyncio.Future[Any]") -> None:
        retained = self._kept.get(key)
        if retained is None or retained.answer is not done:
            return
        if done.cancelled() or done.exception() is not None:
            del self._kept[key]
        else:
            retained.took_s = self._now_s() - retained.asked_at_s
