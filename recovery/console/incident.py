"""An incident as its page tells it: what happened, what it cost, on what evidence, and what to do next. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detectors.finding import Blame, blamed_in_words
from detectors.wording import counted
from recovery.accounting.goodput.time_bars import WIDTH
from recovery.api import wire
from recovery.console.fleet import SILENT_S
from recovery.console.views.incident_view import down_since
from recovery.console.views.state_words import (
    INTERRUPTED,
    STANDING,
    STOPPING,
    TRAINS,
    IncidentStanding,
    standing_word,
    word_of,
)
from recovery.controller.cluster.notices import job_argument
from recovery.journal.accounting import RecoveryPhase
from recovery.journal.attempt_records import AttemptEnded
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import (
    Decided,
    EvidenceCollected,
    IncidentOpened,
    WaitsFor,
)
from recovery.journal.node_records import EvidenceTaken, FenceWaits
from recovery.journal.records import Entry

_EVIDENCE_MAX: Final = 100
_HELD_MAX: Final = 5  # nodes that a plan's box names

PHASE_WORDS: Final = {
    RecoveryPhase.DETECT: "Detect",
    RecoveryPhase.DECIDE: "Decide",
    RecoveryPhase.FENCE: "Fence: stop all ranks",
    RecoveryPhase.RETRIES: "Tries that failed",
    RecoveryPhase.PREPARE: "Prepare: nodes, checkpoint",
    RecoveryPhase.START: "Start processes",
    RecoveryPhase.RENDEZVOUS: "Rendezvous",
    RecoveryPhase.RESTORE: "Restore",
    RecoveryPhase.FIRST_STEP: "First step",
}


@dataclass(frozen=True, slots=True)
class PhaseBar:
    """A phase of MTTR; ``x`` and ``width`` are parts of `WIDTH`."""

    part: str
    name: str
    seconds: float | None  # None: not observed
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Accused:
    """A device or host that an alert accuses."""

    node: str
    device: str
    alert: str
    severity: str
    action: str
    summary: str
    lines: tuple[EvidenceLine, ...]


@dataclass(frozen=True, slots=True)
class Next:
    """The one thing to do now."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class HeldNode:
    """A node that a plan could use, were it not held back."""

    node: str
    why: str  # empty: it is silent, and nothing else is known
    who: str = ""  # empty: nobody; the job itself avoids it
    since_unix_s: float | None = None
    is_silent: bool = False  # nobody holds it back: its launcher has to report again


@dataclass(frozen=True, slots=True)
class WaitingPlan:
    """A plan that waits, with what helps: a word where it waits for a person, usable nodes where it waits for these."""

    view: wire.PlanView
    held: tuple[HeldNode, ...] = ()

    @property
    def waits_for_person(self) -> bool:
        """Return whether an approval has an effect."""
        return is_for_person(self.view)


@dataclass(frozen=True, slots=True)
class IncidentLoss:
    """What an incident costs: so far while it is open, in all once what it cost is made again."""

    since_unix_s: float | None  # of the fault, while the clock runs; None: it stands
    seconds: float | None  # in all; None: not known, or the clock runs
    is_least: bool  # nobody knows which steps had to be made again
    ranks: int  # that do not train, or did not; 0: not known
    steps: int | None  # to make again, or made again; None: not known
    is_steps_most: bool = (
        False  # what it restores is not decided, and may be newer than what was checked
    )
    is_catching_up: bool = False  # it trains, and has not passed its highest step yet
    trains_on: bool = False  # nothing is lost yet: its plan is not carried out


@dataclass(frozen=True, slots=True)
class IncidentPage:
    view: wire.IncidentView
    loss: IncidentLoss
    phases: tuple[PhaseBar, ...]
    evidence: tuple[EvidenceLine, ...]
    accused: tuple[Accused, ...]
    blamed: str  # whom or what, in a word ...
    legend: str  # ... and what that means
    is_open: bool
    next: Next


def view_page(
    view: wire.IncidentView,
    entries: Sequence[Entry],
    journal: Sequence[Entry],
    plan: WaitingPlan | None,
    own_node: str = "",
    job: wire.JobView | None = None,
) -> IncidentPage:
    """Return the page of an incident; ``entries`` are those of the incident alone, ``journal`` is the job's.

    ``job``: as it stands now; None: it has ended, or is not known.
    """
    is_open = is_open_word(standing_word(view))
    return IncidentPage(
        view,
        loss_of(view, job),
        _waterfall(view),
        _evidence(entries),
        _accused(view, journal),
        *_blamed(view),
        is_open,
        _next(
            view,
            plan,
            check_command(view.node, own_node),
            job,
            _unproved(entries),
            is_open=is_open,
        ),
    )


def _blamed(view: wire.IncidentView) -> tuple[str, str]:
    """Return whom or what an incident blames, and what that word means; a word that only a newer version knows stays."""
    blame = next((item for item in Blame if item.value == view.blame), None)
    if blame is None:
        return view.blame, view.blame
    return blamed_in_words(blame, view.cause, view.ranks)


def is_open_word(word: str) -> bool:
    return word in (IncidentStanding.RECOVERING.value, IncidentStanding.WAITING.value)


def is_for_person(plan: wire.PlanView) -> bool:
    """Return whether a plan waits for a person: nodes and storage come back without one, and by no approval."""
    return plan.waits_for not in (WaitsFor.NODES.value, WaitsFor.STORAGE.value)


def view_waiting(
    plan: wire.PlanView,
    nodes: Sequence[wire.NodeView],
    holds: Sequence[wire.HoldView],
    findings: Sequence[wire.NodeFindingView] = (),
) -> WaitingPlan:
    """Return a plan with the nodes of its job that are held back, where it waits for nodes."""
    if plan.waits_for != WaitsFor.NODES.value:
        return WaitingPlan(plan)
    by_node = {hold.node: hold for hold in holds}
    found: dict[str, str] = {}
    for finding in reversed(findings):
        found[finding.node] = f"; open finding {finding.check}: {finding.summary}"
    held = []
    for node in nodes:
        if node.job_id != plan.job_id or not node.held:
            continue
        hold = by_node.get(node.node)
        why = found.get(node.node, "")
        if hold is not None:
            why = f"{hold.reason or hold.hold}{why}"
            held.append(HeldNode(node.node, why, hold.who, hold.since_unix_s))
            continue
        is_silent = node.heard_age_s is None or node.heard_age_s > SILENT_S
        own = why.removeprefix("; ") if is_silent else f"{node.held}{why}"
        held.append(HeldNode(node.node, own, is_silent=is_silent))
    held.sort(key=lambda item: (item.is_silent, not item.who))
    return WaitingPlan(plan, tuple(held[:_HELD_MAX]))


def loss_of(view: wire.IncidentView, job: wire.JobView | None = None) -> IncidentLoss:
    """Return what an incident costs; ``job``: for the steps that an open one will have to make again."""
    word, steps = standing_word(view), view.steps_recomputed
    if is_open_word(word):
        since_unix_s = down_since(view)
        if since_unix_s is None:
            return IncidentLoss(None, 0.0, False, 0, None, trains_on=True)
        is_most = steps is None and view.restored_step is None
        steps = _steps_to_redo(view, job) if steps is None else steps
        return IncidentLoss(
            since_unix_s, None, False, view.ranks_lost, steps, is_steps_most=is_most
        )
    is_behind = word == IncidentStanding.RECOVERED.value and view.lost_s is None and bool(steps)
    return IncidentLoss(
        None,
        view.total_s if is_behind else view.lost_s,
        view.is_lost_least or is_behind,
        view.ranks_lost,
        steps,
        is_catching_up=is_behind,
    )


def _steps_to_redo(view: wire.IncidentView, job: wire.JobView | None) -> int | None:
    highest = view.highest_step
    if highest is None:
        return None
    if view.restored_step is not None:
        return max(0, highest - view.restored_step)
    if job is None or job.checkpoint is None:
        return None
    has_memory = job.snapshots is not None and job.snapshots.step is not None
    return None if has_memory else job.checkpoint.steps_since


def _waterfall(view: wire.IncidentView) -> tuple[PhaseBar, ...]:
    known = {phase: view.phases.get(f"{phase.value}_s") for phase in RecoveryPhase}
    whole_s = sum(seconds for seconds in known.values() if seconds is not None)
    scale, x = (WIDTH / whole_s if whole_s else 0.0), 0.0
    bars = []
    for phase, seconds in known.items():
        if phase is RecoveryPhase.RETRIES and not seconds:
            continue
        width = (seconds or 0.0) * scale
        bars.append(
            PhaseBar(
                phase.value,
                PHASE_WORDS[phase],
                seconds,
                x,
                max(width, 2.0) if seconds is not None else 0.0,
            )
        )
        x += width
    return tuple(bars)


def _evidence(entries: Sequence[Entry]) -> tuple[EvidenceLine, ...]:
    found: dict[EvidenceLine, None] = {}
    for entry in entries:
        match entry.record:
            case IncidentOpened(failure=failure):
                lines = [
                    EvidenceLine(evidence.source, evidence.text)
                    for evidence in failure.finding.evidence
                ]
            case Decided(plan=plan):
                lines = [EvidenceLine(evidence.source, evidence.text) for evidence in plan.evidence]
            case EvidenceCollected(reason=reason, finding=finding, saved=saved):
                lines = [EvidenceLine("dumps and stacks", reason)] if reason else []
                if finding is not None:
                    lines += [
                        EvidenceLine(evidence.source, evidence.text)
                        for evidence in finding.evidence
                    ]
                lines += [
                    EvidenceLine(f"output of the ranks on {item.node}", item.output_says)
                    for item in saved
                    if item.output_says
                ]
                lines += [
                    EvidenceLine(
                        f"saved on {item.node}", f"{counted(item.files, 'file')} in {item.folder}"
                    )
                    for item in saved
                ]
            case _:
                continue
        found.update(dict.fromkeys(lines))
    return tuple(found)[:_EVIDENCE_MAX]


def _accused(view: wire.IncidentView, journal: Sequence[Entry]) -> tuple[Accused, ...]:
    """Return what alerts said of the blamed node in the attempt that failed; some come late."""
    found: dict[str, Accused] = {}
    for entry in journal:
        record = entry.record
        if not isinstance(record, EvidenceTaken):
            continue
        is_own = record.incident_id == view.incident_id
        for evidence in record.evidence:
            if not is_own and (evidence.node, record.attempt) != (view.node, view.attempt):
                continue
            found[evidence.identity] = Accused(
                evidence.node,
                evidence.device,
                evidence.alertname,
                evidence.severity.value,
                evidence.action,
                evidence.summary,
                tuple(EvidenceLine(line.source, line.text) for line in evidence.evidence),
            )
    return tuple(found.values())[:_EVIDENCE_MAX]


def check_command(node: str | None, own_node: str = "") -> str:
    """Return what checks a node; ``own_node``: the machine on which the page is read."""
    check = "rankmend check node"
    return check if not node or node == own_node else f"ssh {shlex.quote(node)} {check}"


def _next(
    view: wire.IncidentView,
    plan: WaitingPlan | None,
    check: str,
    job: wire.JobView | None,
    unproved: str,
    *,
    is_open: bool,
) -> Next:
    """Return what to do now; ``unproved``: why nothing starts before a person has looked at a node, in words."""
    incident = view.incident_id
    waits_for = None if plan is None else plan.view.waits_for
    if plan is not None and waits_for == WaitsFor.NODES.value:
        return _for_nodes(plan)
    if waits_for == WaitsFor.STORAGE.value:
        return Next(
            "The plan waits for a checkpoint folder that can be written. Make room there: it goes on by itself.",
            f"rankmend why {incident}",
        )
    if plan is not None:
        return Next("The plan waits for a person.", f"rankmend approve {incident}")
    if is_open:
        return Next(_while_open(job, unproved), f"rankmend why {incident}")
    if view.outcome == Phase.ESCALATED.value:
        return _next_given_up(view, check, job)
    return _next_after(view, check, job)


def _for_nodes(plan: WaitingPlan) -> Next:
    """Return what brings usable nodes to a plan that waits for some."""
    waits = "The plan waits for usable nodes, and goes on by itself once there are enough."
    if plan.held and not plan.held[0].is_silent:
        resume = f"rankmend resume --node {shlex.quote(plan.held[0].node)}"
        return Next(f"{waits} Take a held one back, or start launchers on others.", resume)
    return Next(
        f"{waits} Start launchers again on silent nodes, or on others.", "rankmend status --nodes"
    )


def _while_open(job: wire.JobView | None, unproved: str) -> str:
    """Return how the recovery goes on, and what it needs."""
    if job is not None and job.state == INTERRUPTED:
        return "The job's launcher has ended, so the recovery stands still. Start the same command again."
    if job is not None and job.problem is not None:
        return f"The recovery may stand still: {job.problem}."
    if unproved:
        return f"The recovery waits for a person: {unproved}."
    return "The recovery is under way. Nothing to do."


def _unproved(entries: Sequence[Entry]) -> str:
    """Return why nothing starts before a person has looked at a node; empty: that is not so, or no more."""
    reason = ""
    for entry in entries:
        match entry.record:
            case FenceWaits(reason=reason):
                pass
            case AttemptEnded():
                reason = ""
    return reason


def _next_given_up(view: wire.IncidentView, check: str, job: wire.JobView | None) -> Next:
    """Return what to do about a job that was given up; ``job``: it stops still, or was started again."""
    is_of_node = bool(view.node) and view.blame == Blame.RANK.value
    command = check if is_of_node else f"rankmend why {view.incident_id}"
    if job is not None and job.state != STOPPING:
        return Next("The job was started again since.", command)
    ends = "The job has ended." if job is None else "The job is being stopped."
    act = "Check the node, then start the job" if is_of_node else "Correct the cause, then start it"
    return Next(
        f"{ends} {act} again: it resumes from its newest checkpoint, if it has one.", command
    )


def _next_after(view: wire.IncidentView, check: str, job: wire.JobView | None) -> Next:
    """Return what is left to do after an incident; ``job``: as it stands now, None: it has ended since."""
    incident = view.incident_id
    if job is not None and job.state == STANDING:
        resume = f"rankmend resume --job {job_argument(job.name, job.job_id)}"
        return Next("The job is left stopped. To recover it:", resume)
    if job is not None and job.incident_id not in (None, incident):
        return Next("The job has another incident now.", f"rankmend why {job.incident_id}")
    trains = job is not None and job.state == TRAINS
    is_recovered = view.outcome == Phase.RECOVERED.value
    if is_recovered and view.node and view.blame == Blame.RANK.value:
        now = "Training continues." if trains else "The job went on, and has ended since."
        if job is not None and not trains:
            now = f"The job went on, and is {word_of(job.state)} now."
        counts = [charge.counts for charge in view.charges if charge.node == view.node]
        is_clear = bool(counts) and not any(counts)
        advice = "If this node is blamed again, have it checked."
        if counts:
            advice = f"The incident counts against {view.node}: have it checked."
        if is_clear:
            advice = f"Nothing counts against {view.node}."
        return Next(f"{now} {advice}", f"rankmend why {incident}" if is_clear else check)
    if job is not None and not trains:
        status = f"rankmend status {job_argument(job.name, job.job_id)}"
        return Next(f"The job is {word_of(job.state)} now.", status)
    return Next("Nothing to do.", f"rankmend why {incident}")
