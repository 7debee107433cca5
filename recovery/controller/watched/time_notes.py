"""The records of watched jobs from which their time is accounted: one for each change, and one now and then.

For the deciding thread: a job of which nothing changed costs a comparison.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from recovery.controller.watched.job_watch import JobWatch
from recovery.controller.watched.verdict import WatchedState
from recovery.journal.watched_records import (
    WatchedSeen,
    WatchedStood,
    WatchedTimeRecord,
    WatchedWorked,
)

# Between two notes of a job of which nothing changes but its step: of the age of its processes, and in seconds.
_AGAIN_RATIO: Final = 0.02
_AGAIN_S_MIN: Final = 10.0
_AGAIN_S_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class TimeNote:
    """A record, and the moment for which it holds, by the monotonic clock."""

    record: WatchedTimeRecord
    at_s: float


@dataclass(frozen=True, slots=True)
class _NotedJob:
    state: WatchedState
    run: int
    world_size: int
    ranks: tuple[int, ...]
    at_s: float


class TimeNotes:
    def __init__(self) -> None:
        self._told: dict[str, _NotedJob] = {}

    def note(self, job: JobWatch, heard_s: float, at_s: float) -> Iterator[TimeNote]:
        """Return the records due of a job that was just judged.

        ``heard_s``: now by the clock of `JobWatch`, which stands still while no report arrives; ``at_s``: by the true one.
        """
        verdict, reported = job.verdict, self._told.get(job.job_id)
        if reported is not None and (
            reported.state,
            reported.run,
            reported.world_size,
            reported.ranks,
        ) == (
            verdict.state,
            job.run,
            job.world_size,
            verdict.ranks,
        ):
            again_s = _AGAIN_RATIO * (heard_s - job.begun_at_s)
            if at_s - reported.at_s < min(_AGAIN_S_MAX, max(_AGAIN_S_MIN, again_s)):
                return
        if reported is None:
            yield TimeNote(seen(job), at_s)
        self._told[job.job_id] = _NotedJob(
            verdict.state, job.run, job.world_size, verdict.ranks, at_s
        )
        yield TimeNote(stood(job, heard_s), at_s)
        work, steps = job.work.take(heard_s), job.steps.take()
        if work is not None or steps is not None:
            yield TimeNote(WatchedWorked(job.job_id, 0.0, job.run, work, steps), at_s)

    def forget(self, job: JobWatch, heard_s: float, at_s: float) -> Iterator[TimeNote]:
        """Return the record of a job that is forgotten: it ended at its last report."""
        if self._told.pop(job.job_id, None) is not None:
            state_s = max(0.0, heard_s - job.since_s)
            yield TimeNote(
                WatchedStood(
                    job.job_id, 0.0, WatchedState.ENDED.value, state_s, job.world_size, job.run
                ),
                at_s,
            )


def seen(job: JobWatch) -> WatchedSeen:
    return WatchedSeen(job.job_id, job.name, job.user, job.launcher, job.slurm_job)


def stood(job: JobWatch, heard_s: float) -> WatchedStood:
    """Return what a job does now."""
    verdict = job.verdict
    finding = verdict.findings[0] if verdict.findings else None
    ranks = verdict.ranks
    return WatchedStood(
        job_id=job.job_id,
        look_age_s=0.0,
        state=verdict.state.value,
        age_s=max(0.0, heard_s - max(job.since_s, job.begun_at_s)),
        devices=job.world_size,
        run=job.run,
        step=job.observation.newest_step,
        highest_before=job.highest_before,
        is_relative=job.observation.is_relative,
        step_s=job.step_s(),
        youngest_age_s=job.youngest_age_s(heard_s),
        fault_age_s=0.0 if finding is None else finding.since_age_s,
        ranks=ranks[:64],
        node="" if finding is None else finding.node,
        section="" if finding is None else finding.symptom.detail[:64],
        step_factor=job.slow.step_factor_of(ranks[0]) if ranks else 0.0,
    )
