"""What follows from where the time went: goodput, ETTR, availability, MTBF, MTTR, lost GPU-hours. Pure.

Definitions with their sources: docs/reference/goodput.md. A figure that nothing was measured for is
None, never zero.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from recovery.accounting.goodput.job_time import IncidentTime, JobTime, StallTime
from recovery.accounting.goodput.timeline import TimePart, TimeSpan
from recovery.accounting.goodput.totals import (
    RESTARTED,
    HardwareTotals,
    JobFailure,
    Kind,
    PartTime,
    add_up,
    class_of,
    failures_of,
    ratio,
    slow_losses,
    slow_seconds,
    totals_of,
)

HOUR_S: Final = 3600.0
_OWN_CAUSE: Final = {
    TimePart.CHECKPOINT: "checkpoints",
    TimePart.STARTUP: "starts",
    TimePart.WAIT_NODES: "waiting for nodes",
    TimePart.WAIT_PERSON: "waiting for a person",
    TimePart.WAIT_STORAGE: "waiting for storage",
    TimePart.STOPPING: "planned stops and ends",
    TimePart.SUSPENDED: "suspended by a signal",
    TimePart.INTERRUPTED: "launcher gone",
    TimePart.UNACCOUNTED: "unaccounted",
    TimePart.RECOMPUTED: "steps recomputed after a start",
}


@dataclass(frozen=True, slots=True)
class Reliability:
    """Failures of one class or one node. Seconds; None: too few."""

    failures: int
    mtbf_s: float | None  # training time per failure
    mttr_s: float | None  # mean of those that were recovered from
    lost_device_s: float  # the incidents' time, and the steps made again


@dataclass(frozen=True, slots=True)
class Loss:
    """Device time that one cause took."""

    cause: str
    device_s: float
    seconds: float
    incident_id: str = ""
    is_within_training: bool = False  # a slow rank: this time is part of the training time


@dataclass(frozen=True, slots=True)
class Figures:
    """Ratios are 0 to 1."""

    wall_s: float
    run_s: float  # without the time between an end and the next start
    device_s: float
    parts: Mapping[TimePart, PartTime]
    goodput_ratio: float | None
    goodput_ratio_max: float | None  # if all time that could not be divided was productive
    ettr_ratio: float | None
    availability_ratio: float | None
    unaccounted_ratio: float | None
    failures: int
    restarts: int
    restarts_per_1000_gpu_days: float | None
    mtbf_s: float | None
    mttr_s: float | None
    by_class: Mapping[str, Reliability] = field(default_factory=dict)
    by_node: Mapping[str, Reliability] = field(default_factory=dict)
    by_hardware: Mapping[Kind, HardwareTotals] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()  # the largest first
    training_s: float = 0.0
    slow_s: float = 0.0  # training in which the job waited for a slow rank at each step

    @property
    def lost_s(self) -> float | None:
        """Return the time that made no new step: what goodput lacks; None where goodput is not known."""
        ratio_max = self.goodput_ratio_max
        return None if ratio_max is None else max(0.0, self.run_s * (1.0 - ratio_max))


def figures_of(jobs: Sequence[JobTime]) -> Figures:
    """Return the figures of one job, or of several together."""
    totals = add_up(totals_of(job) for job in jobs)
    failed = [(job, failure) for job in jobs for failure in failures_of(job)]
    return Figures(
        wall_s=totals.wall_s,
        run_s=totals.run_s,
        device_s=totals.device_s,
        parts=totals.parts,
        goodput_ratio=totals.goodput_ratio,
        goodput_ratio_max=totals.goodput_ratio_max,
        ettr_ratio=totals.ettr_ratio,
        availability_ratio=totals.availability_ratio,
        unaccounted_ratio=ratio(totals.seconds(TimePart.UNACCOUNTED), totals.run_s),
        failures=totals.failures,
        restarts=totals.restarts,
        restarts_per_1000_gpu_days=totals.restarts_per_1000_gpu_days,
        mtbf_s=totals.mtbf_s,
        mttr_s=totals.mttr_s,
        by_class=_reliability(failed, lambda item: item.kind, totals.training_s),
        by_node=_reliability(failed, lambda item: item.node, totals.training_s),
        by_hardware=totals.by_hardware,
        training_s=totals.training_s,
        slow_s=sum(map(slow_seconds, jobs)),
        losses=_in_order(loss for job in jobs for loss in losses_of(job)),
    )


def _in_order(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    """Return the largest first. What is nobody's fault, such as starts, is one loss of all jobs together."""
    shared: dict[str, Loss] = {}
    own = []
    for loss in losses:
        if loss.incident_id or loss.is_within_training:
            own.append(loss)
            continue
        before = shared.get(loss.cause, Loss(loss.cause, 0.0, 0.0))
        shared[loss.cause] = Loss(
            loss.cause, before.device_s + loss.device_s, before.seconds + loss.seconds
        )
    return tuple(sorted([*own, *shared.values()], key=lambda loss: -loss.device_s))


def clip(job: JobTime, since_unix_s: float) -> JobTime | None:
    """Return the job's time from a moment on; None where it has none."""
    from_s = since_unix_s - job.began_unix_s
    spans = tuple(
        TimeSpan(
            max(span.begin_s, from_s),
            span.end_s,
            span.part,
            span.attempt,
            span.devices,
            span.incident_id,
            span.is_estimated,
        )
        for span in job.spans
        if span.end_s > from_s
    )
    if not spans:
        return None
    return replace(
        job,
        spans=spans,
        attempts=tuple(
            attempt
            for attempt in job.attempts
            if attempt.ended_s is None or attempt.ended_s > from_s
        ),
        incidents=tuple(incident for incident in job.incidents if incident.opened_s >= from_s),
        slow=tuple(item for item in job.slow if item.end_s > from_s),
        steps=tuple(step for step in job.steps if step.end_s >= from_s),
        work=tuple(item for item in job.work if item.begin_s >= from_s),
        stalls=tuple(stall for stall in job.stalls if stall.begin_s >= from_s),
    )


def losses_of(job: JobTime) -> list[Loss]:
    """Return what took the job's device time, but for new steps: once each cause."""
    found: dict[tuple[str, str], PartTime] = {}
    causes = {incident.account.incident_id: cause_in_words(incident) for incident in job.incidents}
    causes |= {stall.stall_id: _stall_in_words(stall) for stall in job.stalls}
    for span in job.spans:
        if span.part in (TimePart.PRODUCTIVE, TimePart.UNDIVIDED, TimePart.ENDED):
            continue
        incident_id = span.incident_id if span.incident_id in causes else ""
        cause = causes.get(incident_id) or _OWN_CAUSE.get(span.part, span.part.value)
        key = (cause, incident_id)
        found[key] = found.get(key, PartTime()).plus(span.length_s, span.device_s)
    lost = [
        Loss(cause, time.device_s, time.seconds, incident_id)
        for (cause, incident_id), time in found.items()
    ]
    return lost + _slow_losses(job)


def cause_in_words(incident: IncidentTime) -> str:
    """Return what an incident was about: its class, and the ranks and node that it accuses."""
    finding = incident.account.opened.failure.finding
    return _in_words(class_of(incident).replace("_", " "), finding.ranks, finding.node)


def _stall_in_words(stall: StallTime) -> str:
    what = "ranks started again" if stall.kind == RESTARTED else stall.kind
    return _in_words(what, stall.ranks, stall.node)


def _in_words(what: str, ranks: Sequence[int], node: str) -> str:
    words = [what]
    if ranks:
        shown = ", ".join(map(str, ranks[:4])) + ("..." if len(ranks) > 4 else "")
        words.append(f"rank {shown}")
    if node:
        words.append(f"on {node}")
    return " ".join(words)


def _slow_losses(job: JobTime) -> list[Loss]:
    return [
        Loss(
            f"slow rank {rank}" + (f" on {node}" if node else ""),
            time.device_s,
            time.seconds,
            is_within_training=True,
        )
        for (rank, node), time in slow_losses(job).items()
    ]


def costs_of(job: JobTime) -> dict[str, list[TimeSpan]]:
    """Return the spans that are the cost of each incident."""
    found: dict[str, list[TimeSpan]] = {}
    for span in job.spans:
        found.setdefault(span.incident_id, []).append(span)
    return found


def _reliability(
    failed: Sequence[tuple[JobTime, JobFailure]],
    key_of: Callable[[JobFailure], str],
    training_s: float,
) -> dict[str, Reliability]:
    groups: dict[str, list[tuple[JobTime, JobFailure]]] = {}
    jobs = {id(job): job for job, _failure in failed}
    costs = {key: costs_of(job) for key, job in jobs.items()}
    for job, failure in failed:
        if key := key_of(failure):
            groups.setdefault(key, []).append((job, failure))
    return {
        key: Reliability(
            failures=len(group),
            mtbf_s=ratio(training_s, len(group)),
            mttr_s=_mean(item.mttr_s for _job, item in group),
            lost_device_s=sum(
                span.device_s
                for job, item in group
                for span in costs[id(job)].get(item.span_id, ())
            ),
        )
        for key, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
