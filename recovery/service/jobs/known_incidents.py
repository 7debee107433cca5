"""The newest incidents of many jobs, for the API and the console: of each journal only what has come is read.

Journals are taken in the order in which they were written last, and no incident is newer than that. So those that can't
hold one of the newest are not opened.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankmend.errors import RankmendError
from recovery.api import wire
from recovery.console.views.job_incidents import JobIncidents
from recovery.journal.stored_journal import StoredJournal, Written, written_files

log = logging.getLogger(__name__)

JOBS_MAX: Final = 2_000  # whose incidents stay in memory: 30 kB a job with 10
_TICK_NS: Final = 1_000_000_000  # Linux: 1 to 10 ms


@dataclass(frozen=True, slots=True)
class JobPlace:
    job_id: str
    name: str
    journal: StoredJournal


@dataclass(slots=True)
class _Known:
    incidents: JobIncidents
    written: Written | None = None  # how far the views tell
    views: list[wire.IncidentView] = field(default_factory=list)


class KnownIncidents:
    """For any thread."""

    def __init__(
        self, written: Callable[[Sequence[StoredJournal]], list[Written]] = written_files
    ) -> None:
        """``written`` tells how far each of these journals was written."""
        self._written = written
        self._jobs: dict[str, _Known] = {}  # the one that was asked last comes last
        self._lock = threading.Lock()

    def newest(
        self, places: Iterable[JobPlace], limit: int, opens_max: int = JOBS_MAX
    ) -> list[wire.IncidentView]:
        """Return the newest incidents of these jobs, newest first.

        ``opens_max``: of so many jobs at most that were never queried; the others come with the next calls.
        """
        found: list[wire.IncidentView] = []
        requested = list(places)
        dated = list(
            zip(self._written([place.journal for place in requested]), requested, strict=True)
        )
        dated.sort(key=lambda item: item[0].at_unix_ns, reverse=True)
        for written, place in dated:
            if len(found) >= limit and found[limit - 1].opened_unix_s * 1e9 > written.at_unix_ns:
                break
            if place.job_id not in self._jobs:
                if opens_max == 0:
                    continue
                opens_max -= 1
            with self._lock:  # of one job after the other: nobody waits for all of them
                found += self._views(place, written)
            found.sort(key=lambda view: view.opened_unix_s, reverse=True)
            del found[limit:]
        return found

    def _views(self, place: JobPlace, written: Written) -> list[wire.IncidentView]:
        known = self._jobs.pop(place.job_id, None)
        while len(self._jobs) >= JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]
        if known is None:
            known = _Known(JobIncidents(place.journal, place.name))
        self._jobs[place.job_id] = known
        if known.written != written:
            try:
                known.views = known.incidents.read()
            except RankmendError as error:
                log.warning("cannot read the journal of a job", extra={"error": str(error)})
                known.views = []
            # The time of a file is that of the kernel's last tick: what was written just now may be followed by more.
            age_ns = time.time_ns() - written.at_unix_ns
            known.written = written if written.is_exact or age_ns > _TICK_NS else None
        return known.views
