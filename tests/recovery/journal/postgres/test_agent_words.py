"""Another controller of the database that takes jobs over has the word of a node's agent, which the first one received."""

from pathlib import Path

import msgspec
import pytest
import urllib3

from rankmend.watched_report import PresentJob, WatchedReport
from recovery.service.http.authority import make_node
from tests.support.controllers import configure
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.postgres import PostgresServer
from tests.support.service import Running, running

pytestmark = pytest.mark.site

JOB = "0c1d6a52-0000-4000-8000-000000000001"


def tell(up: Running, node: str) -> None:
    """Have a node's agent report a job to a controller, with the node's certificate."""
    files = (up.folder / f"{node}.crt", up.folder / f"{node}.key")
    make_node((up.ca, up.folder / "ca.key"), *files, node)
    told = WatchedReport(node=node, present=(PresentJob(job_id=JOB, uid=1001, user="alice"),))
    cert = {"cert_file": str(files[0]), "key_file": str(files[1])}
    with urllib3.PoolManager(ca_certs=str(up.ca), retries=False, **cert) as pool:
        answer = pool.request(
            "POST", f"{up.url}/v1/watched", body=msgspec.json.encode(told), timeout=DEADLINE_S
        )
    assert answer.status == 200


def knows(up: Running, node: str) -> bool:
    worker = up.service.worker
    return worker.present.is_on(node, JOB, "alice", worker.hearing.now_s())


def test_word_of_a_node_that_stays_lost_reaches_the_controller_that_takes_over(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.url(postgres.make_database(), "controller")
    first = configure(tmp_path / "first", url)
    with running(first) as here:
        tell(here, "n1")
    # It is gone; nothing of its folder is there for the other one, and the node says nothing more.
    with running(configure(tmp_path / "second", url, like=first)) as there:
        eventually(lambda: knows(there, "n1"), "the word is read from the database")

        assert not knows(there, "n2")
        with running(configure(tmp_path / "third", url, like=first)) as beside:
            tell(beside, "n2")
            eventually(lambda: knows(there, "n2"), "that of a controller that runs beside it, too")
