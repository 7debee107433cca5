"""Makes the report on watched jobs that goes to the controller, from the newest samples of their ranks.

Source: the samples of the collector `ranks`; <procfs>/<pid>/stat and schedstat of each rank (proc_pid_stat(5), Linux
        Documentation/scheduler/sched-stats.rst), readable by everybody.
Cost:   two small reads a rank and report, 25 us.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from agent.collectors.ranks import WatchedSamples
from agent.metrics import Metric
from agent.ranks.table import RankSample
from agent.watch.present_jobs import NO_JOBS, JobsHere
from rankmend.progress import RankProgress, Section, StepRecord, ToldWork
from rankmend.watched_report import (
    JOBS_MAX,
    PLACES_MAX,
    RANKS_MAX,
    TIMINGS_MAX,
    ReportedEvidence,
    ReportedJob,
    ReportedRank,
    ReportedStep,
    ReportedWork,
    WatchedReport,
)

_BYTES_MAX: Final = 4096
_TEXT_MAX: Final = 256
_DEAD: Final = "X"  # proc_pid_stat(5)
_GPU_INFO: Final = "rankmend_rank_gpu_info"
_NIC_INFO: Final = "rankmend_rank_nic_info"

RankKey = tuple[str, int]  # job and rank


@dataclass(frozen=True, slots=True)
class RankDevices:
    """The devices on which each rank stands."""

    gpus: Mapping[RankKey, tuple[str, ...]] = field(default_factory=dict)
    nics: Mapping[RankKey, tuple[str, ...]] = field(default_factory=dict)


def places_of(metrics: Iterable[Metric]) -> RankDevices:
    """Return the ranks' devices by the agent's own series."""
    gpus: dict[RankKey, dict[str, None]] = {}
    nics: dict[RankKey, dict[str, None]] = {}
    for metric in metrics:
        if metric.name not in (_GPU_INFO, _NIC_INFO):
            continue
        labels = dict(metric.labels)
        key = labels["job_id"], int(labels["rank"])
        if metric.name == _GPU_INFO:
            gpus.setdefault(key, {})[labels["uuid"] or labels["gpu"]] = None
        else:
            nics.setdefault(key, {})[labels["device"]] = None
    return RankDevices(_bounded(gpus), _bounded(nics))


def _bounded(found: Mapping[RankKey, Mapping[str, None]]) -> dict[RankKey, tuple[str, ...]]:
    return {key: tuple(names)[:PLACES_MAX] for key, names in found.items()}


def make_report(
    node: str,
    view: WatchedSamples,
    now_s: float,
    procfs_root: Path,
    places: RankDevices,
    told_through: Mapping[tuple[str, int, int], int],
    evidence: Mapping[tuple[str, int, int], ReportedEvidence] | None = None,
    here: JobsHere = NO_JOBS,
) -> WatchedReport:
    """Return the report; ``told_through``: by job, rank and pid the last step record that the controller has.

    ``evidence``, by the same: what was collected since the controller requested it. ``here``: jobs of our own launchers.
    """
    living = _by_job(view.samples)
    ended = _by_job(item.sample for item in view.ended)
    known = {job.job_id: job for job in [*view.jobs, *(item.job for item in view.ended)]}
    jobs = []
    for job in islice(known.values(), JOBS_MAX):
        job_id = str(job.job_id)
        ranks = tuple(
            _rank_of(sample, now_s, procfs_root, places, told_through, evidence or {})
            for sample in living.get(job_id, [])[:RANKS_MAX]
        )
        ends = tuple(
            _ended_rank_of(sample, now_s, procfs_root, told_through)
            for sample in ended.get(job_id, [])[:RANKS_MAX]
        )
        jobs.append(
            ReportedJob(
                job_id=job_id,
                name=job.name,
                user=job.user,
                launcher=job.launcher,
                slurm_job=job.slurm_job,
                restarter=job.restarter,
                ranks=ranks,
                ended=ends,
            )
        )
    return WatchedReport(node=node, jobs=tuple(jobs), present=here.present, left=here.left)


def told_by(report: WatchedReport) -> dict[tuple[str, int, int], int]:
    """Return the last step record of each rank that this report tells."""
    return {
        (job.job_id, rank.rank, rank.pid): rank.steps_done
        for job in report.jobs
        for rank in (*job.ended, *job.ranks)
    }


def _by_job(samples: Iterable[RankSample]) -> dict[str, list[RankSample]]:
    found: dict[str, list[RankSample]] = {}
    for sample in samples:
        found.setdefault(str(sample.identity.job_id), []).append(sample)
    return found


def _ended_rank_of(
    sample: RankSample,
    now_s: float,
    procfs_root: Path,
    told_through: Mapping[tuple[str, int, int], int],
) -> ReportedRank:
    rank = _rank_of(sample, now_s, procfs_root, RankDevices(), told_through, {})
    # Its number may be another process's by now.
    return msgspec.structs.replace(rank, process_state=_DEAD, running_s=None, ready_s=None)


def _rank_of(
    sample: RankSample,
    now_s: float,
    procfs_root: Path,
    places: RankDevices,
    told_through: Mapping[tuple[str, int, int], int],
    evidence: Mapping[tuple[str, int, int], ReportedEvidence],
) -> ReportedRank:
    identity, progress = sample.identity, sample.progress
    key = str(identity.job_id), identity.rank
    pid = progress.pid if progress is not None else 0
    here = sample.pid or pid  # of a rank in a container; its own is another one
    state, ready = read_state(procfs_root, here), read_run_times(procfs_root, here)
    if progress is None:
        return ReportedRank(
            rank=identity.rank,
            world_size=identity.world_size,
            attempt=identity.attempt,
            local_rank=identity.local_rank,
            pid=0,
            error=(sample.error or "")[:_TEXT_MAX],
        )
    has_sections = progress.sections_entered > 0
    after = told_through.get((*key, pid), 0)
    last = progress.last
    return ReportedRank(
        rank=identity.rank,
        world_size=identity.world_size,
        attempt=identity.attempt,
        local_rank=identity.local_rank,
        pid=pid,
        start_ticks=progress.start_ticks,
        process_state=state,
        attached_age_s=_age(progress.attached_at_s, now_s),
        steps_done=progress.step_count,
        step=last.step if last is not None else None,
        is_relative=progress.is_relative,
        step_age_s=_age(last.ended_at_s, now_s) if last is not None else None,
        step_s=_step_s(progress.records),
        running_s=ready[0] if ready is not None else None,
        ready_s=ready[1] if ready is not None else None,
        section=(progress.section if has_sections else Section.IDLE).name.lower(),
        section_age_s=_age(progress.section_since_s, now_s) if has_sections else None,
        sections_entered=progress.sections_entered,
        collectives_entered=progress.collectives_entered,
        collective_timeout_s=progress.collective_timeout_s,
        has_pairs=progress.has_pairs,
        steps=_steps(progress, now_s, after) if has_sections else (),
        work=_work(progress.work),
        hidden=progress.hidden,
        place=progress.place,
        gpus=places.gpus.get(key, ()),
        nics=places.nics.get(key, ()),
        nccl=progress.nccl,
        evidence=evidence.get((*key, pid)),
    )


def _work(reported: ToldWork | None) -> ReportedWork | None:
    if reported is None:
        return None
    return ReportedWork(
        reported.flops, reported.tokens, reported.samples, reported.data_type, reported.device
    )


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else max(0.0, now_s - at_s)


def _step_s(records: tuple[StepRecord, ...]) -> float | None:
    """Return the median time of the newest steps."""
    times_s = [
        max(0.0, after.ended_at_s - before.ended_at_s)
        for before, after in pairwise(records)
        if after.count == before.count + 1
    ]
    return median(times_s) if times_s else None


def _steps(progress: RankProgress, now_s: float, after: int) -> tuple[ReportedStep, ...]:
    ends = {record.count: record.ended_at_s for record in progress.records}
    reported = [
        ReportedStep(
            number=record.count,
            step=record.step,
            age_s=max(0.0, now_s - record.ended_at_s),
            duration_s=_duration(record, ends.get(record.count - 1)),
            compute_s=record.compute_s,
            communication_s=record.communication_s,
            waited_s=record.waited_s,
            io_s=record.io_s,
            checkpoint_s=record.checkpoint_s,
        )
        for record in progress.records
        if record.count > after
    ]
    return tuple(reported[-TIMINGS_MAX:])


def _duration(record: StepRecord, before_s: float | None) -> float | None:
    return None if before_s is None else max(0.0, record.ended_at_s - before_s)


def read_state(procfs_root: Path, pid: int) -> str:
    """Return the letter of a process's state; empty: it can't be read, or is gone."""
    if not pid:
        return ""
    words = _read(procfs_root / str(pid) / "stat").rpartition(")")[2].split()
    return words[0][:1] if words else ""


def read_run_times(procfs_root: Path, pid: int) -> tuple[float, float] | None:
    """Return for how long the main thread has run, and waited for a processor; None: not known."""
    if not pid:
        return None
    words = _read(procfs_root / str(pid) / "schedstat").split()
    if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return int(words[0]) / 1e9, int(words[1]) / 1e9


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
