"""A real PostgreSQL for the modules that ask for one."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer, running_server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server
