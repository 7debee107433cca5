"""The controller's metrics of jobs that other launchers have started."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge


class WatchedGauges:
    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._jobs = Gauge(
            f"{prefix}_watched_jobs",
            "Jobs of other launchers that agents report, by state.",
            ("state",),
            registry=registry,
        )
        self._troubles = Counter(
            f"{prefix}_watched_troubles",
            "Times that a watched job was found hung or slow, by state. Divided by jobs and days: alarms per job-day.",
            ("state",),
            registry=registry,
        )
        self._counted: dict[str, int] = {}

    def note(self, counts: Mapping[str, int], troubles: Mapping[str, int]) -> None:
        """Record the jobs by state, and how often trouble has begun since the start."""
        for state, count in counts.items():
            self._jobs.labels(state).set(count)
        for state, total in troubles.items():
            self._troubles.labels(state).inc(total - self._counted.get(state, 0))
        self._counted = dict(troubles)
