"""Reads jobs from this machine's state folder, even while no part of rankmend runs."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rankmend.cli.options import fail
from rankmend.cli.output import echo
from rankmend.cli.sources.picture import ENDED_SHOWN, Picture, SpentTime, Wanted
from rankmend.cli.watched_lines import is_named
from rankmend.clock import read_boot_id
from rankmend.errors import RankmendError
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_window import read_job_time
from recovery.accounting.goodput.watched_time import WatchedBook
from recovery.api import wire
from recovery.console.views.incident_view import view_incidents, view_story
from recovery.journal.folder.heartbeat import read_heartbeat
from recovery.journal.folder.job_folder import find_jobs, is_held
from recovery.journal.job_records import OutcomeKind
from recovery.journal.ledger import Moment
from recovery.journal.records import Entry
from recovery.journal.stored_journal import JournalFile
from recovery.journal.watched_journal import FOLDER, read_watched
from recovery.local.report.overview import (
    StoredJobView,
    find_story,
    id_of,
    name_of,
    read_entries,
    view_job,
    view_paces,
)

_ENDED: Final = {kind.value for kind in OutcomeKind}


class FolderReader:
    watch_s = 1.0  # a few small files

    def __init__(
        self, state: Path, watched: Callable[[], Sequence[wire.WatchedView]] = lambda: ()
    ) -> None:
        """``watched``: looks at this machine's ranks under `rankmend watch env`."""
        self._state = state
        self._watched = watched

    def picture(self, wanted: Wanted) -> Picture:
        found = find_jobs(self._state, wanted.job)
        watched = self._watched()
        if wanted.job is not None:
            watched = [job for job in watched if is_named(job, wanted.job)]
        if wanted.job is not None and not found and not watched:
            fail(f"no job {wanted.job!r} (rankmend status --all lists those of this machine)")
        is_wanted = wanted.with_ended or wanted.job is not None
        shown = self._running(found) if not is_wanted else self._views(found)
        if not shown and not watched and not is_wanted:
            shown = self._views(found[:ENDED_SHOWN])
        nobody = wire.Cluster([], [], [], [])
        return Picture(None, shown, (), (), nobody, str(self._state), watched)

    def _views(self, folders: Sequence[Path]) -> list[StoredJobView]:
        return [view_job(folder, time.monotonic, time.time()) for folder in folders]

    def _running(self, folders: Sequence[Path]) -> list[StoredJobView]:
        return [view for view in self._views(folders) if view.state not in _ENDED]

    def picture_or_problem(self, wanted: Wanted) -> Picture | str:
        return self.picture(wanted)

    def incidents(self, job: str | None) -> list[wire.IncidentView]:
        found: list[wire.IncidentView] = []
        for folder in find_jobs(self._state, job):
            try:
                entries = read_entries(folder)
            except RankmendError as error:
                echo(f"rankmend: {error}", err=True)
                continue
            found += view_incidents(entries, name_of(folder, entries))
        return found

    def notes(self, _job: str | None) -> list[str]:
        return []

    def journals(self) -> Iterator[Sequence[Entry]]:
        for folder in find_jobs(self._state, None):
            try:
                yield read_entries(folder)
            except RankmendError as error:
                echo(f"rankmend: {error}", err=True)

    def times(self, job: str | None, since_unix_s: float | None) -> Iterator[SpentTime | None]:
        for folder in find_jobs(self._state, job):
            is_running = is_held(folder)
            # The launcher of an interrupted job has left when it was last alive.
            until = (
                Moment(time.time(), time.monotonic(), read_boot_id())
                if is_running
                else read_heartbeat(folder)
            )
            try:
                spent = read_job_time(JournalFile(folder), until, since_unix_s)
            except RankmendError as error:
                echo(f"rankmend: {error}", err=True)
                continue
            paces = view_paces(folder, time.monotonic) if is_running else ()
            yield None if spent is None else SpentTime(spent, paces)

    def degraded_networks(self, _job: str | None) -> list[wire.JobView]:
        return []  # only agents tell of networks, and only the controller

    def watched_times(self, job: str | None) -> list[JobTime]:
        folder = self._state / FOLDER
        book = WatchedBook()
        for entry in read_watched(folder):
            book.take(entry)
        times = book.times(read_heartbeat(folder))
        return [
            item
            for item in times
            if job is None or item.name.startswith(job) or item.job_id.startswith(job)
        ]

    def untaken(self) -> wire.Untaken:
        return wire.Untaken([], [])

    def story(self, wanted: str) -> wire.Story:
        folder, entries = find_story(self._state, wanted)
        incident_id: str | None = wanted
        if folder is None:
            incident_id = None
            folder = next(iter(find_jobs(self._state, wanted)), None)
            entries = () if folder is None else read_entries(folder)
        story: wire.Story | None = None
        if folder is not None:
            name = name_of(folder, read_entries(folder))
            story = view_story(entries, id_of(folder), name, incident_id)
        if story is None:
            fail(f"no incident or job {wanted!r} (rankmend incidents lists them)")
        return story
