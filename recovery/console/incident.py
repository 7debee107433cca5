"""An incident as its page tells it: what happened, what it cost, on what evidence, and what to do next. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detectors.finding import Blame
from detectors.wording import counted
from recovery.api import wire
from recovery.goodput.time_bars import WIDTH
from recovery.journal.accounting import RecoveryPhase
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import (
    Decided,
    EvidenceCollected,
    IncidentOpened,
    WaitsFor,
)
from recovery.journal.node_records import EvidenceTaken
from recovery.journal.records import Entry

_EVIDENCE_MAX: Final = 100

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
class IncidentPage:
    view: wire.IncidentView
    phases: tuple[PhaseBar, ...]
    evidence: tuple[EvidenceLine, ...]
    accused: tuple[Accused, ...]
    legend: str  # whom or what is blamed, in words
    is_open: bool
    next: Next


def view_page(
    view: wire.IncidentView,
    entries: Sequence[Entry],
    journal: Sequence[Entry],
    plan: wire.PlanView | None,
    own_node: str = "",
) -> IncidentPage:
    """Return the page of an incident; ``entries`` are those of the incident alone, ``journal`` is the job's."""
    is_open = view.outcome not in {
        phase.value for phase in (Phase.RECOVERED, Phase.ESCALATED, Phase.CANCELLED)
    }
    return IncidentPage(
        view,
        _waterfall(view),
        _evidence(entries),
        _accused(view, journal),
        Blame(view.blame).legend if view.blame in {one.value for one in Blame} else view.blame,
        is_open,
        _next(view, plan, check_command(view.node, own_node), is_open=is_open),
    )


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
                lines = [EvidenceLine(one.source, one.text) for one in failure.finding.evidence]
            case Decided(plan=plan):
                lines = [EvidenceLine(one.source, one.text) for one in plan.evidence]
            case EvidenceCollected(reason=reason, finding=finding, saved=saved):
                lines = [EvidenceLine("dumps and stacks", reason)] if reason else []
                if finding is not None:
                    lines += [EvidenceLine(one.source, one.text) for one in finding.evidence]
                lines += [
                    EvidenceLine(
                        f"saved on {one.node}", f"{counted(one.files, 'file')} in {one.folder}"
                    )
                    for one in saved
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
        for one in record.evidence:
            if not is_own and (one.node, record.attempt) != (view.node, view.attempt):
                continue
            found[one.identity] = Accused(
                one.node,
                one.device,
                one.alertname,
                one.severity.value,
                one.action,
                one.summary,
                tuple(EvidenceLine(line.source, line.text) for line in one.evidence),
            )
    return tuple(found.values())[:_EVIDENCE_MAX]


def check_command(node: str | None, own_node: str = "") -> str:
    """Return what checks a node; ``own_node``: the machine on which the page is read."""
    check = "rankmend check node"
    return check if not node or node == own_node else f"ssh {shlex.quote(node)} {check}"


def _next(
    view: wire.IncidentView, plan: wire.PlanView | None, check: str, *, is_open: bool
) -> Next:
    incident = view.incident_id
    if plan is not None and plan.waits_for == WaitsFor.NODES.value:
        return Next(
            "The plan waits for usable nodes. Start launchers on more nodes, or take a held one back.",
            "rankmend status --nodes",
        )
    if plan is not None and plan.waits_for == WaitsFor.STORAGE.value:
        return Next(
            "The plan waits for a checkpoint folder that can be written. Make room there: it goes on by itself.",
            f"rankmend why {incident}",
        )
    if plan is not None:
        return Next("The plan waits for a person.", f"rankmend approve {incident}")
    if is_open:
        return Next("The recovery is under way. Nothing to do.", f"rankmend why {incident}")
    return _next_after(view, check)


def _next_after(view: wire.IncidentView, check: str) -> Next:
    incident = view.incident_id
    if view.outcome == Phase.ESCALATED.value:
        if view.node and view.blame == Blame.RANK.value:
            return Next(
                "The job has ended. Check the node, then start the job again: it resumes from its checkpoint.",
                check,
            )
        return Next(
            "The job has ended. Correct the cause, then start it again: it resumes from its checkpoint.",
            f"rankmend why {incident}",
        )
    if view.outcome == Phase.RECOVERED.value and view.node and view.blame == Blame.RANK.value:
        return Next(
            "Training continues. If this node is blamed again, have it checked.",
            check,
        )
    return Next("Nothing to do.", f"rankmend why {incident}")
