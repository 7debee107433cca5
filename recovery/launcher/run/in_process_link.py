"""A controller in a thread of the launcher's process: calls instead of HTTP.

The main thread is the launcher's loop. The controller has its own thread, because it waits for the
disk. They exchange the same reports and orders that otherwise go over the network. `ask` has the
controller's thread do what a person wants.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from rankmend.checkpoint_figures import CheckpointFigures
from recovery.controller.job.controller import TICK_BUSY_S, TICK_S, Controller
from recovery.controller.job.nodes import Orders
from recovery.journal.job_records import JobOutcome
from recovery.launcher.launcher import Launcher
from recovery.launcher.membership.node_membership import Membership
from recovery.launcher.run.assembly import say
from recovery.messages.exchange import Order, Report, StopReason

log = logging.getLogger(__name__)

_REPORTS_MAX: Final = 1000
_FIGURES_S: Final = 5.0  # as often as checkpoints are looked at
_CALLS_MAX: Final = 8  # the door asks for one connection at a time
_JOIN_S_MAX: Final = 10.0  # for a journal write in progress

_T = TypeVar("_T")


class InProcessLink:
    def __init__(
        self,
        make_controller: Callable[[Orders], Controller],
        membership: Membership,
        empty_through: int,
        read_figures: Callable[[Controller], CheckpointFigures | None] = lambda _controller: None,
        beat: Callable[[str], None] = lambda _trouble: None,
    ) -> None:
        """``read_figures`` returns what the node's agent is to export of the job's checkpoints.

        ``beat`` is called at each turn of the controller, to note that it lives, and why it can't decide, or "".
        """
        self.membership = membership
        self.empty_through = empty_through
        self._controller = make_controller(self)
        self._read_figures = read_figures
        self._beat = beat
        self._figured_at_s = float("-inf")
        self._launcher: Launcher | None = None
        self._reports: queue.Queue[Report | None] = queue.Queue(_REPORTS_MAX)  # None: a call waits
        self._calls: queue.Queue[tuple[Callable[[Controller], Any], Future[Any]]] = queue.Queue(
            _CALLS_MAX
        )
        self._should_end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._crash: Exception | None = None
        self._has_ended = False

    @property
    def outcome(self) -> JobOutcome | None:
        return self._controller.outcome

    def start(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._thread.start()

    def put(self, report: Report | None) -> None:
        """Have the controller's thread take in a report, or only wake it."""
        with contextlib.suppress(
            queue.Full
        ):  # the disk hangs; the next report contains the same and more
            self._reports.put_nowait(report)

    def ask(self, act: Callable[[Controller], _T]) -> "Future[_T]":
        """Have the controller's thread run ``act``. Cancelled if that thread has ended, or has too much to do."""
        future: Future[_T] = Future()
        try:
            self._calls.put_nowait((act, future))
        except queue.Full:
            future.cancel()
        self.put(None)
        if self._has_ended:  # after the put: else nobody would answer
            self._cancel_calls()
        return future

    def send(self, order: Order) -> None:
        """Deliver an order to the launcher (`recovery.controller.job.nodes.Orders`)."""
        assert self._launcher is not None, "the controller's thread starts with the launcher"
        self._launcher.send(order)

    def flush(self) -> None:
        """Do nothing: the launcher ends after the controller, or without it."""

    def close(self) -> None:
        self._should_end.set()
        self.put(None)
        self._thread.join(_JOIN_S_MAX)

    def leave(self, last: Report | None) -> None:
        """Do nothing: the job does not continue without its only launcher."""

    def exit_code(self, stop_requested: StopReason | None) -> int:
        if self.outcome is not None:
            return self.outcome.exit_code  # its end was printed when it was journaled
        if self._crash is None and stop_requested is not None:
            say(
                f"{stop_requested.value}: the ranks were stopped; the journal has no record of it yet"
            )
            return stop_requested.exit_code
        say(f"the controller failed and the job was stopped: {self._crash!r}")
        return 1

    def _run(self) -> None:
        assert self._launcher is not None, "started with it"
        try:
            self._controller.start()
            while self._controller.outcome is None and not self._should_end.is_set():
                with contextlib.suppress(queue.Empty):
                    report = self._reports.get(
                        timeout=TICK_S if self._controller.is_calm else TICK_BUSY_S
                    )
                    if report is not None:
                        self._controller.handle_report(report)
                self._answer_calls()
                self._controller.tick()
                self._beat(self._controller.journal_trouble or "")
                self._show_figures()
        except Exception as error:
            log.exception("the controller failed")
            self._crash = error
        self._has_ended = True
        self._cancel_calls()
        self._launcher.finish()

    def _show_figures(self) -> None:
        assert self._launcher is not None, "started with it"
        now_s = time.monotonic()
        if now_s - self._figured_at_s < _FIGURES_S:
            return
        self._figured_at_s = now_s
        figures = self._read_figures(self._controller)
        if figures is not None:
            self._launcher.show_checkpoint(figures)

    def _answer_calls(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                act, future = self._calls.get_nowait()
                if not future.set_running_or_notify_cancel():
                    continue  # the asker has gone
                try:
                    future.set_result(act(self._controller))
                except Exception as error:  # noqa: BLE001 - the asker's; the job goes on
                    future.set_exception(error)

    def _cancel_calls(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()[1].cancel()
