"""Writes the generated parts of the documentation from what the code declares. `make docs` runs it.

A generated part stands between ``<!-- NAME -->`` and ``<!-- end -->``. The runbook of the findings and
the alert rules come from deploy/prometheus/generate.py, which sites run with an address of their own.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import rankmend  # noqa: E402
from agent.assembly.families import FAMILIES  # noqa: E402
from agent.findings.policy_files import (  # noqa: E402
    load_check_rows,
    load_checks,
    load_documents,
    load_policy,
)
from agent.metrics import markdown_table  # noqa: E402
from agent.vendors.amd import AmdCollector  # noqa: E402
from agent.vendors.ascend import AscendCollector  # noqa: E402
from bench.scoreboard.job_log_rounds import markdown as job_log_rounds  # noqa: E402
from deploy.prometheus.recording_rules import GROUPS  # noqa: E402
from detectors.doctor.table import CHECKS  # noqa: E402
from detectors.job_log.kinds import KINDS  # noqa: E402
from detectors.kernel.catalogue import disagrees  # noqa: E402
from detectors.kernel.event_policy import EventTable  # noqa: E402
from detectors.node.charges import CHARGES, Weight  # noqa: E402
from detectors.slow.cause_table import CAUSES  # noqa: E402
from detectors.slow.explanation import SlowSection  # noqa: E402
from recovery.journal.incident_machine import transitions_table  # noqa: E402
from recovery.journal.witnesses import (  # noqa: E402
    ENOUGH,
    IN_WORDS,
    PLACES,
    PRESENCE,
    TOGETHER,
    OutsideAct,
    Witness,
)
from recovery.lab.fabric.fabric_report import FAMILIES as FABRIC_FAMILIES  # noqa: E402
from recovery.service.metrics.measures import Measures  # noqa: E402
from recovery.service.roles import WITNESS_OF  # noqa: E402
from tests.support.incident_stories import markdown as incident_stories  # noqa: E402
from tests.support.kill_points import markdown_table as kill_points  # noqa: E402


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def controller_metrics() -> str:
    """Return the controller's metrics, in the order in which they are declared."""
    rows = []
    for family in Measures().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append((f"`{name}`", family.type, family.documentation))
    return _table(("metric", "type", "meaning"), rows)


def fabric_metrics() -> str:
    """Return the metrics of a fabric test."""
    rows = [
        (f"`{one.name}`", ", ".join(f"`{label}`" for label in one.labels), one.meaning)
        for one in FABRIC_FAMILIES
    ]
    return _table(("metric", "labels", "meaning"), rows)


def recorded() -> str:
    """Return the recording rules, in the order in which Prometheus evaluates them."""
    rows = [
        (f"`{rule.name}`", rule.meaning, f"every {group.interval}")
        for group in GROUPS
        for rule in group.rules
    ]
    return _table(("series", "meaning", "evaluated"), rows)


def checks() -> str:
    """Return the shipped checks of a node, with the condition of each."""
    rows = []
    for check in load_checks(FAMILIES):
        where = "".join(f", {label} `{pattern.pattern}`" for label, pattern in check.where)
        when = "".join(f", when `{guard.text}`" for guard in check.guards)
        window = f" in {check.window_s:g} s" if check.window_s else ""
        looks = f"; {check.persistence.bad_looks} looks" if check.persistence.bad_looks > 1 else ""
        condition = f"`{check.metric}`: `{check.condition.text}`{window}{where}{when}{looks}"
        beside = f"; `{check.beside_action.value}` beside heat" if check.beside else ""
        event = f"`{check.event}`" if check.event else ""
        action = f"{check.action.value}{beside}"
        condition = condition.replace("|", "\\|")
        rows.append((f"`{check.name}`", check.severity.value, action, condition, event))
    return _table(("check", "severity", "action", "when", "event"), rows)


def kernel_kinds() -> str:
    """Return the kinds of kernel events with what each calls for."""
    rows = [
        (f"`{code}`", policy.meaning, policy.severity.value, f"`{policy.action.value}`")
        for (table, code), policy in load_policy().items()
        if table is EventTable.LOG
    ]
    return _table(("kind", "meaning", "severity", "action"), rows)


def kernel_ways() -> str:
    """Return the events that both the kernel log and a metric show."""
    by_event: dict[str, list[str]] = {}
    for check in load_checks(FAMILIES):
        if check.event:
            by_event.setdefault(check.event, []).append(f"`{check.name}`")
    policies = load_policy()
    rows = []
    for event, names in by_event.items():
        table, _space, code = event.partition(" ")
        policy = policies[EventTable(table), code]
        action = f"`{policy.action.value}`"
        rows.append((f"`{event}`", policy.severity.value, action, ", ".join(names)))
    return _table(("event", "severity", "action", "checks"), rows)


def causes() -> str:
    """Return the causes in hardware of a slow rank, with the signs of each."""
    rows = [
        (
            f"`{cause.name}`",
            ", ".join(section.value for section in SlowSection if section in cause.sections),
            str(cause.directness.value),
            "; ".join(f"`{sign.metric}` {sign.least:.3g}" for sign in cause.signs),
            "; ".join(dict.fromkeys(sign.source for sign in cause.signs)),
        )
        for cause in CAUSES
    ]
    return _table(("cause", "sections", "directness", "signs and figures", "source"), rows)


def doctor() -> str:
    """Return the checks of `rankmend doctor`, with what is lost where one fails."""
    rows = [
        (check.part.value, f"`{check.name}`", check.what, check.lost)
        for found in CHECKS.values()
        for check in found
    ]
    return _table(("part", "check", "what", "lost without it"), rows)


def charges() -> str:
    """Return what counts against a node, in the order of the table."""
    weights = {
        Weight.ONE: "yes",
        Weight.NOTHING: "no",
        Weight.COMPARED: "only with a job of another script",
    }
    rows = [
        (f"`{kind.value}`", weights[row.weight], row.reason)
        for kind, row in CHARGES.items()
        if kind.value
    ]
    return _table(("evidence", "counts", "because"), rows)


def witnesses() -> str:
    """Return which act outside a job each witness allows, and with which role its word is given."""
    roles = {
        witness: ", ".join(f"`{role.value}`" for role, one in WITNESS_OF.items() if one is witness)
        for witness in Witness
    }
    roles[Witness.LAUNCHER] = "`launch`"
    rows = [
        (IN_WORDS[one], roles[one] or "-", *(_is_enough(act, one) for act in OutsideAct))
        for one in Witness
    ]
    acts = (act.value.replace("_", " ") for act in OutsideAct)
    return _table(("who says so", "role", *acts), rows)


def _is_enough(act: OutsideAct, witness: Witness) -> str:
    if witness in ENOUGH[act]:
        return "yes"
    groups = [group for group in TOGETHER.get(act, ()) if witness in group]
    if not groups:
        return "no"
    return "half: there" if groups[0] == PRESENCE else "half: lost"


_SHORT: Final = {
    Witness.PERSON: "a person",
    Witness.ALERT: "an alert",
    Witness.SCHEDULER: "Slurm or Kubernetes",
    Witness.AGENT: "the agent",
    Witness.SUBJECTS: "another subject",
    Witness.SINGLE_TENANT: "`single_tenant`",
    Witness.MANAGER_LOST: "Slurm or Kubernetes, which gets no answer",
    Witness.SILENT_AGENT: "the agent's silence",
}


def act_places() -> str:
    """Return where something outside a job is decided, on whose word, and within which bounds."""
    rows = []
    for place in PLACES:
        needs = place.needs
        if place.act is not None:
            needs = ", ".join(_SHORT[one] for one in Witness if one in ENOUGH[place.act])
            groups = [
                ", ".join(_SHORT[one] for one in Witness if one in group)
                for group in TOGETHER.get(place.act, ())
            ]
            needs += f"; or one of each: ({') and ('.join(groups)})" if groups else ""
        bounds = ", ".join(f"`{key}`" for key in place.bounds)
        decider = place.decided_by.rpartition(".")[2].replace(":", ".")
        rows.append((place.what, needs, bounds, f"`{decider}`", place.refused or "-"))
    return _table(
        (
            "what",
            "needs the word of",
            "bounds, shared by subjects",
            "decided by",
            "what was refused is in",
        ),
        rows,
    )


def documents() -> str:
    """Return what the tables rest on, with the number of rows that name it."""
    named = [policy.document for policy in load_policy().values()]
    named += [row["document"] for row in load_check_rows().values()]
    rows = [
        (
            f"`{key}`",
            f"[{each.title}]({each.url})" if each.url else each.title,
            each.edition,
            each.read,
            str(named.count(key)),
        )
        for key, each in load_documents().items()
    ]
    return _table(("document", "title", "edition", "read on", "rows"), rows)


def differing_events() -> str:
    """Return the rows of XIDs and other events that say otherwise than their document, on purpose."""
    rows = [
        (
            f"`{table.value} {code}`",
            f"`{policy.document}`: {policy.says}",
            f"{policy.severity.value}, `{policy.action.value}`",
            policy.differs,
        )
        for (table, code), policy in load_policy().items()
        if policy.differs
    ]
    assert all(policy.differs for policy in load_policy().values() if disagrees(policy))
    return _table(("row", "the document says", "here", "because"), rows)


def hook_api() -> str:
    """Return the functions of the hook with their docstrings."""
    values = {"resume": rankmend.Resume, "restore": rankmend.RestoredSnapshot}
    parts = []
    for name in rankmend.__all__:
        public = getattr(rankmend, name)
        is_function = inspect.isfunction(public)
        call = f"{name}{inspect.signature(public)}" if is_function else name
        parts += [f"## `{name}`", f"```python\nrankmend.{call}\n```", _prose(public)]
        if name in values:
            parts += [f"It returns a `{values[name].__name__}`. {_prose(values[name])}"]
    return "\n\n".join(parts) + "\n"


def _prose(documented: object) -> str:
    """Return a docstring as Markdown for a page in docs/reference."""
    text = (inspect.getdoc(documented) or "").replace("``", "`")
    return re.sub(r"\bdocs/([\w/-]+)\.md", _reference, text)


def _reference(found: re.Match[str]) -> str:
    return f"[{found[1].rpartition('/')[2]}](../{found[1]}.md)"


def log_kinds() -> str:
    """Return the kinds of failures that `rankmend diagnose log` finds in a job's log."""
    rows = [
        (
            f"`{kind.value}`",
            f"`{row.log_class.value}`",
            row.stop.value,
            row.blame.value,
            f"`{row.example}`".replace("|", "\\|") if row.example else "-",
            row.source or "-",
            row.next_step,
        )
        for kind, row in KINDS.items()
    ]
    return _table(("kind", "class", "stop", "blames", "example", "source", "next"), rows)


def _figures(*, differing: bool) -> str:
    checks = {check.name: check for check in load_checks(FAMILIES)}
    rows = []
    for name, row in load_check_rows().items():
        if not row.get("says") or bool(row.get("differs")) is not differing:
            continue
        check = checks[name]
        here = f"`{check.condition.text}`: {check.severity.value}, `{check.action.value}`"
        last = (row["differs"],) if differing else ()
        rows.append((f"`{name}`", f"`{row['document']}`: {row['says']}", here, *last))
    last = ("because",) if differing else ()
    return _table(("check", "the document says", "here", *last), rows)


PARTS: Final[dict[tuple[str, str], Callable[[], str]]] = {
    ("docs/reference/metrics.md", "agent"): lambda: markdown_table(FAMILIES.values()),
    ("docs/reference/metrics.md", "controller"): controller_metrics,
    ("docs/reference/metrics.md", "fabric"): fabric_metrics,
    ("docs/reference/metrics.md", "recorded"): recorded,
    ("docs/reference/plugins.md", "amd"): lambda: markdown_table(AmdCollector.families),
    ("docs/reference/plugins.md", "ascend"): lambda: markdown_table(AscendCollector.families),
    ("docs/reference/checks.md", "checks"): checks,
    ("docs/reference/doctor.md", "doctor"): doctor,
    ("docs/reference/kernel-log.md", "kinds"): kernel_kinds,
    ("docs/reference/kernel-log.md", "ways"): kernel_ways,
    ("docs/reference/log-classes.md", "log-kinds"): log_kinds,
    ("docs/reference/sources.md", "documents"): documents,
    ("docs/reference/sources.md", "events"): differing_events,
    ("docs/reference/sources.md", "checks"): lambda: _figures(differing=True),
    ("docs/reference/sources.md", "figures"): lambda: _figures(differing=False),
    ("docs/reference/thresholds.md", "causes"): causes,
    ("docs/reference/thresholds.md", "charges"): charges,
    ("docs/operate/security.md", "witnesses"): witnesses,
    ("docs/operate/security.md", "act places"): act_places,
    ("docs/use/frameworks.md", "kills"): kill_points,
    ("docs/reference/hook-api.md", "hook api"): hook_api,
    ("docs/internals/five-incidents.md", "incidents"): incident_stories,
    ("docs/internals/scoreboard.md", "job log rounds"): job_log_rounds,
    ("docs/operate/incidents.md", "incident"): lambda: f"{transitions_table()}\n",
}


def replace_part(text: str, name: str, part: str) -> str:
    """Return a page's text with the part of this name replaced."""
    begin, end = f"<!-- {name} -->\n", "<!-- end -->"
    if text.count(begin) != 1 or end not in text.partition(begin)[2]:
        raise ValueError(f"the page has no single part between {begin.strip()!r} and {end!r}")
    return re.sub(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: begin + part + end, text, flags=re.S
    )


def main() -> None:
    for (page, name), part in PARTS.items():
        path = ROOT / page
        path.write_text(
            replace_part(path.read_text(encoding="utf-8"), name, part()), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
