"""The report of what rankmend would have done, as values for JSON, CSV, the terminal and the page. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from detectors.wording import moment
from rankmend.printable import duration, figure, printable
from recovery.accounting.observe_mode.verdict import HindsightVerdict, JudgedDecision

CSV_HEAD: Final = (
    "at", "job", "job_id", "incident_id", "source", "action", "nodes", "why_not", "reason", "instead", "verdict",
    "because", "took_s", "saved_s", "saved_gpu_hours", "basis",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would take it for a formula


def plain(judged: Sequence[JudgedDecision]) -> dict[str, Any]:
    """Return the report for programs."""
    return {"decisions": [_plain(decision) for decision in judged], "total": plain_total(judged)}


def plain_total(judged: Sequence[JudgedDecision]) -> dict[str, Any]:
    counts = Counter(decision.verdict for decision in judged)
    known = [
        decision.saved_gpu_hours for decision in judged if decision.saved_gpu_hours is not None
    ]
    saved = [decision.saved_s for decision in judged if decision.saved_s is not None]
    return {
        **{verdict.value: counts[verdict] for verdict in HindsightVerdict},
        "saved_s": sum(saved) if saved else None,
        "saved_gpu_hours": sum(known) if known else None,
        "estimated": len(saved),
    }


def _plain(item: JudgedDecision) -> dict[str, Any]:
    decision = item.decision
    return {
        "at_unix_s": decision.at_unix_s,
        "source": decision.source,
        "job": decision.job,
        "job_id": decision.job_id,
        "incident_id": decision.incident_id or None,
        "action": decision.action,
        "nodes": list(decision.nodes),
        "why_not": decision.why_not,
        "reason": decision.reason,
        "evidence": list(decision.evidence),
        "instead": item.instead,
        "verdict": item.verdict.value,
        "because": item.because,
        "took_s": item.took_s,
        "saved_s": item.saved_s,
        "saved_gpu_hours": item.saved_gpu_hours,
        "basis": item.basis or None,
    }


def csv_rows(judged: Sequence[JudgedDecision]) -> Iterator[tuple[str, ...]]:
    """Return a row for each decision, after the row of `CSV_HEAD`."""
    yield CSV_HEAD
    for item in judged:
        decision = item.decision
        cells = (
            moment(decision.at_unix_s, "%Y-%m-%d %H:%M:%SZ"),
            decision.job,
            decision.job_id,
            decision.incident_id,
            decision.source,
            decision.action,
            " ".join(decision.nodes),
            decision.why_not,
            decision.reason,
            item.instead,
            item.verdict.value,
            item.because,
            _number(item.took_s),
            _number(item.saved_s),
            _number(item.saved_gpu_hours),
            item.basis,
        )
        yield tuple(_cell(text) for text in cells)


def say_saved(decision: JudgedDecision) -> str:
    """Return what a right decision would have saved, with the basis of the estimate."""
    if decision.saved_s is None:
        return "-"
    hours = (
        ""
        if decision.saved_gpu_hours is None
        else f", {figure(decision.saved_gpu_hours)} GPU-hours"
    )
    return f"{duration(decision.saved_s)}{hours} ({decision.basis})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _cell(text: str) -> str:
    text = printable(text.replace("\n", " "))
    return f"'{text}" if text.startswith(_FORMULA) else text
