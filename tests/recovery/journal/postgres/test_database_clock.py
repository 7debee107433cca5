"""The clock by which all controllers of one database date what they decide."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.journal.postgres.leases import DatabaseClock
from recovery.service.daemon import read
from recovery.service.server import Service, ServiceThread
from tests.support.controllers import configure
from tests.support.eventually import DEADLINE_S
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.site


class HandClock:
    def __init__(self) -> None:
        self.time_s, self.wall_s = 100.0, 5e8

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return self.wall_s


def test_it_says_the_databases_time_and_goes_on_by_the_monotonic_clock() -> None:
    host = HandClock()
    clock = DatabaseClock(host)
    host.time_s = 100.2

    clock.note(1.7e9, asked_at_s=100.0)
    host.time_s, host.wall_s = 160.1, 0.0  # a minute later, and the wall clock was set

    assert clock.unix_s() == pytest.approx(1.7e9 + 60.0)
    assert clock.now_s() == 160.1


def test_before_the_first_reading_it_is_the_hosts_clock() -> None:
    assert DatabaseClock(HandClock()).unix_s() == 5e8


def test_a_reading_that_took_long_replaces_none_but_is_better_than_none() -> None:
    host = HandClock()
    clock = DatabaseClock(host)
    host.time_s = 104.0
    clock.note(1.7e9, asked_at_s=100.0)
    assert clock.unix_s() == 1.7e9 + 2.0

    host.time_s = 110.1
    clock.note(1.7e9 + 8.0, asked_at_s=110.0)
    assert clock.unix_s() == pytest.approx(1.7e9 + 8.05)

    host.time_s = 124.0
    clock.note(1.7e9 + 14.0, asked_at_s=120.0)
    assert clock.unix_s() == pytest.approx(1.7e9 + 21.95)


class OffClock(SystemClock):
    def unix_s(self) -> float:
        return super().unix_s() + 86_400.0


@pytest.fixture
def service(tmp_path: Path, postgres: PostgresServer) -> Iterator[Service]:
    """A controller on a machine whose clock is a day ahead."""
    folder = configure(tmp_path / "a", postgres.url(postgres.make_database(), "controller"))
    config, tokens, policy = read(folder / "controller.toml")
    thread = ServiceThread(Service(config, OffClock(), tokens, policy))
    thread.start()
    yield thread.service
    thread.stop()


def test_what_a_controller_with_a_wrong_clock_writes_has_the_databases_time(
    service: Service,
) -> None:
    desk = service.worker.desk
    service.worker.call(lambda: desk.drain("n1", "me", "r")).result(DEADLINE_S)

    (entry,) = service._store.read_cluster()[-1:]

    assert abs(entry.unix_s - SystemClock().unix_s()) < 3600.0
    assert abs(desk.now_unix_s() - SystemClock().unix_s()) < 3600.0
