"""The newest order for each node, between the thread that decides and the polls that wait.

An order stays until a newer one takes its place, so a poll whose answer was lost gets it again. `put`
and `flush` are for the deciding thread, all else for the event loop.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from recovery.messages.codec import encode_message
from recovery.messages.exchange import Order

MANY: Final = 256  # orders at once: their answers take the event loop some 30 ms
SENT_S_MAX: Final = 1.0  # for 10,000 of them
SETTLED_S: Final = (
    60.0  # after orders to many: each of their polls has ended once, spread over 18 s
)
WAITERS_MAX: Final = 2  # polls of one node at once: a new one, and the old one whose client hung up


class _Posted:
    """An order, encoded once and only if somebody asks for it."""

    __slots__ = ("_body", "order")

    def __init__(self, order: Order) -> None:
        self.order = order
        self._body: bytes | None = None

    @property
    def body(self) -> bytes:
        if self._body is None:
            self._body = encode_message(self.order)
        return self._body


class NewestOrders:
    def __init__(self, sent_s_max: float = SENT_S_MAX) -> None:
        """``sent_s_max``: how long the deciding thread waits at most while orders to many go out."""
        self._sent_s_max = sent_s_max
        self._posted: dict[str, dict[str, _Posted]] = {}
        self._changed: list[tuple[str, str]] = []
        self._waiting: defaultdict[tuple[str, str], list[asyncio.Future[bool]]] = defaultdict(list)
        self._call_soon: Callable[..., object] | None = None
        self._many_at_s = float("-inf")  # of the loop's clock
        self._sent = threading.Event()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop in which polls wait."""
        self._call_soon = loop.call_soon_threadsafe

    # The deciding thread.

    def put(self, order: Order) -> None:
        """Take an order to its node (`recovery.controller.job.nodes.Orders`); sent again, it changes nothing."""
        nodes = self._posted.setdefault(order.job_id, {})
        before = nodes.get(order.node)
        if before is not None and before.order == order:
            return
        nodes[order.node] = _Posted(order)
        self._changed.append((order.job_id, order.node))

    def send(self, order: Order) -> None:
        self.put(order)

    def end(self, job_id: str) -> None:
        """Forget a job's orders and wake the polls that wait for one."""
        for node in self._posted.pop(job_id, {}):
            self._changed.append((job_id, node))
        self._changed.append((job_id, ""))

    def flush(self) -> None:
        """Wake the polls for which there is something new, all of them at once.

        Of many, the answers go out first, within bounds: who decides meanwhile takes the interpreter from them.
        """
        changed, self._changed = self._changed, []
        if changed and self._call_soon is not None:
            self._sent.clear()
            try:
                self._call_soon(self._wake, changed)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            if len(changed) >= MANY:
                self._sent.wait(self._sent_s_max)

    @property
    def pending(self) -> int:
        """Return how many orders there are."""
        return sum(len(nodes) for nodes in list(self._posted.values()))

    # The event loop.

    def newest(self, job_id: str, node: str) -> Order | None:
        posted = self._posted.get(job_id, {}).get(node)
        return None if posted is None else posted.order

    def find(
        self, job_id: str, node: str, launcher_id: str, after: int, epoch: int
    ) -> bytes | None:
        """Return the encoded order for this launcher, if it is newer than what it knows."""
        posted = self._posted.get(job_id, {}).get(node)
        if posted is None:
            return None
        order = posted.order
        if order.launcher_id not in ("", launcher_id):
            return None
        return posted.body if (order.epoch, order.revision) > (epoch, after) else None

    async def changed(self, job_id: str, node: str, wait_s: float) -> bool:
        """Return True once the node's order changes or the job ends; False after ``wait_s``."""
        waiters = self._waiting[job_id, node]
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        waiters.append(waiter)
        for old in waiters[:-WAITERS_MAX]:
            _settle(old, is_news=False)
        timer = loop.call_later(wait_s, _give_up, waiter)  # wait_for costs twice as much
        try:
            return await waiter
        finally:
            timer.cancel()
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._waiting.pop((job_id, node), None)

    def wake_all(self) -> None:
        """Let every poll answer: the service stops."""
        for waiters in list(self._waiting.values()):
            for waiter in waiters:
                _settle(waiter, is_news=False)

    @property
    def waiting(self) -> int:
        return sum(len(waiters) for waiters in self._waiting.values())

    def is_settled(self) -> bool:
        """Return whether no orders to many have lately made their polls end together."""
        return asyncio.get_running_loop().time() - self._many_at_s >= SETTLED_S

    def _wake(self, changed: list[tuple[str, str]]) -> None:
        self._settle_all(changed)
        if len(changed) >= MANY:
            loop = asyncio.get_running_loop()
            self._many_at_s = loop.time()
            # Behind the polls that have just been woken, and behind what they wrote.
            loop.call_soon(loop.call_soon, self._sent.set)

    def _settle_all(self, changed: list[tuple[str, str]]) -> None:
        ended = {job_id for job_id, node in changed if not node}
        for key in changed:
            for waiter in self._waiting.get(key, ()):
                _settle(waiter)
        if ended:
            for (job_id, _node), waiters in list(self._waiting.items()):
                if job_id in ended:
                    for waiter in waiters:
                        _settle(waiter)


def _settle(waiter: "asyncio.Future[bool]", *, is_news: bool = True) -> None:
    if not waiter.done():
        waiter.set_result(is_news)


def _give_up(waiter: "asyncio.Future[bool]") -> None:
    _settle(waiter, is_news=False)
