"""States of nodes that people reported, judged by the shipped checks as the agent does."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from agent.assembly.families import FAMILIES
from agent.findings.policy_files import load_checks
from agent.metrics import Metric
from detectors.finding import Severity
from detectors.node.findings import judge, list_findings
from detectors.node.looks import observe
from detectors.node.node_state import MetricAnswer, NodeFinding, NodeState, Snapshot

EACH_S = 10.0
LOOKED_S = 1200.0
LINE = re.compile(r"(\w+)(?:\{([^}]*)\})? ([\d.e+-]+)(?: \+([\d.]+))?")
CHECKS = tuple(load_checks(FAMILIES))


@dataclass(frozen=True)
class Case:
    name: str
    evidence: str
    seen: str
    series: list[str]
    verdict: str
    half: int
    before: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Series:
    """A series of a case: its value at the first look, and its growth a second."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    growth: float

    def after(self, elapsed_s: float) -> Metric:
        return Metric(self.name, self.value + self.growth * elapsed_s, self.labels)


def series_of(line: str) -> Series:
    found = LINE.fullmatch(line)
    assert found is not None, line
    given = dict(label.split("=") for label in (found[2] or "").split(",") if label)
    family = FAMILIES[found[1]]
    assert given.keys() <= set(family.labels), line
    labels = tuple((label, given.get(label, "0")) for label in family.labels)
    return Series(found[1], labels, float(found[3]), float(found[4] or 0))


def findings_of(case: Case) -> tuple[NodeFinding, ...]:
    """Return what was found at any look at `series`."""
    state, now_s = NodeState(), 1000.0
    names = {series_of(line).name for line in case.series}
    checks = [check for check in CHECKS if check.metric in names]
    found: dict[str, NodeFinding] = {}
    for lines in filter(None, (case.before, case.series)):
        series = [series_of(line) for line in lines]
        began_s = now_s
        while now_s - began_s < LOOKED_S:
            answers: dict[str, list[Metric]] = {}
            for each in series:
                answers.setdefault(each.name, []).append(each.after(now_s - began_s))
            snapshot = Snapshot({n: MetricAnswer("x", now_s, m) for n, m in answers.items()})
            state, looks = observe(state, checks, snapshot)
            state = judge(state, looks, snapshot, now_s, 1.7e9 + now_s)
            if lines is case.series:
                found |= {each.id: each for each in list_findings(state, snapshot, now_s)}
            now_s += EACH_S
    return tuple(found.values())


CASES = msgspec.toml.decode(
    (Path(__file__).parent / "states.toml").read_text(), type=dict[str, list[Case]]
)["case"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_reported_state_is_judged_as_its_evidence_says(case: Case) -> None:
    severities = {finding.severity for finding in findings_of(case)}

    worst = "quiet"
    if Severity.CRITICAL in severities:
        worst = "critical"
    elif Severity.WARNING in severities:
        worst = "warning"
    assert worst == case.verdict


def test_each_state_has_a_name_of_its_own_and_a_place_where_it_was_seen() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.evidence and case.seen for case in CASES)
    assert [[case.half for case in CASES].count(number) for number in (3, 4, 5)] == [13, 10, 9]
