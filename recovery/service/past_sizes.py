"""The sizes on which jobs ran that have ended, by name: what linearity is compared with.

Jobs that ended while this controller ran are kept as they were followed. Those from before are read from their journals,
one at a time, once a running job of their name tells work.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from rankmend.errors import RankmendError
from recovery.goodput.linearity import Sizes, sizes_of
from recovery.goodput.time_spent import read_time
from recovery.journal.stored_journal import StoredJournal

NAMES_MAX: Final = 1_000  # of more the oldest are forgotten
JOBS_MAX: Final = 50  # of one name, the newest

log = logging.getLogger(__name__)


class PastSizes:
    def __init__(self, kept: Callable[[], Mapping[tuple[str, str], StoredJournal]] = dict) -> None:
        """``kept``: the journals of the jobs that have ended and are kept, by name and job id, the newest last."""
        self._kept = kept
        self._by_name: dict[str, dict[str, Sizes]] = {}
        self._asked: set[str] = (
            set()
        )  # jobs whose journals were read, or that ended since the start

    def keep(self, name: str, job_id: str, sizes: Sizes) -> None:
        """Keep the sizes of a job that has ended."""
        self._asked.add(job_id)
        if not sizes:
            return
        jobs = self._by_name.setdefault(name, {})
        jobs.pop(job_id, None)
        jobs[job_id] = sizes
        while len(jobs) > JOBS_MAX:
            del jobs[next(iter(jobs))]
        while len(self._by_name) > NAMES_MAX:
            del self._by_name[next(iter(self._by_name))]

    def of(self, name: str, without: Collection[str]) -> Iterator[Sizes]:
        """Return the sizes of each job of a name, without those that run."""
        for job_id, sizes in self._by_name.get(name, {}).items():
            if job_id not in without:
                yield sizes

    def read_one(self, names: Collection[str], running: Collection[str]) -> None:
        """Read the journal of one job of these names that has ended and was not read yet."""
        if not names:
            return
        kept = self._kept()
        for name in names:
            ids = [job_id for one, job_id in kept if one == name][-JOBS_MAX:]
            for job_id in reversed(ids):
                if job_id not in self._asked and job_id not in running:
                    self._read(name, job_id, kept[name, job_id])
                    return

    def _read(self, name: str, job_id: str, journal: StoredJournal) -> None:
        self._asked.add(job_id)
        try:
            time = read_time(journal.read())
        except (RankmendError, OSError) as error:
            fields = {"job_id": job_id, "error": str(error)}
            log.warning("sizes of an ended job are not known", extra=fields)
            return
        if time is not None:
            self.keep(name, job_id, sizes_of(time.work))
