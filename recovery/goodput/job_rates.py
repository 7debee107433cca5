"""How fast a job is now, by the newest work that its ranks told. Pure."""

from dataclasses import dataclass

from recovery.goodput.job_time import JobTime, WorkTime
from recovery.goodput.throughput import Throughput, throughput_of
from recovery.goodput.timeline import TRAINING, TimePart

_RUNS = frozenset({*TRAINING, TimePart.CHECKPOINT})


@dataclass(frozen=True, slots=True)
class JobRates:
    """Rates of the whole job; None: its ranks do not tell that, or it does not train now."""

    flops_per_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    mfu_ratio: float | None = None


def rates_of(job: JobTime) -> JobRates:
    """Return the rates since the record of work before the newest."""
    if not (job.work and job.spans) or job.spans[-1].part not in _RUNS:
        return JobRates()
    newest = job.work[-1]
    if not _is_of_now(job, newest):
        return JobRates()
    now: Throughput | None = throughput_of(
        [JobTime(job.job_id, job.name, job.began_unix_s, (), (), (), (), (newest,))]
    )
    if now is None:
        return JobRates()
    return JobRates(now.flops_per_s, now.tokens_per_s, now.samples_per_s, now.mfu_ratio)


def _is_of_now(job: JobTime, newest: WorkTime) -> bool:
    """Return whether these ranks have done that work, and not those before them."""
    if not job.is_watched:
        return bool(job.attempts) and newest.begin_s >= job.attempts[-1].ordered_s
    stood = (span.end_s for span in job.spans if span.part not in _RUNS)
    return newest.end_s > max(stood, default=0.0)
