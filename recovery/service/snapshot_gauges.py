"""The controller's series of what jobs keep in memory, and of how old the newest restorable state is."""

import contextlib

from prometheus_client import CollectorRegistry, Gauge

from rankmend.unsaved import Unsaved
from recovery.api.wire import SnapshotView, UnsavedView
from recovery.journal.accounting import Tier


class SnapshotGauges:
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
