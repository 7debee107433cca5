"""The simulated database does what the schema in a real PostgreSQL does."""

import hashlib
import time
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

import psycopg
import pytest

from recovery.postgres.database_errors import StatementRefusedError
from tests.support.postgres import PostgresServer
from tests.support.simulation_database import SimServer

pytestmark = pytest.mark.real
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

    for kept in ("slurm", "cluster", f"job:{job_id}"):
        real, simulated = both.ask(
            "SELECT checksum FROM rankmend.record WHERE journal = %s AND number = %s", kept, 1
        )
        assert real == simulated
    both.real.close()
