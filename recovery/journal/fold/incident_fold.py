"""What the records of an incident, from its finding to its end, change in the ledger. Pure."""

from typing import Final

from detectors.failed.error_text import ErrorText, error_line
from detectors.failed.loading_error import LoadingVerdict, judge_loading
from detectors.finding import Blame, Finding, Kind, SymptomKind
from rankmend.errors import JournalError
from recovery.journal.faults import OWN_ENDS, Fault, fault_of, have_one_cause
from recovery.journal.fold.budget_fold import (
    replace,
    with_first_step,
    with_restore_failed,
    with_start_failed,
    with_step,
)
from recovery.journal.fold.job_fold import close
from recovery.journal.incident_machine import IncidentState, Phase, step
from recovery.journal.incident_records import (
    BlameCorrected,
    CaughtUp,
    Conclusion,
    Decided,
    EvidenceCollected,
    Failure,
    IncidentEvent,
    IncidentOpened,
    NodesCharged,
    PlanWaits,
    TryFailed,
    WaitCause,
)
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.journal.ledger import (
    Closing,
    ErrorRun,
    Ledger,
    OpenIncident,
    StartFailure,
    Wish,
)
from recovery.messages.exchange import Stop

_COLLECTED_MAX: Final = 256  # a job's budgets allow 100 restarts
_RUN_INCIDENTS_MAX: Final = 64  # far above the limits that end a job by its own error
_WORDS_MAX: Final = 300  # of an error, in a reason
# What another checkpoint can't help.
_OUTSIDE_KINDS: Final = frozenset({Kind.HOST, Kind.DEVICE})
_OUTSIDE_SYMPTOMS: Final = frozenset(
    {
        SymptomKind.OOM_KILLED,
        SymptomKind.HOST_MEMORY,
        SymptomKind.DEVICE_MEMORY,
        SymptomKind.DEVICE,
        SymptomKind.KERNEL_FAULT,
        SymptomKind.COMMUNICATION,
        SymptomKind.MIXED_NCCL,
        SymptomKind.STORAGE,
        SymptomKind.SERVICE,
    }
)


def fold_incident_opened(record: IncidentOpened, ledger: Ledger) -> Ledger:
    state = IncidentState(record.incident_id, record.policy.tries_max)
    opened = OpenIncident(state, record.failure, record.highest_step, record.failure, record.policy)
    after = replace(
        ledger,
        incidents=ledger.incidents + 1,
        incident=opened,
        behind=None,
        fault=(record.incident_id, record.failure.finding),
        taken_back=frozenset(),
        charged=(),
    )
    highest = _with_highest(after, record.highest_step)
    return _with_failure(highest, record.failure, record.incident_id)


def fold_try_failed(record: TryFailed, ledger: Ledger) -> Ledger:
    if record.failure is None or ledger.incident is None:
        return ledger
    incident = replace(ledger.incident, last_failure=record.failure)
    accused = {record.failure.finding.node} - {""}
    fault = (f"{record.incident_id}/{record.try_number}", record.failure.finding)
    after = replace(ledger, incident=incident, fault=fault, taken_back=ledger.taken_back - accused)
    return _with_failure(after, record.failure, record.incident_id)


def _with_highest(ledger: Ledger, highest: int | None) -> Ledger:
    if highest is None or (ledger.highest_step is not None and highest <= ledger.highest_step):
        return ledger
    return replace(with_step(ledger), highest_step=highest)


def _with_failure(ledger: Ledger, failure: Failure, incident_id: str) -> Ledger:
    run = _error_run(ledger, failure, incident_id)
    fault = fault_of(failure, has_nodes=len(ledger.nodes) > 1)
    verdict = _judge(ledger, failure)
    after = replace(
        ledger,
        memory_errors=_memory_errors(ledger, fault),
        memory_errors_after=ledger.restorable_path,
    )
    is_checkpoint = ledger.started is not None and ledger.started.choice.snapshot is None
    is_outside = is_checkpoint and verdict is LoadingVerdict.OUTSIDE
    failed = _start_failure(ledger, failure, fault, verdict, incident_id)
    after = with_first_step(after) if failure.step is not None else with_start_failed(after, failed)
    return replace(
        after if is_outside else with_restore_failed(after, fault),
        last_fault=fault,
        node_run=_blamed(ledger.node_run, failure.finding),
        run_before=ledger.node_run,
        failed_attempt=failure.attempt,
        errors=run,
        telling_ranks=ledger.telling_ranks | frozenset(failure.telling_ranks),
        is_comparable=ledger.is_comparable and not failure.is_relative,
    )


def _error_run(ledger: Ledger, failure: Failure, incident_id: str) -> ErrorRun:
    """Return the failure, counted with those before it that are the same.

    Where no step was made, the checkpoint that the attempt began from may be the cause, and errors are
    not counted across checkpoints; an error that also came without one is the program's.
    """
    base = None
    choice = None if ledger.started is None else ledger.started.choice
    if failure.is_relative and choice is not None:
        base = choice.restored_path
    is_own = failure.finding.symptom.kind in OWN_ENDS
    if is_own and failure.step is None and choice is not None and choice.snapshot is None:
        base = choice.identity or None
    symptom, before = failure.finding.symptom, ledger.errors
    if before is None or (before.symptom, before.step) != (symptom, failure.step):
        return ErrorRun(symptom, failure.step, base, 1, (incident_id,))
    is_same = before.base == base
    is_same |= failure.step is None and (base is None or before.base is None)
    if not is_same:
        return ErrorRun(symptom, failure.step, base, 1, (incident_id,))
    ids = tuple(dict.fromkeys((*before.incidents, incident_id)))[-_RUN_INCIDENTS_MAX:]
    return ErrorRun(symptom, failure.step, base, before.count + 1, ids)


def _judge(ledger: Ledger, failure: Failure) -> LoadingVerdict:
    """Return what the failure says about what the attempt began from."""
    finding = failure.finding
    if finding.kind in _OUTSIDE_KINDS or finding.symptom.kind in _OUTSIDE_SYMPTOMS:
        return LoadingVerdict.OUTSIDE
    error = failure.error
    if error is None or finding.kind is not Kind.RANK_FAILED:
        return LoadingVerdict.UNKNOWN
    verdict = judge_loading(ErrorText(error.type_name, error.message, error.traceback))
    # A file that was deleted while ranks read it says nothing about it, and is put back.
    is_put_back = any(back.attempt == ledger.attempt for back in ledger.put_backs.values())
    is_load = verdict is LoadingVerdict.LOADING
    return LoadingVerdict.UNKNOWN if is_load and is_put_back else verdict


def _start_failure(
    ledger: Ledger,
    failure: Failure,
    fault: Fault | None,
    verdict: LoadingVerdict,
    incident_id: str,
) -> StartFailure | None:
    """Return the failure as that of a start, or None where the attempt may have made a step."""
    started = ledger.started
    if fault is None or started is None or failure.step is not None:
        return None
    tells = ledger.telling_ranks | frozenset(failure.telling_ranks)
    if not tells and ledger.saved_number > ledger.started_number:
        return None  # it reports no steps, and has saved
    choice, finding = started.choice, failure.finding
    error = failure.error
    words = finding.summary
    if error is not None:
        words = error_line(ErrorText(error.type_name, error.message, error.traceback))
    is_own = finding.kind is Kind.RANK_FAILED and finding.symptom.kind in OWN_ENDS
    return StartFailure(
        failure.attempt,
        choice.identity,
        choice.restored_path or "",
        finding.symptom,
        words[:_WORDS_MAX],
        is_own,
        verdict,
        bool(choice.fallen_back_from),
        incident_id,
    )


def _memory_errors(ledger: Ledger, fault: Fault | None) -> int:
    """Return how often in a row the program has now ended itself alike after it began from a snapshot."""
    if fault is None or fault.symptom not in OWN_ENDS or ledger.restored_step is None:
        return 0
    before = ledger.last_fault
    is_again = ledger.memory_errors_after == ledger.restorable_path
    is_again = is_again and before is not None and have_one_cause(before, fault)
    return ledger.memory_errors + 1 if is_again else 1


def _blamed(run: tuple[str, int], finding: Finding) -> tuple[str, int]:
    """Return which node has been blamed how often in a row, after one more failure.

    A signal whose sender nobody knows blames no node. What an alert says beside it takes the node out by itself.
    """
    is_unknown = finding.symptom.kind is SymptomKind.KILLED
    if finding.blame is not Blame.RANK or not finding.node or is_unknown:
        return run
    return finding.node, run[1] + 1 if run[0] == finding.node else 1


def fold_evidence_collected(record: EvidenceCollected, ledger: Ledger) -> Ledger:
    """Note whose evidence is on record; blame whom it is sure of in the place of whom the ranks' states had named."""
    reported = (record.incident_id, record.attempt)
    others = tuple(item for item in ledger.collected if item != reported)
    ledger = replace(ledger, collected=(*others, reported)[-_COLLECTED_MAX:])
    incident = ledger.incident
    newest = (
        None if incident is None else (incident.state.incident_id, incident.last_failure.attempt)
    )
    if incident is not None and reported == newest:
        ledger = replace(ledger, incident=replace(incident, judged=record.finding))
    if record.attempt != ledger.failed_attempt or not record.is_sure or record.finding is None:
        return ledger
    return replace(ledger, node_run=_blamed(ledger.run_before, record.finding))


def fold_nodes_charged(record: NodesCharged, ledger: Ledger) -> Ledger:
    incident = ledger.incident
    if incident is None or incident.state.incident_id != record.incident_id:
        return ledger
    return replace(ledger, charged=record.nodes)


def fold_blame_corrected(_record: BlameCorrected, ledger: Ledger) -> Ledger:
    """Hold nothing against the nodes on which the program failed."""
    return replace(ledger, node_run=("", 0), run_before=("", 0))


def fold_incident_event(record: IncidentEvent, ledger: Ledger) -> Ledger:
    if ledger.incident is None:
        raise JournalError(f"record {ledger.number} belongs to no incident: {record.event}")
    before = ledger.incident
    state = step(before.state, record.event)
    # An approval is of one try's plan, and a plan that waits is of the phase that it was made in.
    approved_by = before.approved_by if state.try_number == before.state.try_number else None
    incident = replace(before, state=state, waits=None, approved_by=approved_by)
    if state.phase is Phase.FENCING:
        return replace(
            ledger,
            incident=incident,
            wish=Wish.NOTHING,
            revision=ledger.number,
            finder=None,
            finders=(),
        )
    if state.phase is Phase.RECOVERED:
        is_behind = incident.highest_before is not None and ledger.is_comparable
        behind = incident if is_behind else None
        return replace(ledger, incident=None, behind=behind, taken_back=frozenset())
    if state.phase is Phase.CANCELLED:
        return replace(ledger, incident=None, goes_back=None, leaves_damaged=None)
    if state.phase is Phase.ESCALATED:
        failure = incident.last_failure
        outcome = JobOutcome(
            OutcomeKind.ESCALATED,
            failure.exit_code,
            record.event.reason,
            state.incident_id,
            failure.rank,
            failure.error,
            is_observed=before.waits is not None and before.waits_cause is WaitCause.OBSERVE,
            is_at_start=before.plan is not None
            and before.plan.concludes is Conclusion.PROGRAM_FAILS_AT_START,
        )
        return close(replace(ledger, incident=None), Closing(outcome, Stop.KILL, 0.0))
    return replace(ledger, incident=incident)


def fold_caught_up(_record: CaughtUp, ledger: Ledger) -> Ledger:
    return replace(ledger, behind=None)


def fold_decided(record: Decided, ledger: Ledger) -> Ledger:
    if ledger.incident is None:
        return ledger
    return replace(ledger, incident=replace(ledger.incident, plan=record.plan, waits=None))


def fold_plan_waits(record: PlanWaits, ledger: Ledger) -> Ledger:
    if ledger.incident is None:
        return ledger
    waits, before = (record.plan, record.reason), ledger.incident.waits
    is_same = before is not None and (before[0].step, before[0].without) == (
        record.plan.step,
        record.plan.without,
    )
    # To begin at zero takes a word of its own.
    is_other = not is_same or record.cause is WaitCause.CHECKPOINT
    approved_by = None if is_other else ledger.incident.approved_by
    incident = replace(
        ledger.incident,
        waits=waits,
        waits_for=record.waits_for,
        waits_cause=record.cause,
        waits_about=record.about,
        approved_by=approved_by,
    )
    return replace(ledger, incident=incident)
