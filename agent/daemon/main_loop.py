"""The agent's main loop: reports to the service manager and handles signals.

READY is sent after the first complete sample, when every collector has answered once; one that
hangs from the start delays it by at most `READY_S_MAX` and is named in the status. The watchdog is
pinged only while the sampling goes on and the endpoint serves, so a stuck scheduler, a dead server
thread or a frozen process ends in a restart, and a collector that hangs by itself does not.
"""

import logging
import signal
from collections.abc import Callable
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import ConfigError
from rankmend.milestones import ProcessMilestone, name_milestone
from rankmend.notify import Notifier
from rankmend.signals import SignalInbox

log = logging.getLogger(__name__)

STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT})
RELOADING: Final = signal.SIGHUP
READY_S_MAX: Final = 10.0  # as long as `--once` waits
_WATCH_S: Final = 5.0  # a collector is stale after 10 s at the soonest
_STARTING_S: Final = 0.02  # between looks until ready: the start is to take less than a second


class Sampling(Protocol):
    """The part of the runner that the loop needs."""

    def watch(self) -> None: ...
    def unanswered(self) -> tuple[str, ...]: ...
    def absent(self) -> tuple[str, ...]: ...
    def is_sampling(self) -> bool: ...


class Serving(Protocol):
    @property
    def is_serving(self) -> bool: ...


class MainLoop:
    def __init__(
        self,
        sampling: Sampling,
        serving: Serving,
        notifier: Notifier,
        clock: Clock,
        reload: Callable[[], None],
    ) -> None:
        self._sampling = sampling
        self._serving = serving
        self._notifier = notifier
        self._clock = clock
        self._reload = reload
        self._began_at_s = self._watched_at_s = clock.now_s()
        self._is_ready = False
        self._is_alive = True

    def run(self, inbox: SignalInbox) -> None:
        """Return on SIGTERM or SIGINT; reload on SIGHUP, also on one that came before the loop."""
        while True:
            inbox.wait(self.wait_s())
            come = inbox.read()
            if stopping := come & STOPPING:
                log.info("stopping", extra={"signal": min(stopping).name})
                self._notifier.stopping()
                return
            if RELOADING in come:
                self.reload()
            self.tick()

    def wait_s(self) -> float:
        if not self._is_ready:
            return _STARTING_S
        ping_s = self._notifier.ping_s
        return _WATCH_S if ping_s is None else min(_WATCH_S, ping_s)

    def tick(self) -> None:
        """Watch the collectors and report the state to the service manager."""
        now_s = self._clock.now_s()
        if now_s - self._watched_at_s >= _WATCH_S:
            self._watched_at_s = now_s
            self._sampling.watch()
        if not self._is_ready:
            unanswered = self._sampling.unanswered()
            self._is_ready = not unanswered or now_s - self._began_at_s >= READY_S_MAX
            if self._is_ready:
                status = (
                    f"without {', '.join(unanswered)}" if unanswered else "all collectors answer"
                )
                fields = {
                    "after_s": round(now_s - self._began_at_s, 3),
                    "status": status,
                    "absent": ", ".join(self._sampling.absent()) or "none",
                }
                log.info("first sample complete", extra=fields)
                self._notifier.ready(status)
                name_milestone("agent", ProcessMilestone.READY)
        if self._notifier.ping_s is not None:
            self._ping()

    def reload(self) -> None:
        """Read the configuration again; one that is wrong changes nothing."""
        self._notifier.reloading()
        try:
            self._reload()
            status = "configuration reloaded"
        except ConfigError as error:
            fields = {"error": str(error)}  # says all: no traceback
            log.error("configuration not reloaded; the old one stays in force", extra=fields)  # noqa: TRY400
            status = f"configuration not reloaded: {error}"
        if self._is_ready:
            self._notifier.ready(status)

    def _ping(self) -> None:
        is_sampling, is_serving = self._sampling.is_sampling(), self._serving.is_serving
        is_alive = is_sampling and is_serving
        if is_alive:
            self._notifier.ping()
        if is_alive and not self._is_alive:
            log.info("sampling continues")
        if self._is_alive and not is_alive:
            fields = {"is_sampling": is_sampling, "is_serving": is_serving}
            log.error("sampling is stuck; the watchdog gets no ping", extra=fields)
        self._is_alive = is_alive
