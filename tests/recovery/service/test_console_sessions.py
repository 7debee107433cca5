"""Sessions with a database that is there, away, and there again."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from recovery.console.sessions import IDLE_S_MAX, name_of
from recovery.journal.postgres.database import DatabaseAwayError
from recovery.service.sign_in.console_sessions import ConsoleSessions
from tests.support.clocks import FakeClock

pytestmark = pytest.mark.process  # its store is asked in a thread


@dataclass
class FakeStore:
    """A table that all controllers share."""

    rows: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    idle_s: float = 0.0
    is_away: bool = False

    def open(self, name: str, key: str, identity: bytes) -> None:
        self._check()
        self.rows[name] = (key, identity)

    def find(self, name: str) -> tuple[str, bytes, float, float] | None:
        self._check()
        return (*self.rows[name], 5.0, self.idle_s) if name in self.rows else None

    def see(self, name: str) -> None:
        self._check()
        self.seen.append(name)

    def close(self, name: str) -> None:
        self._check()
        self.rows.pop(name, None)

    def use_sign_in(self, mark: str) -> bool:
        self._check()
        is_first = mark not in self.used
        self.used.add(mark)
        return is_first

    def _check(self) -> None:
        if self.is_away:
            raise DatabaseAwayError("PostgreSQL is away")


@dataclass
class Two:
    """Two controllers."""

    store: FakeStore
    here: ConsoleSessions
    there: ConsoleSessions
    clock: FakeClock
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)


@pytest.fixture
def two() -> Iterator[Two]:
    store, clock, loop = FakeStore(), FakeClock(), asyncio.new_event_loop()
    both = [ConsoleSessions(store, clock) for _ in range(2)]
    yield Two(store, *both, clock, loop)
    for sessions in both:
        sessions.stop()
    loop.close()


def test_a_login_at_one_controller_holds_at_the_other_with_the_same_secret_for_forms(
    two: Two,
) -> None:
    text = two.run(two.here.open("key", b"ann"))

    here, there = two.run(two.here.find(text)), two.run(two.there.find(text))

    assert (there.key, there.identity, there.csrf) == ("key", b"ann", here.csrf)
    assert there.opened_at_s == two.clock.now_s() - 5.0
    assert text not in str(two.store.rows), "only its hash is stored"


def test_a_logout_at_one_controller_holds_at_the_other(two: Two) -> None:
    text = two.run(two.here.open("key"))
    assert two.run(two.there.find(text)) is not None

    two.run(two.there.close(text))

    assert two.run(two.here.find(text)) is None
    assert two.run(two.there.find(text)) is None


def test_while_the_database_is_away_a_known_session_goes_on_and_a_strange_one_does_not(
    two: Two,
) -> None:
    text = two.run(two.here.open("key"))
    two.store.is_away = True

    assert two.run(two.here.find(text)) is not None
    assert two.run(two.there.find(text)) is None
    two.clock.time_s += IDLE_S_MAX + 1
    assert two.run(two.here.find(text)) is None


def test_a_login_while_the_database_is_away_holds_everywhere_afterwards(two: Two) -> None:
    two.store.is_away = True
    text = two.run(two.here.open("key"))
    assert two.run(two.here.find(text)) is not None
    two.store.is_away = False

    assert two.run(two.here.find(text)) is not None

    assert two.run(two.there.find(text)) is not None


def test_a_logout_while_the_database_is_away_holds_here_at_once_and_everywhere_afterwards(
    two: Two,
) -> None:
    text, other = two.run(two.here.open("key")), two.run(two.here.open("key"))
    two.store.is_away = True
    two.run(two.here.close(text))
    assert two.run(two.here.find(text)) is None
    two.store.is_away = False

    assert two.run(two.here.find(other)) is not None
    two.run(two.here.close(other))

    assert two.store.rows == {}
    assert two.run(two.there.find(text)) is None


def test_use_is_noted_once_a_minute(two: Two) -> None:
    text = two.run(two.here.open("key"))
    two.run(two.here.find(text))
    assert two.store.seen == []

    two.store.idle_s = 61.0
    two.run(two.here.find(text))

    assert two.store.seen == [name_of(text)]


def test_a_sign_in_is_used_once_at_both(two: Two) -> None:
    assert two.run(two.here.use_sign_in("state"))
    assert not two.run(two.there.use_sign_in("state"))
    assert not two.run(two.here.use_sign_in("state"))


def test_without_a_database_a_session_is_this_controllers_own() -> None:
    sessions, loop = ConsoleSessions(None, FakeClock()), asyncio.new_event_loop()
    text = loop.run_until_complete(sessions.open("key"))

    assert loop.run_until_complete(sessions.find(text)) is not None
    loop.run_until_complete(sessions.close(text))
    assert loop.run_until_complete(sessions.find(text)) is None
    assert loop.run_until_complete(sessions.use_sign_in("state"))
    assert not loop.run_until_complete(sessions.use_sign_in("state"))
    sessions.stop()
    loop.close()
