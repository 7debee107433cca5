"""A database that is set back to a backup under a running controller: it ends, and its next start goes on with what is there."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rankmend.errors import JournalError
from tests.support.controllers import configure
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.postgres import PostgresServer, running_server
from tests.support.service import Running, running, two_speakers

pytestmark = [pytest.mark.site, pytest.mark.safety]


class Backup:
    """A copy of the folder of a server that is down, as a snapshot of its volume is."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._copy = server.folder / "backup"

    def take(self) -> None:
        self._server.stop()
        subprocess.run(["cp", "-a", str(self._server.data), str(self._copy)], check=True)
        self._server.start()

    def restore(self) -> None:
        self._server.stop()
        shutil.rmtree(self._server.data)
        self._copy.rename(self._server.data)
        self._server.start()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running_server() as started:
        yield started


def drain(up: Running, node: str) -> None:
    """Have a person drain a node, as soon as the controller has its database again."""
    desk = up.service.worker.desk

    def is_drained() -> bool:
        with suppress(JournalError):
            up.service.worker.call(lambda: desk.drain(node, "alice", "r")).result(DEADLINE_S)
        return desk.unusable(node) is not None

    eventually(is_drained, f"{node} is drained")


def start_job(up: Running) -> str:
    speakers = two_speakers(up.client())
    assert speakers[0].order is not None
    return speakers[0].job_id


def test_a_backup_from_before_the_last_decision(tmp_path: Path, server: PostgresServer) -> None:
    folder = configure(tmp_path / "a", server.url(server.make_database(), "controller"))
    backup = Backup(server)
    with running(folder) as up:
        job_id = start_job(up)
        drain(up, "n8")
        backup.take()
        drain(up, "n9")

        backup.restore()

        eventually(lambda: not up.service.worker.is_alive, "the controller ends")
    with running(folder) as again:
        worker = again.service.worker
        eventually(lambda: job_id in worker.jobs.running, "the job is taken up")
        assert worker.desk.unusable("n8") is not None
        assert worker.desk.unusable("n9") is None
        drain(again, "n7")
        assert worker.desk.unusable("n7") is not None


def test_a_backup_from_before_the_controllers_start(tmp_path: Path, server: PostgresServer) -> None:
    folder = configure(tmp_path / "a", server.url(server.make_database(), "controller"))
    backup = Backup(server)
    backup.take()
    with running(folder) as up:
        start_job(up)

        backup.restore()

        eventually(lambda: not up.service.worker.is_alive, "the controller ends")
    with running(folder) as again:
        drain(again, "n7")
        assert start_job(again) in again.service.worker.jobs.running
