"""The story of a job and its incidents, with what each cost, as the API and the commands show them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from detectors.finding import Finding
from recovery.api import wire
from recovery.console.views.state_words import IncidentStanding, standing_of
from recovery.journal.accounting import Account, RecoveryPhase, account_all
from recovery.journal.incident_records import CaughtUp, EvidenceCollected, IncidentOpened
from recovery.journal.job_records import JobEnded
from recovery.journal.narration.narrator import details, narrate
from recovery.journal.records import Entry, kind_of

_OPEN: Final = frozenset(standing.value for standing in IncidentStanding if standing.is_open)


def view_story(
    entries: Sequence[Entry], job_id: str, name: str, incident_id: str | None
) -> wire.Story | None:
    """Return a job's story, or that of one of its incidents; None where it has no such one."""
    if incident_id is not None:
        entries = entries_of_incident(entries, incident_id)
    if not entries:
        return None
    return wire.Story(job_id, name, incident_id, [_line(entry) for entry in entries])


def entries_of_incident(entries: Sequence[Entry], wanted: str) -> Sequence[Entry]:
    """Return the entries from an incident's opening to its end, or to the next one's opening."""
    opened = next(
        (
            place
            for place, entry in enumerate(entries)
            if isinstance(entry.record, IncidentOpened) and entry.record.incident_id == wanted
        ),
        None,
    )
    if opened is None:
        return ()
    for place in range(opened + 1, len(entries)):
        record = entries[place].record
        if isinstance(record, IncidentOpened):
            return entries[opened:place]
        is_caught_up = isinstance(record, CaughtUp) and record.incident_id == wanted
        if is_caught_up or isinstance(record, JobEnded):
            return entries[opened : place + 1]
    return entries[opened:]


def _line(entry: Entry) -> wire.StoryLine:
    return wire.StoryLine(
        entry.number,
        entry.unix_s,
        entry.monotonic_s,
        entry.boot_id,
        kind_of(entry.record),
        narrate(entry.record),
        details(entry.record),
        msgspec.Raw(msgspec.json.encode(entry.record)),
    )


def view_incidents(entries: Sequence[Entry], job: str) -> list[wire.IncidentView]:
    """Return the incidents of a journal, oldest first; ``job``: the job's name."""
    # Dumps and stacks know more than what was seen of the job while it hung.
    judged = {
        entry.record.incident_id: entry.record.finding
        for entry in entries
        if isinstance(entry.record, EvidenceCollected)
    }
    return view_accounts(account_all(entries), judged, job)


def view_accounts(
    accounts: Iterable[Account], judged: Mapping[str, Finding | None], job: str
) -> list[wire.IncidentView]:
    """Return incidents by what they cost; ``judged``: the findings that their evidence led to."""
    return [
        _view(account, job, judged.get(account.incident_id) or account.opened.failure.finding)
        for account in accounts
    ]


def _view(account: Account, job: str, finding: Finding) -> wire.IncidentView:
    return wire.IncidentView(
        incident_id=account.incident_id,
        job_id=finding.job_id,
        job=job,
        opened_unix_s=account.opened_unix_s,
        attempt=account.opened.failure.attempt,
        cause=finding.kind.value,
        signature=finding.signature,
        summary=finding.summary,
        blame=(account.corrected or finding.blame).value,
        node=finding.node,
        ranks=list(finding.ranks),
        victims=list(finding.victims),
        outcome=account.state.phase.name.lower(),
        tries=account.state.try_number,
        steps=[plan.step.value for plan in account.plans],
        phases={f"{phase.value}_s": account.phases.get(phase) for phase in RecoveryPhase},
        notes=list(account.notes),
        total_s=account.total_s,
        recovered_s=account.recovered_s,
        steps_recomputed=account.steps_recomputed,
        caught_up_s=account.caught_up_s,
        restored_from=account.tier.value if account.tier is not None else None,
        restored_step=account.choice.begins_at if account.choice is not None else None,
        charges=[
            wire.NodeChargeView(charge.node, charge.kind.value, charge.counts, charge.reason)
            for charge in account.charges
        ],
        blamed_before=_before(account, finding),
        standing=standing_of(account.state.phase, waits=account.waits_for is not None).value,
        waits_for="" if account.waits_for is None else account.waits_for.value,
        highest_step=account.opened.highest_step,
        ranks_lost=account.ranks_before,
        lost_s=account.lost_s,
        is_lost_least=account.is_lost_least,
        trained_s=account.trained_s,
    )


def with_clock(view: wire.IncidentView, now_unix_s: float) -> wire.IncidentView:
    """Return an incident with the time since its fault, while no rank trains; ``now_unix_s``: by the clock that stamped its records."""
    since_unix_s = down_since(view)
    if view.standing not in _OPEN or since_unix_s is None:
        return view
    return msgspec.structs.replace(view, down_s=max(0.0, now_unix_s - since_unix_s))


def down_since(view: wire.IncidentView) -> float | None:
    """Return since when the ranks of an open incident do not train: since its fault, or since they were stopped; None: they train on."""
    if view.trained_s is None:
        return None
    detect_s = view.phases.get(f"{RecoveryPhase.DETECT.value}_s") or 0.0
    return view.opened_unix_s + view.trained_s - detect_s


def _before(account: Account, finding: Finding) -> str:
    is_other = account.corrected is not None and account.corrected is not finding.blame
    return finding.blame.value if is_other else ""
