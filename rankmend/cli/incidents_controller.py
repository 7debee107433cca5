"""Incidents and their stories as a controller tells them, in the form that the local ones have."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankmend.cli.controller_options import find_job
from rankmend.cli.shown_line import ShownLine

if TYPE_CHECKING:
    from recovery.api import wire
    from recovery.api.operator_client import OperatorClient


@dataclass(frozen=True, slots=True)
class ToldStory:
    told: "wire.Story"

    @property
    def name(self) -> str:
        return self.told.job

    def lines(self) -> list[ShownLine]:
        return [
            ShownLine(one.number, one.monotonic_s, one.boot_id, one.text, one.details)
            for one in self.told.lines
        ]

    def entries(self) -> list[dict[str, Any]]:
        import msgspec

        return [
            {
                "number": one.number,
                "unix_s": one.unix_s,
                "kind": one.kind,
                "text": one.text,
                "record": msgspec.json.decode(one.record),
            }
            for one in self.told.lines
        ]


def read_rows(client: "OperatorClient", job: str | None) -> list[dict[str, Any]]:
    """Return incidents, newest first, as `rankmend incidents` shows those of a state folder."""
    import msgspec

    from recovery.api.wire import INCIDENTS_MAX

    job_id = None if job is None else find_job(client, job, with_ended=True).job_id
    rows = []
    for view in client.incidents(job_id, limit=INCIDENTS_MAX):
        row = msgspec.to_builtins(view)
        rows.append({"id": row.pop("incident_id"), **row})
    return rows


def read_notes(client: "OperatorClient", job: str | None) -> list[str]:
    """Return of which running jobs older incidents are not known."""
    job_id = None if job is None else find_job(client, job, with_ended=True).job_id
    return [
        f"{view.name}: adopted at attempt {view.adopted_attempt} after its journal was lost; "
        f"incidents before that are not known"
        for view in client.jobs()
        if view.adopted_attempt is not None and job_id in (None, view.job_id)
    ]


def read_story(client: "OperatorClient", wanted: str) -> ToldStory:
    """Return the story of an incident, or of the job whose name or UUID is or begins like ``wanted``."""
    from recovery.api.controller_errors import RefusedError

    try:
        return ToldStory(client.story(wanted))
    except RefusedError as error:
        if error.status not in (400, 404):  # 400: what is no name in a path may begin a job's
            raise
    return ToldStory(client.story(find_job(client, wanted, with_ended=True).job_id))
