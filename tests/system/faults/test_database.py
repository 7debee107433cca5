"""Real launchers under controllers that share a PostgreSQL: a controller dies, the database dies."""

from collections.abc import Callable, Iterator

import pytest

from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.postgres.postgres_journal import read_entries
from tests.support.eventually import eventually
from tests.support.faults import process
from tests.support.postgres import PostgresServer, connected, running_server
from tests.system.faults.nodes import Nodes, Service, newest

pytestmark = [pytest.mark.site, pytest.mark.safety]
LEASE_S = 3.0


@pytest.fixture
def database() -> Iterator[tuple[PostgresServer, str]]:
    with running_server() as server:
        yield server, server.make_database()


def on(database: tuple[PostgresServer, str], service: Service) -> Service:
    """Have a controller keep its journals there."""
    server, name = database
    text = service.config.read_text()
    service.config.write_text(
        f'journal = "{server.url(name, "controller")}"\n{text}[postgres]\nlease_s = {LEASE_S}\n'
        f'url = "{service.url}"\n'
    )
    return service.start()


def attempts(database: tuple[PostgresServer, str]) -> list[int]:
    """Return the attempts that were started, of the only job."""
    server, name = database
    ((job_id,),) = server.ask(name, "SELECT job_id FROM rankmend.job")
    with connected(server.url(name, "controller")) as (there, _leases):
        entries = read_entries(there, f"job:{job_id}")
    return [one.record.attempt for one in entries if isinstance(one.record, AttemptStarted)]


def test_a_rank_that_dies_after_its_controller_is_recovered_by_the_other_one(
    make: Callable[..., Nodes],
    services: Callable[[str], Service],
    database: tuple[PostgresServer, str],
) -> None:
    first, second = on(database, services("ctl")), on(database, services("ctl-2"))
    nodes = make("2", f"--controller={first.url},{second.url}", steps=100_000)
    nodes.start("a", "b")
    nodes.wait_step(20)
    ranks = {name: nodes.rank_pids(name) for name in "ab"}

    first.kill()
    nodes.wait_step(newest(nodes) + 50)  # training goes on
    process.kill(ranks["b"][0])
    for name in "ab":
        nodes.wait_said(name, "attempt 2: ranks")
    nodes.wait_step(newest(nodes) + 50)

    assert attempts(database) == [1, 2]
    assert nodes.name in second.ask("status").stdout


def test_a_rank_that_dies_while_the_database_is_away_is_recovered_once_it_is_back(
    make: Callable[..., Nodes],
    services: Callable[[str], Service],
    database: tuple[PostgresServer, str],
) -> None:
    server, _name = database
    service = on(database, services("ctl"))
    nodes = make("2", f"--controller={service.url}", steps=100_000)
    nodes.start("a", "b")
    nodes.wait_step(20)
    ranks = {name: nodes.rank_pids(name) for name in "ab"}

    server.stop("immediate")
    service.wait_logged("PostgreSQL is away")
    process.kill(ranks["b"][0])
    service.wait_logged("the leases have run out")
    assert "attempt 2" not in nodes.said("a")
    assert "PostgreSQL does not answer" in service.ask("status").stdout
    server.start()
    for name in "ab":
        nodes.wait_said(name, "attempt 2: ranks")
    nodes.wait_step(newest(nodes) + 50)

    assert attempts(database) == [1, 2]
    eventually(lambda: "PostgreSQL" not in service.ask("status").stdout, "the note is over")
