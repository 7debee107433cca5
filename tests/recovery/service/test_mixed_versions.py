"""A controller of one minor release before, beside a newer one on the same database: what it doesn't know it carries along.

Here this version is the older one: a newer one's rows are written for it. And it is the newer one: what this version's sessions do
under the schema before is what an older controller does.
"""

import re
import uuid
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from rankmend.clock import SystemClock
from rankmend.errors import JournalError
from recovery.journal.cluster_records import Hold, NodeHeld
from recovery.journal.job_records import LauncherStarted
from recovery.journal.journal_rows import GENESIS, make_row
from recovery.journal.postgres.database_url import DatabaseUrl
from recovery.journal.postgres.leases import JournalLease
from recovery.journal.postgres.migration import check_schema, migrate, migrations, render_grants
from recovery.journal.postgres.postgres_journal import PostgresJournal, append_rows, read_rows
from recovery.journal.records import MINOR, Entry, UnknownRecord, encode_record
from tests.support.controllers import configure
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.postgres import PostgresServer, connected
from tests.support.service import join_of, running, two_speakers

pytestmark = [pytest.mark.site, pytest.mark.safety]
LEASE_S = 30.0  # a controller loses no lease, and begins no epoch, because the machine is busy
HELD = NodeHeld("n9", Hold.DRAIN, "alice", "r", None)
RAW = "SELECT number, kind, minor, body, checksum FROM rankmend.record WHERE journal = %s ORDER BY number"


def write_newer(url: str, journal: str, *bodies: tuple[str, bytes]) -> None:
    """Write records of these kinds as a controller of the next minor version does."""
    with connected(url) as (database, leases):
        shared = journal == "cluster"
        lease = JournalLease(journal, 0) if shared else leases.take(journal)
        before = read_rows(database, journal)
        number, head = (before[-1].number, before[-1].checksum) if before else (0, GENESIS)
        rows = []
        for kind, body in bodies:
            number += 1
            entry = Entry(number, SystemClock().unix_s(), 1.0, "boot", UnknownRecord(kind, body))
            rows.append(make_row(entry, head, MINOR + 1))
            head = rows[-1].checksum
        append_rows(database, leases.controller_id, lease, rows)


def with_field(record: Any) -> bytes:
    """Return a known record with a field that this version does not know."""
    return encode_record(record)[:-1] + b',"humidity":{"percent":[40]}}'


def add_newer_field(postgres: PostgresServer, name: str) -> None:
    """Have the settings of the jobs hold what only a newer version knows."""
    postgres.ask(
        name,
        "UPDATE rankmend.job SET stored = convert_to((convert_from(stored, 'UTF8')::jsonb || '{\"hue\": 7}')::text, 'UTF8')",
    )


def start_job(folder: Path, url: str) -> tuple[str, int]:
    """Have a job begin at a controller, and return its id and epoch once that one has ended."""
    with running(configure(folder, url, lease_s=LEASE_S)) as first:
        speakers = two_speakers(first.client())
        for one in speakers:
            one.obey()
        order = speakers[0].order
        assert order is not None
        return speakers[0].job_id, order.epoch


def test_kinds_and_fields_of_a_newer_controller_are_carried_and_the_job_goes_on(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    name = postgres.make_database()
    url = postgres.url(name, "controller")
    job_id, epoch = start_job(tmp_path / "a", url)
    journal = f"job:{job_id}"
    started = LauncherStarted((), 0, 1, "9.9", epoch + 1, str(uuid.uuid4()))
    write_newer(
        url,
        journal,
        ("weather_seen", b'{"sky":"clear"}'),
        ("launcher_started", with_field(started)),
    )
    write_newer(
        url,
        "cluster",
        ("tide_seen", b"{}"),
        ("node_held", with_field(HELD)),
    )
    add_newer_field(postgres, name)
    before = {one: postgres.ask(name, RAW, one) for one in (journal, "cluster")}

    with running(configure(tmp_path / "b", url, lease_s=LEASE_S)) as older:
        jobs, desk = older.service.worker.jobs, older.service.worker.desk
        eventually(lambda: job_id in jobs.running, "the job is taken up")
        job = jobs.running[job_id]
        eventually(lambda: job.controller is not None, "it is managed")
        assert job.controller is not None
        assert job.controller.ledger.epoch == epoch + 2
        assert job.controller.ledger.attempt == 1
        assert desk.unusable("n9") is not None
        older.service.worker.call(lambda: desk.release("n9", "bob", "r")).result(DEADLINE_S)
        older.client().join(join_of("n3"))

    for one, rows in before.items():
        after = postgres.ask(name, RAW, one)
        assert len(after) > len(rows)
        assert after[: len(rows)] == rows
    with connected(url) as (database, leases):  # the newer one reads on: the chain is whole
        PostgresJournal(database, leases, leases.take(journal), SystemClock(), "boot")


def test_a_new_run_of_a_job_under_the_older_controller_keeps_the_newer_ones_settings(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    name = postgres.make_database()
    url = postgres.url(name, "controller")
    with running(configure(tmp_path / "a", url, lease_s=LEASE_S)) as first:
        speakers = two_speakers(first.client())
        for one in speakers:
            one.obey()
            one.finish()
        eventually(lambda: not first.service.worker.jobs.running, "the job has ended")
    add_newer_field(postgres, name)

    with running(configure(tmp_path / "b", url, lease_s=LEASE_S)) as older:
        told = older.client().join(join_of("n1", run="again", launcher_id="another"))
        assert told.job_id in older.service.worker.jobs.running

    ((stored,),) = postgres.ask(name, "SELECT stored FROM rankmend.job")
    kept = msgspec.json.decode(bytes(stored))
    assert (kept["hue"], kept["join"]["run"]) == (7, "again")


def test_a_job_whose_records_only_a_newer_controller_reads_is_left_to_it(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    name = postgres.make_database()
    url = postgres.url(name, "controller")
    job_id, _epoch = start_job(tmp_path / "a", url)
    odd = b'{"outcome":{"kind":"dreaming","exit_code":0,"reason":"r"},"is_empty":true}'  # of a kind of end that is not known here
    write_newer(url, f"job:{job_id}", ("job_ended", odd))

    with running(configure(tmp_path / "b", url, lease_s=LEASE_S)) as older:
        eventually(lambda: job_id not in older.service.worker.jobs.running, "it is let go")
        holder = "SELECT holder FROM rankmend.journal WHERE job_id = %s"
        eventually(lambda: postgres.ask(name, holder, job_id) == [(None,)], "anybody may take it")
        client = older.client("admin")
        eventually(lambda: [one.job_id for one in client.jobs()] == [job_id], "it is shown")
        (shown,) = client.jobs()

        assert shown.problem is not None
        assert "no controller has it" in shown.problem
        other = older.client().join(join_of("n1", key="job:other", name="other"))
        assert other.job_id in older.service.worker.jobs.running


def test_controller_that_can_not_read_what_the_cluster_decided_leaves_all_to_newer_ones(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    name = postgres.make_database()
    url = postgres.url(name, "controller")
    configure(tmp_path / "a", url, lease_s=LEASE_S)
    with running(tmp_path / "a") as older:
        job_id = older.client().join(join_of("n1")).job_id
        odd = encode_record(HELD).replace(b'"drain"', b'"hibernate"')  # of a kind unknown here
        write_newer(url, "cluster", ("node_held", odd))
        eventually(lambda: not older.service.worker.is_alive, "its deciding thread ends")

        holder = "SELECT holder FROM rankmend.journal WHERE job_id = %s"
        eventually(
            lambda: postgres.ask(name, holder, job_id) == [(None,)], "anybody may take its job"
        )

    with pytest.raises(JournalError, match="Upgrade this controller"), running(tmp_path / "a"):
        pass


def test_the_schema_is_migrated_under_a_living_older_controller_and_then_they_are_exchanged(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    name = postgres.make_database(is_migrated=False)
    url = postgres.url(name, "controller")
    _migrate_to(postgres, name, 1)
    with connected(url) as (database, leases):  # the older one: it knows what version 1 has
        job_id = uuid.uuid4()
        settings = (
            b'{"owner":"launch","secret":"s","join":' + msgspec.json.encode(join_of("n1")) + b"}"
        )
        database.write("SELECT rankmend.add_job(%s, 'launch', 'job:train', %s)", (job_id, settings))
        journal = PostgresJournal(
            database, leases, leases.take(f"job:{job_id}"), SystemClock(), "boot"
        )
        journal.append(LauncherStarted((), 0, 1, "0.1", 1, str(uuid.uuid4())))

        plan = migrate(DatabaseUrl(postgres.url(name)), is_dry=False)
        assert [one.version for one in plan.applied] == [one.version for one in migrations()[1:]]
        journal.append(LauncherStarted((), 0, 1, "0.1", 2, str(uuid.uuid4())))
        assert leases.renew()
        check_schema(database)

        with running(configure(tmp_path / "new", url, lease_s=LEASE_S)) as newer:
            client = newer.client("admin")
            eventually(lambda: len(client.jobs()) == 1, "the older one's job is shown")
            assert str(job_id) not in newer.service.worker.jobs.running
            assert any("is an older one" in one for one in client.cluster().notes)

            leases.release(JournalLease(f"job:{job_id}", 1))
            leases.end()
            jobs = newer.service.worker.jobs
            eventually(lambda: str(job_id) in jobs.running, "the newer one has taken the job")
            eventually(lambda: jobs.running[str(job_id)].controller is not None, "and manages it")
            eventually(lambda: client.cluster().notes == [], "there is nothing to say of others")


def _migrate_to(postgres: PostgresServer, name: str, version: int) -> None:
    """Make the schema as an older rankmend did."""
    with psycopg.connect(postgres.url(name)) as connection:
        connection.execute("CREATE SCHEMA rankmend")
        for one in migrations()[:version]:
            connection.execute(one.statements)
            connection.execute(
                "INSERT INTO rankmend.schema_version (version, compatible_from, applied_by) VALUES (%s, %s, 'older')",
                (one.version, one.compatible_from),
            )
        grants = render_grants()
        for later in migrations()[version:]:
            for function in re.findall(r"^CREATE FUNCTION (rankmend\.\w+)", later.statements, re.M):
                grants = grants.replace(f",\n    {function}\n", "\n").replace(
                    f"    {function},\n", ""
                )
        connection.execute(grants)
