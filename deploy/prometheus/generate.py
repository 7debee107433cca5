"""Writes the rules for Prometheus: alerts and the runbook from the tables of findings, and the recording rules.

    python deploy/prometheus/generate.py [--runbooks URL]

The agent judges; one rule only carries its verdicts (`rankmend_finding_active`) to Alertmanager, with the label
`check`, by which the controller gives the alert the name that the agent itself would use. Run it
after a change of detectors/data; tests/deploy/test_alert_rules.py compares what is there with the tables.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from agent.assembly.families import FAMILIES  # noqa: E402
from agent.findings.policy_files import load_checks  # noqa: E402
from deploy.prometheus.recording_rules import recording_rules_text  # noqa: E402
from detectors.finding import Action, Severity  # noqa: E402
from detectors.kernel.event_policy import ANY, EventTable, parse_policy  # noqa: E402
from detectors.node.node_alerts import RULE_NAME, alert_name  # noqa: E402
from rankmend.links import RUNBOOKS, check_runbooks  # noqa: E402

CONTROLLER_RULES: Final = "deploy/prometheus/rankmend-controller-rules.yml"
NODE = {"node": "gpu-001", "instance": "gpu-001:9476", "job": "rankmend-agent"}

STEPS = {
    Action.NONE: "Nothing; it is for the record.",
    Action.WATCH: "Nothing now. If it returns, or another sign joins it, drain the node and inspect it.",
    Action.RESTART_APP: "The controller restarts the job's ranks in place. If the same finding returns on the same device, treat it as a fault of the device.",
    Action.RESET_GPU: "Take the job off the GPU, release it (`rankmend agent release`), reset it (`nvidia-smi --gpu-reset -i N`), and resume (`rankmend agent resume`).",
    Action.REBOOT: "Drain the node, reboot it, and check that the finding is gone.",
    Action.DRAIN: "Drain the node in the scheduler, then inspect what the evidence names.",
    Action.REPLACE: "Drain the node and replace the part that the finding names.",
    Action.CONTACT_SUPPORT: "Drain the node, collect the evidence (`/api/v1/findings`, `nvidia-bug-report.sh`, the kernel log), and open a case with the vendor.",
}

# Which ranks the finding affects, for the person who is woken. At most eight; %q keeps a name from ending the string.
_RANKS: Final = (
    "{{ with printf"
    ' "topk(8, max by (job_id, rank) (rankmend_finding_rank_info{node=%q,check=%q,uuid=%q,device=%q}))"'
    ' $labels.node $labels.check $labels.uuid $labels.device | query | sortByLabel "rank" }}'
    "; affects{{ range . }} rank {{ .Labels.rank }}{{ end }} of job {{ (first .).Labels.job_id }}{{ end }}"
)


@dataclass(frozen=True)
class FindingRule:
    """One kind of finding."""

    check: str
    title: str
    severity: str
    action: str
    condition: str
    source: str

    @property
    def alert(self) -> str:
        return alert_name(self.check)


@dataclass(frozen=True)
class OwnRule:
    """What the agent can't report about itself."""

    alert: str
    expression: str
    for_: str
    severity: str
    summary: str
    fires: dict[str, str]  # series and its values, which make it fire at minute 15
    quiet: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)  # labels of the firing alert
    value: str = ""  # that its summary shows


def _series(name: str, **labels: str) -> str:
    inner = ",".join(f'{key}="{value}"' for key, value in sorted({**NODE, **labels}.items()))
    return f"{name}{{{inner}}}"


OWN = (
    OwnRule(
        "RankmendAgentDown",
        'up{job="rankmend-agent"} == 0',
        "1m",
        "critical",
        "{{ or $labels.node $labels.instance }}: the node agent at {{ $labels.instance }} does not answer",
        {_series("up"): "1x5 0x15"},
        {_series("up"): "1x20"},
    ),
    OwnRule(
        "RankmendAgentRestarting",
        "resets(rankmend_agent_uptime_seconds[30m]) >= 3",
        "0m",
        "warning",
        "{{ $labels.node }}: the node agent started {{ $value }} times in 30 minutes",
        {_series("rankmend_agent_uptime_seconds"): "600 60 120 10 70 5 65 125 185x10"},
        {_series("rankmend_agent_uptime_seconds"): "600+60x4 5+60x15"},
        value="3",
    ),
    OwnRule(
        "RankmendFindingsStopped",
        'rankmend_collector_age_seconds{collector="findings"} > 30',
        "1m",
        "critical",
        "{{ $labels.node }}: findings on this node were last updated {{ $value | humanizeDuration }} ago",
        {_series("rankmend_collector_age_seconds", collector="findings"): "0+60x20"},
        {_series("rankmend_collector_age_seconds", collector="findings"): "1x20"},
        {"collector": "findings"},
        value="15m 0s",
    ),
    OwnRule(
        "RankmendFindingsBroken",
        'rankmend_collector_success{collector="findings"} == 0',
        "1m",
        "critical",
        "{{ $labels.node }}: the detectors are failing on this node",
        {_series("rankmend_collector_success", collector="findings"): "1x5 0x15"},
        {_series("rankmend_collector_success", collector="findings"): "1x20"},
        {"collector": "findings"},
    ),
    OwnRule(
        "RankmendChecksBlocked",
        "rankmend_finding_checks_blocked > 0",
        "5m",
        "warning",
        "{{ $labels.node }}: {{ $value }} checks can't run because their collector does not answer",
        {_series("rankmend_finding_checks_blocked"): "0x5 3x15"},
        {_series("rankmend_finding_checks_blocked"): "0x10 3x2 0x8"},
        value="3",
    ),
    OwnRule(
        "RankmendAgentLarge",
        "rankmend_agent_memory_bytes > 150e6",
        "10m",
        "warning",
        "{{ $labels.node }}: the node agent uses {{ $value | humanize1024 }}B; its unit allows 512 MiB",
        {_series("rankmend_agent_memory_bytes"): "160000000x20"},
        {_series("rankmend_agent_memory_bytes"): "60000000x20"},
        value="152.6Mi",
    ),
    OwnRule(
        "RankmendFindingsNoisy",
        "sum without (severity) (rankmend_finding_raised_last_day) > 50",
        "0m",
        "warning",
        "{{ $labels.node }}: {{ $value }} findings in a day: the node is faulty, or a check is too sensitive",
        {_series("rankmend_finding_raised_last_day", severity="warning"): "51x20"},
        {_series("rankmend_finding_raised_last_day", severity="warning"): "50x20"},
        value="51",
    ),
)


def finding_rules() -> Iterator[FindingRule]:
    """Return the kinds of findings that reach a person or the controller: not those for the record."""
    for check in load_checks(FAMILIES):
        if check.severity is not Severity.INFO:
            condition = f"`{check.metric}`: {check.condition.text}"
            title = check.summary
            yield FindingRule(
                check.name, title, check.severity.value, check.action.value, condition, check.source
            )
    text = (files("detectors") / "data" / "kernel_log.csv").read_text(encoding="utf-8")
    for (table, code), policy in parse_policy(text, "kernel_log.csv").items():
        if table in (EventTable.NVLINK5, EventTable.VERDICT):
            continue  # reported as their XID, or by the check of the driver's verdict
        if policy.severity is not Severity.INFO and code != ANY:
            prefix = "kernel" if table is EventTable.LOG else table.value
            condition = f"the kernel log: {policy.name}"
            yield FindingRule(
                f"{prefix}_{code}",
                policy.meaning,
                policy.severity.value,
                policy.action.value,
                condition,
                policy.source,
            )


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _finding_annotations(runbooks: str) -> dict[str, str]:
    where = "{{ with $labels.uuid }} {{ . }}{{ end }}{{ with $labels.device }} {{ . }}{{ end }}"
    check = '{{ reReplaceAll "_" " " $labels.check }}'
    return {
        "summary": "{{ or $labels.node $labels.instance }}" + f"{where}: {check}{_RANKS}",
        "action": "{{ $labels.action }}",
        "runbook_url": f"{runbooks}/findings.md#{{{{ $labels.check }}}}",
    }


def _own_annotations(rule: OwnRule, runbooks: str) -> dict[str, str]:
    return {"summary": rule.summary, "runbook_url": f"{runbooks}/agent.md#{rule.alert.lower()}"}


def rules_text(runbooks: str) -> str:
    lines = [
        "# Written by deploy/prometheus/generate.py from detectors/data: do not edit.",
        "groups:",
        "  - name: rankmend-findings",
        "    rules:",
        "      # one for all checks: the label `check` says which, a runbook has a section for each",
        f"      - alert: {RULE_NAME}",
        '        expr: rankmend_finding_active{severity!="info"} == 1',
        "        annotations:",
        *_mapping(_finding_annotations(runbooks), 10),
    ]
    lines += ["  - name: rankmend-agent", "    rules:"]
    for own in OWN:
        lines += [
            f"      - alert: {own.alert}",
            f"        expr: {own.expression}",
            f"        for: {own.for_}",
            f"        labels: {{severity: {own.severity}}}",
            "        annotations:",
            *_mapping(_own_annotations(own, runbooks), 10),
        ]
    return "\n".join(lines) + "\n"


def _mapping(texts: dict[str, str], indent: int) -> list[str]:
    return [f"{' ' * indent}{key}: {quoted(value)}" for key, value in texts.items()]


def _expected(labels: dict[str, str], annotations: dict[str, str]) -> list[str]:
    return [
        "          - exp_labels:",
        *_mapping(labels, 14),
        "            exp_annotations:",
        *_mapping(annotations, 14),
    ]


def _test(series: dict[str, str], looks: list[tuple[str, str, list[str]]]) -> list[str]:
    """Return one test: series with their values, then (minute, alert, what is expected)."""
    lines = ["  - interval: 1m", "    input_series:"]
    for name, values in series.items():
        lines += [f"      - series: {quoted(name)}", f"        values: {quoted(values)}"]
    lines.append("    alert_rule_test:")
    for minute, alert, expected in looks:
        lines += [f"      - eval_time: {minute}", f"        alertname: {alert}"]
        lines += ["        exp_alerts:", *expected] if expected else ["        exp_alerts: []"]
    return lines


def tests_text(runbooks: str) -> str:
    """Return tests for `promtool test rules`: each rule firing, not firing, and no longer firing."""
    lines = [
        "rule_files: [rankmend-rules.yml]",
        "evaluation_interval: 1m",
        "tests:",
    ]
    found, lowered = {}, {}
    firing: list[str] = []
    for rule in finding_rules():  # all at once: each fires once, and nothing else does
        labels = {
            "check": rule.check,
            "component": "gpu",
            "uuid": "GPU-1",
            "device": "",
            "severity": rule.severity,
            "action": rule.action,
        }
        found[_series("rankmend_finding_active", **labels)] = "_ _ 1 1 stale"
        info = {**labels, "severity": "info"}  # a site has lowered it: for the record only
        lowered[_series("rankmend_finding_active", **info)] = "1x5"
        annotations = {
            "summary": f"{NODE['node']} GPU-1: {rule.check.replace('_', ' ')}{_affected(rule, found)}",
            "action": rule.action,
            "runbook_url": f"{runbooks}/findings.md#{rule.check}",
        }
        alerted = {key: value for key, value in {**NODE, **labels}.items() if value}
        firing += _expected(alerted, annotations)
    lines += _test(found, [("1m", RULE_NAME, []), ("2m", RULE_NAME, firing), ("4m", RULE_NAME, [])])
    lines += _test(lowered, [("3m", RULE_NAME, [])])
    for own in OWN:
        labels = {**NODE, **own.labels, "severity": own.severity}
        summary = own.summary.replace("{{ $labels.node }}", NODE["node"])
        summary = summary.replace("{{ or $labels.node $labels.instance }}", NODE["node"])
        summary = summary.replace("{{ $labels.instance }}", NODE["instance"])
        summary = summary.replace("{{ $value }}", own.value)
        summary = re.sub(r"\{\{ \$value \| \w+ \}\}", own.value, summary)
        annotations = _own_annotations(own, runbooks) | {"summary": summary}
        lines += _test(own.fires, [("15m", own.alert, _expected(labels, annotations))])
        lines += _test(own.quiet, [("15m", own.alert, [])])
    return "\n".join(lines) + "\n"


def _affected(rule: FindingRule, series: dict[str, str]) -> str:
    """Have two ranks affected by one of the findings, and return the text of its alert about them."""
    if rule.check != "gpu_lost":
        return ""
    for rank in ("5", "4"):
        where = {"check": rule.check, "uuid": "GPU-1", "device": "", "job_id": "j", "rank": rank}
        series[_series("rankmend_finding_rank_info", **where)] = "_ _ 1 1 stale"
    return "; affects rank 4 rank 5 of job j"


def runbook_text() -> str:
    lines = [
        "# Runbook: findings",
        "",
        "For people on call, woken by an alert about a node.",
        "",
        "Generated from `detectors/data` by `make docs`: change the tables, not this file.",
        "Prometheus' alert `RankmendFinding` (label `check`) and the agent's own `Rankmend<Check>` link to the section of their check. First look:",
        "",
        "    curl -s http://NODE:9476/api/v1/findings      # evidence, since when, which ranks, how to silence",
        "    rankmend check node                           # on the node: check everything once",
        "",
        "The alert's own `action` overrides the one below: the driver's verdict, or a finding that came",
        "back after reboots, changes it, and `reason` says so. To silence a finding on one node:",
        "`amtool silence add alertname=ALERT node=NODE` (by way of Prometheus: `alertname=RankmendFinding check=CHECK node=NODE`), or its",
        "name under `[findings] silenced` of the agent.",
        "",
        "| action | what to do |",
        "| --- | --- |",
        *(f"| `{action.value}` | {steps} |" for action, steps in STEPS.items()),
        "",
    ]
    for rule in finding_rules():
        title = re.sub(r"\{(\w+)(:[^}]*)?\}", r"`\1`", rule.title)
        lines += [
            f"## {rule.check}",
            "",
            f"Says: {title}",
            "",
            f"- Alert: `{rule.alert}`, {rule.severity}; action `{rule.action}`.",
            f"- When: {rule.condition}",
            f"- Why: {rule.source}",
            "",
        ]
    return "\n".join(lines)


def controller_rules_text(runbooks: str) -> str:
    """Return the controller's rules, which are written by hand, with links to other runbooks."""
    text = (ROOT / CONTROLLER_RULES).read_text(encoding="utf-8")
    return re.sub(r"(runbook_url: ')[^'#]*/(controller\.md#)", rf"\g<1>{runbooks}/\g<2>", text)


def operator_rules_text(runbooks: str) -> str:
    """Return all rules as objects of the Prometheus Operator."""
    parts = {
        "rankmend-agent": rules_text(runbooks),
        "rankmend-controller": controller_rules_text(runbooks),
        "rankmend-recording": recording_rules_text(),
    }
    lines = [
        "# Written by deploy/prometheus/generate.py: the rules of deploy/prometheus. Do not edit."
    ]
    for place, (name, text) in enumerate(parts.items()):
        _comments, groups, rest = text.partition("groups:\n")
        lines += [
            *(["---"] if place else []),
            "apiVersion: monitoring.coreos.com/v1",
            "kind: PrometheusRule",
            "metadata:",
            f"  name: {name}",
            "spec:",
            *(f"  {line}".rstrip() for line in (groups + rest).splitlines()),
        ]
    return "\n".join(lines) + "\n"


OUTPUTS: Final[dict[str, Callable[[str], str]]] = {
    "deploy/prometheus/rankmend-rules.yml": rules_text,
    CONTROLLER_RULES: controller_rules_text,
    "deploy/prometheus/rankmend-recording-rules.yml": lambda _runbooks: recording_rules_text(),
    "deploy/kubernetes/monitoring/rules.yaml": operator_rules_text,
    "docs/operate/runbooks/findings.md": lambda _runbooks: runbook_text(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runbooks", default=RUNBOOKS, help="where the runbooks are served")
    options = parser.parse_args()
    options.runbooks = check_runbooks(options.runbooks)
    for path, text_of in OUTPUTS.items():
        target = ROOT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text_of(options.runbooks), encoding="utf-8")


if __name__ == "__main__":
    main()
