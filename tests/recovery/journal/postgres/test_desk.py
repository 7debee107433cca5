"""Slurm's desk of several controllers: each asks, the one with the lease acts, and none does what another has done."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import SystemClock, read_boot_id
from rankmend.errors import JournalError, ManagerAwayError
from recovery.journal.postgres.database import LeaseLostError
from recovery.journal.postgres.desk_journal import DeskJournal
from recovery.journal.postgres.leases import Leases
from recovery.journal.slurm_records import SlurmAct, SlurmActs, SlurmOutcome
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmAwayError, SlurmCommands, is_reading
from recovery.schedulers.slurm.desk import SlurmDesk
from recovery.schedulers.slurm.desk_lease import act_timeout_s
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from recovery.service.desk_service import DeskService
from tests.recovery.schedulers.slurm.fakes import FakeSlurm
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer, connected

pytestmark = [pytest.mark.site, pytest.mark.safety]
LIMITS = SlurmLimits(enabled=True, act=True, nodes_drained_percent=100.0, timeout_s=1.0)
DRAIN = SchedulerRequest("leave/i-1/1", SchedulerAction.DRAIN, ("n1",), reason="GPU 3 is bad")


class Killed(BaseException):
    """The controller dies here: nothing of it runs on."""


@dataclass
class SharedSlurm:
    """One Slurm of all controllers, which counts what is changed in it."""

    slurm: FakeSlurm = field(default_factory=lambda: FakeSlurm("n1", "n2", "n3"))
    changes: list[str] = field(default_factory=list)

    def run(self, cross: Callable[[], None]) -> Callable[[Sequence[str]], str]:
        def call(words: Sequence[str]) -> str:
            cross()
            if not is_reading(words):
                self.changes.append(" ".join(words))
            told = self.slurm(words)
            cross()
            return told

        return call


class Controller:
    """The part of a controller that works on the desk, with a place at which it dies."""

    def __init__(self, database: Any, leases: Leases, shared: SharedSlurm, folder: Path) -> None:
        self.leases = leases
        self.left_s = 100.0  # of its lease, as it knows
        self._left: int | None = None  # places that are crossed before it dies
        self.journal = DeskJournal(database, leases, "slurm", SystemClock(), read_boot_id())
        send = self.journal._send

        def crossed(rows: Any) -> None:
            self.cross()
            send(rows)
            self.cross()

        self.journal._send = crossed  # type: ignore[method-assign]
        self.desk = SlurmDesk(
            self.journal,
            SlurmClient(shared.run(self.cross)),
            LIMITS,
            SystemClock(),
            folder,
            settle_s=0.2,
            look_s=0.0,
            left_s=lambda: self.left_s,
        )
        self.service = DeskService(self.journal, self.desk, self.journal)

    def cross(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Killed

    def die_after(self, places: int) -> None:
        self._left = places

    def turns(self, count: int = 8) -> None:
        for _turn in range(count):
            self.service._turn()


@dataclass
class Site:
    server: PostgresServer
    name: str
    shared: SharedSlurm
    controllers: list[Controller]

    def end_lease(self, of: Controller) -> None:
        """Have the leases of a controller end now, as the database counts, without its knowledge."""
        self.server.ask(
            self.name,
            "UPDATE rankmend.controller SET expires_at = clock_timestamp() WHERE controller_id = %s",
            of.leases.controller_id,
        )


@pytest.fixture(scope="module")
def name(postgres: PostgresServer) -> str:
    return postgres.make_database()


@pytest.fixture
def site(tmp_path: Path, postgres: PostgresServer, name: str) -> Iterator[Site]:
    postgres.ask(name, "UPDATE rankmend.journal SET holder = NULL")
    postgres.ask(name, "DELETE FROM rankmend.record")
    url, shared = postgres.url(name, "controller"), SharedSlurm()
    with ExitStack() as stack:
        controllers = []
        for number in range(2):
            database, leases = stack.enter_context(connected(url, lease_s=3600.0))
            postgres.ask(name, "UPDATE rankmend.controller SET peer_secret = 's'")
            controllers.append(Controller(database, leases, shared, tmp_path / str(number)))
        yield Site(postgres, name, shared, controllers)


def test_what_any_controller_asks_is_done_by_the_one_that_works_on_the_desk(site: Site) -> None:
    first, second = site.controllers
    first.turns()
    second.turns()

    second.desk.ask(DRAIN)
    second.turns()
    assert site.shared.changes == []
    first.turns()
    second.turns()

    assert len(site.shared.changes) == 1
    assert [first.desk.works_here, second.desk.works_here] == [True, False]
    for one in (first, second):
        ended = one.desk.ledger.works[DRAIN.key].ended
        assert ended is not None
        assert ended.outcome is SlurmOutcome.DONE


def test_both_ask_for_the_same_and_it_is_done_once(site: Site) -> None:
    first, second = site.controllers
    first.turns()
    second.turns()

    for one in (second, first, second):
        one.desk.ask(DRAIN)
    first.turns()

    assert len(site.shared.changes) == 1


def test_a_node_is_taken_back_by_a_person_at_a_controller_that_does_not_work_on_the_desk(
    site: Site,
) -> None:
    first, second = site.controllers
    first.turns()
    first.desk.ask(DRAIN)
    first.turns()
    second.turns()

    assert second.desk.take_back("n1", "alice", "it is fine")
    first.turns()

    assert site.shared.slurm.state["n1"] == "IDLE"
    assert first.desk.ledger.ours == []


@pytest.mark.parametrize("places", range(14))
def test_a_controller_that_dies_between_any_two_calls_or_writes_leaves_nothing_done_twice(
    site: Site, places: int
) -> None:
    first, second = site.controllers
    first.turns(2)
    second.turns(2)
    second.desk.ask(DRAIN)

    first.die_after(places)
    with suppress(Killed):
        first.turns()
    site.end_lease(first)

    def is_done() -> bool:
        second.service._turn()
        return second.desk.ledger.works[DRAIN.key].ended is not None

    eventually(is_done, "the other one has taken over and finished")
    assert second.desk.ledger.works[DRAIN.key].ended.outcome is SlurmOutcome.DONE  # type: ignore[union-attr]
    assert len(site.shared.changes) == 1
    assert site.shared.slurm.state["n1"] == "IDLE+DRAIN"
    assert second.desk.ledger.ours == ["n1"]


def test_one_whose_lease_is_over_can_neither_write_nor_act_and_asks_on(site: Site) -> None:
    first, second = site.controllers
    first.turns()
    # As after a stop of the whole process for longer than the lease: it knows nothing of it.
    site.server.ask(site.name, "UPDATE rankmend.journal SET holder = NULL WHERE name = 'slurm'")
    second.turns()
    assert second.desk.works_here

    with pytest.raises(LeaseLostError):
        first.journal.append_many([SlurmActs("k", SlurmAct.DRAIN, "n1")])
    with pytest.raises(JournalError, match="only requests are handed in"):
        first.journal.append_many([SlurmActs("k", SlurmAct.DRAIN, "n1")])
    first.desk.bench.catch_up()
    first.desk.ask(DRAIN)
    first.turns()
    second.turns()

    assert not first.desk.works_here
    assert len(site.shared.changes) == 1


def test_an_act_that_could_not_end_within_the_lease_is_not_begun_nor_counted_as_a_try(
    site: Site,
) -> None:
    first, _second = site.controllers
    first.turns(2)
    first.desk.ask(DRAIN)

    first.left_s = 1.9
    first.turns()
    assert site.shared.changes == []
    assert first.desk.ledger.works[DRAIN.key].acts == ()
    assert "only 1.9 s left" in first.desk.waits_for(DRAIN.key)

    first.left_s = 100.0
    first.turns()
    assert len(site.shared.changes) == 1


def test_no_request_is_handed_in_to_an_older_controller_that_would_not_read_it(site: Site) -> None:
    first, second = site.controllers
    first.turns()
    site.server.ask(
        site.name,
        "UPDATE rankmend.controller SET peer_secret = '' WHERE controller_id = %s",
        first.leases.controller_id,
    )

    with pytest.raises(JournalError, match="an older controller works on slurm"):
        second.desk.ask(DRAIN)


@pytest.mark.parametrize(
    ("left_s", "timeout"),
    [(1000.0, 300.0), (301.5, 300.0), (200.0, 199.0), (1.9, None), (0.0, None)],
)
def test_what_changes_slurm_ends_a_second_before_the_lease_and_is_not_begun_with_less_than_a_second(
    tmp_path: Path, left_s: float, timeout: float | None
) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nps -o args= $PPID\n")
    program.chmod(0o755)
    run = SlurmCommands(300.0, {"PATH": "/usr/bin:/bin"}, str(tmp_path), lambda: left_s)

    assert act_timeout_s(300.0, 2.0) == 1.0, "just enough"
    assert "KILL 300 " in run(["scontrol", "show", "node", "n1"])
    if timeout is None:
        with pytest.raises(SlurmAwayError, match=r"not run: the lease has only .* s left"):
            run(["scontrol", "update", "nodename=n1", "state=drain"])
    else:
        assert f"KILL {timeout:g} " in run(["scontrol", "update", "nodename=n1", "state=drain"])
    assert issubclass(SlurmAwayError, ManagerAwayError)
