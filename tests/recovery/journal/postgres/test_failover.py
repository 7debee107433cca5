"""Two real servers, one of them a synchronous standby: the primary dies in mid-decision, the standby is promoted."""

import contextlib
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, RankmendError
from recovery.journal.attempt_records import Milestone
from recovery.journal.postgres.database import Database, DatabaseAwayError
from recovery.journal.postgres.leases import HeldByOtherError, Leases
from recovery.journal.postgres.postgres_journal import PostgresJournal, read_entries
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.journals import PostgresPlace
from tests.support.postgres import PostgresServer, connected, running_server

pytestmark = [pytest.mark.site, pytest.mark.safety]


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


def make_standby(primary: PostgresServer, *, is_synchronous: bool) -> PostgresServer:
    """Start a server that streams from the primary."""
    folder = primary.folder / "standby"
    standby = PostgresServer(primary.programs, folder, data_folder=folder)
    standby.follow(primary, is_synchronous=is_synchronous)
    return standby


def kill(server: PostgresServer) -> None:
    """End all processes of a server at once, as a power cut does."""
    pid = int((server.data / "postmaster.pid").read_text().split()[0])
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # the others end with the postmaster
            one.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=DEADLINE_S)
    if server.process is not None:
        server.process.wait(DEADLINE_S)
        server.process = None


class Writer(threading.Thread):
    """A controller that decides as fast as it can, and opens its journal again as the service does."""

    def __init__(self, place: PostgresPlace, url: str) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._url = url
        self.effects: list[int] = []  # steps whose records were acknowledged
        self.should_stop = threading.Event()
        self.failures: list[str] = []

    def run(self) -> None:
        with connected(self._url, lease_s=4.0) as (database, leases):

            def has_stopped() -> bool:
                try:
                    self._decide(database, leases)
                except (RankmendError, HeldByOtherError) as error:
                    self.failures.append(type(error).__name__)
                return self.should_stop.is_set()

            eventually(
                has_stopped, lambda: f"the writer's end; failed: {self.failures[-9:]}", pause_s=0.05
            )

    def _decide(self, database: Database, leases: Leases) -> None:
        journal = PostgresJournal(
            *(database, leases, leases.take(self._place.name), SystemClock(), "boot"),
            doubt_s_max=2.0,
        )
        done = [entry.record.step for entry in journal.opened]  # type: ignore[union-attr]
        assert set(self.effects) <= set(done), "a decision was lost that had its effect"
        step = max(done, default=0)
        self.effects += [one for one in done if one not in self.effects]  # what was owed
        while not self.should_stop.is_set():
            step += 1
            journal.append(Milestone(1, step))
            assert step not in self.effects, "done twice"
            self.effects.append(step)


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "late"])
def test_no_decision_is_lost_or_made_twice_when_the_primary_is_killed_and_the_standby_promoted(
    primary: PostgresServer, is_late: bool
) -> None:
    """Late: the writer has given up by then, mostly without knowing what came of its last write, and opens its journal again."""
    place = PostgresPlace.make(primary)
    standby = make_standby(primary, is_synchronous=True)
    try:
        both = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        writer = Writer(place, f"postgresql://controller@{both}/{place.database}")
        writer.start()
        eventually(lambda: len(writer.effects) > 50, "decisions on the primary")

        kill(primary)
        before = len(writer.effects)
        if is_late:
            # CommitUnknownError, or one of another kind where the server was killed between two commits.
            eventually(lambda: writer.failures, "it gives up")
        standby.promote()
        eventually(lambda: len(writer.effects) > before + 50, "decisions on the new primary")
        writer.should_stop.set()
        writer.join(DEADLINE_S)

        with connected(standby.url(place.database, "controller")) as (database, _leases):
            steps = [entry.record.step for entry in read_entries(database, place.name)]  # type: ignore[union-attr]
        assert steps == list(range(1, len(steps) + 1))
        assert set(writer.effects) <= set(steps)
        assert len(writer.effects) == len(set(writer.effects))
    finally:
        standby.stop("immediate")


def test_an_asynchronous_standby_is_refused_unless_the_loss_is_accepted(
    primary: PostgresServer,
) -> None:
    place = PostgresPlace.make(primary)
    standby = make_standby(primary, is_synchronous=False)
    try:
        url = primary.url(place.database, "controller")
        with pytest.raises(
            ConfigError, match=r"all of its 1 standbys are asynchronous.*accept_loss"
        ):
            with connected(url):
                pass
        with connected(url, accept_loss=True) as (database, _leases):
            assert len(database.losses) == 1
        with pytest.raises(DatabaseAwayError, match="read-only"):
            with connected(standby.url(place.database, "controller")):
                pass
    finally:
        standby.stop("immediate")
