"""Translates reports and records of the previous version that had only text for a symptom. Pure.

Versions before record 1.3 told what failed by a signature, "hung:stopped" or "evidence:XidFatal", and
nothing beside it. It is taken apart here, once, as it comes in; nothing else reads it.
"""

import re
from dataclasses import replace
from typing import Final

from detectors.finding import Finding, Symptom, SymptomKind
from recovery.messages.exchange import Report

_KINDS: Final = {kind.value: kind for kind in SymptomKind}
_NUMBER: Final = re.compile(r"\d+")
_FAULT_CHARACTERS_MAX: Final = 200


def symptom_of(signature: str) -> Symptom:
    """Return the symptom of a signature; an unknown signature becomes the detail."""
    word, _colon, detail = signature.partition(":")
    kind = _KINDS.get(word, SymptomKind.UNKNOWN)
    if kind is SymptomKind.UNKNOWN:
        return Symptom(kind, signature)
    return Symptom(kind, detail)


def finding_of_today(finding: Finding) -> Finding:
    """Return the finding with its symptom."""
    if finding.symptom != Symptom() or not finding.signature:
        return finding
    return replace(finding, symptom=symptom_of(finding.signature))


def report_of_today(report: Report) -> Report:
    """Return a report with the fields that older launchers did not send."""
    if report.launch_error is not None and not report.launch_fault:
        fault = _NUMBER.sub("#", report.launch_error)[:_FAULT_CHARACTERS_MAX]
        report = replace(report, launch_fault=fault)
    if all(one.symptom != Symptom() for one in report.findings):
        return report
    return replace(report, findings=tuple(finding_of_today(one) for one in report.findings))
