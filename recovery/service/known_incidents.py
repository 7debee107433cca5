"""The newest incidents of many jobs, for the API and the console: of each journal only what has come is read.

Journals are taken in the order in which they were written last, and no incident is newer than that. So those that can't
hold one of the newest are not opened.
"""

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankmend.errors import RankmendError
from recovery.api import wire
from recovery.views.job_incidents import JobIncidents

log = logging.getLogger(__name__)

JOBS_MAX: Final = 2_000  # whose incidents stay in memory: 30 kB a job with 10
_TICK_NS: Final = 1_000_000_000  # Linux: 1 to 10 ms
_FILES: Final = ("journal.db", "journal.db-wal")


@dataclass(frozen=True, slots=True)
class JobPlace:
    job_id: str
    name: str
    folder: Path


@dataclass(slots=True)
class _Known:
    incidents: JobIncidents
    written: tuple[int, ...] = ()  # when and how far, as the views tell
    views: list[wire.IncidentView] = field(default_factory=list)


class KnownIncidents:
    """For any thread."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Known] = {}  # the one that was asked last comes last
        self._lock = threading.Lock()

    def newest(
        self, places: Iterable[JobPlace], limit: int, opens_max: int = JOBS_MAX
    ) -> list[wire.IncidentView]:
        """Return the newest incidents of these jobs, newest first.

        ``opens_max``: of so many jobs at most that were never asked; the others come with the next calls.
        """
        found: list[wire.IncidentView] = []
        dated = [(_written(place.folder), place) for place in places]
        dated.sort(key=lambda one: max(one[0][::2]), reverse=True)
        for written, place in dated:
            newest_ns = max(written[::2])
            if len(found) >= limit and found[limit - 1].opened_unix_s * 1e9 > newest_ns:
                break
            if place.job_id not in self._jobs:
                if opens_max == 0:
                    continue
                opens_max -= 1
            with self._lock:  # of one job after the other: nobody waits for all of them
                found += self._views(place, written)
            found.sort(key=lambda one: one.opened_unix_s, reverse=True)
            del found[limit:]
        return found

    def _views(self, place: JobPlace, written: tuple[int, ...]) -> list[wire.IncidentView]:
        known = self._jobs.pop(place.job_id, None)
        while len(self._jobs) >= JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]
        if known is None:
            known = _Known(JobIncidents(place.folder / _FILES[0], place.name))
        self._jobs[place.job_id] = known
        if known.written != written:
            try:
                known.views = known.incidents.read()
            except RankmendError as error:
                log.warning("cannot read the journal of a job", extra={"error": str(error)})
                known.views = []
            # The time of a file is that of the kernel's last tick: what was written just now may be followed by more.
            is_settled = time.time_ns() - max(written[::2]) > _TICK_NS
            known.written = written if is_settled else ()
        return known.views


def _written(folder: Path) -> tuple[int, ...]:
    """Return when a journal's files were written last, in ns, and their sizes; zeros for one that is not there.

    An empty log tells nothing: whoever reads a journal that nobody has open makes one.
    """
    found: list[int] = []
    for name in _FILES:
        try:
            status = (folder / name).stat()
        except OSError:
            found += (0, 0)
        else:
            found += (status.st_mtime_ns if status.st_size else 0, status.st_size)
    return tuple(found)
