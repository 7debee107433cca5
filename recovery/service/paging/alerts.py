"""Messages to people as alerts.

An alert's labels are its identity for Alertmanager, so they are fixed when its cause opens. Only the severity and the stage may
rise, as a new alert in the same group: Alertmanager sends nothing where only texts change, and who was told that a job is being
restarted has to hear that rankmend has given up on it. Beside the message there is one mark for each node and job of the cause, which nobody receives: by them
Alertmanager mutes what others say about the same node or job.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
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
            labels_of(cause.told),
            {**annotations_of(cause), **_links_of(cause.told, links, _runbook_of(cause))},
            cause.told.since_unix_s,
        )
        for cause in causes
    )


def ended_alerts_of(causes: Sequence[CauseTold], links: Links) -> tuple[Alert, ...]:
    """Return the messages of causes that are over, with their last words."""
    return tuple(
        Alert(
            labels_of(cause),
            {**annotations_of_end(cause), **_links_of(cause, links, "rankmendincident")},
            cause.since_unix_s,
        )
        for cause in causes
    )


def labels_of(reported: CauseTold) -> dict[str, str]:
    labels = {
        "alertname": MESSAGE,
        "severity": reported.severity,
        "stage": reported.stage,
        AUDIENCE: _PEOPLE,
        "incident": reported.cause_id,
        "job_id": reported.job_id,
        "job_name": reported.job,
        "node": reported.node,
    }
    return {name: value for name, value in labels.items() if value}


def marks_of(
    causes: Iterable[CauseTold], owner_of: Callable[[str], str] = lambda _job_id: ""
) -> tuple[Alert, ...]:
    """Return the marks of the nodes and jobs of causes, in turn by whose jobs these have: no subject uses up the room for others'.

    ``owner_of`` returns the subject of a job; of a cause without a job it is nobody's.
    """
    of_owner: dict[frozenset[str], list[Alert]] = {}
    for reported in causes:
        owners = frozenset(map(owner_of, reported.job_ids))
        of_owner.setdefault(owners, []).extend(_marks(reported))
    turns = zip_longest(*of_owner.values())
    return tuple(mark for turn in turns for mark in turn if mark is not None)[:_MARKS_MAX]


def _marks(reported: CauseTold) -> Iterator[Alert]:
    for label, names in (("node", reported.nodes), ("job_id", reported.job_ids)):
        for name in names:
            labels = {
                "alertname": MARK,
                AUDIENCE: _NOBODY,
                "incident": reported.cause_id,
                label: name,
            }
            yield Alert(labels, {}, reported.since_unix_s)


def _links_of(reported: CauseTold, links: Links, section: str) -> dict[str, str]:
    page = "/"
    if reported.incident_ids:
        page = f"/incidents/{reported.incident_ids[0]}"
    elif reported.cause_id.startswith("hung-"):  # of another launcher's job: it has no incident
        page = f"/watched/{reported.job_ids[0]}"
    elif reported.node:
        page = f"/nodes/{quote(reported.node, safe='')}"
    elif reported.job_ids:
        page = f"/jobs/{reported.job_ids[0]}"
    runbook = {"runbook_url": f"{links.runbooks}/controller.md#{section}"}
    return {"console_url": f"{links.console}{page}"} | runbook if links.console else runbook


def _runbook_of(cause: OpenCause) -> str:
    urgent = [trouble.runbook for trouble in cause.troubles if trouble.runbook]
    special = [item for item in urgent if item != "rankmendincident"]
    return (special or urgent or ["rankmendincident"])[0]
