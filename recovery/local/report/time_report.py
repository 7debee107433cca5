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
            name: plain_throughput(one)
            for name, one in throughput_by_name(report.time for report in reports).items()
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
        "attempts": [_attempt(one, at) for one in time.attempts],
        "incidents": [
            _incident(one, at, costs.get(one.account.incident_id, ())) for one in time.incidents
        ],
        "stalls": [_stall(one, at, has_ended=time.has_ended) for one in time.stalls],
        "slow_ranks": [
            {
                "rank": one.rank,
                "node": one.node,
                "section": one.section,
                "cause": one.cause,
                "step_factor": one.step_factor,
                "begin_unix_s": at + one.begin_s,
                "end_unix_s": at + one.end_s,
            }
            for one in time.slow
        ],
        "ranks": [
            {
                "rank": one.rank,
                "step_s": one.step_s,
                "step": None if one.anatomy is None else plain_anatomy(one.anatomy),
            }
            for one in report.paces
        ],
        "spans": [_span(one, at) for one in time.spans],
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
            part.value: {"seconds": one.seconds, "gpu_hours": one.device_s / HOUR_S}
            for part, one in figures.parts.items()
        },
        "by_class": {name: _reliability(one) for name, one in figures.by_class.items()},
        "by_node": {name: _reliability(one) for name, one in figures.by_node.items()},
        "by_hardware": [
            {
                "hardware": hardware,
                "model": name,
                "failures": one.failures,
                "gpu_hours_trained": one.device_s / HOUR_S,
                "mtbf_gpu_hours": None if one.mtbf_device_s is None else one.mtbf_device_s / HOUR_S,
                "mttr_s": one.mttr_s,
                "failures_per_1000_gpu_days": one.failures_per_1000_gpu_days,
            }
            for (hardware, name), one in figures.by_hardware.items()
        ],
        "training_s": figures.training_s,
        "slow_s": figures.slow_s,
        "losses": [
            {
                "cause": one.cause,
                "gpu_hours": one.device_s / HOUR_S,
                "seconds": one.seconds,
                "incident_id": one.incident_id or None,
                "is_within_training": one.is_within_training,
            }
            for one in figures.losses
        ],
    }


def plain_anatomy(one: StepAnatomy) -> dict[str, Any]:
    """Return the mean step; what is not known is null."""
    return {
        "steps": one.steps,
        "step_s": one.step_s,
        "compute_s": one.compute_s,
        "communication_s": one.communication_s,
        "waited_s": one.waited_s,
        "io_s": one.io_s,
        "checkpoint_s": one.checkpoint_s,
        "other_s": one.other_s,
        "hidden_communication": _hidden(one.hidden_communication),
        "hidden_io": _hidden(one.hidden_io),
    }


def _hidden(one: HiddenTime | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "least_s": one.least_s,
        "most_s": one.most_s,
        "least_ratio": one.least_ratio,
        "most_ratio": one.most_ratio,
        "sources": list(one.sources),
        "gaps": list(one.gaps),
    }


def plain_throughput(one: Throughput) -> dict[str, Any]:
    return {
        "flops_per_s": one.flops_per_s,
        "tokens_per_s": one.tokens_per_s,
        "samples_per_s": one.samples_per_s,
        "mfu_ratio": one.mfu_ratio,
        "device": one.device or None,
        "data_type": one.data_type or None,
        "unit": one.unit or None,
        "sizes": [
            {
                "gpus": size.devices,
                "per_gpu_s": size.per_device_s,
                "linearity_ratio": size.linearity_ratio,
            }
            for size in one.sizes
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


def _step_rows(one: StepAnatomy) -> Iterator[tuple[str, float]]:
    yield from one.parts.items()
    for kind, hidden in (("communication", one.hidden_communication), ("io", one.hidden_io)):
        if hidden is not None:
            for bound, seconds in (("least", hidden.least_s), ("most", hidden.most_s)):
                if seconds is not None:
                    yield f"hidden_{kind}_{bound}", seconds


def _part_rows(name: str, job_id: str, figures: Figures) -> Iterator[tuple[str, ...]]:
    wall_s = figures.wall_s
    for part, one in figures.parts.items():
        yield (
            _cell(name),
            _cell(job_id),
            part.value,
            f"{one.seconds:.3f}",
            f"{one.device_s / HOUR_S:.6f}",
            f"{one.seconds / wall_s:.6f}" if wall_s else "",
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


def _attempt(one: AttemptTime, at: float) -> dict[str, Any]:
    return {
        "attempt": one.attempt,
        "cause": one.cause.value,
        "ordered_unix_s": at + one.ordered_s,
        "first_step_unix_s": None if one.first_step_s is None else at + one.first_step_s,
        "ended_unix_s": None if one.ended_s is None else at + one.ended_s,
        "result": None if one.result is None else one.result.value,
        "gpus": one.devices,
        "nodes": list(one.nodes),
        "begins_at_step": one.begins_at_step,
        "highest_step": one.highest_step,
    }


def _incident(one: IncidentTime, at: float, costs: Sequence[TimeSpan]) -> dict[str, Any]:
    account = one.account
    return {
        "incident_id": account.incident_id,
        "cause": cause_in_words(one),
        "summary": account.opened.failure.finding.summary,
        "outcome": account.state.phase.value,
        "fault_unix_s": at + one.fault_s,
        "mttr_s": account.total_s,
        "steps_recomputed": account.steps_recomputed,
        "gpu_hours": sum(span.device_s for span in costs) / HOUR_S,
        "parts": [
            {"part": part.value, "seconds": seconds} for part, seconds in _by_part(costs).items()
        ],
    }


def _stall(one: StallTime, at: float, *, has_ended: bool) -> dict[str, Any]:
    return {
        "stall_id": one.stall_id,
        "kind": one.kind,
        "ranks": list(one.ranks),
        "node": one.node,
        "begin_unix_s": at + one.begin_s,
        "recovered_unix_s": None if one.recovered_s is None else at + one.recovered_s,
        "outcome": stall_outcome(one.recovered_s, has_ended=has_ended).value,
    }


def _by_part(spans: Sequence[TimeSpan]) -> dict[TimePart, float]:
    found: dict[TimePart, float] = {}
    for span in spans:
        found[span.part] = found.get(span.part, 0.0) + span.length_s
    return found


def _reliability(one: Reliability) -> dict[str, Any]:
    return {
        "failures": one.failures,
        "mtbf_s": one.mtbf_s,
        "mttr_s": one.mttr_s,
        "gpu_hours_lost": one.lost_device_s / HOUR_S,
    }
