"""Runs each collector on its own interval, isolated from all others.

`agent/sampling/schedule.py` decides when, `agent/sampling/collection.py` runs one collector.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache, partial
from threading import Condition, Thread, current_thread
from time import perf_counter
from types import MappingProxyType
from typing import Final

from agent.metrics import Family, Metric, counter, gauge
from agent.sampling.collection import (
    STALE_INTERVALS,
    Collector,
    CollectorOutcome,
    CollectorView,
    Slot,
)
from agent.sampling.demand import Demand
from agent.sampling.schedule import Schedule
from rankmend.clock import Clock

STUCK_S: Final = 0.5  # after this long in a quick run, the others get another thread

Run = Callable[[], None]

INTERVAL_S_MIN: Final = 0.1  # ten runs a second cost about 2 % of a core (bench/agent_cost.py)
INTERVAL_S_MAX: Final = 3600.0
LATE_INTERVALS: Final = 2 * STALE_INTERVALS
LATE_S_MIN: Final = 10.0  # a stall of a busy machine is shorter
HURRY_S_MIN: Final = 0.2  # between a run and one out of turn: at most 5 extra runs a second

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "collector_success",
        "",
        ("collector",),
        "1 when the last finished run succeeded, 0 when its source was broken; no series when the node has no such source.",
    ),
    gauge(
        "collector_present",
        "",
        ("collector",),
        "1 when this node has the collector's source, 0 when it hangs and had none; no series when the node has no such source.",
    ),
    gauge(
        "collector_duration_seconds",
        "seconds",
        ("collector",),
        "How long the last finished run took.",
    ),
    gauge(
        "collector_age_seconds",
        "seconds",
        ("collector",),
        "Age of the collector's newest answer; grows while it is stuck or broken.",
    ),
    counter(
        "collector_failures", "", ("collector",), "Runs that failed because the source was broken."
    ),
    gauge(
        "collector_stale",
        "",
        ("collector",),
        "1 when the newest answer is so old that the page no longer shows its values.",
    ),
)


class Workers:
    """The threads that run collectors, so that a collector that hangs delays no other.

    Quick runs take turns in one daemon thread; each other run gets a daemon thread of its own. A
    thread for each of a second's dozen runs took a sixth of the agent's CPU. A quick run that hangs
    delays the others until the next run is submitted `STUCK_S` later, which moves them to another
    thread. All are daemons: a thread that is stuck in a driver can't delay the agent's exit.
    """

    def __init__(self) -> None:
        self._turn = Condition()  # guards everything below
        self._waiting: deque[Run] = deque()
        self._worker: Thread | None = None
        self._busy_since_s: float | None = None

    def submit(self, name: str, run: Run, *, is_quick: bool) -> None:
        """Run it soon, in a thread that may hang. Never blocks."""
        if not is_quick:
            Thread(target=run, name=f"collect-{name}", daemon=True).start()
            return
        self.submit_quick([run])

    def submit_quick(self, runs: Sequence[Run]) -> None:
        """Run these soon, in turn: one wake-up of the worker for all of them. Never blocks."""
        if not runs:
            return
        with self._turn:
            self._waiting.extend(runs)
            if self._worker is None or self._is_stuck():
                self._start_worker()
            elif self._busy_since_s is None:
                self._turn.notify_all()

    def stop(self) -> None:
        """Run nothing more. Does not wait for runs under way."""
        with self._turn:
            self._worker = None
            self._waiting.clear()
            self._turn.notify_all()

    def _is_stuck(self) -> bool:
        return self._busy_since_s is not None and perf_counter() - self._busy_since_s > STUCK_S

    def _start_worker(self) -> None:
        """Start a new thread for the runs that wait; the old one, if any, ends after its run."""
        self._busy_since_s = None
        self._worker = Thread(target=self._work, name="collect", daemon=True)
        self._worker.start()

    def _work(self) -> None:
        me = current_thread()
        while True:
            with self._turn:
                if self._worker is me:
                    self._busy_since_s = None
                while self._worker is me and not self._waiting:
                    self._turn.wait()
                if self._worker is not me:
                    return
                run = self._waiting.popleft()
                self._busy_since_s = perf_counter()
            run()


def runner_metrics(view: CollectorView) -> tuple[Metric, ...]:
    """Return the runner's own metrics of one collector."""
    steady = _steady_metrics(view.name, view.failures, view.is_stale, view.outcome)
    labels = steady[0].labels
    age = Metric("rankmend_collector_age_seconds", view.age_s, labels)
    if view.duration_s is None:
        return (age, *steady)
    duration = Metric("rankmend_collector_duration_seconds", view.duration_s, labels)
    return (age, duration, *steady)


def page_metrics(view: CollectorView) -> tuple[Metric, ...]:
    """Return the page's series about a collector: none if this node does not have its source.

    Half of the collectors of an ordinary node have none. One that hangs is shown all the same.
    """
    if view.outcome is CollectorOutcome.ABSENT and not view.is_stale:
        return ()
    return runner_metrics(view)


@lru_cache(maxsize=256)  # about 45 collectors; nearly always the same objects again
def _steady_metrics(
    name: str, failures: int, is_stale: bool, outcome: CollectorOutcome
) -> tuple[Metric, ...]:
    labels = (("collector", name),)
    metrics = [
        Metric("rankmend_collector_failures_total", failures, labels),
        Metric("rankmend_collector_stale", int(is_stale), labels),
    ]
    if outcome is not CollectorOutcome.PENDING:
        present = outcome is not CollectorOutcome.ABSENT
        metrics.append(Metric("rankmend_collector_present", int(present), labels))
        if present:
            success = outcome is CollectorOutcome.MEASURED
            metrics.append(Metric("rankmend_collector_success", int(success), labels))
    return tuple(metrics)


class Runner:
    """Schedules the collectors. Call `watch` every few seconds."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        clock: Clock,
        schedule: Schedule,
        families: Mapping[str, Family],
        interval_s_by_name: Mapping[str, float],
        disabled: AbstractSet[str] = frozenset(),
        demand: Demand | None = None,
        unread_s: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """``unread_s``: how seldom collectors run until ``demand`` expects a reader; their checks need no more, if any."""
        self._clock = clock
        self._demand = demand
        self._unread_s = unread_s
        self._slots = {
            collector.name: Slot(collector, interval_s_by_name[collector.name], clock, families)
            for collector in collectors
        }
        assert len(self._slots) == len(collectors), "two collectors have the same name"
        self._enabled = set(self._slots) - disabled
        self._schedule = schedule
        self._workers = Workers()
        self._repeated: set[str] = set()  # keys in the schedule

    def start(self) -> None:
        self._repeat()
        self._schedule.start()

    def stop(self) -> None:
        """Stop scheduling. Does not wait for collectors under way: their threads are daemons."""
        self._schedule.stop()
        self._workers.stop()

    def views(self) -> list[CollectorView]:
        now_s = self._clock.now_s()
        return [slot.view(now_s) for name, slot in self._slots.items() if name in self._enabled]

    def hurry(self, *names: str) -> None:
        """Run collectors now, in this order, besides their intervals: something has happened.

        At least `HURRY_S_MIN` after the last run of the last of them began, so that a storm of
        events costs little. May be called from any thread.
        """
        slots = [self._slots[name] for name in names if name in self._enabled]
        if not slots or names[-1] not in self._enabled or not self._schedule.is_running:
            return
        delay_s = max(0.0, HURRY_S_MIN - slots[-1].idle_s(self._clock.now_s()))
        key = f"hurry {','.join(slot.collector.name for slot in slots)}"
        self._schedule.once(key, delay_s, partial(self._run_in_order, slots))

    def unanswered(self) -> tuple[str, ...]:
        """Return the collectors that have not finished a run yet."""
        return tuple(view.name for view in self.views() if view.outcome is CollectorOutcome.PENDING)

    def absent(self) -> tuple[str, ...]:
        """Return the collectors whose source this node does not have."""
        return tuple(view.name for view in self.views() if view.outcome is CollectorOutcome.ABSENT)

    def is_sampling(self) -> bool:
        """Return whether runs still begin: no idle collector is long past its interval."""
        now_s = self._clock.now_s()
        return all(
            slot.is_running
            or slot.idle_s(now_s) <= max(LATE_INTERVALS * slot.interval_s, LATE_S_MIN)
            for name, slot in self._slots.items()
            if name in self._enabled
        )

    def collect_once(self, timeout_s: float, names: AbstractSet[str] | None = None) -> None:
        """Run all collectors, or these, once and at the same time; wait at most ``timeout_s``."""
        threads = [
            Thread(target=self._slots[name].run, name=f"collect-{name}", daemon=True)
            for name in (self._enabled if names is None else self._enabled & names)
        ]
        for thread in threads:
            thread.start()
        deadline_s = self._clock.now_s() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline_s - self._clock.now_s()))

    def watch(self) -> None:
        """Log collectors that have become stale, and mend the schedule if the clock was set back."""
        self._schedule.watch()
        now_s = self._clock.now_s()
        for name, slot in self._slots.items():
            if name in self._enabled and slot.has_staleness_changed(now_s):
                slot.log_staleness(slot.view(now_s))

    def reload(self, interval_s_by_name: Mapping[str, float], disabled: AbstractSet[str]) -> None:
        """Take over new intervals and a new set of disabled collectors while running."""
        for name, slot in self._slots.items():
            slot.interval_s = interval_s_by_name[name]
            if name not in disabled and name not in self._enabled:
                slot.forget()
        self._enabled = set(self._slots) - disabled
        self._repeat()

    def _repeat(self) -> None:
        """Schedule all enabled collectors. Those with the same interval share one wake-up."""
        by_interval_s: dict[float, list[Slot]] = {}
        for name, slot in self._slots.items():
            if name in self._enabled:
                by_interval_s.setdefault(slot.interval_s, []).append(slot)
        for key in self._repeated:
            self._schedule.remove(key)
        self._repeated = {f"every {interval_s} s" for interval_s in by_interval_s}
        for interval_s, slots in by_interval_s.items():
            run_each = partial(self._run_each, slots)
            self._schedule.repeat(f"every {interval_s} s", interval_s, run_each)

    def _run_each(self, slots: Iterable[Slot]) -> None:
        """Let each collector run by itself; a collector that still runs is left alone."""
        idle = [slot for slot in slots if not slot.is_running and self._is_wanted(slot)]
        for slot in idle:
            if not slot.is_quick():
                self._workers.submit(slot.collector.name, slot.run, is_quick=False)
        self._workers.submit_quick([slot.run for slot in idle if slot.is_quick()])

    def _is_wanted(self, slot: Slot) -> bool:
        """Return whether a check needs this run of a collector, or somebody may read it before the next one."""
        if slot.may_wait(self._clock.now_s()):
            return False
        unread_s = self._unread_s.get(slot.collector.name)
        if self._demand is None or unread_s is None or slot.is_pending:
            return True
        # due times are kept to some milliseconds
        is_due = slot.idle_s(self._clock.now_s()) >= unread_s - 0.5
        return is_due or self._demand.is_expected(0.0, slot.interval_s)

    def _run_in_order(self, slots: Sequence[Slot]) -> None:
        def run() -> None:
            for slot in slots:
                slot.run()

        is_quick = all(slot.is_quick() for slot in slots)
        self._workers.submit(slots[-1].collector.name, run, is_quick=is_quick)
