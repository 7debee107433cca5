"""Real lines, judged as `rankmend check log` does.

cases.toml has forms of lines beside their siblings on machines that are well; reports.toml, more_reports.toml,
later_reports.toml, site_reports.toml, rare_reports.toml and thin_reports.toml have what operators reported, labelled before a rule had seen it.
"""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from agent.findings.policy_files import load_policy
from detectors.finding import Action, Severity
from detectors.kernel.event_groups import KernelLogState
from detectors.kernel.log import parse_log
from detectors.kernel.log_verdict import judge

VERDICTS = {"critical", "warning", "quiet", "unknown"}


@dataclass(frozen=True)
class Case:
    name: str
    evidence: str
    seen: str
    lines: list[str]
    verdict: str
    action: Action | None = None
    devices: list[str] = field(default_factory=list)
    kind: str = "kernel"
    half: int = 0  # of the reports: the round in which it was judged blind


def read_cases(name: str) -> list[Case]:
    text = (Path(__file__).parent / name).read_text()
    cases: list[Case] = msgspec.toml.decode(text, type=dict[str, list[Case]])["case"]
    return cases


REPORTS = [
    case
    for name in (
        *("reports.toml", "more_reports.toml", "later_reports.toml", "site_reports.toml"),
        *("rare_reports.toml", "thin_reports.toml"),
    )
    for case in read_cases(name)
]
CASES = [*read_cases("cases.toml"), *REPORTS]
POLICY = load_policy(None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_line_means_what_its_evidence_says_and_no_more(case: Case) -> None:
    state = KernelLogState()

    state.feed_all(parse_log(line + "\n" for line in case.lines))
    findings = judge(state.groups(), POLICY)

    severities = [finding.severity for finding in findings]
    worst = "quiet"
    if Severity.CRITICAL in severities:
        worst = "critical"
    elif Severity.WARNING in severities:
        worst = "warning"
    elif state.missed or state.quoted or state.is_no_log:
        worst = "unknown"
    assert worst == case.verdict
    bad = [finding for finding in findings if finding.severity is not Severity.INFO]
    if case.action is not None:
        assert bad[0].action is case.action
    if case.devices:
        assert sorted({finding.device for finding in bad}) == case.devices
    if state.kind is not None:
        assert state.kind.value == case.kind


def test_each_case_has_a_name_of_its_own_an_evidence_and_a_place_where_it_was_seen() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.evidence and case.seen and case.lines for case in CASES)
    assert {case.verdict for case in CASES} == VERDICTS


def test_the_reports_are_fifteen_rounds() -> None:
    rounds = [case.half for case in REPORTS]

    assert [rounds.count(number) for number in range(1, 8)] == [50, 50, 37, 30, 67, 60, 45]
    assert [rounds.count(number) for number in range(8, 16)] == [50, 28, 33, 28, 78, 50, 36, 38]
