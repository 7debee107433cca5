"""The simulated database does what the schema in a real PostgreSQL does."""

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import psycopg
import pytest

from recovery.journal.postgres.database import StatementRefusedError
from tests.support.postgres import PostgresServer
from tests.support.simulation_database import SimServer
from tests.support.simulation_queries import QUERIES

pytestmark = [pytest.mark.site, pytest.mark.safety]
LEASE_S = 1000.0  # nothing runs out by itself meanwhile


def checksum(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


class Both:
    """The same call to both; what a controller would be told, without times."""

    def __init__(self, server: PostgresServer) -> None:
        self.simulated = SimServer(time.time)
        self.real = psycopg.connect(server.url(server.make_database()), autocommit=True)

    def ask(self, statement: str, *values: Any) -> tuple[Any, Any]:
        return (
            self._told(lambda: self.real.execute(statement, values).fetchall()),
            self._told(lambda: self.simulated.ask(statement, values)),
        )

    def _told(self, ask: Callable[[], list[tuple[Any, ...]]]) -> Any:
        try:
            rows = ask()
        except StatementRefusedError as error:
            return error.sqlstate
        except psycopg.Error as error:
            return error.sqlstate
        return [tuple(_bare(value) for value in row) for row in rows]

    def expire(self, controller: uuid.UUID) -> None:
        self.real.execute(
            "UPDATE rankmend.controller SET expires_at = clock_timestamp() - interval '1 s' WHERE controller_id = %s",
            (controller,),
        )
        if controller in self.simulated.starters:
            self.simulated.starters[controller].expires_s = time.time() - 1.0


def _bare(value: Any) -> Any:
    if isinstance(value, float):
        return "a time"
    return None if value in (None, "") else value  # a function of no value gives either


def draw_call(random: Random, controllers: list[uuid.UUID], job_id: uuid.UUID) -> tuple[Any, ...]:
    """Return a statement and its values, such as controllers send, of which many are refused."""
    by, name = random.choice(controllers), random.choice([f"job:{job_id}", "slurm", "cluster", "none"])  # fmt: skip
    epoch, after = random.randrange(6), random.randrange(4)
    last = checksum(str(after))
    columns = (["k"], [1], [0], [1.0], [1.0], ["b"], [b"x"], [checksum(str(after + 1))])
    append = (
        "SELECT rankmend.append(%s::text, %s::uuid, %s::bigint, %s::bigint, %s::bytea, %s::text[], %s::int[], %s::int[],"
        " %s::float8[], %s::float8[], %s::text[], %s::bytea[], %s::bytea[])"
    )
    return random.choice(
        [
            (append, name, by, epoch, after, random.choice([last, last, checksum("x"), None]), *columns),
            (append, name, by, epoch, after, last, *columns),
            ("SELECT * FROM rankmend.take(%s, %s)", name, by),
            ("SELECT rankmend.release(%s, %s, %s)", name, by, epoch),
            ("SELECT rankmend.renew(%s)", by),
            ("SELECT rankmend.begin_controller(%s, %s, %s, %s, %s)", by, "n", "u", "0", LEASE_S),
            ("SELECT rankmend.confirm(%s, %s, %s)", name, after, last),
            ("SELECT rankmend.save_job(%s, %s, %s, %s)", job_id, by, epoch, b"s"),
            ("SELECT rankmend.end_job(%s, %s, %s, %s)", job_id, by, epoch, b"e"),
            ("SELECT rankmend.end_controller(%s)", by),
            ("SELECT rankmend.tell_peers(%s, %s, %s)", by, f"s{after}", "c"),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_the_simulation_answers_as_the_schema_does(postgres: PostgresServer, seed: int) -> None:
    random, both = Random(seed), Both(postgres)
    controllers = [uuid.UUID(int=random.getrandbits(128)) for _ in range(3)]
    job_id = uuid.UUID(int=random.getrandbits(128))
    both.ask("SELECT rankmend.add_job(%s, %s, %s, '')", job_id, "alice", "job:1")

    for number in range(250):
        if random.random() < 0.1:
            both.expire(random.choice(controllers))
        call = draw_call(random, controllers, job_id)
        real, simulated = both.ask(*call)
        assert real == simulated, (number, call)

        if number % 25 == 0:
            for query, values in queries(random, controllers, job_id):
                real, simulated = both.ask(query, *values)
                assert _in_order(real, query) == _in_order(simulated, query), (number, query)
    both.real.close()


def queries(
    random: Random, controllers: list[uuid.UUID], job_id: uuid.UUID
) -> Iterator[tuple[str, list[Any]]]:
    """Give every query of a controller, with values."""
    names = ["slurm", "cluster", f"job:{job_id}"]
    for query in QUERIES:
        by = random.choice(controllers)
        if "schema_version" in query:
            yield query, []
        elif "owner = %s" in query:
            yield query, ["alice", random.choice(["job:1", "job:2"])]
        elif "asked.after" in query:
            yield query, [names, [0, 1, random.randrange(3)]]
        elif "ANY(%s::text[])" in query or "ANY(%s)" in query or "unnest(%s" in query:
            yield query, [[job_id, uuid.UUID(int=1)] if "job_id = ANY" in query else names]
        elif "= %s AND number" in query:
            yield query, [random.choice(names), random.randrange(3)]
        elif "n.name = %s" in query:
            yield query, [random.choice(names), by]
        elif "job_id = %s" in query:
            yield query, [random.choice([job_id, uuid.UUID(int=1)])]
        elif "lease_s" in query:
            yield query, [3]
        else:
            yield query, [by] * query.count("%s")


def _in_order(rows: Any, query: str) -> Any:
    """Return rows without the versions that either database gives to its rows, in order where the query asks for none."""
    if "xmin" in query:
        rows = [(job_id, holder) for job_id, _version, holder in rows]
    return rows if "ORDER BY" in query else sorted(rows, key=repr)


def test_a_statement_that_the_simulated_database_does_not_know_is_remembered_wherever_its_error_ends() -> (
    None
):
    server = SimServer(time.time)

    for statement in (
        "SELECT job_id FROM rankmend.job WHERE ended IS NULL",
        "SELECT rankmend.unheard_of(%s)",
        "SELECT rankmend.renew(%s), rankmend.renew(%s)",
    ):
        with pytest.raises(AssertionError, match="does not know this statement"):
            server.ask(statement, ())

    assert len(server.unknown) == 3
