"""Messages to people as alerts.

An alert's labels are its identity for Alertmanager, so they are fixed when its cause opens. Only the severity and the stage may
rise, as a new alert in the same group: Alertmanager sends nothing where only texts change, and who was told that a job is being
restarted has to hear that rankmend has given up on it. Beside the message there is one mark for each node and job of the cause, which nobody receives: by them
Alertmanager mutes what others say about the same node or job.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from rankmend.alerting import Alert
from recovery.controller.cluster.notices import MARK, MESSAGE
from recovery.journal.cluster_records import CauseTold
from recovery.service.paging.causes import OpenCause
from recovery.service.paging.wording import annotations_of, annotations_of_end

AUDIENCE: Final = "to"  # label by which Alertmanager routes these, and nothing else
_PEOPLE: Final = "people"
_NOBODY: Final = "nobody"
_MARKS_MAX: Final = 2_000  # of all causes


@dataclass(frozen=True, slots=True)
class Links:
    """What messages link to: absolute addresses without a final slash."""

    runbooks: str
    console: str  # empty: no console is served


def alerts_of(causes: Sequence[OpenCause], links: Links) -> tuple[Alert, ...]:
    """Return the message of each open cause."""
    return tuple(
        Alert(
            labels_of(one.told),
            {**annotations_of(one), **_links_of(one.told, links, _runbook_of(one))},
            one.told.since_unix_s,
        )
        for one in causes
    )


def ended_alerts_of(causes: Sequence[CauseTold], links: Links) -> tuple[Alert, ...]:
    """Return the messages of causes that are over, with their last words."""
    return tuple(
        Alert(
            labels_of(one),
            {**annotations_of_end(one), **_links_of(one, links, "rankmendincident")},
            one.since_unix_s,
        )
        for one in causes
    )


def labels_of(told: CauseTold) -> dict[str, str]:
    labels = {
        "alertname": MESSAGE,
        "severity": told.severity,
        "stage": told.stage,
        AUDIENCE: _PEOPLE,
        "incident": told.cause_id,
        "job_id": told.job_id,
        "job_name": told.job,
        "node": told.node,
    }
    return {name: value for name, value in labels.items() if value}


def marks_of(causes: Iterable[CauseTold]) -> tuple[Alert, ...]:
    """Return the marks of the nodes and jobs of causes."""
    return tuple(_marks(causes))[:_MARKS_MAX]


def _marks(causes: Iterable[CauseTold]) -> Iterator[Alert]:
    for told in causes:
        for label, names in (("node", told.nodes), ("job_id", told.job_ids)):
            for name in names:
                labels = {
                    "alertname": MARK,
                    AUDIENCE: _NOBODY,
                    "incident": told.cause_id,
                    label: name,
                }
                yield Alert(labels, {}, told.since_unix_s)


def _links_of(told: CauseTold, links: Links, section: str) -> dict[str, str]:
    page = "/"
    if told.incident_ids:
        page = f"/incidents/{told.incident_ids[0]}"
    elif told.cause_id.startswith("hung-"):  # of another launcher's job: it has no incident
        page = f"/watched/{told.job_ids[0]}"
    elif told.node:
        page = f"/nodes/{quote(told.node, safe='')}"
    elif told.job_ids:
        page = f"/jobs/{told.job_ids[0]}"
    runbook = {"runbook_url": f"{links.runbooks}/controller.md#{section}"}
    return {"console_url": f"{links.console}{page}"} | runbook if links.console else runbook


def _runbook_of(cause: OpenCause) -> str:
    urgent = [one.runbook for one in cause.troubles if one.runbook]
    special = [one for one in urgent if one != "rankmendincident"]
    return (special or urgent or ["rankmendincident"])[0]
