"""The daily record: what was over without a message, and what waits for a repair, in one message a day. Pure.

It covers the 24 hours before `[people] record_hour` (UTC) and stands for half a day, so that a controller that is down at that
hour still sends it. Its label is the day: however often the controller starts, there is one message.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

from detectors.finding import Severity
from detectors.wording import moment
from rankmend.printable import printable
from recovery.controller.cluster.notices import DAILY_RECORD
from recovery.journal.cluster_records import CauseTold
from recovery.service.paging.trouble import QUARANTINED, PresentTrouble
from recovery.service.paging.wording import hours

STANDS_S: Final = 43_200.0
_DAY: Final = timedelta(days=1)
_LINES_MAX: Final = 50


def daily_record(
    causes: Mapping[str, tuple[float, CauseTold]],
    troubles: Sequence[PresentTrouble],
    hour: int,
    now_unix_s: float,
) -> tuple[dict[str, str], dict[str, str], float] | None:
    """Return labels, annotations and start of today's record, or None where there is none to send now."""
    now = datetime.fromtimestamp(now_unix_s, timezone.utc)
    due = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    if due > now:
        due -= _DAY
    due_unix_s = due.timestamp()
    if now_unix_s - due_unix_s > STANDS_S:
        return None
    since_unix_s = due_unix_s - _DAY.total_seconds()
    ended = [
        (at_s, cause)
        for at_s, cause in causes.values()
        if cause.is_over and since_unix_s <= at_s < due_unix_s
    ]
    held = [trouble for trouble in troubles if trouble.kind == QUARANTINED]
    if not ended and not held:
        return None
    alone = [item for _at_s, item in ended if item.severity == Severity.INFO.value]
    lost = hours(sum(item.gpu_s_lost for _at_s, item in ended))
    summary = (
        f"24 h until {moment(due_unix_s, '%H:%M UTC')}: {len(alone)} over without a message, {len(ended) - len(alone)} with one; "
        f"{lost} rank-hours lost"
    )
    if held:
        summary += f"; nodes that wait for repair: {len(held)}"
    of_owner = [
        (item.owner, _line(at_s, item)) for at_s, item in sorted(ended, key=lambda pair: pair[0])
    ]
    of_owner += [("", f"waits for repair: {trouble.what}") for trouble in held]
    lines = _shared_out(of_owner)
    more = [f"and {len(of_owner) - len(lines)} more"] if len(of_owner) > len(lines) else []
    labels = {
        "alertname": DAILY_RECORD,
        "severity": Severity.INFO.value,
        "to": "people",
        "day": due.strftime("%Y-%m-%d"),
    }
    annotations = {
        "summary": summary,
        "what": "\n".join(printable(line) for line in (*lines, *more)),
        "next": "rankmend incidents",
    }
    return labels, annotations, due_unix_s


def _shared_out(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return as many lines as there is room for, each owner's in turn, in their order: no subject's jobs hide what is said of others."""
    counts: Counter[str] = Counter()
    turns: list[tuple[int, int]] = []  # which of its owner's a line is, and its place
    for place, (owner, _line_of) in enumerate(lines):
        turns.append((counts[owner], place))
        counts[owner] += 1
    kept = sorted(place for _turn, place in sorted(turns)[:_LINES_MAX])
    return [lines[place][1] for place in kept]


def _line(at_unix_s: float, reported: CauseTold) -> str:
    jobs = ", ".join(reported.jobs[:4]) or reported.node or "cluster"
    return (
        f"{moment(reported.since_unix_s)}: {jobs}: {reported.what}; over at {moment(at_unix_s)}: {reported.end}; "
        f"{hours(reported.gpu_s_lost)} rank-hours lost ({reported.cause_id})"
    )
