"""What people and metrics are told of jobs in PostgreSQL is read there."""

from pathlib import Path

import pytest
import urllib3

from recovery.accounting.readings.reading_file import read_readings
from recovery.service.controller_config import ConsoleSection
from tests.support.agent_readings import (
    honest,
    page_of,
    readings_of,
    recover,
    staged_with,
)
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.site


@pytest.mark.safety
def test_incidents_pages_readings_and_accounts_are_those_of_the_journal_in_the_database(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.url(postgres.make_database(), "controller")
    console = ConsoleSection(open=True)

    with staged_with(tmp_path / "files", honest, console, url) as (stage, _server):
        incident, folder = recover(stage)
        job_id = stage.jobs[0].job_id
        listed = stage.admin.incidents()
        readings_of(folder, incident)
        pages = [page_of(stage, incident), get(stage.up.url, stage.up.ca, f"/jobs/{job_id}")]

    with staged_with(tmp_path / "other", honest, console, url) as (stage, _server):  # another host
        again = stage.admin.incidents()
        accounts = stage.up.service.accounts
        eventually(
            lambda: [one.totals.restarts for one in accounts.standings] == [1], "the account"
        )

    assert [one.incident_id for one in listed] == [incident]
    assert [(one.incident_id, one.cause) for one in again] == [(incident, listed[0].cause)]
    assert "91 °C" in pages[0]
    assert incident in pages[1]
    assert list((tmp_path / "files/state/jobs").iterdir()) == []
    assert len(read_readings(folder, incident)) == 2


def get(url: str, ca: Path, path: str) -> str:
    with urllib3.PoolManager(ca_certs=str(ca), retries=False) as pool:
        return pool.request("GET", f"{url}{path}").data.decode()
