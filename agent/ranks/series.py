"""What ranks and their launchers report, as series of `agent/collectors/rank_families.py`."""

from collections.abc import Iterator

from agent.metrics import Metric
from agent.ranks.rank_processes import UNKNOWN_PID
from agent.ranks.step_times import measure_steps
from agent.ranks.table import RankSample
from rankmend.agent_socket import ShownCheckpoint, Told
from rankmend.errors import SourceError
from rankmend.progress import RankSnapshots, ToldWork

Labels = tuple[tuple[str, str], ...]


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
        return  # no process has attached: it has reported nothing yet
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


def _snapshot_metrics(retained: RankSnapshots, labels: Labels) -> Iterator[Metric]:
    yield Metric("rankmend_rank_snapshots_total", retained.count, labels)
    yield Metric("rankmend_rank_snapshots_refused_total", retained.refused, labels)
    yield Metric("rankmend_rank_snapshot_stall_seconds_total", retained.stalled_s, labels)
    yield Metric("rankmend_rank_snapshot_files", retained.level, labels)
    if retained.newest_step is not None:
        yield Metric("rankmend_rank_snapshot_step", retained.newest_step, labels)
        yield Metric("rankmend_rank_snapshot_size_bytes", retained.state_bytes, labels)


def _work_metrics(work: ToldWork, labels: Labels) -> Iterator[Metric]:
    if work.flops:
        about = (("dtype", work.data_type), ("device", work.device))
        yield Metric("rankmend_rank_flops_total", work.flops, (*labels, *about))
    if work.tokens:
        yield Metric("rankmend_rank_tokens_total", work.tokens, labels)
    if work.samples:
        yield Metric("rankmend_rank_samples_total", work.samples, labels)


def told_metrics(reported: Told, now_s: float) -> Iterator[Metric]:
    """Return the series of what launchers have found about a job on this node."""
    job = ("job_id", str(reported.job_id))
    for finding in reported.findings:
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
    unsaved_s = _age_s(figures.unsaved_at_s, now_s)
    if unsaved_s is not None and figures.unsaved is not None:
        where: Labels = (job, ("cause", figures.unsaved.value))
        yield Metric("rankmend_controller_unsaved_seconds", unsaved_s, where)
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
