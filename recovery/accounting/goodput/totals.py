"""Totals of jobs' time that add up over jobs, and the ratios that follow from them. Pure.

docs/reference/goodput.md has the definitions with their sources. A ratio without a measurement is
None, never zero.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from detectors.finding import Blame
from recovery.accounting.goodput.job_time import IncidentTime, JobTime, SlowTime
from recovery.accounting.goodput.timeline import MTTR, TRAINING, TimePart, TimeSpan
from recovery.journal.attempt_records import Cause
from recovery.messages.exchange import NodeKinds

DAY_S: Final = 86400.0
GPU_DAYS: Final = 1000.0  # restarts and failures are given for so many

MODELS_MAX: Final = 64  # that are counted separately; names come from firmware and drivers
OTHER: Final = "other"
_TRAINS: Final = frozenset({*TRAINING, TimePart.CHECKPOINT, TimePart.UNFINISHED})

Kind = tuple[str, str]  # gpu, nic or node; and its name

SLOW: Final = "slow_rank"
HUNG: Final = "hung"
RESTARTED: Final = "restarted"  # ranks of a watched job ended, and others took their place
_DOWN: Final = frozenset({*MTTR, TimePart.INTERRUPTED, TimePart.STALLED})
_WAITS: Final = frozenset({TimePart.WAIT_NODES, TimePart.WAIT_PERSON, TimePart.WAIT_STORAGE})
NOTHING_LOST: Final = frozenset({TimePart.PRODUCTIVE, TimePart.UNDIVIDED, TimePart.ENDED})


def ratio(above: float, below: float) -> float | None:
    """Return the ratio; None where nothing was measured."""
    return above / below if below > 0 else None


@dataclass(frozen=True, slots=True)
class HardwareTotals:
    """Failures that accuse nodes with this hardware (GPUs, NICs, the node itself), and the GPU time that trained on such nodes.

    We divide the GPU time of an attempt evenly among its nodes.
    """

    failures: int = 0
    recovered: int = 0
    recovery_s: float = 0.0
    device_s: float = 0.0

    def plus(self, other: "HardwareTotals") -> "HardwareTotals":
        return HardwareTotals(
            self.failures + other.failures,
            self.recovered + other.recovered,
            self.recovery_s + other.recovery_s,
            self.device_s + other.device_s,
        )

    @property
    def mtbf_device_s(self) -> float | None:
        """Return the GPU time per failure."""
        return ratio(self.device_s, self.failures)

    @property
    def mttr_s(self) -> float | None:
        return ratio(self.recovery_s, self.recovered)

    @property
    def failures_per_1000_gpu_days(self) -> float | None:
        return ratio(self.failures * GPU_DAYS * DAY_S, self.device_s)


def hardware_of(
    job: JobTime, failures: Iterable[tuple[str, float | None]]
) -> dict[Kind, HardwareTotals]:
    """Return the totals of one job; ``failures``: the node that each accuses, and its MTTR."""
    found: dict[Kind, HardwareTotals] = {}
    if not any(_named(kinds) for kinds in job.kinds.values()):
        return found
    trained = _trained(job)
    for attempt in job.attempts:
        share_s = trained.get(attempt.attempt, 0.0) / max(1, len(attempt.nodes))
        for node in attempt.nodes:
            _add(found, job, node, HardwareTotals(device_s=share_s))
    for node, mttr_s in failures:
        more = HardwareTotals(1, 0 if mttr_s is None else 1, mttr_s or 0.0)
        _add(found, job, node, more)
    return found


def add_hardware(
    found: dict[Kind, HardwareTotals], more: Iterable[tuple[Kind, HardwareTotals]]
) -> None:
    """Add totals to others; of too many names the rest are counted together."""
    for (hardware, name), totals in more:
        kind = (hardware, name)
        if kind not in found and len(found) >= MODELS_MAX:
            kind = (hardware, OTHER)
        found[kind] = found.get(kind, HardwareTotals()).plus(totals)


def _add(found: dict[Kind, HardwareTotals], job: JobTime, node: str, more: HardwareTotals) -> None:
    kinds = job.kinds.get(node)
    if kinds is not None:
        add_hardware(found, ((kind, more) for kind in _named(kinds)))


def _named(kinds: NodeKinds) -> Iterator[Kind]:
    for hardware, name in (("gpu", kinds.gpu), ("nic", kinds.nic), ("node", kinds.node)):
        if name:
            yield hardware, name


def _trained(job: JobTime) -> dict[int, float]:
    """Return the GPU time of training by attempt."""
    found: dict[int, float] = {}
    for span in job.spans:
        if span.part in _TRAINS:
            found[span.attempt] = found.get(span.attempt, 0.0) + span.device_s
    return found


@dataclass(frozen=True, slots=True)
class PartTime:
    """A part of the time, in seconds and in device-seconds."""

    seconds: float = 0.0
    device_s: float = 0.0

    def plus(self, seconds: float, device_s: float) -> "PartTime":
        return PartTime(self.seconds + seconds, self.device_s + device_s)


@dataclass(frozen=True, slots=True)
class ClassTotals:
    """Failures of one class."""

    failures: int = 0
    recovered: int = 0
    recovery_s: float = 0.0  # MTTR of those that were recovered from, in all

    @property
    def mttr_s(self) -> float | None:
        return ratio(self.recovery_s, self.recovered)


@dataclass(frozen=True, slots=True)
class TimeTotals:
    """Totals of one job, or of several. What ended at `last` may go on: `until` adds to it."""

    parts: Mapping[TimePart, PartTime] = field(default_factory=dict)
    down_s: float = 0.0  # not training because of a failure
    restarts: int = 0  # after incidents and interruptions
    interruptions: int = 0  # rankmend itself had ended, and the ranks with it
    by_class: Mapping[str, ClassTotals] = field(default_factory=dict)
    lost_device_s: Mapping[str, float] = field(default_factory=dict)  # by cause
    by_hardware: Mapping[Kind, HardwareTotals] = field(default_factory=dict)
    last: TimeSpan | None = None
    last_cause: str = ""  # of the loss that its time is; empty: it is none

    def seconds(self, *wanted: TimePart) -> float:
        return sum(self.parts[part].seconds for part in wanted if part in self.parts)

    @property
    def wall_s(self) -> float:
        return sum(part.seconds for part in self.parts.values())

    @property
    def device_s(self) -> float:
        return sum(part.device_s for part in self.parts.values())

    @property
    def run_s(self) -> float:
        """Return the wall time without the time between an end and the next start."""
        return self.wall_s - self.seconds(TimePart.ENDED)

    @property
    def training_s(self) -> float:
        return self.seconds(*TRAINING, TimePart.CHECKPOINT, TimePart.UNFINISHED)

    @property
    def failures(self) -> int:
        return self.interruptions + sum(item.failures for item in self.by_class.values())

    @property
    def goodput_ratio(self) -> float | None:
        return ratio(self.seconds(TimePart.PRODUCTIVE), self.run_s)

    @property
    def goodput_ratio_max(self) -> float | None:
        """Return the goodput if all time that could not be divided was productive."""
        return ratio(self.seconds(TimePart.PRODUCTIVE, TimePart.UNDIVIDED), self.run_s)

    @property
    def ettr_ratio(self) -> float | None:
        return ratio(self.seconds(TimePart.PRODUCTIVE), self.wall_s)

    @property
    def availability_ratio(self) -> float | None:
        known_s = self.run_s - self.seconds(TimePart.UNACCOUNTED)
        return ratio(known_s - self.down_s, known_s)

    @property
    def mtbf_s(self) -> float | None:
        return ratio(self.training_s, self.failures)

    @property
    def mttr_s(self) -> float | None:
        recovered = sum(item.recovered for item in self.by_class.values())
        return ratio(sum(item.recovery_s for item in self.by_class.values()), recovered)

    @property
    def restarts_per_1000_gpu_days(self) -> float | None:
        return ratio(self.restarts * GPU_DAYS * DAY_S, self.device_s)

    def until(self, later_s: float) -> "TimeTotals":
        """Return the totals at a later moment (seconds since the first record), if all went on as at the end."""
        last = self.last
        if last is None or last.part is TimePart.ENDED or later_s <= last.end_s:
            return self
        more = replace(last, begin_s=last.end_s, end_s=later_s)
        seconds, device_s = more.length_s, more.device_s
        parts = {**self.parts}
        parts[last.part] = parts.get(last.part, PartTime()).plus(seconds, device_s)
        lost = self.lost_device_s
        if self.last_cause:
            lost = {**lost, self.last_cause: lost.get(self.last_cause, 0.0) + device_s}
        return replace(
            self,
            parts=parts,
            down_s=self.down_s + (seconds if is_down(last) else 0.0),
            lost_device_s=lost,
            last=replace(last, end_s=later_s),
        )


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Something that failed, and that no command requested."""

    kind: str  # the class: an incident's symptom, or hung and restarted of a watched job
    node: str  # that it accuses; empty: none
    mttr_s: float | None  # None: it was not recovered from
    span_id: str  # the incident of the spans that are its cost


def failures_of(job: JobTime) -> list[JobFailure]:
    """Return the failures of a job, but for rankmend's own ends."""
    found = [
        JobFailure(
            class_of(incident),
            _node_of(incident),
            incident.account.total_s,
            incident.account.incident_id,
        )
        for incident in job.incidents
        if is_failure(incident)
    ]
    for stall in job.stalls:
        recovered_s = stall.recovered_s
        mttr_s = None if recovered_s is None else recovered_s - stall.begin_s
        found.append(JobFailure(stall.kind, stall.node, mttr_s, stall.stall_id))
    return found


def classes_of(job: JobTime) -> dict[str, str]:
    """Return what the time that failures cost is lost to, by the incident of the spans."""
    classes = {incident.account.incident_id: class_of(incident) for incident in job.incidents}
    return classes | {stall.stall_id: stall.kind for stall in job.stalls}


def totals_of(job: JobTime, classes: Mapping[str, str] | None = None) -> TimeTotals:
    """Return the totals of one job. ``classes``: those of more incidents than it counts; None: of those alone."""
    parts: dict[TimePart, PartTime] = {}
    lost: dict[str, float] = {}
    classes = classes_of(job) if classes is None else classes
    down_s, cause = 0.0, ""
    for span in job.spans:
        seconds, device_s = span.length_s, span.device_s
        parts[span.part] = parts.get(span.part, PartTime()).plus(seconds, device_s)
        cause = ""
        if span.part not in NOTHING_LOST:
            cause = classes.get(span.incident_id) or span.part.value
            lost[cause] = lost.get(cause, 0.0) + device_s
        if is_down(span):
            down_s += seconds
    slow_s = sum(loss.device_s for loss in slow_losses(job).values())
    if slow_s > 0:
        lost[SLOW] = slow_s
    causes = [attempt.cause for attempt in job.attempts if attempt.ordered_s >= job.begin_s]
    interruptions = causes.count(Cause.TAKEOVER)
    restarted = sum(
        stall.recovered_s is not None for stall in job.stalls if stall.kind == RESTARTED
    )
    return TimeTotals(
        parts=parts,
        down_s=down_s,
        restarts=interruptions + causes.count(Cause.INCIDENT) + restarted,
        interruptions=interruptions,
        by_class=_by_class(failures_of(job)),
        by_hardware=hardware_of(
            job, [(failure.node, failure.mttr_s) for failure in failures_of(job)]
        ),
        lost_device_s=lost,
        last=job.spans[-1] if job.spans else None,
        last_cause=cause,
    )


def add_up(totals: Iterable[TimeTotals]) -> TimeTotals:
    """Return the totals of several jobs together."""
    parts: dict[TimePart, PartTime] = {}
    lost: dict[str, float] = {}
    classes: dict[str, ClassTotals] = {}
    hardware: dict[Kind, HardwareTotals] = {}
    down_s, restarts, interruptions = 0.0, 0, 0
    for total in totals:
        for part, time in total.parts.items():
            parts[part] = parts.get(part, PartTime()).plus(time.seconds, time.device_s)
        for cause, device_s in total.lost_device_s.items():
            lost[cause] = lost.get(cause, 0.0) + device_s
        for name, group in total.by_class.items():
            classes[name] = _plus(classes.get(name, ClassTotals()), group)
        add_hardware(hardware, total.by_hardware.items())
        down_s += total.down_s
        restarts += total.restarts
        interruptions += total.interruptions
    ordered = {part: parts[part] for part in TimePart if part in parts}
    return TimeTotals(ordered, down_s, restarts, interruptions, classes, lost, hardware)


def slow_losses(job: JobTime) -> dict[tuple[int, str], PartTime]:
    """Return what slow ranks cost, by rank and node: of several at a time the slowest, which the others wait for."""
    marks = sorted({mark for item in job.slow for mark in (item.begin_s, item.end_s)})
    lost: dict[tuple[int, str], PartTime] = {}
    for begin_s, end_s in pairwise(marks):
        now = [item for item in job.slow if item.begin_s <= begin_s and item.end_s >= end_s]
        if not now:
            continue
        slowest = max(now, key=lambda item: item.step_factor)
        key = (slowest.rank, slowest.node)
        lost[key] = _plus_slow(lost.get(key, PartTime()), job.spans, slowest, begin_s, end_s)
    return {key: time for key, time in lost.items() if time.seconds > 0}


def slow_seconds(job: JobTime) -> float:
    """Return for how long the job trained and waited for a slow rank."""
    found_s, end_s = 0.0, job.begin_s
    for item in sorted(job.slow, key=lambda slow: slow.begin_s):
        begin_s = max(item.begin_s, end_s)
        for span in _overlapping(job.spans, begin_s, item.end_s):
            if span.part in TRAINING:
                found_s += max(0.0, min(span.end_s, item.end_s) - max(span.begin_s, begin_s))
        end_s = max(end_s, item.end_s)
    return found_s


def _plus_slow(
    time: PartTime, spans: Sequence[TimeSpan], slow: SlowTime, begin_s: float, end_s: float
) -> PartTime:
    share = 1.0 - 1.0 / max(1.0, slow.step_factor)
    for span in _overlapping(spans, begin_s, end_s):
        length_s = min(span.end_s, end_s) - max(span.begin_s, begin_s)
        if span.part in TRAINING and length_s > 0:
            lost_s = length_s * share
            time = time.plus(lost_s, lost_s * span.devices)
    return time


def _overlapping(spans: Sequence[TimeSpan], begin_s: float, end_s: float) -> Iterator[TimeSpan]:
    """Return the spans that share time with a stretch, of spans in order and without gap."""
    place = bisect_right(spans, begin_s, key=lambda span: span.end_s)
    while place < len(spans) and spans[place].begin_s < end_s:
        yield spans[place]
        place += 1


def class_of(incident: IncidentTime) -> str:
    """Return what an incident is counted as: its symptom, else its kind."""
    finding = incident.account.opened.failure.finding
    return finding.symptom.kind.value.replace(" ", "_") or finding.kind.value


def is_failure(incident: IncidentTime) -> bool:
    """Return whether something failed, and the restart was not planned."""
    finding = incident.account.opened.failure.finding
    return finding.blame is not Blame.USER and not finding.is_planned


def is_down(span: TimeSpan) -> bool:
    """Return whether the job did not train because of a failure."""
    return span.part in _DOWN or (span.part in _WAITS and bool(span.incident_id))


def _node_of(incident: IncidentTime) -> str:
    """Return the node that an incident accuses; empty: none."""
    finding = incident.account.opened.failure.finding
    return finding.node if finding.blame is Blame.RANK else ""


def _by_class(failures: Iterable[JobFailure]) -> dict[str, ClassTotals]:
    classes: dict[str, ClassTotals] = {}
    for failure in failures:
        more = ClassTotals(1, 0 if failure.mttr_s is None else 1, failure.mttr_s or 0.0)
        classes[failure.kind] = _plus(classes.get(failure.kind, ClassTotals()), more)
    return classes


def _plus(totals: ClassTotals, other: ClassTotals) -> ClassTotals:
    return ClassTotals(
        totals.failures + other.failures,
        totals.recovered + other.recovered,
        totals.recovery_s + other.recovery_s,
    )
