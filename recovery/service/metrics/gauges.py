"""The controller's series of alert names, watched jobs and snapshots."""

import contextlib
from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from rankmend.rank_values import Unsaved
from recovery.api.wire import SnapshotView, UnsavedView
from recovery.controller.cluster.node_names import NoMatch
from recovery.controller.cluster.unmatched_names import ToldNames
from recovery.journal.accounting import Tier
from recovery.messages.outside import NameMatch

_MATCHES: Final = (NameMatch.CASE, NameMatch.SHORT, NameMatch.ADDRESS)


class NameGauges:
    """Alerts that name nodes otherwise than launchers do."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._matched = Gauge(
            f"{prefix}_alerts_matched",
            "Firing alerts whose node its launcher calls otherwise, by how they were matched: case, short, address.",
            ("match",),
            registry=registry,
        )
        self._unmatched = Gauge(
            f"{prefix}_alerts_unmatched",
            "Firing alerts whose node is no launcher's, by reason: unknown, ambiguous, domain, limits, unheard. They count for no job.",
            ("reason",),
            registry=registry,
        )
        self.note(ToldNames())

    def note(self, reported: ToldNames) -> None:
        """Take what the newest look at the alerts has found."""
        for match in _MATCHES:
            self._matched.labels(match.value).set(reported.alerts_matched.get(match, 0))
        for reason in NoMatch:
            self._unmatched.labels(reason.value).set(reported.alerts_unmatched.get(reason, 0))


class WatchedGauges:
    """Jobs that other launchers have started."""

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


class SnapshotGauges:
    """The snapshots that jobs hold in memory, and the age of the newest restorable state."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{prefix}_{name}", text, ("job_id", *labels), registry=registry)

        self._age_s = gauge(
            "restorable_age_seconds",
            "Age of the newest state that a failure could restore, by job_id and tier: memory (the ranks' snapshots), peer (their copies on other nodes), checkpoint.",
            "tier",
        )
        self._unsaved_s = gauge(
            "unsaved_seconds",
            "For how long a job has trained and saved nothing where checkpoints are looked for, by job_id and cause: nothing_found, none_valid, none_newer; no series before save_wait_s, and none of a job without --checkpoint-dir.",
            "cause",
        )
        self._held_bytes = gauge(
            "snapshot_held_bytes",
            "Memory that the ranks' snapshots and their copies take on all nodes, by job_id.",
        )
        self._copied_bytes = gauge(
            "snapshot_copied_bytes",
            "Memory that copies of other nodes' snapshots take on all nodes, by job_id.",
        )
        self._stall_s = gauge(
            "snapshot_stall_seconds",
            "For how long a snapshot stops training, on the slowest rank, by job_id.",
        )
        self._interval_s = gauge(
            "snapshot_interval_seconds", "Usual time from one snapshot to the next, by job_id."
        )
        self._best_s = gauge(
            "snapshot_best_interval_seconds",
            "Interval at which snapshots cost least (Young/Daly, for failures that leave the nodes), by job_id.",
        )

    def note_age(self, job_id: str, tier: Tier, age_s: float | None) -> None:
        """Record the age of a tier's newest restorable state; None: it has none."""
        _set(self._age_s, age_s, job_id, tier.value)

    def note_unsaved(self, job_id: str, view: UnsavedView | None) -> None:
        """Record for how long a job has saved nothing; None: it saves."""
        for cause in Unsaved:
            is_it = view is not None and view.cause == cause.value
            _set(self._unsaved_s, view.since_s if view and is_it else None, job_id, cause.value)

    def note(self, job_id: str, view: SnapshotView | None) -> None:
        """Record what a job's ranks keep in memory; None: they keep nothing."""
        best = None if view is None else view.best
        for gauge, value in (
            (self._held_bytes, None if view is None else view.held_bytes),
            (self._copied_bytes, None if view is None else view.copied_bytes),
            (self._stall_s, None if view is None else view.stall_s),
            (self._interval_s, None if view is None else view.interval_s),
            (self._best_s, None if best is None else best.interval_s),
        ):
            _set(gauge, value, job_id)
        self.note_age(job_id, Tier.MEMORY, None if view is None else view.age_s)
        self.note_age(job_id, Tier.PEER, None if view is None else view.copied_age_s)


def _set(gauge: Gauge, value: float | None, *labels: str) -> None:
    if value is not None:
        gauge.labels(*labels).set(value)
        return
    with contextlib.suppress(KeyError):  # it never had one
        gauge.remove(*labels)
