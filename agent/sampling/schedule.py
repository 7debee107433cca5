"""When things run: at intervals, or once after a delay, by the monotonic clock.

APScheduler is the timer, with one job for all entries: its trigger gives the date at which the
earliest is due, and it calls all that are due then, in the timer's own thread. A job for each entry
and a thread for the calls woke the agent nine times a second. The dates are wall-clock times, and a
wall clock may be set at any moment, so an entry keeps its due time on the monotonic clock. A job that
comes too early (the clock was set forward) finds nothing due and waits for what remains; one that does
not come (the clock was set back) is armed anew by `watch`. Runs that were missed are skipped, never
made up for, and due times do not drift: they stay multiples of the interval apart.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from rankmend.clock import Clock

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler

log = logging.getLogger(__name__)

LATE_S: Final = 1.0  # then `watch` stops waiting for a job: a busy machine is late by less
EARLY_S: Final = 0.05  # how much two clocks may differ over one interval
_SOON_S: Final = 0.001  # a date that APScheduler takes for one in the future
_JOB: Final = "due"

Action = Callable[[], None]

# At INFO, APScheduler's executor logs the begin and the end of each run.
logging.getLogger("apscheduler").setLevel(logging.WARNING)


@dataclass(slots=True)
class _Entry:
    action: Action
    due_s: float
    interval_s: float | None  # None: once


def next_due_s(due_s: float, interval_s: float, now_s: float) -> float:
    """Return the first time after ``now_s`` that is a multiple of the interval after ``due_s``."""
    missed = max(0, int((now_s - due_s) // interval_s))
    following_s = due_s + (missed + 1) * interval_s
    return following_s if following_s > now_s else following_s + interval_s


class Schedule:
    """Calls actions in a thread of its own. An action must not block: it holds up all others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Guards the entries. APScheduler's own lock is taken before it, never while it is held.
        self._lock = RLock()
        self._entries: dict[str, _Entry] = {}
        self._scheduler = _make_scheduler()
        self._trigger = _make_trigger(self._next_date)

    @property
    def is_running(self) -> bool:
        return bool(self._scheduler.running)

    def start(self) -> None:
        self._scheduler.start()

    def stop(self) -> None:
        """Call nothing any more. Does not wait for the action under way."""
        if self.is_running:
            self._scheduler.shutdown(wait=False)

    def repeat(self, key: str, interval_s: float, action: Action) -> None:
        """Call ``action`` now and then at each interval, in place of what ``key`` did so far."""
        with self._lock:
            self._entries[key] = _Entry(action, self._clock.now_s(), interval_s)
        self._arm()

    def once(self, key: str, delay_s: float, action: Action) -> None:
        """Call ``action`` once, after a delay. A ``key`` that waits already keeps its time."""
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = _Entry(action, self._clock.now_s() + delay_s, None)
        self._arm()

    def remove(self, key: str) -> None:
        """Forget an entry; one that is not there is forgotten already."""
        with self._lock:
            self._entries.pop(key, None)

    def watch(self) -> None:
        """Arm anew what is overdue, because the wall clock was set back. Call it every few seconds."""
        with self._lock:
            now_s = self._clock.now_s()
            is_late = any(now_s - entry.due_s > LATE_S for entry in self._entries.values())
        if is_late:
            self._arm()

    def _arm(self) -> None:
        if (date := self._next_date()) is not None:
            self._scheduler.add_job(
                self._fire, self._trigger, next_run_time=date, id=_JOB, replace_existing=True
            )

    def _next_date(self) -> datetime | None:
        """Return when the earliest entry is due, by the wall clock as it is now."""
        with self._lock:
            if not self._entries:
                return None
            due_s = min(entry.due_s for entry in self._entries.values())
            delay_s = max(_SOON_S, due_s - self._clock.now_s())
        return datetime.now(timezone.utc) + timedelta(seconds=delay_s)

    def _fire(self) -> None:
        """Call all that is due. One that raises holds up no other."""
        for action in self._pop_due():
            try:
                action()
            except Exception:
                log.exception("scheduled action failed")

    def _pop_due(self) -> list[Action]:
        due = []
        with self._lock:
            now_s = self._clock.now_s()
            for key, entry in list(self._entries.items()):
                if now_s < entry.due_s - EARLY_S:
                    continue
                due.append(entry.action)
                if entry.interval_s is None:
                    del self._entries[key]
                else:
                    entry.due_s = next_due_s(entry.due_s, entry.interval_s, now_s)
        return due


@contextmanager
def _without_unused() -> Iterator[None]:
    """Import APScheduler without two modules that it hardly uses.

    Of asyncio it takes one function, which `inspect` has as well: 1.3 MiB. By importlib.metadata it looks for plugins of
    its own, by name, and for its version: 2.5 MiB.
    """
    stand_ins: dict[str, dict[str, Any]] = {}
    if not {"asyncio", "apscheduler.util"} & sys.modules.keys():
        stand_ins["asyncio"] = {"iscoroutinefunction": inspect.iscoroutinefunction}
    if not {"importlib.metadata", "apscheduler"} & sys.modules.keys():
        stand_ins["importlib.metadata"] = {
            "entry_points": lambda **_group: (),
            "version": lambda _name: "0",
            "PackageNotFoundError": ImportError,
        }
    for name, content in stand_ins.items():
        stand_in = ModuleType(name)
        stand_in.__dict__.update(content)
        sys.modules[name] = stand_in
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


def _make_scheduler() -> "BackgroundScheduler":
    # Here: whoever only reads the agent's configuration, as `rankmend doctor` does, may have no APScheduler.
    with _without_unused():
        from apscheduler.executors.debug import DebugExecutor  # noqa: PLC0415
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

    return BackgroundScheduler(
        timezone=timezone.utc,
        executors={"default": DebugExecutor()},  # runs jobs in the scheduler's own thread
        # how late a job may be is decided here
        job_defaults={"max_instances": 2, "misfire_grace_time": None, "coalesce": True},
    )


def _make_trigger(next_date: Callable[[], datetime | None]) -> Any:
    """Return a trigger of APScheduler's whose date is requested anew each time."""
    from apscheduler.triggers.base import BaseTrigger  # noqa: PLC0415 - as above

    class _Due(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
        def get_next_fire_time(
            self, _previous_fire_time: datetime | None, _now: datetime
        ) -> datetime | None:
            return next_date()

    return _Due()
