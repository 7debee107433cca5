"""Messages from other threads to a launcher's loop: orders, and which controller accepts its reports."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from rankmend import console
from rankmend.checkpoint_figures import CheckpointFigures
from recovery.launcher.decision.launcher_state import FollowedOrders
from recovery.messages.copying import CopyRequest
from recovery.messages.exchange import Order
from recovery.messages.probing import ProbeRequest

log = logging.getLogger(__name__)

_SUSPEND_FLUSH_S: Final = 1.0  # for the console to show why the launcher goes silent


class Wakeups:
    """Wakes the launcher's loop, for other threads and for signals."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        """Wake the loop. May be called from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self.descriptor, b"\0")

    def take_signals(self) -> list[signal.Signals]:
        """Return the signals that have arrived since the last call, without waiting."""
        try:
            received = os.read(self._read, 4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in received if number]

    def close(self) -> None:
        os.close(self._read)
        os.close(self.descriptor)


@contextlib.contextmanager
def signals_to(descriptor: int, numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Write the numbers of arriving signals to ``descriptor``."""
    wanted = [
        number
        for number in set(numbers)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup, or a shell's background job
    ]
    previous = {number: signal.signal(number, lambda *_: None) for number in wanted}
    previous_descriptor = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)


def suspend() -> None:
    """Stop this process, as Ctrl-Z asks; its ranks and guardian, in other sessions, keep running."""
    log.warning(
        "suspended by Ctrl-Z: the ranks keep training, but nothing recovers them until `fg` or `bg`"
    )
    console.flush(_SUSPEND_FLUSH_S)
    os.kill(os.getpid(), signal.SIGSTOP)
    log.warning("continued")


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """A controller has accepted a report."""

    epoch: int
    controller_id: str
    at_s: float  # monotonic


@dataclass(slots=True)
class Inbox:
    _orders: list[Order] = field(default_factory=list)
    _answer: ReportAnswer | None = None  # the newest
    _figures: CheckpointFigures | None = None  # the newest
    _copies: CopyRequest | None = None  # the newest
    _probe: tuple[ProbeRequest | None] | None = None  # the newest; (None,): nothing is requested
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put_order(self, order: Order) -> None:
        with self._lock:
            self._orders.append(order)

    def put_answer(self, answer: ReportAnswer) -> None:
        with self._lock:
            self._answer = answer

    def put_figures(self, figures: CheckpointFigures) -> None:
        with self._lock:
            self._figures = figures

    def take_figures(self) -> CheckpointFigures | None:
        """Return the newest figures of the job's checkpoints that have arrived since the last call."""
        with self._lock:
            figures, self._figures = self._figures, None
        return figures

    def put_copies(self, request: CopyRequest) -> None:
        with self._lock:
            self._copies = request

    def take_copies(self) -> CopyRequest | None:
        """Return the newest request about copies that has arrived since the last call."""
        with self._lock:
            request, self._copies = self._copies, None
        return request

    def put_probe(self, request: ProbeRequest | None) -> None:
        with self._lock:
            self._probe = (request,)

    def take_probe(self) -> tuple[ProbeRequest | None] | None:
        """Return the last request for this node's part in a probe since the last call; None: there was no answer."""
        with self._lock:
            request, self._probe = self._probe, None
        return request

    def take_orders(self) -> list[Order]:
        """Return the orders that have arrived since the last call."""
        with self._lock:
            orders, self._orders = self._orders, []
        return orders

    def hear_answer(self, orders: FollowedOrders) -> FollowedOrders:
        """Return the state after the newest answer, if one has arrived since the last call."""
        with self._lock:
            answer, self._answer = self._answer, None
        if answer is None:
            return orders
        return orders.hear(answer.epoch, answer.controller_id, answer.at_s)
