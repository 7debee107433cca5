"""One rank, as the page /api/v1/ranks shows it."""

from agent.ranks.step_times import measure_steps
from agent.ranks.table import RankSample
from rankmend.errors import SourceError
from rankmend.progress import RankProgress


def describe_rank(sample: RankSample, now_s: float) -> dict[str, object]:
    """Return one rank as the page /api/v1/ranks shows it. Ages are as of ``now_s``."""
    identity = sample.identity
    about: dict[str, object] = {
        "job_id": str(identity.job_id),
        "job_name": sample.job_name,
        "attempt": identity.attempt,
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "world_size": identity.world_size,
        "pid": sample.pid,
        "error": sample.error,
    }
    if sample.progress is None:
        return about
    try:
        return about | _describe_progress(sample.progress, now_s)
    except SourceError as error:
        return about | {"error": str(error)}


def _describe_progress(progress: RankProgress, now_s: float) -> dict[str, object]:
    times = measure_steps(progress.records)
    since_s, last = progress.section_since_s, progress.last
    return {
        "is_attached": progress.pid != 0,
        "is_relative": progress.is_relative,
        "step": last.step if last else None,
        "step_age_s": max(0.0, now_s - last.ended_at_s) if last else None,
        "steps_done": progress.step_count,
        "step_last_s": times.last_s if times else None,
        "step_median_s": times.median_s if times else None,
        "section": progress.section.name.lower(),
        "section_age_s": None if since_s is None else max(0.0, now_s - since_s),
        "collectives_entered": progress.collectives_entered,
        "collectives_completed": progress.collectives_completed,
        "snapshot_step": progress.snapshots and progress.snapshots.newest_step,
    }
