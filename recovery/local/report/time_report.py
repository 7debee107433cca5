"""The report of where the time of jobs went, as plain values for JSON, CSV and the page. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from recovery.accounting.goodput.anatomy import HiddenTime, StepAnatomy, anatomy_of
from recovery.accounting.goodput.figures import (
    HOUR_S,
    Figures,
    Reliability,
    cause_in_words,
    costs_of,
    figures_of,
)
from recovery.accounting.goodput.job_time import (
    AttemptTime,
    IncidentTime,
    JobTime,
    StallTime,
    stall_outcome,
)
from recovery.accounting.goodput.throughput import Throughput, throughput_by_name, throughput_of
from recovery.accounting.goodput.timeline import TimePart, TimeSpan

CSV_HEAD: Final = ("job", "job_id", "part", "seconds", "gpu_hours", "share_of_wall_time")
# Written before a text that a spreadsheet would take for a formula (OWASP, CSV injection).
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class RankPace:
    """A running rank's newest steps."""

    rank: int
    step_s: float
    anatomy: StepAnatomy | None = None  # None: it reports no sections


@dataclass(frozen=True, slots=True)
class JobReport:
    time: JobTime
    figures: Figures
    throughput: Throughput | None  # None: its ranks reported no work
    anatomy: StepAnatomy | None  # None: its ranks tell no sections
    paces: tuple[RankPace, ...] = ()  # of the ranks that run on this machine; (): not known


def report_of(time: JobTime, paces: Sequence[RankPace] = ()) -> JobReport:
    """Return the report of one job."""
    return JobReport(
        time, figures_of([time]), throughput_of([time]), anatomy_of([time]), tuple(paces)
    )


def plain_report(reports: Sequence[JobReport], *, with_jobs: bool = True) -> dict[str, Any]:
    """Return the report for programs."""
    return {
        "jobs": [plain_job(report) for report in reports] if with_jobs else [],
        "total": plain_figures(figures_of([report.time for report in reports])),
        "throughput_by_name": {
            name: plain_throughput(throughput)
            for name, throughput in throughput_by_name(report.time for report in reports).items()
        },
    }


def plain_job(report: JobReport) -> dict[str, Any]:
    time = report.time
    at, costs = time.began_unix_s, costs_of(time)
    return {
        "job": time.name,
        "job_id": time.job_id,
        "is_watched": time.is_watched,
        "began_unix_s": at + time.begin_s,
        **plain_figures(report.figures),
        "throughput": None if report.throughput is None else plain_throughput(report.throughput),
        "step": None if report.anatomy is None else plain_anatomy(report.anatomy),
        "attempts": [_attempt(attempt, at) for attempt in time.attempts],
        "incidents": [
            _incident(incident, at, costs.get(incident.account.incident_id, ()))
            for incident in time.incidents
        ],
        "stalls": [_stall(stall, at, has_ended=time.has_ended) for stall in time.stalls],
        "slow_ranks": [
            {
                "rank": item.rank,
                "node": item.node,
                "section": item.section,
                "cause": item.cause,
                "step_factor": item.step_factor,
                "begin_unix_s": at + item.begin_s,
                "end_unix_s": at + item.end_s,
            }
            for item in time.slow
        ],
        "ranks": [
            {
                "rank": pace.rank,
                "step_s": pace.step_s,
                "step": None if pace.anatomy is None else plain_anatomy(pace.anatomy),
            }
            for pace in report.paces
        ],
        "spans": [_span(span, at) for span in time.spans],
    }


def plain_figures(figures: Figures) -> dict[str, Any]:
    return {
        "wall_s": figures.wall_s,
        "run_s": figures.run_s,
        "gpu_hours": figures.device_s / HOUR_S,
        "goodput_ratio": figures.goodput_ratio,
        "goodput_ratio_max": figures.goodput_ratio_max,
        "ettr_ratio": figures.ettr_ratio,
        "availability_ratio": figures.availability_ratio,
        "unaccounted_ratio": figures.unaccounted_ratio,
        "failures": figures.failures,
        "restarts": figures.restarts,
        "restarts_per_1000_gpu_days": figures.restarts_per_1000_gpu_days,
        "mtbf_s": figures.mtbf_s,
        "mttr_s": figures.mttr_s,
        "parts": {
            part.value: {"seconds": item.seconds, "gpu_hours": item.device_s / HOUR_S}
            for part, item in figures.parts.items()
        },
        "by_class": {name: _reliability(item) for name, item in figures.by_class.items()},
        "by_node": {name: _reliability(item) for name, item in figures.by_node.items()},
        "by_hardware": [
            {
                "hardware": hardware,
                "model": name,
                "failures": totals.failures,
                "gpu_hours_trained": totals.device_s / HOUR_S,
                "mtbf_gpu_hours": None
                if totals.mtbf_device_s is None
                else totals.mtbf_device_s / HOUR_S,
                "mttr_s": totals.mttr_s,
                "failures_per_1000_gpu_days": totals.failures_per_1000_gpu_days,
            }
            for (hardware, name), totals in figures.by_hardware.items()
        ],
        "training_s": figures.training_s,
        "slow_s": figures.slow_s,
        "losses": [
            {
                "cause": loss.cause,
                "gpu_hours": loss.device_s / HOUR_S,
                "seconds": loss.seconds,
                "incident_id": loss.incident_id or None,
                "is_within_training": loss.is_within_training,
            }
            for loss in figures.losses
        ],
    }


def plain_anatomy(anatomy: StepAnatomy) -> dict[str, Any]:
    """Return the mean step; what is not known is null."""
    return {
        "steps": anatomy.steps,
        "step_s": anatomy.step_s,
        "compute_s": anatomy.compute_s,
        "communication_s": anatomy.communication_s,
        "waited_s": anatomy.waited_s,
        "io_s": anatomy.io_s,
        "checkpoint_s": anatomy.checkpoint_s,
        "other_s": anatomy.other_s,
        "hidden_communication": _hidden(anatomy.hidden_communication),
        "hidden_io": _hidden(anatomy.hidden_io),
    }


def _hidden(time: HiddenTime | None) -> dict[str, Any] | None:
    if time is None:
        return None
    return {
        "least_s": time.least_s,
        "most_s": time.most_s,
        "least_ratio": time.least_ratio,
        "most_ratio": time.most_ratio,
        "sources": list(time.sources),
        "gaps": list(time.gaps),
    }


def plain_throughput(throughput: Throughput) -> dict[str, Any]:
    return {
        "flops_per_s": throughput.flops_per_s,
        "tokens_per_s": throughput.tokens_per_s,
        "samples_per_s": throughput.samples_per_s,
        "mfu_ratio": throughput.mfu_ratio,
        "device": throughput.device or None,
        "data_type": throughput.data_type or None,
        "unit": throughput.unit or None,
        "sizes": [
            {
                "gpus": size.devices,
                "per_gpu_s": size.per_device_s,
                "linearity_ratio": size.linearity_ratio,
            }
            for size in throughput.sizes
        ],
    }


def csv_rows(reports: Sequence[JobReport], *, with_jobs: bool = True) -> Iterator[tuple[str, ...]]:
    """Return a row for each job and part, after the row of `CSV_HEAD`, and for each part of the mean step (`step_...`: its share of the step); without jobs, for each part of all of them."""
    yield CSV_HEAD
    if not with_jobs:
        yield from _part_rows("", "", figures_of([report.time for report in reports]))
        return
    for report in reports:
        time = report.time
        yield from _part_rows(time.name, time.job_id, report.figures)
        if report.anatomy is not None:
            for part, seconds in _step_rows(report.anatomy):
                share = f"{seconds / report.anatomy.step_s:.6f}"
                yield (
                    _cell(time.name),
                    _cell(time.job_id),
                    f"step_{part}",
                    f"{seconds:.6f}",
                    "",
                    share,
                )


def _step_rows(anatomy: StepAnatomy) -> Iterator[tuple[str, float]]:
    yield from anatomy.parts.items()
    for kind, hidden in (
        ("communication", anatomy.hidden_communication),
        ("io", anatomy.hidden_io),
    ):
        if hidden is not None:
            for bound, seconds in (("least", hidden.least_s), ("most", hidden.most_s)):
                if seconds is not None:
                    yield f"hidden_{kind}_{bound}", seconds


def _part_rows(name: str, job_id: str, figures: Figures) -> Iterator[tuple[str, ...]]:
    wall_s = figures.wall_s
    for part, item in figures.parts.items():
        yield (
            _cell(name),
            _cell(job_id),
            part.value,
            f"{item.seconds:.3f}",
            f"{item.device_s / HOUR_S:.6f}",
            f"{item.seconds / wall_s:.6f}" if wall_s else "",
        )


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _span(span: TimeSpan, at: float) -> dict[str, Any]:
    return {
        "begin_unix_s": at + span.begin_s,
        "seconds": span.length_s,
        "part": span.part.value,
        "attempt": span.attempt,
        "gpus": span.devices,
        "incident_id": span.incident_id or None,
        "is_estimated": span.is_estimated,
    }


def _attempt(time: AttemptTime, at: float) -> dict[str, Any]:
    return {
        "attempt": time.attempt,
        "cause": time.cause.value,
        "ordered_unix_s": at + time.ordered_s,
        "first_step_unix_s": None if time.first_step_s is None else at + time.first_step_s,
        "ended_unix_s": None if time.ended_s is None else at + time.ended_s,
        "result": None if time.result is None else time.result.value,
        "gpus": time.devices,
        "nodes": list(time.nodes),
        "begins_at_step": time.begins_at_step,
        "highest_step": time.highest_step,
    }


def _incident(time: IncidentTime, at: float, costs: Sequence[TimeSpan]) -> dict[str, Any]:
    account = time.account
    return {
        "incident_id": account.incident_id,
        "cause": cause_in_words(time),
        "summary": account.opened.failure.finding.summary,
        "outcome": account.state.phase.value,
        "fault_unix_s": at + time.fault_s,
        "mttr_s": account.total_s,
        "steps_recomputed": account.steps_recomputed,
        "gpu_hours": sum(span.device_s for span in costs) / HOUR_S,
        "parts": [
            {"part": part.value, "seconds": seconds} for part, seconds in _by_part(costs).items()
        ],
    }


def _stall(time: StallTime, at: float, *, has_ended: bool) -> dict[str, Any]:
    return {
        "stall_id": time.stall_id,
        "kind": time.kind,
        "ranks": list(time.ranks),
        "node": time.node,
        "begin_unix_s": at + time.begin_s,
        "recovered_unix_s": None if time.recovered_s is None else at + time.recovered_s,
        "outcome": stall_outcome(time.recovered_s, has_ended=has_ended).value,
    }


def _by_part(spans: Sequence[TimeSpan]) -> dict[TimePart, float]:
    found: dict[TimePart, float] = {}
    for span in spans:
        found[span.part] = found.get(span.part, 0.0) + span.length_s
    return found


def _reliability(reliability: Reliability) -> dict[str, Any]:
    return {
        "failures": reliability.failures,
        "mtbf_s": reliability.mtbf_s,
        "mttr_s": reliability.mttr_s,
        "gpu_hours_lost": reliability.lost_device_s / HOUR_S,
    }
