"""Explains journal entries in plain words. Pure: entries in, text out.

`rankmend run` prints these lines as they happen, and `rankmend why` prints them from the journal,
so that both tell the same story.
"""

from functools import singledispatch
from typing import Final

from detectors.finding import Finding, blamed_in_words
from detectors.wording import counted, names_in_words, ranks_in_words
from rankmend.rank_values import Unsaved
from recovery.journal.attempt_records import (
    Adopted,
    AttemptEnded,
    AttemptHeard,
    AttemptStarted,
    AttemptVerified,
    Cause,
    CheckpointPutBack,
    CheckpointSeen,
    Choice,
    RestoreDamaged,
    SavesMissing,
    StandKind,
    StandStill,
    StartWaits,
)
from recovery.journal.cluster_records import PowerOffAsked
from recovery.journal.incident_machine import Outcome
from recovery.journal.incident_records import (
    BlameCorrected,
    CaughtUp,
    ChargedNode,
    Decided,
    EvidenceCollected,
    IncidentEvent,
    IncidentOpened,
    NodesCharged,
    PlanWaits,
    TryFailed,
    WaitCause,
)
from recovery.journal.job_records import (
    BudgetsReset,
    ClaimProof,
    ClaimTaken,
    JobEnded,
    OutcomeKind,
    PersonActed,
    RecordsLost,
    StopRequested,
    TailCut,
)
from recovery.journal.limits import PlanStep
from recovery.journal.narration.cluster_narrator import (
    describe_asked,
    describe_ended,
    describe_skipped,
)
from recovery.journal.node_records import (
    EvidenceDoubted,
    EvidenceTaken,
    FenceWaits,
    FinderChosen,
    LaunchersEnded,
    NodeLeft,
    NodesJoined,
    NodesOff,
)
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    FabricProbeSkipped,
    GoesBack,
    NumbersWrong,
    ParallelDeclared,
    ReplicasDiffer,
    SlowEnded,
    SlowExplained,
    SlowFound,
)
from recovery.journal.records import Record
from recovery.messages.exchange import StopReason
from recovery.messages.outside import NameMatch, NodeEvidence

_CAUSES = {
    Cause.FIRST: "start",
    Cause.RESUMED: "start again",
    Cause.TAKEOVER: "take over a job whose launcher died",
    Cause.INCIDENT: "restart",
}


END_WORDS: Final = {
    OutcomeKind.DONE: "done",
    OutcomeKind.STOPPED: "stopped",
    OutcomeKind.TIME_LIMIT: "time limit",
    OutcomeKind.ESCALATED: "gave up",
}
"""How people read the end of a job. Programs read the value of `OutcomeKind`."""

_MINUTES_S, _HOURS_S = 120.0, 7200.0
_LINES_MAX = 20  # shown of a burst of alerts: a dead switch causes 1,000

_SAME_BY: Final = {
    NameMatch.EXACT: "the same name",
    NameMatch.CASE: "the same but for capitals",
    NameMatch.SHORT: "the only node with this short name",
    NameMatch.ADDRESS: "the only node with this address",
}

_TAKEN_BECAUSE = {
    ClaimProof.PROCESSES: "its processes are gone",
    ClaimProof.LOCK: "its processes, in another container, are gone",
    ClaimProof.BOOT: "the machine has rebooted since",
    ClaimProof.PERSON: "--take-over states that it is gone",
}


@singledispatch
def narrate(record: Record) -> str | None:  # noqa: ARG001 - the default of a dispatch
    """Return one line about a record, or None for a record that people need not see."""
    return None


def describe_choice(choice: Choice) -> str:
    """Return where an attempt begins, and why."""
    if choice.snapshot is not None:
        return f"from memory at step {choice.snapshot.step} ({choice.reason})"
    if choice.restore is None:
        return f"from the beginning ({choice.reason})"
    step = "" if choice.restore.step is None else f" at step {choice.restore.step}"
    return f"from {choice.restore.path}{step} ({choice.reason})"


def describe_passed_over(choice: Choice) -> list[str]:
    """Return one line for each checkpoint that was not taken."""
    return [f"passed over {item.path}: {item.reason}" for item in choice.passed_over]


@singledispatch
def details(record: Record) -> list[str]:  # noqa: ARG001 - the default of a dispatch
    """Return the lines that support a record's line: evidence, and rejected choices with the reason."""
    return []


@details.register
def _(record: AttemptStarted) -> list[str]:
    lines = describe_passed_over(record.choice)
    if len(record.placement) > 1:
        lines.append("on " + ", ".join(place.node for place in record.placement))
    return lines


@details.register
def _(record: AttemptEnded) -> list[str]:
    return [f"{proof.node} is empty: {proof.reason}" for proof in record.proofs]


@details.register
def _(record: EvidenceTaken) -> list[str]:
    return [
        f"{evidence.node}{_alert_name_text(evidence)} {evidence.device}: {evidence.summary}"
        for evidence in record.evidence[:_LINES_MAX]
    ]


def _alert_name_text(evidence: NodeEvidence) -> str:
    """Return what the alert calls the node, where that is another name, and why it is the same node."""
    return (
        f" ({evidence.told_node} in the alert; {_SAME_BY[evidence.match]})"
        if evidence.told_node
        else ""
    )


@details.register
def _(record: IncidentOpened) -> list[str]:
    finding = record.failure.finding
    lines = [f"blamed: {' = '.join(_blamed(finding))}"]
    lines += [f"{evidence.source}: {evidence.text}" for evidence in finding.evidence]
    if finding.victims:
        ranks = ", ".join(str(rank) for rank in finding.victims)
        lines.append(f"victims, not causes: ranks {ranks}")
    return lines


@details.register
def _(record: SlowFound) -> list[str]:
    return [f"{evidence.source}: {evidence.text}" for evidence in record.finding.evidence]


@details.register
def _(record: SlowExplained) -> list[str]:
    return [f"{evidence.source}: {evidence.text}" for evidence in record.evidence]


@details.register
def _(record: PersonActed) -> list[str]:
    return [f"reason: {record.command.reason}"] if record.command.reason else []


@narrate.register
def _(record: AttemptStarted) -> str:
    line = f"{_CAUSES[record.cause]}: attempt {record.attempt} {describe_choice(record.choice)}"
    if record.is_taken is not False or record.choice.restored_path is None:
        return line
    return (
        f"{line}; the script takes no {{checkpoint}} among its arguments and does not call rankmend.resume(): it begins from what it "
        "finds itself, and no older one can be tried for it"
    )


@narrate.register
def _(record: StartWaits) -> str:
    return f"held: {record.reason}"


@narrate.register
def _(record: CheckpointSeen) -> str:
    step = "" if record.step is None else f" at step {record.step}"
    newer = ""
    if record.newer_path is not None:
        name = record.newer_path.rpartition("/")[2]
        newer = f", or {name} if its save has ended by then"
    return f"a failure now can restore {record.path}{step}{newer} ({record.label}; {record.reason})"


@narrate.register
def _(record: CheckpointPutBack) -> str:
    what = f"{record.path} was deleted while attempt {record.attempt} restored it"
    if record.is_given_up:
        return f"{what}, {record.count + 1} times: {record.node} has left it so"
    times = "" if record.count == 1 else f", {record.count} times"
    return f"{what}{times}: {record.node} has put it back"


@narrate.register
def _(record: SavesMissing) -> str:
    return describe_unsaved(record, record.trained_s)


def describe_unsaved(record: SavesMissing, since_s: float, *, is_least: bool = False) -> str:
    """Return what is wrong with the saves of a job that has trained for so long, or longer, without one, and what to do."""
    where = record.folder or "--checkpoint-dir"
    match record.cause:
        case Unsaved.NONE_NEWER:
            what = f"nothing newer than {record.newest} has been saved in {where}"
        case Unsaved.NONE_VALID:
            what = f"nothing that can be restored has been saved in {where}"
        case _:
            what = f"nothing that looks like a checkpoint has been saved in {where}"
    example = f" ({record.example})" if record.example else ""
    hint = "does the script save into this folder, and how often?"
    if record.cause is Unsaved.NONE_VALID:
        hint = f"`rankmend checkpoints {where}` says why for each one"
    least = "at least " if is_least else ""
    return f"for {least}{_long(since_s)} {what}{example}: {_loses(record)}; {hint}"


def _loses(record: SavesMissing) -> str:
    """Return what a restart would begin from."""
    memory = " without the snapshots in memory" if record.has_snapshots else ""
    if record.cause is Unsaved.NONE_NEWER:
        return f"a restart would repeat all of that{memory}"
    if record.cause is Unsaved.NOTHING_FOUND and not record.newest:
        return f"a restart would begin at step 0{memory}"
    return f"after a failure the job would be held{memory}"


def _long(seconds: float) -> str:
    if seconds < _MINUTES_S:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < _HOURS_S else f"{seconds / 3600:.3g} h"


@narrate.register
def _(record: ClaimTaken) -> str:
    return f"took the checkpoint folder from {record.owner}: {_TAKEN_BECAUSE[record.proof]}"


@narrate.register
def _(record: AttemptEnded) -> str | None:
    # If each launcher reported its own end, a line would repeat that.
    return f"attempt {record.attempt} no longer runs on any node" if record.proofs else None


@narrate.register
def _(record: AttemptVerified) -> str:
    if record.telling_ranks:
        line = f"attempt {record.attempt} makes progress on {counted(len(record.telling_ranks), 'rank')}"
        if record.own_choice_step is not None:
            return f"{line}, {_chosen_itself(record)}"
        return line if record.unused_step is None else f"{line}, {_unused(record)}"
    return f"attempt {record.attempt} runs; its ranks report no steps"


def _unused(record: AttemptVerified) -> str:
    return (
        f"but begins at step {record.first_step}, although it was given step {record.unused_step}: either the script does not "
        "load it (does it take {checkpoint}, or call rankmend.resume()?), or it counts its steps anew"
    )


def _chosen_itself(record: AttemptVerified) -> str:
    return (
        f"but begins behind step {record.own_choice_step}, of a checkpoint that was passed over: the script looks for the newest "
        "itself. No older one can be tried for it; let it take {checkpoint}, or call rankmend.resume()"
    )


@narrate.register
def _(record: IncidentOpened) -> str:
    finding = record.failure.finding
    word, _legend = _blamed(finding)
    return f"incident {record.incident_id}: {finding.summary} (blamed: {word})"


def _blamed(finding: Finding) -> tuple[str, str]:
    return blamed_in_words(finding.blame, finding.kind.value, finding.ranks)


@narrate.register
def _(record: Decided) -> str:
    gives_up = record.plan.step is PlanStep.ESCALATE
    return f"decision: {'give up: ' if gives_up else ''}{record.plan.reason}"


@narrate.register
def _(record: TryFailed) -> str:
    return f"try {record.try_number} failed: {record.reason}"


@narrate.register
def _(record: IncidentEvent) -> str | None:
    if record.event.outcome is Outcome.CANCEL:
        return f"{record.event.incident_id} was cancelled: {record.event.reason}"
    if record.event.outcome is not Outcome.FAILED or not record.event.reason:
        return None
    _incident, _slash, where = record.event.answers.partition("/")
    number, _slash, phase = where.partition("/")
    return f"try {number}, {phase}: {record.event.reason}"


@narrate.register
def _(record: EvidenceCollected) -> str:
    size_bytes = sum(saved.size_bytes for saved in record.saved)
    files = sum(saved.files for saved in record.saved)
    line = f"evidence: {counted(files, 'file')}, {size_bytes / 1000:.0f} kB"
    if not record.cause:
        return line
    return f"{line}: {record.cause}: {record.reason} (confidence {record.confidence:.2f})"


@details.register
def _(record: EvidenceCollected) -> list[str]:
    return [
        f"output of the ranks on {saved.node}: {saved.output_says}"
        for saved in record.saved[:_LINES_MAX]
        if saved.output_says
    ]


@narrate.register
def _(record: NodesCharged) -> str:
    counting = [node.node for node in record.nodes if node.counts]
    if counting:
        return f"the incident counts against {names_in_words(counting)}"
    return f"the incident counts nothing against {names_in_words([node.node for node in record.nodes])}"


@details.register
def _(record: NodesCharged) -> list[str]:
    return [describe_charge(node) for node in record.nodes[:_LINES_MAX]]


def describe_charge(node: ChargedNode) -> str:
    """Return whether an incident counts against a node, and why."""
    return f"{node.node}: {'counts' if node.counts else 'counts nothing'}: {node.reason}"


@narrate.register
def _(record: BlameCorrected) -> str:
    ids = names_in_words(record.incident_ids)
    return f"to blame for {ids}: {record.blame.value}: {record.reason}; nothing of it counts against a node"


@narrate.register
def _(record: CaughtUp) -> str:
    return f"caught up: step {record.step} is the first new one"


@narrate.register
def _(record: SlowFound) -> str:
    return record.finding.summary


@narrate.register
def _(record: SlowExplained) -> str:
    if not record.cause:
        return record.reason
    return f"{record.reason}: {record.evidence[0].text} (confidence {record.confidence:.2f})"


@narrate.register
def _(record: ReplicasDiffer) -> str:
    found = f"silent corruption at step {record.step}: {record.in_words}"
    if not record.is_declared:
        return f"{found}, though replicas are equal"
    hint = f" (if each holds a share of it: --sharded-parts {record.part})"
    return f"{found}, though --parallel declares them replicas{'' if record.odd else hint}"


@narrate.register
def _(record: ParallelDeclared) -> str:
    if record.layout is None:
        return "the job no longer declares parallel sizes"
    return f"the job declares its parallel sizes: {record.layout}"


@narrate.register
def _(record: NumbersWrong) -> str:
    return f"{record.severity.value}: {record.in_words}"


@narrate.register
def _(record: StandStill) -> str:
    who = ranks_in_words(record.ranks) if record.ranks else "the job"
    match record.kind:
        case StandKind.CONTINUED:
            return f"{who}: stopped by a signal; SIGCONT is sent once: {record.reason}"
        case StandKind.SUSPENDED:
            return (
                f"the job is suspended: {record.reason}. It is left alone, and goes on with SIGCONT"
            )
        case StandKind.WAITS:
            return f"the job stands still, and is not restarted: {record.reason}"
    after = "" if record.after_s is None else f" after {_long(record.after_s)}"
    return f"the job goes on{after}"


@narrate.register
def _(record: RestoreDamaged) -> str:
    what = f"{record.path}, from which attempt {record.attempt} began before all of it was checked, is damaged"
    then = (
        "back to an older one"
        if record.goes_back
        else "nothing older can be restored: it trains on"
    )
    return f"{what}: {record.reason}; {then}"


@narrate.register
def _(record: GoesBack) -> str:
    return f"the numbers of attempt {record.attempt} went wrong at step {record.wrong_at}: back behind step {record.behind}"


@narrate.register
def _(record: SlowEnded) -> str:
    return f"rank {record.rank} is no longer slow: {record.reason}"


@narrate.register
def _(record: FabricProbeAsked) -> str:
    return describe_asked(record)


@narrate.register
def _(record: FabricProbeSkipped) -> str:
    return describe_skipped(record)


@narrate.register
def _(record: FabricProbeEnded) -> str:
    return describe_ended(record)


@narrate.register
def _(record: StopRequested) -> str:
    why = ", requested " if record.cause is StopReason.PERSON else ": "
    return f"stopping{why}{record.reason}; {record.grace_s:g} s to save"


@narrate.register
def _(record: BudgetsReset) -> str:
    return f"budgets reset by {record.who}: {record.reason}"


@narrate.register
def _(record: TailCut) -> str:
    return f"the journal had an unfinished tail and was cut at record {record.first_number}: {record.reason}"


@narrate.register
def _(record: RecordsLost) -> str:
    return (
        f"the journal ends at record {record.journal_number}, but the copy beside the checkpoints knows "
        f"record {record.copy_number}: records were lost; of both budgets, the stricter apply"
    )


@narrate.register
def _(record: NodesJoined) -> str:
    return f"joined: {names_in_words([node.node for node in record.nodes])}"


@narrate.register
def _(record: LaunchersEnded) -> str:
    names = names_in_words([launcher.node for launcher in record.launchers])
    return f"launchers ended and left no process behind: {names}"


@narrate.register
def _(record: PowerOffAsked) -> str:
    return f"asks the BMC of {record.node}, which is lost, to switch its power off"


@narrate.register
def _(record: NodesOff) -> str:
    names = names_in_words([node.node for node in record.nodes])
    return f"no power, by two readings of the BMC: {names}; no process is left there"


@narrate.register
def _(record: AttemptHeard) -> str:
    return f"attempt {record.attempt} runs but is not in this journal; stopping it"


@narrate.register
def _(record: Adopted) -> str:
    unheard = [place.node for place in record.placement if place.node not in record.heard]
    line = (
        f"adopted: attempt {record.attempt} is over, but is not in this journal"
        if not record.placement
        else f"adopted: attempt {record.attempt} runs on {counted(len(record.placement), 'node')}, but was not in "
        f"this journal"
    )
    line += f"; epoch {record.epoch}"
    if unheard:
        line += f"; no report from {names_in_words(unheard)}"
    if record.is_history_lost:
        line += "; budgets count as spent until `rankmend reset-budgets`"
    return line


@narrate.register
def _(record: NodeLeft) -> str:
    return f"{record.node} gets no more ranks: {record.reason}"


@narrate.register
def _(record: FinderChosen) -> str:
    if not record.readers:
        return f"{record.node} looks for checkpoints ({record.reason})"
    names = names_in_words([reader.node for reader in record.readers])
    return f"{names} look for checkpoints, a share each ({record.reason})"


@narrate.register
def _(record: PlanWaits) -> str:
    if record.cause is WaitCause.OBSERVE:
        return f"would {record.plan.step.in_words}: {record.plan.reason}; {record.reason}"
    return f"waiting to {record.plan.step.in_words}: {record.reason}"


@narrate.register
def _(record: FenceWaits) -> str:
    return f"waiting for {names_in_words(record.nodes)}: {record.reason}"


@narrate.register
def _(record: EvidenceDoubted) -> str:
    what = counted(len(record.identities), "alert")
    return f"{what} doubted: {record.reason}" if record.reason else f"{what} count again"


@narrate.register
def _(record: EvidenceTaken) -> str:
    first = record.evidence[0]
    more = f" and {len(record.evidence) - 1} more" if len(record.evidence) > 1 else ""
    return f"alert {first.alertname} on {first.node}{more}: {record.reason}"


@narrate.register
def _(record: PersonActed) -> str:
    command = record.command
    what = f"{command.act.value.replace('_', ' ')} {command.node or ''}".rstrip()
    refused = " was refused" if record.is_refused else ""
    return f"{what} requested by {command.who}{refused}: {record.result}"


@narrate.register
def _(record: JobEnded) -> str:
    outcome = record.outcome
    if outcome.kind is OutcomeKind.DONE:
        return f"done: {outcome.reason}"
    return f"{END_WORDS[outcome.kind]}: {outcome.reason}"
