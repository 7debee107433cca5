"""From files of SQLite to PostgreSQL, and from one database to another: no job and no record is lost."""

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankmend.cli.controller import controller
from recovery.journal.postgres.postgres_journal import read_entries
from recovery.journal.store import open_readonly
from tests.support.controllers import configure
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.postgres import PostgresServer, connected
from tests.support.service import Running, make_folder, running, two_speakers
from tests.support.service_bench import start_job

pytestmark = [pytest.mark.site, pytest.mark.safety]
LEASE_S = 30.0  # a controller loses no lease because the machine is busy


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.make_database()


def add_journal(folder: Path, url: str) -> None:
    """Do what the documentation says before a move: name the database in the configuration."""
    path = folder / "controller.toml"
    path.write_text(path.read_text().replace("\nstate_dir", f'\njournal = "{url}"\nstate_dir'))


def run_move(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(
        controller, ["move", "--config", str(folder / "controller.toml"), *words]
    )


def fill(folder: Path) -> tuple[str, str]:
    """Run a controller with files; return the ids of a job that runs and of one that has ended."""
    make_folder(folder)
    with running(folder) as up:
        running_id, _order = start_job(up)
        ended_id = end_a_job(up)
        desk = up.service.worker.desk
        up.service.worker.call(lambda: desk.drain("n9", "me", "broken")).result(DEADLINE_S)
    return running_id, ended_id


def end_a_job(up: Running) -> str:
    speakers = two_speakers(up.client(), key="short", name="short")
    for one in speakers:
        one.obey()
    for one in speakers:
        one.finish()
    job_id = speakers[0].job_id
    eventually(lambda: job_id not in up.service.worker.jobs.running, "the job has ended")
    return job_id


def test_a_state_folder_is_moved_with_every_job_and_record_and_goes_on_there(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    folder = tmp_path / "a"
    running_id, ended_id = fill(folder)
    files = {
        json.loads(one.read_text())["job_id"]: open_readonly(one.parent / "journal.db").entries
        for one in (folder / "state/jobs").glob("*/job.json")
    }
    add_journal(folder, postgres.url(database, "controller"))

    tried = run_move(folder, "--dry-run", "--json")
    left = postgres.ask(database, "SELECT count(*) FROM rankmend.record")
    moved = run_move(folder, "--json")

    assert (tried.exit_code, moved.exit_code) == (0, 0), moved.output
    assert left == [(0,)]
    assert json.loads(moved.stdout)["journals"] == json.loads(tried.stdout)["journals"]
    report = json.loads(moved.stdout)
    assert (report["jobs_running"], report["jobs_ended"]) == (1, 1)
    with connected(postgres.url(database, "controller")) as (there, _leases):
        for job_id, entries in files.items():
            assert read_entries(there, f"job:{job_id}") == entries
    with running(folder) as up:
        jobs = up.service.worker.jobs
        eventually(lambda: running_id in jobs.running, "the job is taken up")
        job = jobs.running[running_id]
        eventually(lambda: job.controller is not None, "its controller")
        assert job.controller is not None
        assert job.controller.ledger.epoch > 1
        assert jobs.known[ended_id].outcome is not None
        assert up.service.worker.desk.unusable("n9") is not None


def test_a_move_that_was_cut_off_goes_on_where_it_ended(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    folder = tmp_path / "a"
    running_id, _ended = fill(folder)
    add_journal(folder, postgres.url(database, "controller"))
    assert run_move(folder).exit_code == 0
    total = postgres.ask(database, "SELECT count(*) FROM rankmend.record")
    postgres.ask(  # as if it had been cut off there
        database,
        "DELETE FROM rankmend.record WHERE journal = %s AND number > 2",
        f"job:{running_id}",
    )
    (folder / "state/moved-to-postgresql").unlink()

    again = run_move(folder, "--json")

    assert again.exit_code == 0, again.output
    copied = {one["name"]: one["copied"] for one in json.loads(again.stdout)["journals"]}
    assert copied.pop(f"job:{running_id}") > 0
    assert set(copied.values()) == {0}
    assert postgres.ask(database, "SELECT count(*) FROM rankmend.record") == total


def test_a_controller_does_not_decide_from_a_folder_whose_jobs_were_moved(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    folder = tmp_path / "a"
    fill(folder)
    before = (folder / "controller.toml").read_text()
    add_journal(folder, postgres.url(database, "controller"))
    assert run_move(folder).exit_code == 0
    (folder / "controller.toml").write_text(before)

    with pytest.raises(Exception, match="were moved to postgresql://"):
        with running(folder):
            pass


def test_a_move_into_a_database_that_has_gone_on_is_refused(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    folder = tmp_path / "a"
    running_id, _ended = fill(folder)
    url = postgres.url(database, "controller")
    add_journal(folder, url)
    assert run_move(folder).exit_code == 0
    with running(folder) as up:  # decides in the database
        eventually(lambda: running_id in up.service.worker.jobs.running, "the job is taken up")
        eventually(
            lambda: up.service.worker.jobs.running[running_id].controller is not None, "decided"
        )
    (folder / "state/moved-to-postgresql").unlink()

    refused = run_move(folder)

    assert refused.exit_code != 0
    assert "is not the beginning of the one in" in refused.output


def test_a_damaged_journal_stops_the_move_and_is_named(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    folder = tmp_path / "a"
    fill(folder)
    add_journal(folder, postgres.url(database, "controller"))
    journal = next(iter((folder / "state/jobs").glob("*/journal.db")))
    connection = sqlite3.connect(journal)
    connection.execute("UPDATE record SET boot_id = 'other' WHERE number = 1")
    connection.commit()
    connection.close()

    refused = run_move(folder)

    assert refused.exit_code != 0
    assert "record 1 is damaged" in refused.output
    assert not (folder / "state/moved-to-postgresql").exists()


def test_a_folder_whose_controller_runs_is_not_moved(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    folder = tmp_path / "a"
    make_folder(folder)
    with running(folder):
        add_journal(folder, postgres.url(database, "controller"))
        refused = run_move(folder)

    assert refused.exit_code != 0
    assert "another controller runs" in refused.output


def test_a_backup_by_pg_dump_is_restored_with_every_record_and_the_controller_goes_on(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    with running(
        configure(tmp_path / "a", postgres.url(database, "controller"), lease_s=LEASE_S)
    ) as up:
        job_id, order = start_job(up)
    backup = postgres.folder / "backup"
    postgres.run("pg_dump", "-Fc", "-n", "rankmend", "-f", str(backup), postgres.url(database))
    restored = postgres.make_database(is_migrated=False)
    postgres.run("pg_restore", "--exit-on-error", "-d", postgres.url(restored), str(backup))

    with connected(postgres.url(database, "controller")) as (old, _leases):
        entries = read_entries(old, f"job:{job_id}")
    with running(
        configure(tmp_path / "b", postgres.url(restored, "controller"), lease_s=LEASE_S)
    ) as up:
        eventually(lambda: job_id in up.service.worker.jobs.running, "the job is taken up")
        known = up.service.worker.jobs.known[job_id].journal.read()
        assert known[: len(entries)] == entries
        job = up.service.worker.jobs.running[job_id]
        eventually(lambda: job.controller is not None, "its controller")
        assert job.controller is not None
        assert job.controller.ledger.attempt == order.attempt
