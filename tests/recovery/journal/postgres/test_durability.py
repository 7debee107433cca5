"""Which servers a journal is kept on: those that do not lose what they have acknowledged."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rankmend.errors import ConfigError
from recovery.journal.postgres.durability import ServerSettings, name_losses, refuse_server
from tests.support.postgres import PostgresServer, connected

pytestmark = [pytest.mark.site, pytest.mark.safety]

SOUND = ServerSettings(15_00_00, False, "on", "on", "on", "", 0, 4000)


@pytest.mark.parametrize(
    ("changes", "loses"),
    [
        ({}, []),
        ({"synchronous_commit": "remote_apply"}, []),
        ({"synchronous_commit": "remote_write"}, ["synchronous_commit is remote_write"]),
        ({"synchronous_commit": "local"}, ["synchronous_commit is local"]),
        ({"synchronous_commit": "off"}, ["synchronous_commit is off"]),
        ({"fsync": "off"}, ["fsync is off"]),
        ({"full_page_writes": "off"}, ["full_page_writes is off"]),
        ({"standbys": 2}, ["all of its 2 standbys are asynchronous"]),
        ({"standbys": 2, "synchronous_standby_names": "b"}, []),
        ({"standbys": 1, "synchronous_standby_names": " "}, ["all of its 1 standbys"]),
    ],
)
def test_each_setting_that_may_lose_a_commit_is_named(
    changes: dict[str, object], loses: list[str]
) -> None:
    found = name_losses(replace(SOUND, **changes))  # type: ignore[arg-type]

    assert len(found) == len(loses)
    for text, part in zip(found, loses, strict=True):
        assert part in text


def test_a_standby_and_an_old_server_are_refused_whatever_is_accepted() -> None:
    assert refuse_server(SOUND) is None
    assert "standby" in str(refuse_server(replace(SOUND, is_in_recovery=True)))
    assert "version is 120000" in str(refuse_server(replace(SOUND, version=12_00_00)))


@pytest.fixture
def careless(postgres: PostgresServer) -> Iterator[str]:
    """A database whose administrator has switched synchronous commits off for the controller's role."""
    name = postgres.make_database()
    postgres.ask(
        "postgres", f"ALTER ROLE controller IN DATABASE {name} SET synchronous_commit = off"
    )
    yield name
    postgres.ask("postgres", f"ALTER ROLE controller IN DATABASE {name} RESET synchronous_commit")


def test_a_server_that_may_lose_commits_is_refused_unless_that_is_accepted(
    postgres: PostgresServer, careless: str
) -> None:
    url = postgres.url(careless, "controller")
    with pytest.raises(ConfigError, match=r"synchronous_commit is off.*accept_loss = true"):
        with connected(url):
            pass

    with connected(url, accept_loss=True) as (database, _leases):
        (loss,) = database.losses
    assert "synchronous_commit is off" in loss
