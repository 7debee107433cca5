"""Controllers whose jobs are in PostgreSQL: kept, taken over, and waiting while it is away."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3

from rankmend.errors import ConfigError
from recovery.api.controller_errors import ControllerError, UnknownJobError
from recovery.journal.job_records import LauncherStarted
from recovery.journal.postgres.spread import choose_leaving
from recovery.service.jobs.postgres_jobs import PostgresJobs
from tests.support.controllers import configure, listen_of
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.postgres import PostgresServer, running_server
from tests.support.service import Running, Speaker, join_of, running, two_speakers
from tests.support.service_bench import start_job

pytestmark = [pytest.mark.site, pytest.mark.safety]
ROOT = Path(__file__).parents[3]
LEASE_S = 30.0  # a controller loses no lease because the machine is busy


def port_of(folder: Path) -> int:
    return int(listen_of(folder).rpartition(":")[2])


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url(postgres.make_database(), "controller")


def metrics_of(up: Running) -> str:
    token = (up.folder / "admin.token").read_text().strip()
    with urllib3.PoolManager(ca_certs=str(up.ca)) as pool:
        headers = {"Authorization": f"Bearer {token}"}
        return pool.request("GET", f"{up.url}/metrics", headers=headers).data.decode()


def join(up: Running, *nodes: str, **changes: Any) -> list[Speaker]:
    client = up.client()
    speakers = []
    for node in nodes:
        told = client.join(join_of(node, **changes))
        speakers.append(Speaker(client, node, told.job_id))
    return speakers


def test_a_job_is_in_the_database_and_goes_on_under_the_next_controller(
    tmp_path: Path, url: str
) -> None:
    with running(configure(tmp_path / "a", url, lease_s=LEASE_S)) as first:
        job_id, order = start_job(first)
        first.service.worker.call(lambda: first.service.worker.desk.drain("n9", "me", "r")).result(
            DEADLINE_S
        )
    assert list((tmp_path / "a/state/jobs").iterdir()) == []

    with running(
        configure(tmp_path / "b", url, lease_s=LEASE_S)
    ) as second:  # another host: nothing of the first is there
        eventually(lambda: job_id in second.service.worker.jobs.running, "the job is taken up")
        job = second.service.worker.jobs.running[job_id]

        eventually(lambda: job.controller is not None, "its controller")
        assert job.controller is not None
        assert job.controller.ledger.attempt == order.attempt
        assert job.controller.ledger.epoch > order.epoch
        assert second.service.worker.desk.unusable("n9") is not None


def test_a_launcher_that_asks_another_controller_is_sent_to_the_one_that_has_the_job(
    tmp_path: Path, url: str
) -> None:
    with running(configure(tmp_path / "a", url, lease_s=LEASE_S)) as first:
        with running(configure(tmp_path / "b", url, lease_s=LEASE_S)) as second:
            (speaker,) = join(first, "n1")
            other = second.client(ca_file=first.ca, token_file=first.folder / "launch.token")
            # One authority and one token file for both, as a site has it.
            second.service.api.doorman.tokens = first.service.api.doorman.tokens
            second.service._context.load_cert_chain(
                first.folder / "server.crt", first.folder / "server.key"
            )

            told = other.join(join_of("n2"))

            assert told.job_id == speaker.job_id
            assert speaker.job_id not in second.service.worker.jobs.running


def test_what_a_person_orders_at_one_controller_holds_at_the_other(
    tmp_path: Path, url: str
) -> None:
    with running(configure(tmp_path / "a", url, lease_s=LEASE_S)) as first:
        with running(configure(tmp_path / "b", url, lease_s=LEASE_S)) as second:
            desk, other = first.service.worker.desk, second.service.worker.desk
            first.service.worker.call(lambda: desk.pause("cluster", "alice", "r")).result(
                DEADLINE_S
            )

            eventually(lambda: "cluster" in other.ledger.paused, "the other one knows the pause")

            second.service.worker.call(lambda: other.resume("cluster", "bob", "r")).result(
                DEADLINE_S
            )
            eventually(lambda: "cluster" not in desk.ledger.paused, "the first one knows the end")


def test_jobs_are_shared_with_a_controller_that_comes_and_their_launchers_follow(
    tmp_path: Path, url: str
) -> None:
    first_folder = configure(tmp_path / "a", url, lease_s=4.0)
    second_folder = configure(tmp_path / "b", url, lease_s=4.0)
    for name in ("ca.crt", "server.crt", "server.key", "tokens.toml"):  # a site has one of each
        shutil.copy(first_folder / name, second_folder / name)
    with running(first_folder) as first:
        client = first.client()
        launchers = {}

        def begin_job() -> None:
            number = len(launchers)
            pair = two_speakers(client, key=f"job:{number}", name=f"job-{number}")
            for one in pair:
                one.obey()
            launchers[pair[0].job_id] = pair

        for _ in range(6):
            begin_job()

        with running(second_folder) as second:
            here, there = first.service.worker.jobs, second.service.worker.jobs
            ours, theirs = controller_id_of(first), controller_id_of(second)
            while len(choose_leaving(held_by(ours, launchers), ours, (ours, theirs))) < 2:
                begin_job()  # the spread goes by random ids
            secrets = {job_id: here.running[job_id].stored.secret for job_id in launchers}

            def has_moved() -> bool:
                for pair in launchers.values():
                    for one in pair:
                        try:
                            one.say()
                        except UnknownJobError:  # as a launcher does
                            with suppress(ControllerError):
                                job = int(first_of(launchers, one).removeprefix("job-"))
                                one.client.join(
                                    join_of(one.node, key=f"job:{job}", name=f"job-{job}")
                                )
                        except ControllerError:
                            continue
                return len(there.running) >= 2

            def first_of(pairs: dict[str, list[Speaker]], speaker: Speaker) -> str:
                return f"job-{list(pairs).index(speaker.job_id)}"

            # It gets none before it has lived for three leases.
            eventually(has_moved, "jobs have moved", pause_s=0.1)
            eventually(
                lambda: (
                    sorted([*here.running, *there.running]) == sorted(launchers)  # each once
                ),
                "each has one owner",
            )

            for job_id, job in list(there.running.items()):
                assert job.stored.secret == secrets[job_id]
                eventually(lambda job=job: job.controller is not None, "its controller")  # type: ignore[misc]
                assert job.controller is not None
                assert job.controller.ledger.epoch > 1  # another start on the journal
                assert job.controller.ledger.attempt == 1


def controller_id_of(up: Running) -> uuid.UUID:
    store = up.service._store
    assert isinstance(store, PostgresJobs)
    return store.leases.controller_id


def held_by(holder: uuid.UUID, job_ids: Iterable[str]) -> dict[uuid.UUID, uuid.UUID]:
    return {uuid.UUID(job_id): holder for job_id in job_ids}


@contextmanager
def process(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    started = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rankmend.cli",
            "controller",
            "run",
            "--config",
            folder / "controller.toml",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=(folder / "log").open("wb"),
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait(DEADLINE_S)


def test_the_jobs_of_a_controller_that_was_killed_are_taken_over(tmp_path: Path, url: str) -> None:
    folder = configure(tmp_path / "a", url, lease_s=12.0)  # it must not end before the kill
    port = port_of(folder)
    with process(folder) as first:
        alone = Running(folder, None, port)  # type: ignore[arg-type]

        def is_up() -> bool:
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0

        eventually(is_up, "the controller listens")
        job_id, order = start_job(alone)
        with running(configure(tmp_path / "b", url, lease_s=LEASE_S)) as second:
            jobs = second.service.worker.jobs
            assert job_id not in jobs.running
            first.send_signal(signal.SIGKILL)

            eventually(lambda: job_id in jobs.running, "the job is taken over")
            eventually(lambda: jobs.running[job_id].controller is not None, "its controller")

            ledger = jobs.running[job_id].controller.ledger  # type: ignore[union-attr]
            assert ledger.attempt == order.attempt
            assert ledger.epoch > order.epoch
            started = [
                entry.record.epoch
                for entry in jobs.known[job_id].journal.read()
                if isinstance(entry.record, LauncherStarted)
            ]
            assert started[0] == order.epoch
            assert started == sorted(set(started))  # no epoch has two starts
    for client in alone.clients:
        client.close()


def test_while_the_database_is_away_nothing_is_decided_and_its_return_is_enough(
    tmp_path: Path,
) -> None:
    with running_server() as server:
        url = server.url(server.make_database(), "controller")
        with running(configure(tmp_path / "a", url, lease_s=6.0)) as up:
            speakers = join(up, "n1", "n2")
            server.stop("immediate")  # as by kill -9
            eventually(lambda: up.service.backend.database_away_s() is not None, "it is noticed")

            for one in speakers:
                one.say()
            page = metrics_of(up)
            with pytest.raises(ControllerError):
                up.client().join(join_of("n5", key="job:other"))
            job_id = speakers[0].job_id
            job = up.service.worker.jobs.running[job_id]
            eventually(lambda: job.controller is None, "the job waits")
            client = up.client("admin")
            eventually(
                lambda: any("PostgreSQL does not answer" in one for one in client.cluster().notes),
                "people who ask are told",
            )
            assert "rankmend_controller_database_away_seconds 0.0\n" not in page

            server.start()
            eventually(lambda: job.controller is not None, "the job is taken up again")
            for one in speakers:
                one.say()
            order = None
            while order is None or not order.ranks:
                order = speakers[0].ask()

            eventually(lambda: client.cluster().notes == [], "the note is over")
            assert order.epoch > 1  # another start on the journal
            assert up.service.backend.database_away_s() is None


def test_a_controller_whose_database_is_not_there_says_so_and_does_not_start(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    folder = configure(tmp_path / "a", postgres.url("missing", "controller"), lease_s=LEASE_S)

    with pytest.raises(Exception, match='database "missing" does not exist'):
        with running(folder):
            pass


def test_a_controller_whose_database_has_no_schema_names_the_command(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    name = postgres.make_database(is_migrated=False)

    with pytest.raises(ConfigError, match="has no schema of rankmend"):
        with running(configure(tmp_path / "a", postgres.url(name, "controller"), lease_s=LEASE_S)):
            pass
