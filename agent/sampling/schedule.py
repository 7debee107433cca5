"""When things run: at intervals, or once after a delay, by the monotonic clock.

APScheduler is the timer: each entry is a job with a date. Its dates are wall-clock times, and a wall
clock may be set at any moment, so an entry keeps its due time on the monotonic clock. A job that comes
too early (the clock was set forward) is armed again for what remains; one that does not come (the
clock was set back) is armed anew by `watch`. Runs that were missed are skipped, never made up for,
and due times do not drift: they stay multiples of the interval apart.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from threading import RLock
from typing import TYPE_CHECKING, Final

from rankmend.clock import Clock

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler

LATE_S: Final = 1.0  # then `watch` stops waiting for a job: a busy machine is late by less
EARLY_S: Final = 0.05  # how much two clocks may differ over one interval

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
        self._lock = RLock()  # guards the entries; an action runs outside it
        self._entries: dict[str, _Entry] = {}
        self._scheduler = _make_scheduler()

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
        self._add(key, _Entry(action, self._clock.now_s(), interval_s))

    def once(self, key: str, delay_s: float, action: Action) -> None:
        """Call ``action`` once, after a delay. A ``key`` that waits already keeps its time."""
        with self._lock:
            if key not in self._entries:
                self._add(key, _Entry(action, self._clock.now_s() + delay_s, None))

    def remove(self, key: str) -> None:
        """Forget an entry; one that is not there is forgotten already."""
        from apscheduler.jobstores.base import JobLookupError  # noqa: PLC0415 - as below

        with self._lock:
            if self._entries.pop(key, None) is None:
                return
            try:
                self._scheduler.remove_job(key)
            except JobLookupError:
                return  # it fires at this moment, and will find no entry

    def watch(self) -> None:
        """Arm anew what is overdue, because the wall clock was set back. Call it each second."""
        with self._lock:
            now_s = self._clock.now_s()
            for key, entry in self._entries.items():
                if now_s - entry.due_s > LATE_S:
                    self._arm(key, 0.0)

    def _add(self, key: str, entry: _Entry) -> None:
        with self._lock:
            self._entries[key] = entry
            self._arm(key, max(0.0, entry.due_s - self._clock.now_s()))

    def _arm(self, key: str, delay_s: float) -> None:
        run_date = datetime.now(timezone.utc) + timedelta(seconds=delay_s)
        self._scheduler.add_job(
            self._fire, "date", run_date=run_date, args=[key], id=key, replace_existing=True
        )

    def _fire(self, key: str) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return
            now_s = self._clock.now_s()
            if now_s < entry.due_s - EARLY_S:
                self._arm(key, entry.due_s - now_s)
                return
            if entry.interval_s is None:
                del self._entries[key]
            else:
                entry.due_s = next_due_s(entry.due_s, entry.interval_s, now_s)
                self._arm(key, entry.due_s - now_s)
        entry.action()


def _make_scheduler() -> "BackgroundScheduler":
    # Here: whoever only reads the agent's configuration, as `rankmend doctor` does, may have no APScheduler.
    from apscheduler.executors.pool import ThreadPoolExecutor  # noqa: PLC0415
    from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

    return BackgroundScheduler(
        timezone=timezone.utc,
        executors={"default": ThreadPoolExecutor(max_workers=1)},
        # an entry is armed again while its job ends; how late it may be is decided here
        job_defaults={"max_instances": 2, "misfire_grace_time": None},
    )
