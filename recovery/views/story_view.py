"""What a journal tells of a job or of one of its incidents, as the API and the commands show it. Pure."""

from collections.abc import Sequence

import msgspec

from recovery.api import wire
from recovery.journal.incident_records import CaughtUp, IncidentOpened
from recovery.journal.job_records import JobEnded
from recovery.journal.narrator import details, narrate
from recovery.journal.records import Entry, kind_of


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
