"""Reads every second which controllers there are and which jobs they have, in a thread of its own.

A look takes one row for each job that runs elsewhere, without its settings: those are read once for each new version of the row.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from rankmend.errors import RankmendError
from recovery.journal.postgres.database import Database, Row
from recovery.service.jobs.job_store import (
    ALONE,
    DESKS,
    ControllerFleet,
    FoundJobs,
    JobElsewhere,
    OtherController,
)

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
ALL_ENDED_LOOKS: Final = 60  # jobs that began and ended between two looks are found by every 60th
_PEERS: Final = (
    "SELECT controller_id, name, url, peer_secret, certificate FROM rankmend.controller"
    " WHERE controller_id <> %s AND rankmend.is_alive(controller_id)"
)
_RUNNING: Final = (
    "SELECT j.job_id, j.xmin::text, n.holder FROM rankmend.job j JOIN rankmend.journal n ON n.job_id = j.job_id"
    " WHERE j.ended IS NULL AND j.stored <> '' AND n.holder IS DISTINCT FROM %s"
)
_DESKS: Final = (
    "SELECT name, holder FROM rankmend.journal WHERE name = ANY(%s) AND holder IS NOT NULL"
)
_ENDED: Final = "SELECT job_id FROM rankmend.job WHERE ended IS NOT NULL"
_JOBS: Final = "SELECT job_id, stored, ended FROM rankmend.job WHERE job_id = ANY(%s)"
_JOBS_MAX: Final = 500  # in one question


class FleetReader:
    """``fleet`` is for any thread."""

    def __init__(
        self,
        database: Database,
        controller_id: uuid.UUID,
        decode: Callable[[list[Row]], tuple[list[FoundJobs], list[str]]],
        *,
        has_thread: bool = True,
    ) -> None:
        """``decode`` makes jobs of rows with id, settings and end. Without a thread the caller calls `turn`."""
        self._database = database
        self._ours = controller_id
        self._decode = decode
        self.fleet: ControllerFleet = ALONE
        self._versions: dict[uuid.UUID, str] = {}
        self._looks = 0
        self._should_stop = threading.Event()
        self._has_thread = has_thread
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def start(self) -> None:
        if self._has_thread:
            self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        wait_s = 0.0
        while not self._should_stop.wait(wait_s):
            wait_s = self.turn()

    def turn(self) -> float:
        """Look once; return how long to wait before the next time."""
        try:
            self.look()
        except RankmendError as error:  # the database is away: the last picture stays
            log.debug("other controllers are not known now: %s", error)
        except Exception:
            log.exception("cannot find out about other controllers")
            return 10.0
        return LOOK_S

    def look(self) -> None:
        """Replace the picture where anything has changed."""
        before, read = self.fleet, self._database.read
        peers = {
            str(row[0]): OtherController(str(row[0]), *row[1:])
            for row in read(_PEERS, (self._ours,))
        }
        running = read(_RUNNING, (self._ours,))
        desks = {name: str(holder) for name, holder in read(_DESKS, (list(DESKS),))}
        versions = {job_id: version for job_id, version, _holder in running}
        known = {item: job.found for item, job in before.jobs.items()}
        changed = [
            item for item, version in versions.items() if self._versions.get(item) != version
        ]
        known |= self._read(changed)
        jobs = {
            str(job_id): JobElsewhere(
                known[str(job_id)], str(holder) if str(holder) in peers else ""
            )
            for job_id, _version, holder in running
            if str(job_id) in known
        }
        ended = self._read_ended(before, jobs)
        self._versions, self._looks = versions, self._looks + 1
        made = ControllerFleet(peers, jobs, ended, desks)
        if made != before:
            self.fleet = made

    def _read_ended(
        self, before: ControllerFleet, jobs: dict[str, JobElsewhere]
    ) -> dict[str, FoundJobs]:
        """Return the jobs that others have ended: those that ran until now, and once in a while all."""
        requested = {uuid.UUID(key) for key in before.jobs.keys() - jobs.keys()}
        retained = dict(before.ended)
        if self._looks % ALL_ENDED_LOOKS == ALL_ENDED_LOOKS - 1:
            all_ended = {row[0] for row in self._database.read(_ENDED)}
            retained = {
                job_id: item for job_id, item in retained.items() if uuid.UUID(job_id) in all_ended
            }
            requested |= {item for item in all_ended if str(item) not in retained}
        found = {
            job_id: item for job_id, item in self._read(requested).items() if item.ended is not None
        }
        return {job_id: item for job_id, item in (retained | found).items() if job_id not in jobs}

    def _read(self, job_ids: Iterable[uuid.UUID]) -> dict[str, FoundJobs]:
        requested: list[uuid.UUID] = list(job_ids)
        found: dict[str, FoundJobs] = {}
        for start in range(0, len(requested), _JOBS_MAX):
            rows = self._database.read(_JOBS, (requested[start : start + _JOBS_MAX],))
            made, problems = self._decode(rows)
            for problem in problems:
                log.warning("a job of another controller can't be read", extra={"error": problem})
            found |= {item.job_id: item for item in made}
        return found
