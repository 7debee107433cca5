"""Says in a person's words what a journal entry means. Pure: entries in, text out.

`rankmend run` prints these lines as they happen, `rankmend why` prints them from the journal,
so that both tell one story.
"""

from functools import singledispatch

from recovery import records
from recovery.machine import Outcome
from recovery.records import Cause, Choice, OutcomeKind, PlanStep, Record

_CAUSES = {
    Cause.FIRST: "start",
    Cause.RESUMED: "start again",
    Cause.TAKEOVER: "take over a job whose launcher had died",
    Cause.INCIDENT: "restart",
}


@singledispatch
def narrate(record: Record) -> str | None:  # noqa: ARG001 - the default of a dispatch
    """Return one line about a record, or None where there is nothing to tell."""
    return None


def describe_choice(choice: Choice) -> str:
    """Return where an attempt begins, and why there."""
    if choice.restore is None:
        return f"from the beginning ({choice.reason})"
    step = "" if choice.restore.step is None else f" at step {choice.restore.step}"
    return f"from {choice.restore.path}{step} ({choice.reason})"


def describe_passed_over(choice: Choice) -> list[str]:
    """Return one line for each checkpoint that was not taken."""
    return [f"passed over {item.path}: {item.reason}" for item in choice.passed_over]


def details(record: Record) -> list[str]:
    """Return what supports a record's line: evidence, and what was passed over and why."""
    if isinstance(record, records.AttemptStarted):
        return describe_passed_over(record.choice)
    if isinstance(record, records.SlowFound):
        return [f"{one.source}: {one.text}" for one in record.finding.evidence]
    if isinstance(record, records.IncidentOpened):
        finding = record.failure.finding
        lines = [f"{one.source}: {one.text}" for one in finding.evidence]
        if finding.victims:
            ranks = ", ".join(str(rank) for rank in finding.victims)
            lines.append(f"victims, not causes: ranks {ranks}")
        return lines
    if isinstance(record, records.EvidenceCollected):
        lines = [f"on {one.node}: {one.folder}, in {one.took_s:.1f} s" for one in record.saved]
        lines += [f"on {one.node}: {note}" for one in record.saved for note in one.notes]
        if record.finding is not None:
            lines += [f"{one.source}: {one.text}" for one in record.finding.evidence]
        return lines
    return []


@narrate.register
def _(record: records.AttemptStarted) -> str:
    return f"{_CAUSES[record.cause]}: attempt {record.attempt} {describe_choice(record.choice)}"


@narrate.register
def _(record: records.AttemptVerified) -> str:
    if record.telling_ranks:
        return f"attempt {record.attempt} makes steps on {len(record.telling_ranks)} ranks"
    return f"attempt {record.attempt} runs; its ranks tell no steps"


@narrate.register
def _(record: records.IncidentOpened) -> str:
    finding = record.failure.finding
    return f"incident {record.incident_id}: {finding.summary} (blamed: {finding.blame.value})"


@narrate.register
def _(record: records.Decided) -> str:
    gives_up = record.plan.step is PlanStep.ESCALATE
    return f"decision: {'give up: ' if gives_up else ''}{record.plan.reason}"


@narrate.register
def _(record: records.TryFailed) -> str:
    return f"try {record.try_number} came to nothing: {record.reason}"


@narrate.register
def _(record: records.IncidentEvent) -> str | None:
    if record.event.outcome is not Outcome.FAILED or not record.event.reason:
        return None
    return f"{record.event.answers}: {record.event.reason}"


@narrate.register
def _(record: records.EvidenceCollected) -> str:
    size_bytes = sum(saved.size_bytes for saved in record.saved)
    files = sum(saved.files for saved in record.saved)
    line = f"evidence: {files} files, {size_bytes / 1000:.0f} kB"
    if not record.cause:
        return line
    return f"{line}: {record.cause}: {record.reason} (confidence {record.confidence:.2f})"


@narrate.register
def _(record: records.CaughtUp) -> str:
    return f"caught up: step {record.step} is new"


@narrate.register
def _(record: records.SlowFound) -> str:
    return record.finding.summary


@narrate.register
def _(record: records.SlowEnded) -> str:
    return f"rank {record.rank} is called slow no more: {record.reason}"


@narrate.register
def _(record: records.StopRequested) -> str:
    return f"stopping: {record.reason}; {record.grace_s:g} s to save"


@narrate.register
def _(record: records.BudgetsReset) -> str:
    return f"budgets reset by {record.who}: {record.reason}"


@narrate.register
def _(record: records.TailCut) -> str:
    return (
        f"the journal ended unfinished and was cut at record {record.first_number}: {record.reason}"
    )


@narrate.register
def _(record: records.RecordsLost) -> str:
    return (
        f"the journal ends at record {record.journal_number}, the copy beside the checkpoints knows "
        f"{record.copy_number}: records were lost; the stricter budgets of both go on"
    )


@narrate.register
def _(record: records.JobEnded) -> str:
    outcome = record.outcome
    if outcome.kind is OutcomeKind.DONE:
        return "done: every rank ended with exit code 0"
    left = "" if record.is_empty else " (not every process is proved gone)"
    return f"{outcome.kind.value.replace('_', ' ')}: {outcome.reason}{left}"
