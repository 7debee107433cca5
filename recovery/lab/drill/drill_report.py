"""A drill's report: JSON, JUnit XML, and the page of `rankmend report` with what held before it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from xml.etree import ElementTree

from rankmend.printable import printable
from recovery.accounting.goodput.job_time import JobTime
from recovery.api.wire import IncidentView
from recovery.lab.drill.scenario import Scenario
from recovery.lab.drill.verdict import DrillCheck, DrillOutcome
from recovery.local.report.time_page import render_page
from recovery.local.report.time_report import report_of

BLAMED: Final = "blamed"
LOST_ANOTHER: Final = "lost_another"  # it failed because another rank had
_DETECT: Final = "detect_s"


@dataclass(frozen=True, slots=True)
class RankStretch:
    """A stretch of a rank's time; seconds since the job's time begins."""

    state: str  # a part of the job's time (recovery.accounting.goodput.timeline), `blamed` or `lost_another`
    begin_s: float
    end_s: float


def rank_states(
    time: JobTime, incidents: Sequence[IncidentView], ranks: int
) -> list[list[RankStretch]]:
    """Return the states of each rank over time, one after the other without gap: the job's state, and where the rank itself was broken."""
    job = [
        RankStretch(span.part.value, span.begin_s - time.begin_s, span.end_s - time.begin_s)
        for span in time.spans
    ]
    reported = []
    for rank in range(ranks):
        states = job
        for incident in incidents:
            if rank in incident.ranks:
                states = _paint(states, BLAMED, *_stretch(time, incident))
            elif rank in incident.victims:
                states = _paint(states, LOST_ANOTHER, *_stretch(time, incident))
        reported.append(states)
    return reported


def _stretch(time: JobTime, incident: IncidentView) -> tuple[float, float]:
    """Return from when to when an incident lasted: from the fault until the job had recovered, or to its end."""
    detect_s = incident.phases.get(_DETECT) or 0.0
    fault_s = incident.opened_unix_s - detect_s - time.began_unix_s - time.begin_s
    return fault_s, time.length_s if incident.total_s is None else fault_s + incident.total_s


def _paint(
    states: Sequence[RankStretch], state: str, begin_s: float, end_s: float
) -> list[RankStretch]:
    """Return the states with one stretch of them in another state."""
    painted: list[RankStretch] = []
    for item in states:
        cuts = (
            (item.state, item.begin_s, min(item.end_s, begin_s)),
            (state, max(item.begin_s, begin_s), min(item.end_s, end_s)),
            (item.state, max(item.begin_s, end_s), item.end_s),
        )
        for name, from_s, to_s in cuts:
            if from_s < to_s:
                is_same = name == state and painted and painted[-1].state == state
                earlier_s = painted.pop().begin_s if is_same else from_s
                painted.append(RankStretch(name, earlier_s, to_s))
    return painted


@dataclass(frozen=True, slots=True)
class DrillReport:
    """One scenario, what became of it, and what held."""

    scenario: Scenario
    outcome: DrillOutcome
    checks: tuple[DrillCheck, ...]
    took_s: float
    time: JobTime | None

    @property
    def held(self) -> bool:
        return all(check.held for check in self.checks)


def plain_drill(report: DrillReport) -> dict[str, Any]:
    """Return the report for JSON."""
    return {
        "scenario": report.scenario.name,
        "about": report.scenario.about,
        "held": report.held,
        "took_s": round(report.took_s, 3),
        "checks": [asdict(check) for check in report.checks],
        "faults": [asdict(fault) for fault in report.scenario.faults],
        "incidents": [
            {
                "cause": incident.cause,
                "ranks": incident.ranks,
                "outcome": incident.outcome,
                "mttr_s": incident.total_s,
                "steps_recomputed": incident.steps_recomputed,
            }
            for incident in report.outcome.incidents
        ],
        "length_s": 0.0 if report.time is None else round(report.time.length_s, 3),
        "ranks": _plain_ranks(report),
    }


def _plain_ranks(report: DrillReport) -> list[list[dict[str, Any]]]:
    if report.time is None:
        return []
    reported = rank_states(report.time, report.outcome.incidents, report.scenario.job.ranks)
    return [[asdict(state) for state in states] for states in reported]


def write_junit(reports: Sequence[DrillReport]) -> bytes:
    """Return JUnit XML: a suite for each scenario, a case for each thing that must hold."""
    root = ElementTree.Element("testsuites", name="rankmend drill")
    for report in reports:
        failed = [check for check in report.checks if not check.held]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=report.scenario.name,
            tests=str(len(report.checks)),
            failures=str(len(failed)),
            time=f"{report.took_s:.3f}",
        )
        for check in report.checks:
            case = ElementTree.SubElement(
                suite, "testcase", classname=report.scenario.name, name=printable(check.name)
            )
            if not check.held:
                ElementTree.SubElement(case, "failure", message=printable(check.said))
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def drill_page(reports: Sequence[DrillReport], made_unix_s: float, version: str) -> str:
    """Return one HTML file without network needs. Needs Jinja2, of the extra ``report``."""
    times = [report_of(report.time) for report in reports if report.time is not None]
    return render_page(
        times, made_unix_s, version, drills=[plain_drill(report) for report in reports]
    )
