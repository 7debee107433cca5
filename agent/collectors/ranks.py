"""Where the training ranks of this node stand, from their progress files (contract 1), and what
their launchers have found about them.

Source: the files that launchers have shown through the agent's socket, and, as a fallback,
        those that a path pattern names (opened without following links, and only where file
        and folder have one owner).
Cost:   33 records of 64 bytes a rank and run, 0.15 ms.
"""

import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

from agent.jobs.rank_pods import RankPods
from agent.metrics import RANK_LABELS, Family, Metric, counter, gauge
from agent.ranks.inner_pids import UNKNOWN_PID
from agent.ranks.table import (
    RANKS_MAX,
    RankSample,
    RankTable,
    ShownRank,
    newest_attempts,
    read_rank,
)
from agent.ranks.watched import WatchedJob, WatchedRanks
from rankmend.agent_socket import ShownCheckpoint, Told
from rankmend.clock import Clock
from rankmend.errors import SourceError
from rankmend.progress import (
    ProgressReader,
    RankProgress,
    RankSnapshots,
    Section,
    StepRecord,
    ToldWork,
    open_owned,
)

_IN_STEPS: Final = (Section.COMPUTE, Section.COMMUNICATION, Section.IO, Section.CHECKPOINT)
STEPS_MAX: Final = 32  # in the median and the shares; docs/reference/metrics.md says so

log = logging.getLogger(__name__)

Labels = tuple[tuple[str, str], ...]

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "rank_info",
        "",
        ("job_id", "rank", "pid", "attempt", "job_name"),
        "What belongs to a rank; always 1.",
    ),
    gauge(
        "rank_nccl_info",
        "",
        (*RANK_LABELS, "version"),
        "A version of NCCL (or RCCL) that a rank has loaded, wherever its library came from; always 1. No series before its first process group or step.",
    ),
    gauge(
        "rank_pod_info",
        "",
        ("job_id", "rank", "pod", "namespace", "pod_uid"),
        "The pod of Kubernetes that a rank runs in; always 1. No series of a rank outside of pods.",
    ),
    gauge(
        "watched_job_info",
        "",
        ("job_id", "job_name", "user", "launcher", "slurm_job"),
        "A job of another launcher with a watched rank on this node; always 1.",
    ),
    gauge(
        "rank_progress_success",
        "",
        RANK_LABELS,
        "1 when the rank's progress file could be read, 0 when it is broken.",
    ),
    gauge("rank_step_number", "", RANK_LABELS, "Number of the newest finished step."),
    counter("rank_steps", "", RANK_LABELS, "Steps finished in this attempt."),
    gauge("rank_step_last_seconds", "seconds", RANK_LABELS, "Duration of the newest step."),
    gauge(
        "rank_step_median_seconds",
        "seconds",
        RANK_LABELS,
        "Median duration of the newest steps, at most 32.",
    ),
    gauge("rank_step_age_seconds", "seconds", RANK_LABELS, "Time since the newest step ended."),
    gauge(
        "rank_section_ratio",
        "ratio",
        ("job_id", "rank", "section"),
        "Share of the time of the newest steps (at most 32) spent in a section; idle is outside of all.",
    ),
    gauge(
        "rank_section_age_seconds",
        "seconds",
        ("job_id", "rank", "section"),
        "How long the rank has been in the section where it is now.",
    ),
    counter(
        "rank_checkpoint_seconds",
        "seconds",
        RANK_LABELS,
        "Time in the checkpoint section in this attempt, up to the newest step: its rate is the share that saves cost.",
    ),
    counter("rank_collectives_entered", "", RANK_LABELS, "Collectives entered in this attempt."),
    counter(
        "rank_collectives_completed", "", RANK_LABELS, "Collectives completed in this attempt."
    ),
    gauge(
        "rank_slow_ratio",
        "ratio",
        (*RANK_LABELS, "section", "cause"),
        "Own work of a step of a rank that its launcher calls slow, against its peers'; the likeliest cause, unknown where hardware shows none.",
    ),
    gauge(
        "job_fault_age_seconds",
        "seconds",
        ("job_id", "kind", "ranks"),
        "Since the newest incident of a job that runs here: rank_hung or rank_failed, and the culprits on this node (empty: nobody is accused).",
    ),
    *(
        gauge(
            f"controller_checkpoint_{name}",
            unit,
            ("job_id", "part") if name == "cost_ratio" else ("job_id",),
            f"{text} Of a job on one node, whose controller is in its launcher.",
        )
        for name, unit, text in (
            ("age_seconds", "seconds", "Age of the newest restorable checkpoint."),
            ("interval_seconds", "seconds", "Usual time from the begin of a save to the next."),
            ("best_interval_seconds", "seconds", "Interval at which checkpoints cost least."),
            ("stall_seconds", "seconds", "For how long a save stops training."),
            (
                "save_seconds",
                "seconds",
                "From the first change of a checkpoint's files to the last.",
            ),
            ("write_bytes_per_second", "bytes_per_second", "At which the job saves."),
            (
                "read_bytes_per_second",
                "bytes_per_second",
                "At which ranks read the newest restore.",
            ),
            ("cost_ratio", "ratio", "Share of the wall time that the present interval costs."),
        )
    ),
    gauge(
        "controller_restorable_age_seconds",
        "seconds",
        ("job_id", "tier"),
        "Age of the newest state that a failure could restore: of the ranks' snapshots (memory), or a checkpoint. Of a job on one node, whose controller is in its launcher.",
    ),
    *(
        gauge(
            f"controller_snapshot_{name}",
            unit,
            ("job_id",),
            f"{text} Of a job on one node, whose controller is in its launcher.",
        )
        for name, unit, text in (
            ("held_bytes", "bytes", "Memory that the ranks' snapshots hold."),
            (
                "stall_seconds",
                "seconds",
                "For how long a snapshot stops training, on the slowest rank.",
            ),
            ("interval_seconds", "seconds", "Usual time from one snapshot to the next."),
            ("best_interval_seconds", "seconds", "Interval at which snapshots cost least."),
        )
    ),
    counter(
        "rank_snapshots",
        "",
        RANK_LABELS,
        "Snapshots that the rank has kept of its state in this attempt; of ranks that ever asked for one.",
    ),
    counter(
        "rank_snapshots_refused",
        "",
        RANK_LABELS,
        "Snapshots that the rank asked for and that were not kept, for want of memory or because its state can't be kept.",
    ),
    gauge("rank_snapshot_step", "", RANK_LABELS, "Step of the rank's newest snapshot."),
    gauge("rank_snapshot_size_bytes", "bytes", RANK_LABELS, "Size of the rank's newest snapshot."),
    counter(
        "rank_snapshot_stall_seconds",
        "seconds",
        RANK_LABELS,
        "Time for which training stood still for snapshots in this attempt: its rate is the share that they cost.",
    ),
    gauge(
        "rank_snapshot_files",
        "",
        RANK_LABELS,
        "Snapshots of the rank for which there is room: 2, 1 (a death while it is written leaves none) or 0.",
    ),
    counter(
        "rank_flops",
        "",
        (*RANK_LABELS, "dtype", "device"),
        "FLOPs of the model that the rank has told in this attempt, by data type and accelerator; of ranks that tell any.",
    ),
    counter("rank_tokens", "", RANK_LABELS, "Tokens that the rank has told in this attempt."),
    counter("rank_samples", "", RANK_LABELS, "Samples that the rank has told in this attempt."),
    counter(
        "rank_run_queue_seconds",
        "seconds",
        RANK_LABELS,
        "Time that the rank's main thread was ready to run and had no CPU.",
    ),
)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the newest step records of a rank say about its pace."""

    last_s: float
    median_s: float
    share_by_section: dict[Section, float]  # ratios; IDLE is the time outside of all sections


@dataclass(frozen=True, slots=True)
class RanksView:
    """All ranks as they stood at one time."""

    at_s: float
    samples: tuple[RankSample, ...]


@dataclass(frozen=True, slots=True)
class WatchedSamples:
    """The jobs of other launchers, and their ranks, as they stood at one time."""

    at_s: float
    jobs: tuple[WatchedJob, ...]
    samples: tuple[RankSample, ...]
    # Paths of their progress files, by job and rank.
    files: Mapping[tuple[str, int], str] = field(default_factory=dict)


def measure_steps(records: tuple[StepRecord, ...]) -> StepTimes | None:
    """Return the pace over ``records``, or None while there is no finished interval.

    Raises SourceError where time runs backwards, which no rank can have written.
    """
    durations_s = [
        after.ended_at_s - before.ended_at_s
        for before, after in pairwise(records)
        if after.count == before.count + 1  # none was overtaken by the writer between them
    ]
    if not durations_s:
        return None
    window_s = sum(durations_s)
    used_s = dict.fromkeys(_IN_STEPS, 0.0)
    for first, last in _runs(records):  # the times of a record are totals
        used_s[Section.COMPUTE] += last.compute_s - first.compute_s
        used_s[Section.COMMUNICATION] += last.communication_s - first.communication_s
        used_s[Section.IO] += last.io_s - first.io_s
        used_s[Section.CHECKPOINT] += last.checkpoint_s - first.checkpoint_s
    if min(durations_s) < 0 or min(used_s.values()) < 0:
        raise SourceError(
            f"the times of steps {records[0].step} to {records[-1].step} run backwards"
        )
    used_s[Section.IDLE] = max(0.0, window_s - sum(used_s.values()))
    shares = {section: part_s / window_s if window_s else 0.0 for section, part_s in used_s.items()}
    return StepTimes(durations_s[-1], _median(durations_s), shares)


def _runs(records: Sequence[StepRecord]) -> Iterator[tuple[StepRecord, StepRecord]]:
    """Return the first and the last of records that follow each other without a gap."""
    first = records[0]
    for before, after in pairwise(records):
        if after.count != before.count + 1:
            yield first, before
            first = after
    yield first, records[-1]


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class RanksCollector:
    name = "ranks"
    interval_s = 1.0

    def __init__(
        self,
        table: RankTable,
        clock: Clock,
        pattern: str | None = None,
        watched: WatchedRanks | None = None,
        pods: RankPods | None = None,
    ) -> None:
        self._table = table
        self._pods = pods
        self._clock = clock
        self._files = PathSource(pattern) if pattern else None
        self._watched = watched
        self.newest = RanksView(clock.now_s(), ())  # for the page of ranks
        self.newest_watched = WatchedSamples(clock.now_s(), (), ())  # for the controller

    def collect(self) -> Iterator[Metric]:
        files = self._files.ranks() if self._files else []
        jobs, watched = self._watched.look() if self._watched else ([], [])
        now_s = self._clock.now_s()
        samples = self._table.read(now_s, STEPS_MAX + 1)
        shown = {(sample.identity.job_id, sample.identity.rank) for sample in samples}
        for rank in islice(newest_attempts([*files, *watched]), RANKS_MAX):
            if (rank.identity.job_id, rank.identity.rank) not in shown:
                samples.append(read_rank(rank, now_s, STEPS_MAX + 1))
        self.newest = RanksView(now_s, tuple(samples))
        ids = {job.job_id for job in jobs}
        seen = tuple(sample for sample in samples if sample.identity.job_id in ids)
        paths = {(str(one.identity.job_id), one.identity.rank): one.reader.name for one in watched}
        self.newest_watched = WatchedSamples(now_s, tuple(jobs), seen, paths)
        for sample in samples:
            yield from rank_metrics(sample, now_s)
            yield from self._pod_of(sample)
        for job in jobs:
            about = (("job_id", str(job.job_id)), ("job_name", job.name), ("user", job.user))
            started = (("launcher", job.launcher), ("slurm_job", job.slurm_job))
            yield Metric("rankmend_watched_job_info", 1, (*about, *started))
        for told in self._table.told():
            yield from told_metrics(told, now_s)
        for one in self._table.checkpoints():
            yield from checkpoint_metrics(one, now_s)

    def _pod_of(self, sample: RankSample) -> Iterator[Metric]:
        # A process's own word of its number is of its container, and another process here.
        if self._pods is None or sample.pid in (0, UNKNOWN_PID):
            return
        pod = self._pods.of(sample.pid)
        if pod is not None:
            identity = sample.identity
            about = (("job_id", str(identity.job_id)), ("rank", str(identity.rank)))
            told = (("pod", pod.name), ("namespace", pod.namespace), ("pod_uid", pod.uid))
            yield Metric("rankmend_rank_pod_info", 1, (*about, *told))


def rank_metrics(sample: RankSample, now_s: float) -> Iterator[Metric]:
    """Return the series of one rank; of a broken one only that it is broken."""
    identity, progress = sample.identity, sample.progress
    labels = (("job_id", str(identity.job_id)), ("rank", str(identity.rank)))
    try:
        times = measure_steps(progress.records) if progress is not None else None
    except SourceError:
        progress = None
    yield Metric("rankmend_rank_progress_success", 0 if progress is None else 1, labels)
    if progress is None:
        return
    pid = "" if sample.pid == UNKNOWN_PID else str(sample.pid or progress.pid)
    about = (("pid", pid), ("attempt", str(identity.attempt)), ("job_name", sample.job_name))
    yield Metric("rankmend_rank_info", 1, (*labels, *about))
    if progress.pid == 0:
        return  # no process has attached: it has told nothing yet
    for version in progress.nccl:
        yield Metric("rankmend_rank_nccl_info", 1, (*labels, ("version", version)))
    yield Metric("rankmend_rank_steps_total", progress.step_count, labels)
    yield Metric("rankmend_rank_collectives_entered_total", progress.collectives_entered, labels)
    yield Metric(
        "rankmend_rank_collectives_completed_total", progress.collectives_completed, labels
    )
    if progress.section_since_s is not None:
        place = (*labels, ("section", progress.section.name.lower()))
        age_s = max(0.0, now_s - progress.section_since_s)
        yield Metric("rankmend_rank_section_age_seconds", age_s, place)
    if progress.last is not None:
        yield Metric("rankmend_rank_step_number", progress.last.step, labels)
        saving_s = progress.last.checkpoint_s
        yield Metric("rankmend_rank_checkpoint_seconds_total", saving_s, labels)
        age_s = max(0.0, now_s - progress.last.ended_at_s)
        yield Metric("rankmend_rank_step_age_seconds", age_s, labels)
    if progress.snapshots is not None:
        yield from _snapshot_metrics(progress.snapshots, labels)
    if progress.work is not None:
        yield from _work_metrics(progress.work, labels)
    if times is not None:
        yield Metric("rankmend_rank_step_last_seconds", times.last_s, labels)
        yield Metric("rankmend_rank_step_median_seconds", times.median_s, labels)
        for section, share in times.share_by_section.items():
            place = (*labels, ("section", section.name.lower()))
            yield Metric("rankmend_rank_section_ratio", share, place)


def _snapshot_metrics(kept: RankSnapshots, labels: Labels) -> Iterator[Metric]:
    yield Metric("rankmend_rank_snapshots_total", kept.count, labels)
    yield Metric("rankmend_rank_snapshots_refused_total", kept.refused, labels)
    yield Metric("rankmend_rank_snapshot_stall_seconds_total", kept.stalled_s, labels)
    yield Metric("rankmend_rank_snapshot_files", kept.level, labels)
    if kept.newest_step is not None:
        yield Metric("rankmend_rank_snapshot_step", kept.newest_step, labels)
        yield Metric("rankmend_rank_snapshot_size_bytes", kept.state_bytes, labels)


def _work_metrics(work: ToldWork, labels: Labels) -> Iterator[Metric]:
    if work.flops:
        about = (("dtype", work.data_type), ("device", work.device))
        yield Metric("rankmend_rank_flops_total", work.flops, (*labels, *about))
    if work.tokens:
        yield Metric("rankmend_rank_tokens_total", work.tokens, labels)
    if work.samples:
        yield Metric("rankmend_rank_samples_total", work.samples, labels)


def told_metrics(told: Told, now_s: float) -> Iterator[Metric]:
    """Return the series of what launchers have found about a job on this node."""
    job = ("job_id", str(told.job_id))
    for finding in told.findings:
        ranks = ",".join(str(rank) for rank in finding.ranks)
        if finding.kind == "rank_slow":
            where = (("section", finding.section), ("cause", finding.cause or "unknown"))
            labels: Labels = (job, ("rank", ranks), *where)
            yield Metric("rankmend_rank_slow_ratio", finding.factor, labels)
        else:
            labels = (job, ("kind", finding.kind), ("ranks", ranks))
            age_s = max(0.0, now_s - finding.at_s)
            yield Metric("rankmend_job_fault_age_seconds", age_s, labels)


def checkpoint_metrics(shown: ShownCheckpoint, now_s: float) -> Iterator[Metric]:
    """Return the series of a job's checkpoints and snapshots, under the names that a controller service has for them."""
    figures, job = shown.figures, ("job_id", str(shown.job_id))
    age_s = _age_s(figures.at_s, now_s)
    values = {
        "checkpoint_age_seconds": age_s,
        "checkpoint_interval_seconds": figures.interval_s,
        "checkpoint_best_interval_seconds": figures.best_interval_s,
        "checkpoint_stall_seconds": figures.stall_s,
        "checkpoint_save_seconds": figures.save_s,
        "checkpoint_write_bytes_per_second": figures.write_bytes_per_s,
        "checkpoint_read_bytes_per_second": figures.read_bytes_per_s,
        "snapshot_held_bytes": figures.snapshot_held_bytes,
        "snapshot_stall_seconds": figures.snapshot_stall_s,
        "snapshot_interval_seconds": figures.snapshot_interval_s,
        "snapshot_best_interval_seconds": figures.snapshot_best_interval_s,
    }
    for name, value in values.items():
        if value is not None:
            yield Metric(f"rankmend_controller_{name}", value, (job,))
    ages = {"checkpoint": age_s, "memory": _age_s(figures.snapshot_at_s, now_s)}
    for tier, value in ages.items():
        if value is not None:
            yield Metric("rankmend_controller_restorable_age_seconds", value, (job, ("tier", tier)))
    parts = {
        "stalls": figures.stalls_ratio,
        "recomputed": figures.recomputed_ratio,
        "restarts": figures.restarts_ratio,
    }
    for part, value in parts.items():
        if value is not None:
            labels: Labels = (job, ("part", part))
            yield Metric("rankmend_controller_checkpoint_cost_ratio", value, labels)


def _age_s(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else max(0.0, now_s - at_s)


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


class PathSource:
    """Progress files found by a path pattern, kept open for as long as they are there."""

    def __init__(self, pattern: str) -> None:
        assert pattern.startswith("/"), "the configuration takes only an absolute pattern"
        self._pattern = pattern.lstrip("/")
        self._open: dict[tuple[str, int, int], ShownRank | None] = {}  # None: refused

    def ranks(self) -> list[ShownRank]:
        """Return the ranks of the files that match now."""
        found: dict[tuple[str, int, int], ShownRank | None] = {}
        for path in islice(Path("/").glob(self._pattern), RANKS_MAX):
            try:
                about = path.lstat()
            except OSError:
                continue  # removed since it was listed
            key = (str(path), about.st_dev, about.st_ino)
            found[key] = self._open.pop(key) if key in self._open else _open_rank(path, about)
        for rank in self._open.values():
            if rank is not None:
                rank.reader.close()
        self._open = found
        return [rank for rank in found.values() if rank is not None]


def _open_rank(path: Path, about: os.stat_result) -> ShownRank | None:
    try:
        descriptor = _open_regular(path, about)
        return ShownRank(ProgressReader(descriptor, str(path)), pid=0, job_name="")
    except (SourceError, OSError) as error:
        # no progress file, or one that somebody has put into another's folder; said once a file
        log.warning("progress file refused", extra={"path": str(path), "error": str(error)})
        return None


def _open_regular(path: Path, about: os.stat_result) -> int:
    if not stat.S_ISREG(about.st_mode):
        raise SourceError(f"{path} is no regular file")
    return open_owned(path, path.parent.lstat().st_uid)
