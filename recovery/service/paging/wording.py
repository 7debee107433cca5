"""The words of a message to people, from one cause: a line for a lock screen, and what a person asks next. Pure.

Every text is one line, bounded and printable, whatever a job's name or an alert's text holds.
"""

from collections.abc import Sequence
from typing import Final

from detectors.finding import Severity
from detectors.wording import counted, moment, names_in_words
from rankmend.printable import figure, printable
from recovery.journal.cluster_records import CauseTold
from recovery.service.paging.causes import OpenCause
from recovery.service.paging.trouble import PresentTrouble

SUMMARY_MAX: Final = 119  # characters; a lock screen shows two lines of some 60
_TEXT_MAX: Final = 1_000
_JOBS_MAX: Final = 20
_DONE_MAX: Final = 12
_GPU_HOUR_S: Final = 3600.0
_ORDER: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


def annotations_of(cause: OpenCause) -> dict[str, str]:
    """Return the texts of an open cause."""
    reported, first = cause.told, _most_urgent(cause.troubles)
    need = "it seems to be over" if first is None else first.need
    command = (
        f"rankmend why {reported.incident_ids[0]}" if reported.incident_ids else "rankmend status"
    )
    if first is not None and len(reported.job_ids) <= 1:
        command = first.command or command
    elif len(reported.job_ids) > 1:
        command = "rankmend status"
    texts = {
        "summary": summary_of(reported, need),
        "what": _what(reported, cause.troubles),
        "since": moment(reported.since_unix_s),
        "gpus_idle": str(reported.gpus_idle),
        "gpu_hours_lost": hours(reported.gpu_s_lost),
        "done": _done(cause.troubles),
        "state": _line(need),
        "next": command,
        "jobs": names_in_words([_line(job) for job in reported.jobs], _JOBS_MAX),
        "nodes": names_in_words(reported.nodes, _JOBS_MAX),
        "part": _line(reported.part),
    }
    return {name: text for name, text in texts.items() if text}


def annotations_of_end(reported: CauseTold) -> dict[str, str]:
    """Return the texts with which the message of a cause is closed."""
    lost = f"; {hours(reported.gpu_s_lost)} rank-hours lost" if reported.gpu_s_lost >= 1 else ""
    command = (
        f"rankmend why {reported.incident_ids[0]}" if reported.incident_ids else "rankmend status"
    )
    texts = {
        "summary": _cut(f"{_subject(reported)}: over: {_line(reported.end)}{lost}"),
        "what": _line(reported.what),
        "since": moment(reported.since_unix_s),
        "gpus_idle": "0",
        "gpu_hours_lost": hours(reported.gpu_s_lost),
        "done": _line(reported.end),
        "state": "over",
        "next": command,
        "jobs": names_in_words([_line(job) for job in reported.jobs], _JOBS_MAX),
        "nodes": names_in_words(reported.nodes, _JOBS_MAX),
        "part": _line(reported.part),
    }
    return {name: text for name, text in texts.items() if text}


def summary_of(reported: CauseTold, need: str) -> str:
    """Return one line for a lock screen: whom it hurts, what it needs, what it costs, what it is."""
    idle = f"{counted(reported.gpus_idle, 'rank')} idle" if reported.gpus_idle else ""
    what = _line(reported.what)
    if len(reported.job_ids) > 1 and reported.is_loss and len(reported.nodes) > 1:
        what = f"lost {names_in_words(reported.nodes, 3)}"
    if reported.part:
        what = f"{_line(reported.part)}: {what}"
    parts = [part for part in (need, idle, what) if part]
    return _cut(f"{_subject(reported)}: {'; '.join(parts)}")


def hours(gpu_s: float) -> str:
    """Return hours of ranks with three significant digits."""
    return figure(gpu_s / _GPU_HOUR_S)


def _subject(reported: CauseTold) -> str:
    if len(reported.job_ids) > 1:
        return f"{len(reported.job_ids)} jobs"
    if not reported.jobs and len(reported.nodes) > 1:
        return f"{len(reported.nodes)} nodes"
    if reported.jobs:
        name = _line(reported.jobs[0])
        return name if len(name) <= 40 else f"{name[:39]}…"
    return reported.node or "cluster"


def _most_urgent(troubles: Sequence[PresentTrouble]) -> PresentTrouble | None:
    if not troubles:
        return None
    incidents = [trouble for trouble in troubles if trouble.is_incident] or troubles
    return min(incidents, key=lambda incident: _ORDER.index(incident.severity))


def _what(reported: CauseTold, troubles: Sequence[PresentTrouble]) -> str:
    named = ((trouble.job or ", ".join(trouble.nodes[:1]), trouble.what) for trouble in troubles)
    lines = [f"{name}: {what}" if name else what for name, what in named]
    if not lines:
        return _line(reported.what)
    shown = [_line(line) for line in dict.fromkeys(lines)]
    more = [f"and {len(shown) - _JOBS_MAX} more"] if len(shown) > _JOBS_MAX else []
    return "\n".join((*shown[:_JOBS_MAX], *more))


def _done(troubles: Sequence[PresentTrouble]) -> str:
    several = sum(bool(trouble.done) for trouble in troubles) > 1
    lines = [
        f"{trouble.job}: {'; '.join(trouble.done)}" if several else line
        for trouble in troubles
        for line in (trouble.done[:1] if several else trouble.done)
    ]
    return "\n".join(_line(line) for line in lines[:_DONE_MAX])


def _line(text: str) -> str:
    return printable(text.replace("\n", " "))[:_TEXT_MAX]


def _cut(text: str) -> str:
    return text if len(text) <= SUMMARY_MAX else f"{text[: SUMMARY_MAX - 1]}…"
