"""Joins the evidence that launchers saved of a hung job with the live detector's verdict.

The live detector sees states, steps and sections. Flight recorders show who waits for whom, and
Python stacks show where each rank stands. The order of trust:

    a process that is stopped or stuck in the kernel   a fact, and a cause by itself
    flight-recorder dumps                              `detectors.hang.from_dumps`
    Python stacks                                      `detectors.hang.from_stacks`
    what the live detector said
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from detectors.diagnosis import Diagnosis, Verdict
from detectors.finding import Blame, Evidence, Finding, Symptom, SymptomKind
from detectors.hang.flight_dump import FlightDump
from detectors.hang.from_dumps import diagnose_hang
from detectors.hang.from_stacks import (
    SURE,
    call_of,
    diagnose_stacks,
    is_in_client,
    is_in_framework,
)
from detectors.hang.live import HangCause
from detectors.hang.python_stack import Frame
from detectors.hang.standings import view_job
from detectors.hang.wait_verdict import HangClass
from detectors.wording import ranks_in_words

EVIDENCE_MAX: Final = 32
_FACTS: Final = frozenset(
    Symptom(SymptomKind.HUNG, cause.value)
    for cause in (HangCause.STOPPED, HangCause.GONE, HangCause.BLOCKED)
)
_ENDS: Final = {
    Symptom(SymptomKind.HUNG, cause.value): cause
    for cause in (HangCause.EXITED, HangCause.ENDING, HangCause.FINISHED)
}
FINISHED: Final = Symptom(SymptomKind.HUNG, HangCause.FINISHED.value)
ENDING: Final = Symptom(SymptomKind.HUNG, HangCause.ENDING.value)
_BLAME: Final = {
    HangClass.PROGRAM.value: Blame.PROGRAM,
    HangClass.DEADLOCK.value: Blame.PROGRAM,
    HangClass.NETWORK.value: Blame.COMMUNICATION,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A hang's finding after the evidence, and what changed it."""

    finding: Finding
    cause: str  # the diagnosis's class; empty: nothing new
    reason: str
    confidence: float  # the diagnosis's; 0 if there is none


def judge_evidence(
    finding: Finding,
    dumps: Mapping[int, FlightDump],
    stacks: Mapping[int, tuple[Frame, ...]],
    alive: frozenset[int] = frozenset(),
) -> Judged:
    """Return the finding with what dumps and stacks add to it.

    ``alive`` are ranks that had a process: such a rank is not called gone if it left no dump.
    """
    if finding.symptom in _ENDS:
        return _judge_end(finding, stacks)
    if not (dumps or stacks):
        return Judged(finding, "", "there are neither flight-recorder dumps nor Python stacks", 0.0)
    diagnosis = _diagnose(dumps, stacks, alive)
    if diagnosis is None or not diagnosis.cause:
        reason = diagnosis.reason if diagnosis else "the stacks set no rank apart"
        return Judged(finding, "", reason, diagnosis.confidence if diagnosis else 0.0)
    named = tuple(
        sorted(culprit.rank for culprit in diagnosis.culprits if culprit.rank is not None)
    )
    lines = [*diagnosis.evidence, *finding.evidence][:EVIDENCE_MAX]
    if finding.symptom in _FACTS:
        if set(named) != set(finding.ranks):
            who = ranks_in_words(named) if named else "nobody"
            doubt = f"they would name {who}: {diagnosis.reason}"
            lines.insert(0, Evidence("flight recorder and stacks", doubt))
        retained = replace(finding, evidence=tuple(lines[:EVIDENCE_MAX]))
        return Judged(retained, diagnosis.cause, diagnosis.reason, diagnosis.confidence)
    everyone = {*finding.ranks, *finding.victims}
    blame = Blame.RANK if named else _BLAME.get(diagnosis.cause, Blame.NOBODY)
    reason = diagnosis.reason
    is_host_stuck = bool(named) and diagnosis.cause == HangClass.HOST_STUCK.value
    if is_host_stuck and all(is_in_client(stacks.get(rank, ())) for rank in named):
        # Others wait for these ranks, and they wait for something outside: no fault of their nodes.
        blame = Blame.NOBODY
        reason += (
            f"; {ranks_in_words(named)} wait{'s' * (len(named) == 1)} for something outside the job"
        )
    judged = replace(
        finding,
        blame=blame,
        summary=f"no rank advances; {reason}",
        ranks=named,
        victims=tuple(sorted(everyone - set(named))),
        symptom=Symptom(SymptomKind.HUNG, diagnosis.cause),
        evidence=tuple(lines),
    )
    return Judged(judged, diagnosis.cause, reason, diagnosis.confidence)


def _judge_end(finding: Finding, stacks: Mapping[int, tuple[Frame, ...]]) -> Judged:
    """Return the finding about ranks at the end of the training, with the calls in which the rest stands.

    If the others finished their training, one that made as many steps has finished it, too, unless it stands
    in a framework: then it may train, evaluate or save.
    """
    cause = _ENDS[finding.symptom]
    live = {rank: stacks[rank] for rank in finding.victims if stacks.get(rank)}
    if not live:
        return Judged(finding, cause.value, finding.summary, 0.0)
    calls: dict[str, list[int]] = defaultdict(list)
    for rank, frames in sorted(live.items()):
        calls[call_of(frames)].append(rank)
    where = "; ".join(f"{ranks_in_words(ranks)}: in {call}" for call, ranks in calls.items())
    named = (
        f" in {next(iter(calls))}"
        if len(calls) == 1 and len(live) == len(finding.victims)
        else f" ({where})"
    )
    is_outside = len(live) == len(finding.victims) and not any(
        is_in_framework(frames) for frames in live.values()
    )
    symptom = FINISHED if cause is HangCause.ENDING and is_outside else finding.symptom
    evidence = (Evidence("Python stacks", where), *finding.evidence)[:EVIDENCE_MAX]
    summary = f"{finding.summary}{named}"
    judged = replace(finding, summary=summary, symptom=symptom, evidence=evidence)
    return Judged(judged, symptom.detail, summary, SURE)


def _diagnose(
    dumps: Mapping[int, FlightDump],
    stacks: Mapping[int, tuple[Frame, ...]],
    alive: frozenset[int],
) -> Diagnosis | None:
    if dumps:
        found = diagnose_hang(view_job(dumps, alive - set(dumps)))
        # Without a class, the verdict says that no collective hangs: the stacks may show what does.
        if found.verdict is not Verdict.UNKNOWN and found.cause:
            return found
        return diagnose_stacks(stacks) or found
    return diagnose_stacks(stacks)
