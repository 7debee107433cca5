"""The decisions in a journal that were not taken, and what a job did before and after each. Pure.

A plan counts as not taken if it waited for leave (observe mode, dry run, an approval, a pause) and its incident ended, or still is,
without any step of it: not fenced, and nothing started for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from detectors.finding import Kind
from recovery.journal.accounting import account_all
from recovery.journal.attempt_records import (
    AttemptStarted,
    AttemptVerified,
    Milestone,
    RelativeMilestone,
)
from recovery.journal.incident_machine import Outcome
from recovery.journal.incident_records import (
    IncidentEvent,
    IncidentOpened,
    PlanWaits,
    WaitCause,
    WaitsFor,
)
from recovery.journal.job_records import JobEnded, JobOpened, PersonActed
from recovery.journal.observation_records import SlowEnded
from recovery.journal.records import Entry
from recovery.messages.outside import PersonAct

EVIDENCE_MAX: Final = 8
_LEAVE: Final = frozenset(
    {
        WaitCause.OBSERVE,
        WaitCause.DRY_RUN,
        WaitCause.APPROVAL,
        WaitCause.PAUSED,
        WaitCause.UNCONFIRMED,
    }
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that rankmend would have done."""

    at_unix_s: float
    source: str  # "job", "watched", "slurm", "cluster"
    action: str  # restart_in_place, move, drain, power_off ...
    why_not: str  # observe, dry_run, approval, paused, unconfirmed
    reason: str
    job_id: str = ""
    job: str = ""
    incident_id: str = ""
    nodes: tuple[str, ...] = ()  # that it would have left, drained or switched off
    evidence: tuple[str, ...] = ()
    attempt: int = 0  # of the job, about which it was
    fault_unix_s: float | None = None
    slow_ranks: tuple[int, ...] = ()  # where it is about slow ranks
    rejected_by: str = ""  # who refused the plan


@dataclass(frozen=True, slots=True)
class AttemptRun:
    """One attempt of a job, as far as it is known."""

    attempt: int
    nodes: tuple[str, ...]
    started_unix_s: float
    verified_unix_s: float | None = None
    ranks: int = 0
    # Steps by time, of any rank; the first of them is the first that the journal has.
    progress: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What a job's journal says of its attempts."""

    job_id: str
    name: str
    attempts: tuple[AttemptRun, ...] = ()
    ended: tuple[tuple[float, str], ...] = ()  # when, and how
    blamed: tuple[tuple[float, str], ...] = ()  # when an incident accused which node
    slow_ended: tuple[tuple[float, int, int], ...] = ()  # when, attempt, rank
    repairs_s: tuple[float, ...] = ()  # fault to first step, of incidents that recovered
    newest_unix_s: float = 0.0
    decisions: tuple[Decision, ...] = ()


@dataclass(slots=True)
class _Reading:
    history: JobHistory
    opened: tuple[float, IncidentOpened] | None = None
    waits: tuple[float, PlanWaits] | None = None
    rejected_by: str = ""
    attempts: dict[int, AttemptRun] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)


def read_history(entries: Sequence[Entry]) -> JobHistory:
    """Return a job's history with the decisions that were not taken."""
    found = _Reading(JobHistory("", ""))
    for entry in entries:
        _take(found, entry)
    _close(found)  # an incident that is still open
    repairs = [account.total_s for account in account_all(entries) if account.total_s is not None]
    newest = entries[-1].unix_s if entries else 0.0
    named = [
        replace(decision, job_id=found.history.job_id, job=found.history.name)
        for decision in found.decisions
    ]
    return replace(
        found.history,
        attempts=tuple(found.attempts.values()),
        repairs_s=tuple(repairs),
        newest_unix_s=newest,
        decisions=tuple(named),
    )


def _take(found: _Reading, entry: Entry) -> None:
    record, history = entry.record, found.history
    if isinstance(record, JobOpened):
        found.history = replace(history, job_id=record.job_id, name=record.name)
    elif isinstance(record, AttemptStarted):
        _take_started(found, entry.unix_s, record)
    elif isinstance(record, AttemptVerified):
        run = found.attempts.get(record.attempt)
        if run is not None:
            age_s = record.first_step_age_s or 0.0
            found.attempts[record.attempt] = replace(run, verified_unix_s=entry.unix_s - age_s)
    elif isinstance(record, Milestone | RelativeMilestone):
        _take_progress(found, entry.unix_s, record)
    elif isinstance(record, JobEnded):
        end = (entry.unix_s, record.outcome.kind.value)
        found.history = replace(history, ended=(*history.ended, end))
    elif isinstance(record, SlowEnded):
        end_of = (entry.unix_s, record.attempt, record.rank)
        found.history = replace(history, slow_ended=(*history.slow_ended, end_of))
    else:
        _take_incident(found, entry)


def _take_started(found: _Reading, unix_s: float, record: AttemptStarted) -> None:
    nodes = tuple(place.node for place in record.placement)
    ranks = sum(len(place.ranks) for place in record.placement)
    found.attempts[record.attempt] = AttemptRun(record.attempt, nodes, unix_s, ranks=ranks)
    if record.incident_id is not None:
        found.waits = None  # it was taken


def _take_progress(found: _Reading, unix_s: float, record: Milestone | RelativeMilestone) -> None:
    run = found.attempts.get(record.attempt)
    if run is not None:
        step = record.step if isinstance(record, Milestone) else record.steps
        progress = (*run.progress[-2_000:], (unix_s, step))
        found.attempts[record.attempt] = replace(run, progress=progress)


def _take_incident(found: _Reading, entry: Entry) -> None:
    record, history = entry.record, found.history
    if isinstance(record, IncidentOpened):
        _close(found)
        node = record.failure.finding.node
        if node:
            found.history = replace(history, blamed=(*history.blamed, (entry.unix_s, node)))
        found.opened, found.waits, found.rejected_by = (entry.unix_s, record), None, ""
    elif isinstance(record, PlanWaits):
        is_same = found.waits is not None and found.waits[1].plan.step is record.plan.step
        if record.waits_for is WaitsFor.LEAVE and record.cause in _LEAVE and not is_same:
            found.waits = (entry.unix_s, record)
    elif isinstance(record, PersonActed):
        if record.command.act is PersonAct.REJECT and not record.is_refused:
            found.rejected_by = record.command.who
    elif isinstance(record, IncidentEvent):
        if record.event.outcome in (Outcome.ESCALATE, Outcome.CANCEL):
            _close(found)
        else:
            found.waits = None  # it went on


def _close(found: _Reading) -> None:
    """Note the decision of the incident that ends here, if it was not taken."""
    if found.waits is not None and found.opened is not None:
        at_unix_s, waits = found.waits
        opened_unix_s, opened = found.opened
        finding = opened.failure.finding
        is_slow = finding.kind is Kind.RANK_SLOW
        found.decisions.append(
            Decision(
                at_unix_s=at_unix_s,
                source="job",
                action=waits.plan.step.value,
                why_not=waits.cause.value,
                reason=waits.plan.reason,
                incident_id=waits.incident_id,
                nodes=waits.plan.without,
                evidence=_evidence(
                    (evidence.source, evidence.text) for evidence in waits.plan.evidence
                ),
                attempt=opened.failure.attempt,
                fault_unix_s=opened_unix_s - opened.fault_age_s,
                slow_ranks=finding.ranks if is_slow else (),
                rejected_by=found.rejected_by,
            )
        )
    found.waits = found.opened = None


def _evidence(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{source}: {text}" for source, text in list(pairs)[:EVIDENCE_MAX])
