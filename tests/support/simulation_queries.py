"""What the simulated database answers to a controller's queries, each by its exact text: another one is no query it knows.

`tests/recovery/journal/postgres/test_simulated_database.py` asks a real PostgreSQL every one of them, too.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from recovery.journal.journal_reader import READ_ROWS_MAX
from recovery.journal.postgres.leases import _KNOWN
from recovery.journal.postgres.migration import migrations
from recovery.journal.postgres.postgres_journal import (
    _FOLD_SIZES,
    _FOLDS,
    _NEWEST,
    _ROWS,
    _ROWS_BEHIND,
)
from recovery.service.fleet.reader import _DESKS, _ENDED, _JOBS, _PEERS, _RUNNING
from recovery.service.jobs.postgres_jobs import _COLUMNS as JOBS
from recovery.service.jobs.postgres_jobs import _FREE, _HELD, _HOLDER, _LIVING

if TYPE_CHECKING:
    from tests.support.simulation_database import Kept, KeptJob, SimServer

Rows = list[tuple[Any, ...]]


def _read_version(_server: "SimServer") -> Rows:
    newest = migrations()[-1]
    return [(newest.version, newest.compatible_from)]


# Journals.


def _read_newest(server: "SimServer", names: list[str]) -> Rows:
    kept = [(name, server.journals[name].rows) for name in names if name in server.journals]
    return [(name, rows[-1][0].number, rows[-1][0].unix_s) for name, rows in kept if rows]


def _read_rows(server: "SimServer", journal: str, after: int) -> Rows:
    rows = [tuple(row) for row in server.rows_of(journal) if row.number > after]
    return rows[:READ_ROWS_MAX]


def _read_rows_behind(server: "SimServer", names: list[str], after: list[int]) -> Rows:
    return [
        (*row, name)
        for name, known in sorted(zip(names, after, strict=True))
        for row in server.rows_of(name)
        if row.number > known
    ]


def _read_no_folds(_server: "SimServer", _names: list[str]) -> Rows:
    return []  # its controllers have no committer, which keeps them


def _read_checksum(server: "SimServer", journal: str, number: int) -> Rows:
    return [(row.checksum,) for row in server.rows_of(journal) if row.number == number]


# Controllers.


def _read_living(server: "SimServer", leases: float) -> Rows:
    now_s = server.now_unix_s()
    return [
        (one, starter.started_s < now_s - leases * starter.lease_s, starter.expires_s - now_s)
        for one, starter in server.starters.items()
        if server.is_alive(one)
    ]


def _read_known(server: "SimServer", asked: uuid.UUID) -> Rows:
    return [(1,)] if asked in server.starters else []


def _read_peers(server: "SimServer", but: uuid.UUID) -> Rows:
    return [
        (one, starter.name, starter.url, starter.peer_secret, starter.certificate)
        for one, starter in server.starters.items()
        if one != but and server.is_alive(one)
    ]


def _read_holder(server: "SimServer", journal: str, but: uuid.UUID) -> Rows:
    kept = server.journals.get(journal)
    holder = None if kept is None else kept.holder
    if holder is None or holder == but or not server.is_alive(holder):
        return []
    one = server.starters[holder]
    return [(one.name, one.url, one.expires_s - server.now_unix_s())]


def _read_desks(server: "SimServer", names: list[str]) -> Rows:
    kept = [(name, server.journals[name].holder) for name in names if name in server.journals]
    return [(name, holder) for name, holder in kept if holder is not None]


# Jobs.


def _each(server: "SimServer") -> Iterator[tuple[uuid.UUID, "KeptJob", "Kept"]]:
    for job_id, job in server.jobs.items():
        yield job_id, job, server.journals[f"job:{job_id}"]


def _is_free(server: "SimServer", kept: "Kept", by: uuid.UUID) -> bool:
    return kept.holder in (None, by) or not server.is_alive(kept.holder)


def _read_held(server: "SimServer") -> Rows:
    return [
        (job_id, kept.holder)
        for job_id, job, kept in _each(server)
        if job.ended is None and kept.holder is not None
    ]


def _read_stored(server: "SimServer", job_id: uuid.UUID) -> Rows:
    return [(server.jobs[job_id].stored,)] if job_id in server.jobs else []


def _read_all(server: "SimServer") -> Rows:
    return [(job_id,) for job_id in server.jobs]


def _read_id(server: "SimServer", owner: str, key: str) -> Rows:
    return [(i,) for i, job in server.jobs.items() if (job.owner, job.key) == (owner, key)]


def _read_named(server: "SimServer", owner: str, key: str) -> Rows:
    return [
        (job_id, job.stored, job.ended)
        for job_id, job in server.jobs.items()
        if job.stored and (job.owner, job.key) == (owner, key)
    ]


def _read_ended_or_free(server: "SimServer", by: uuid.UUID) -> Rows:
    return [
        (job_id, job.stored, job.ended)
        for job_id, job, kept in _each(server)
        if job.stored and (job.ended is not None or _is_free(server, kept, by))
    ]


def _read_freed(server: "SimServer", but: uuid.UUID, by: uuid.UUID) -> Rows:
    return [
        (job_id, job.stored, job.ended)
        for job_id, job, kept in _each(server)
        if job.stored and job.ended is None and kept.holder != but and _is_free(server, kept, by)
    ]


def _read_running(server: "SimServer", but: uuid.UUID) -> Rows:
    return [
        (job_id, str(job.version), kept.holder)
        for job_id, job, kept in _each(server)
        if job.ended is None and job.stored and kept.holder != but
    ]


def _read_ended(server: "SimServer") -> Rows:
    return [(job_id,) for job_id, job in server.jobs.items() if job.ended is not None]


def _read_some(server: "SimServer", job_ids: list[uuid.UUID]) -> Rows:
    return [
        (one, server.jobs[one].stored, server.jobs[one].ended)
        for one in job_ids
        if one in server.jobs
    ]


QUERIES: Final[Mapping[str, Callable[..., Rows]]] = {
    "SELECT version, compatible_from FROM rankmend.schema_version ORDER BY version DESC LIMIT 1": _read_version,
    _NEWEST: _read_newest,
    _ROWS: _read_rows,
    _ROWS_BEHIND: _read_rows_behind,
    _FOLDS: _read_no_folds,
    _FOLD_SIZES: _read_no_folds,
    "SELECT checksum FROM rankmend.record WHERE journal = %s AND number = %s": _read_checksum,
    _LIVING: _read_living,
    _KNOWN: _read_known,
    _PEERS: _read_peers,
    _HOLDER: _read_holder,
    _DESKS: _read_desks,
    _HELD: _read_held,
    "SELECT stored FROM rankmend.job WHERE job_id = %s": _read_stored,
    "SELECT job_id FROM rankmend.job": _read_all,
    "SELECT job_id FROM rankmend.job WHERE owner = %s AND key = %s": _read_id,
    f"{JOBS} AND j.owner = %s AND j.key = %s": _read_named,
    f"{JOBS} AND (j.ended IS NOT NULL OR {_FREE})": _read_ended_or_free,
    f"{JOBS} AND j.ended IS NULL AND n.holder IS DISTINCT FROM %s AND {_FREE}": _read_freed,
    _RUNNING: _read_running,
    _ENDED: _read_ended,
    _JOBS: _read_some,
}  # fmt: skip
