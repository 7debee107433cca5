"""Runs each collector on its own interval, isolated from all others.

Rules: a collector that raises or hangs stops nothing but itself, and is never started a second
time while it hangs. Its last values stay on the page with their age, and are dropped once they
are too old: missing data is never healthy. Nobody who asks for the values waits for a collector.
"""

import logging
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache
from itertools import islice
from threading import Condition, Lock, Thread, current_thread
from time import perf_counter
from typing import Any, Final, Protocol

from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from agent.metrics import Family, Metric, counter, gauge
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

INTERVAL_S_MIN: Final = 0.1  # ten runs a second cost about 2 % of a core (bench/agent_cost.py)
INTERVAL_S_MAX: Final = 3600.0
STALE_INTERVALS: Final = 5  # missed runs in a row, as many as gpud asks for before a verdict
STALE_S_MIN: Final = 10.0  # two scrapes at the usual 5 s
LATE_INTERVALS: Final = 2 * STALE_INTERVALS  # `watch` has woken it by then, and in vain
LATE_S_MIN: Final = 10.0  # a stall of a busy machine is shorter
QUICK_S_MAX: Final = 0.05  # of a run that may hold up others; nearly all take under 5 ms
QUICK_INTERVAL_S_MAX: Final = 5.0  # what runs less often asks slow things: BMCs, servers, D-Bus
STUCK_S: Final = 0.5  # of a quick run, until the others get another thread
HURRY_S_MIN: Final = 0.2  # between a run and one out of turn: at most 5 more a second
_HURRIED: Final = "!"  # at the end of the name of a job that runs collectors out of turn
_THEN: Final = ","  # between their names
SERIES_MAX: Final = 10_000  # of one collector; a node has about 2,000 in all (limits, section B)

log = logging.getLogger(__name__)

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "collector_success",
        "",
        ("collector",),
        "1 when the last finished run measured, 0 when its source was broken; no series when the node has no such source.",
    ),
    gauge(
        "collector_present",
        "",
        ("collector",),
        "1 when this node has the collector's source, 0 when it has none.",
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
    counter("collector_failures", "", ("collector",), "Runs that found their source broken."),
    gauge(
        "collector_stale",
        "",
        ("collector",),
        "1 when the newest answer is so old that its values have left the page.",
    ),
)


class Collector(Protocol):
    """Reads one source. `collect` runs in a thread of its own and may block."""

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float:
        """Seconds between runs where the configuration says nothing."""
        ...

    def collect(self) -> Iterator[Metric]:
        """Return the values, or raise NoSourceError (absent) or SourceError (broken)."""
        ...


class CollectorOutcome(Enum):
    PENDING = "pending"  # no run has finished yet
    MEASURED = "measured"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class CollectorView:
    """One collector as it stands now."""

    name: str
    interval_s: float
    outcome: CollectorOutcome
    error: str  # why absent or broken; else empty
    age_s: float  # of its newest answer, or of the agent where there has been none
    duration_s: float | None  # of the last finished run
    running_s: float | None  # of the run under way
    idle_s: float  # since the newest run began, or since the agent started
    failures: int
    is_stale: bool
    metrics: tuple[Metric, ...]  # empty once stale


def runner_metrics(view: CollectorView) -> tuple[Metric, ...]:
    """Return what the runner says of one collector."""
    steady = _steady_metrics(view.name, view.failures, view.is_stale, view.outcome)
    labels = steady[0].labels
    age = Metric("rankmend_collector_age_seconds", view.age_s, labels)
    if view.duration_s is None:
        return (age, *steady)
    duration = Metric("rankmend_collector_duration_seconds", view.duration_s, labels)
    return (age, duration, *steady)


@lru_cache(maxsize=256)  # of some 45 collectors; nearly always the same objects again
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


class Slot:
    """One collector with the newest that it has answered."""

    def __init__(
        self,
        collector: Collector,
        interval_s: float,
        clock: Clock,
        families: Mapping[str, Family],
    ) -> None:
        self.collector = collector
        self._families = families
        self.interval_s = interval_s
        self._clock = clock
        self._lock = Lock()  # never held during a run of the collector
        self._outcome = CollectorOutcome.PENDING
        self._error = ""
        self._metrics: tuple[Metric, ...] = ()
        self._answered_at_s = clock.now_s()
        self._duration_s: float | None = None
        self._is_running = False
        self._began_at_s = clock.now_s()
        self._failures = 0
        self._was_stale = False

    def run(self) -> None:
        """Run the collector once and keep what it answers. Never raises."""
        began_at_s = self._clock.now_s()
        with self._lock:
            if self._is_running:
                return  # still stuck in an earlier run
            self._is_running, self._began_at_s = True, began_at_s
        began_s = perf_counter()
        traceback: BaseException | None = None
        try:
            metrics = _checked(self.collector.collect(), self._metrics, self._families)
            outcome, error_text = CollectorOutcome.MEASURED, ""
        except NoSourceError as error:
            metrics, outcome, error_text = (), CollectorOutcome.ABSENT, str(error)
        except SourceError as error:
            metrics, outcome, error_text = (), CollectorOutcome.BROKEN, _text_of(error)
        except Exception as error:  # noqa: BLE001 - one collector is isolated from the others
            metrics, outcome, error_text = (), CollectorOutcome.BROKEN, _text_of(error)
            traceback = error
        with self._lock:
            is_first = self._outcome is CollectorOutcome.PENDING
            changed = outcome is not self._outcome and not (
                is_first and outcome is CollectorOutcome.MEASURED
            )
            self._outcome, self._error = outcome, error_text
            self._duration_s = perf_counter() - began_s
            self._is_running = False
            if outcome is CollectorOutcome.BROKEN:
                self._failures += 1
            else:  # the values may be as old as the start of the run that read them
                self._metrics, self._answered_at_s = metrics, began_at_s
        if changed:
            self._log_outcome(outcome, error_text, traceback)

    def is_quick(self) -> bool:
        """Tell whether the last run was so short that others may wait for the next one."""
        duration_s = self._duration_s
        return (
            duration_s is not None
            and duration_s <= QUICK_S_MAX
            and self.interval_s <= QUICK_INTERVAL_S_MAX
        )

    def view(self, now_s: float) -> CollectorView:
        with self._lock:
            age_s = max(0.0, now_s - self._answered_at_s)
            is_stale = age_s > max(STALE_INTERVALS * self.interval_s, STALE_S_MIN)
            idle_s = max(0.0, now_s - self._began_at_s)
            return CollectorView(
                name=self.collector.name,
                interval_s=self.interval_s,
                outcome=self._outcome,
                error=self._error,
                age_s=age_s,
                duration_s=self._duration_s,
                running_s=idle_s if self._is_running else None,
                idle_s=idle_s,
                failures=self._failures,
                is_stale=is_stale,
                metrics=() if is_stale else self._metrics,
            )

    def forget(self) -> None:
        """Drop what was answered: the collector has been off and begins anew."""
        with self._lock:
            self._outcome, self._error, self._metrics = CollectorOutcome.PENDING, "", ()
            self._answered_at_s = self._began_at_s = self._clock.now_s()

    def log_staleness(self, view: CollectorView) -> None:
        if view.is_stale == self._was_stale:
            return
        self._was_stale = view.is_stale
        fields = {"collector": view.name, "age_s": round(view.age_s, 1)}
        if view.is_stale:
            log.error("collector is stale, its values are dropped", extra=fields)
        else:
            log.info("collector answers again", extra=fields)

    def _log_outcome(
        self, outcome: CollectorOutcome, error_text: str, traceback: BaseException | None
    ) -> None:
        fields = {"collector": self.collector.name, "outcome": outcome.value}
        if error_text:
            fields["error"] = error_text
        level = logging.WARNING if outcome is CollectorOutcome.BROKEN else logging.INFO
        log.log(level, "collector changed", extra=fields, exc_info=traceback)


def _checked(
    metrics: Iterator[Metric], before: tuple[Metric, ...], families: Mapping[str, Family]
) -> tuple[Metric, ...]:
    collected = tuple(islice(metrics, SERIES_MAX + 1))
    if len(collected) > SERIES_MAX:
        raise SourceError(f"more than {SERIES_MAX} series")
    if len(collected) == len(before):
        # a sample that is as before stays the same object: who reads answers passes over it
        pairs = zip(collected, before, strict=True)
        collected = tuple([old if new == old else new for new, old in pairs])
        if all(map(operator.is_, collected, before)):
            return before
        if all(
            new is old or (new.name == old.name and new.labels == old.labels)
            for new, old in zip(collected, before, strict=True)
        ):
            return collected  # the series of the last answer, which were checked
    seen = set()
    for metric in collected:
        family = families.get(metric.name)
        assert family is not None, f"{metric.name} is declared in no collector"
        names = tuple(name for name, _value in metric.labels)
        assert names == family.labels, f"{metric.name} has the labels {names}"
        seen.add((metric.name, metric.labels))
    if len(seen) != len(collected):  # Prometheus would refuse the whole page
        raise SourceError(f"{len(collected) - len(seen)} series twice")
    return collected


def _text_of(error: BaseException) -> str:
    cause = f": {error.__cause__}" if error.__cause__ else ""
    name = "" if isinstance(error, SourceError) else f"{type(error).__name__}: "
    return f"{name}{error}{cause}"


class _Trigger(IntervalTrigger):  # type: ignore[misc]  # apscheduler has no types
    """Skips the runs that were missed.

    The plain trigger lists them all: when the clock of a node that booted in 1970 is set right,
    that list does not end.
    """

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> Any:
        due_at = super().get_next_fire_time(previous_fire_time, now)
        return due_at if due_at > now else now + self.interval


class _DaemonExecutor(BaseExecutor):  # type: ignore[misc]
    """Runs quick jobs one after another in one daemon thread, each other one in a thread of its own.

    A thread for each of a second's dozen jobs was a sixth of the agent's CPU. A quick job that
    hangs keeps the others waiting until the next submission, which gives them another thread. All
    are daemons: one stuck in a driver can't hold up the agent's exit.
    """

    def __init__(self, is_quick: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_quick = is_quick
        self._turn = Condition()  # guards everything below
        self._waiting: deque[Callable[[], None]] = deque()
        self._worker: Thread | None = None
        self._busy_since_s: float | None = None

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        with self._turn:
            busy_since_s = self._busy_since_s
            if busy_since_s is not None and perf_counter() - busy_since_s > STUCK_S:
                self._start_worker()
        super().submit_job(job, run_times)

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002 - never waits: daemons
        with self._turn:
            self._worker = None
            self._turn.notify_all()

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        def run() -> None:
            events = run_job(job, job._jobstore_alias, run_times, self._logger.name)
            self._run_job_success(job.id, events)

        if not self._is_quick(job.id):
            Thread(target=run, name=f"collect-{job.id}", daemon=True).start()
            return
        with self._turn:
            self._waiting.append(run)
            if self._worker is None:
                self._start_worker()
            elif self._busy_since_s is None and len(self._waiting) == 1:
                self._turn.notify_all()

    def _start_worker(self) -> None:
        """Let a new thread do what waits; the one before, if any, ends after its job."""
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


class Runner:
    """Schedules the collectors. Call `watch` about once a second."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        clock: Clock,
        families: Mapping[str, Family],
        interval_s_by_name: Mapping[str, float],
        disabled: AbstractSet[str] = frozenset(),
    ) -> None:
        self._clock = clock
        self._slots = {
            collector.name: Slot(collector, interval_s_by_name[collector.name], clock, families)
            for collector in collectors
        }
        assert len(self._slots) == len(collectors), "two collectors have one name"
        self._enabled = set(self._slots) - disabled
        for name in ("apscheduler.scheduler", "apscheduler.executors.default"):
            # it warns of a stuck job at every interval; `watch` says it once
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._scheduler = BackgroundScheduler(
            timezone=timezone.utc,
            executors={"default": _DaemonExecutor(self._is_quick)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def _is_quick(self, job: str) -> bool:
        names = job.removesuffix(_HURRIED).split(_THEN)
        return all(self._slots[name].is_quick() for name in names)

    def start(self) -> None:
        at = _wall_clock()  # one for all: the scheduler wakes once a second and not for each
        for name in self._enabled:
            self._add_job(self._slots[name], at)
        self._scheduler.start()

    def stop(self) -> None:
        """Stop scheduling. Does not wait for collectors under way: their threads are daemons."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def views(self) -> list[CollectorView]:
        now_s = self._clock.now_s()
        return [slot.view(now_s) for name, slot in self._slots.items() if name in self._enabled]

    def hurry(self, *names: str) -> None:
        """Run collectors now, in this order, beside their intervals: something has happened.

        At least `HURRY_S_MIN` after the last run of the last of them began, so that a storm of
        events costs little. May be called from any thread.
        """
        slots = [self._slots[name] for name in names if name in self._enabled]
        if not slots or names[-1] not in self._enabled or not self._scheduler.running:
            return

        def run() -> None:
            for slot in slots:
                slot.run()

        idle_s = slots[-1].view(self._clock.now_s()).idle_s
        at = _wall_clock() + timedelta(seconds=max(0.0, HURRY_S_MIN - idle_s))
        self._scheduler.add_job(
            run,
            DateTrigger(at, timezone=timezone.utc),
            id=_THEN.join(slot.collector.name for slot in slots) + _HURRIED,
            replace_existing=True,
        )

    def unanswered(self) -> tuple[str, ...]:
        """Return the collectors that have not finished a run yet."""
        return tuple(view.name for view in self.views() if view.outcome is CollectorOutcome.PENDING)

    def is_sampling(self) -> bool:
        """Tell whether runs still begin: nobody idle has waited for long past its interval."""
        return all(
            view.running_s is not None
            or view.idle_s <= max(LATE_INTERVALS * view.interval_s, LATE_S_MIN)
            for view in self.views()
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
        """Log collectors that have become stale, and wake those that the scheduler forgot.

        The scheduler counts in wall-clock time: after the clock was set back by an hour it would
        let an hour pass.
        """
        for view in self.views():
            slot = self._slots[view.name]
            slot.log_staleness(view)
            if view.running_s is None and view.idle_s > STALE_INTERVALS * slot.interval_s:
                self._scheduler.modify_job(view.name, next_run_time=_wall_clock())

    def reload(self, interval_s_by_name: Mapping[str, float], disabled: AbstractSet[str]) -> None:
        """Take over new intervals and a new set of disabled collectors while running."""
        at = _wall_clock()
        for name, slot in self._slots.items():
            slot.interval_s = interval_s_by_name[name]
            if name in self._enabled:
                self._scheduler.remove_job(name)
            if name not in disabled:
                if name not in self._enabled:
                    slot.forget()
                self._add_job(slot, at)
        self._enabled = set(self._slots) - disabled

    def _add_job(self, slot: Slot, at: datetime) -> None:
        self._scheduler.add_job(
            slot.run,
            _Trigger(seconds=slot.interval_s, timezone=timezone.utc),
            id=slot.collector.name,
            next_run_time=at,
        )


def _wall_clock() -> datetime:
    return datetime.now(timezone.utc)
