"""Runs one collector and holds its newest answer.

A collector that raises stops nothing but itself, and a collector that hangs is never started a second time.
Its last values stay with their age and are dropped once they are too old: missing data is never
healthy. Readers of the values never wait for the collector.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from threading import Lock
from time import perf_counter
from typing import Final, NamedTuple, NewType, Protocol

from agent.metrics import Family, Metric
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

log = logging.getLogger(__name__)

Revision = NewType("Revision", int)
"""Numbers the changes of one collector's answers. It only grows while the agent runs."""

NEVER: Final = Revision(0)  # before the first answer

STALE_INTERVALS: Final = 5  # missed runs in a row, as many as gpud wants before a verdict
STALE_S_MIN: Final = 10.0  # two scrapes at the usual 5 s
QUICK_S_MAX: Final = 0.05  # for a run that may delay others; nearly all take under 5 ms
QUICK_INTERVAL_S_MAX: Final = (
    10.0  # collectors that run less often read slow sources: BMCs, servers, D-Bus
)
ABSENT_S: Final = 5.0  # how often a source that the node lacks is looked for: half of the node's collectors have none
SERIES_MAX: Final = 10_000  # per collector; a node has about 2,000 in all (limits, section B)


@dataclass(frozen=True, slots=True)
class CollectorAnswer:
    """The newest samples of one collector, with the revision at which each last changed.

    Equal revisions of one collector mean equal samples. Of a node's 2,600 series some 300 change
    from one second to the next: readers (the page, the findings) store the revision that they have
    seen and skip everything that is not newer.
    """

    metrics: tuple[Metric, ...] = ()
    revision: Revision = NEVER  # when a sample last changed
    layout: Revision = NEVER  # when the names, the labels or the order of the samples last changed
    changed_at: Sequence[Revision] = field(default=(), repr=False)  # one revision per sample


NO_ANSWER: Final = CollectorAnswer()


def revise(
    before: CollectorAnswer, metrics: tuple[Metric, ...], revision: Revision
) -> CollectorAnswer:
    """Return the answer with these samples; ``before`` itself where none differs.

    ``revision`` is newer than every one of ``before``. Unchanged samples are kept as objects, so that
    nobody holds copies of them.
    """
    old = before.metrics
    if len(metrics) != len(old):
        return _new_layout(metrics, revision)
    changed = [
        place
        for place, (new, was) in enumerate(zip(metrics, old, strict=True))
        if new is not was and new != was  # most are the same objects
    ]
    if not changed:
        return before
    for place in changed:
        new, was = metrics[place], old[place]
        if new.name != was.name or new.labels != was.labels:
            return _new_layout(metrics, revision)
    retained, changed_at = list(old), list(before.changed_at)
    for place in changed:
        retained[place], changed_at[place] = metrics[place], revision
    return CollectorAnswer(tuple(retained), revision, before.layout, changed_at)


def _new_layout(metrics: tuple[Metric, ...], revision: Revision) -> CollectorAnswer:
    return CollectorAnswer(metrics, revision, revision, [revision] * len(metrics))


class Collector(Protocol):
    """Reads one source. `collect` runs in a thread of its own and may block."""

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float:
        """Seconds between runs if the configuration has no value."""
        ...

    def collect(self) -> Iterable[Metric]:
        """Return the values, or raise NoSourceError (absent) or SourceError (broken).

        The same tuple as in the run before means that no value has changed.
        """
        ...


class CollectorOutcome(Enum):
    PENDING = "pending"  # no run has finished yet
    MEASURED = "measured"
    ABSENT = "absent"
    BROKEN = "broken"


class CollectorView(NamedTuple):  # a hundred a second: four times cheaper to make than a dataclass
    """One collector as it stands now."""

    name: str
    interval_s: float
    outcome: CollectorOutcome
    error: str  # why absent or broken; else empty
    age_s: float  # age of its newest answer, or of the agent if there is none
    duration_s: float | None  # the last finished run; None: none yet
    running_s: float | None  # the run in progress; None: none
    idle_s: float  # since the newest run began, or since the agent started
    failures: int
    is_stale: bool
    answer: CollectorAnswer  # without samples once stale
    answered_at_s: float | None = None  # when the run of the answer began; None: not known

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.answer.metrics


class Slot:
    """One collector with its newest answer."""

    def __init__(
        self,
        collector: Collector,
        interval_s: float,
        clock: Clock,
        families: Mapping[str, Family],
    ) -> None:
        self.collector = collector
        self._name = collector.name
        self._families = families
        self.interval_s = interval_s
        self._clock = clock
        self._lock = Lock()  # never held during a run of the collector
        self._outcome = CollectorOutcome.PENDING
        self._error = ""
        self._answer = NO_ANSWER
        self._given: Iterable[Metric] = ()  # what the answer was made of
        self._runs = 0
        self._answered_at_s = clock.now_s()
        self._duration_s: float | None = None
        self._is_running = False
        self._began_at_s = clock.now_s()
        self._failures = 0
        self._was_stale = False
        self._absent_view: CollectorView | None = None  # as of its last run

    def run(self) -> None:
        """Run the collector once and keep what it answers. Never raises."""
        began_at_s = self._clock.now_s()
        with self._lock:
            if self._is_running:
                return  # still stuck in an earlier run
            self._is_running, self._began_at_s = True, began_at_s
            self._absent_view = None
        began_s = perf_counter()
        traceback: BaseException | None = None
        try:
            answer = self._read(self._answer)
            outcome, error_text = CollectorOutcome.MEASURED, ""
        except NoSourceError as error:
            answer, outcome, error_text = NO_ANSWER, CollectorOutcome.ABSENT, str(error)
        except SourceError as error:
            answer, outcome, error_text = NO_ANSWER, CollectorOutcome.BROKEN, _text_of(error)
        except Exception as error:  # noqa: BLE001 - one collector is isolated from the others
            answer, outcome, error_text = NO_ANSWER, CollectorOutcome.BROKEN, _text_of(error)
            traceback = error
        with self._lock:
            is_first = self._outcome is CollectorOutcome.PENDING
            # the main loop names at once what is absent from the start
            changed = outcome is not self._outcome and not (
                is_first and outcome is not CollectorOutcome.BROKEN
            )
            self._outcome, self._error = outcome, error_text
            self._duration_s = perf_counter() - began_s
            self._is_running = False
            if outcome is CollectorOutcome.BROKEN:
                self._failures += 1
            else:  # the values may be as old as the start of the run that read them
                self._answer, self._answered_at_s = answer, began_at_s
        if changed:
            self._log_outcome(outcome, error_text, traceback)

    def _read(self, before: CollectorAnswer) -> CollectorAnswer:
        """Run the collector and return its answer, or raise for an answer that is not allowed."""
        self._runs += 1
        given = self.collector.collect()
        if given is self._given and given and isinstance(given, tuple) and before is not NO_ANSWER:
            return before
        self._given = ()
        metrics = tuple(islice(given, SERIES_MAX + 1))
        if len(metrics) > SERIES_MAX:
            raise SourceError(f"more than {SERIES_MAX} series")
        answer = revise(before, metrics, Revision(self._runs))
        if answer.layout != before.layout:  # else these are the series that were checked before
            check_series(metrics, self._families)
        self._given = given if isinstance(given, tuple) else ()
        return answer

    @property
    def is_pending(self) -> bool:
        """Whether it has never answered."""
        return self._outcome is CollectorOutcome.PENDING

    @property
    def is_running(self) -> bool:
        return self._is_running

    def may_wait(self, now_s: float) -> bool:
        """Return whether its source was missing a moment ago: it is looked for each `ABSENT_S`."""
        if self._outcome is not CollectorOutcome.ABSENT:
            return False
        # due times are kept to some milliseconds
        return self.idle_s(now_s) < ABSENT_S - min(0.5, self._interval_s / 2)

    def is_quick(self) -> bool:
        """Return whether the last run was so short that others may wait for the next one."""
        duration_s = self._duration_s
        return (
            duration_s is not None
            and duration_s <= QUICK_S_MAX
            and self.interval_s <= QUICK_INTERVAL_S_MAX
        )

    def view(self, now_s: float) -> CollectorView:
        with self._lock:  # by comparisons and by place: 60 views are made each second
            absent = self._absent_view
            if absent is not None and now_s - self._began_at_s <= ABSENT_S:
                return absent  # nothing of it is shown, its age included
            age_s = now_s - self._answered_at_s
            idle_s = now_s - self._began_at_s
            is_stale = age_s > self._stale_s
            view = CollectorView(
                self._name,
                self._interval_s,
                self._outcome,
                self._error,
                age_s if age_s > 0.0 else 0.0,
                self._duration_s,
                None if not self._is_running else idle_s if idle_s > 0.0 else 0.0,
                idle_s if idle_s > 0.0 else 0.0,
                self._failures,
                is_stale,
                NO_ANSWER if is_stale else self._answer,
                self._answered_at_s,
            )
            if self._outcome is CollectorOutcome.ABSENT and not self._is_running and not is_stale:
                self._absent_view = view
            return view

    @property
    def interval_s(self) -> float:
        return self._interval_s

    @interval_s.setter
    def interval_s(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._stale_s = max(STALE_INTERVALS * interval_s, STALE_S_MIN)

    def idle_s(self, now_s: float) -> float:
        """Return how long ago the newest run began, or the agent if there was none."""
        return max(0.0, now_s - self._began_at_s)

    def has_staleness_changed(self, now_s: float) -> bool:
        """Return whether `log_staleness` would log something; without a view, which is dear."""
        return self._is_stale(now_s - self._answered_at_s) != self._was_stale

    def _is_stale(self, age_s: float) -> bool:
        return age_s > self._stale_s

    def forget(self) -> None:
        """Drop the answer: the collector was disabled and begins anew."""
        with self._lock:
            self._absent_view = None
            self._outcome, self._error, self._answer = CollectorOutcome.PENDING, "", NO_ANSWER
            self._answered_at_s = self._began_at_s = self._clock.now_s()

    def log_staleness(self, view: CollectorView) -> None:
        if view.is_stale == self._was_stale:
            return
        self._was_stale = view.is_stale
        fields = {"collector": view.name, "age_s": round(view.age_s, 1)}
        if view.is_stale:
            log.error("collector is stale; its values are dropped", extra=fields)
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


def check_series(metrics: Sequence[Metric], families: Mapping[str, Family]) -> None:
    """Raise SourceError for a duplicate series. An undeclared one is a bug in the collector."""
    seen = set()
    for metric in metrics:
        family = families.get(metric.name)
        assert family is not None, f"{metric.name} is declared in no collector"
        names = tuple(name for name, _value in metric.labels)
        assert names == family.labels, f"{metric.name} has the labels {names}"
        seen.add((metric.name, metric.labels))
    if len(seen) != len(metrics):  # Prometheus would refuse the whole page
        raise SourceError(f"{len(metrics) - len(seen)} series twice")


def _text_of(error: BaseException) -> str:
    cause = f": {error.__cause__}" if error.__cause__ else ""
    name = "" if isinstance(error, SourceError) else f"{type(error).__name__}: "
    return f"{name}{error}{cause}"
