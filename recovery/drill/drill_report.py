"""A drill's report: JSON, JUnit XML, and the page of `rankmend report` with what held before it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

from rankmend.printable import printable
from recovery.drill.rank_states import rank_states
from recovery.drill.scenario import Scenario
from recovery.drill.verdict import DrillCheck, DrillOutcome
from recovery.goodput.job_time import JobTime
from recovery.report.time_page import render_page
from recovery.report.time_report import report_of


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
                "cause": one.cause,
                "ranks": one.ranks,
                "outcome": one.outcome,
                "mttr_s": one.total_s,
                "steps_recomputed": one.steps_recomputed,
            }
            for one in report.outcome.incidents
        ],
        "length_s": 0.0 if report.time is None else round(report.time.length_s, 3),
        "ranks": _plain_ranks(report),
    }


def _plain_ranks(report: DrillReport) -> list[list[dict[str, Any]]]:
    if report.time is None:
        return []
    told = rank_states(report.time, report.outcome.incidents, report.scenario.job.ranks)
    return [[asdict(state) for state in states] for states in told]


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
    return render_page(times, made_unix_s, version, drills=[plain_drill(one) for one in reports])
