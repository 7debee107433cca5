"""What a launcher proposes to its controller as the next attempt's meeting place."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.checkpoints.marks import FenceFile
from recovery.checkpoints.snapshots.watch import SnapshotWatch
from recovery.launcher.decision.launcher_state import FollowedOrders, LauncherState
from recovery.launcher.membership.checkpoint_access import Storage
from recovery.launcher.membership.node_membership import Membership
from recovery.launcher.membership.peer_launchers import Peers, PeerWord
from recovery.launcher.ranks.command import RankCommand
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.launched import LaunchedAttempt
from recovery.launcher.rendezvous.ports import read_default_range
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore
from recovery.launcher.reporter import PROPOSED_S, Reporter
from recovery.messages.exchange import Endpoint
from tests.support.agent import FakeClock

pytestmark = pytest.mark.process
LOOPBACK, JOB, LAUNCHER = "127.0.0.1", "train", "launcher-1"


class Bench:
    """A reporter with a store and peers of its own. Its time is the test's."""

    def __init__(self, folder: Path, *, passed_preflight: bool = False) -> None:
        self.clock = FakeClock()
        ports = read_default_range()
        word = PeerWord(JOB, "a", LAUNCHER, 0, 0)
        self.peers = Peers("5" * 64, word, LOOPBACK, ports, LOOPBACK)
        self.store = RendezvousStore(ports, self.clock, address=LOOPBACK, bind_address=LOOPBACK)
        storage = Storage(FenceFile(folder / "attempt"), None)
        membership = Membership(LAUNCHER, 1, self.peers, storage, passed_preflight=passed_preflight)
        plan = LaunchPlan(
            job_id=JOB,
            job_name="test",
            node="a",
            boot_id="boot",
            command=RankCommand(("true",), None),
            environment=os.environ,
            folder=folder,
            run_id="test",
            role="default",
            fence_file=None,
            is_auto=False,
            time_limit_s=None,
            mark_node="a",
        )
        snapshots = SnapshotWatch(folder / "snapshots", uuid.UUID(int=1), self.clock, lambda: None)
        self.reporter = Reporter(plan, self.store, self.clock, membership, None, None, snapshots)
        self.orders = FollowedOrders(JOB, "a", LAUNCHER, 1, 0.0)

    def proposed(self, *, after_s: float = 0.0, attempt: LaunchedAttempt | None = None) -> Endpoint:
        self.clock.time_s += after_s
        report = self.reporter.write(attempt, LauncherState(), self.orders, None, None)
        assert report.rendezvous is not None
        return report.rendezvous


@contextmanager
def reporting(folder: Path, *, passed_preflight: bool = False) -> Iterator[Bench]:
    bench = Bench(folder, passed_preflight=passed_preflight)
    try:
        yield bench
    finally:
        bench.store.close()
        bench.peers.close()


def test_an_idle_node_proposes_another_place_when_its_own_is_not_taken(tmp_path: Path) -> None:
    with reporting(tmp_path) as bench:
        first = bench.proposed()
        assert bench.proposed(after_s=PROPOSED_S - 1.0) == first

        second = bench.proposed(after_s=1.0)

        assert second != first
        assert bench.proposed(after_s=1.0) == second


def test_a_place_that_was_ordered_while_it_changed_is_opened_all_the_same(tmp_path: Path) -> None:
    with reporting(tmp_path) as bench:
        first = bench.proposed()
        bench.proposed()
        bench.proposed(after_s=PROPOSED_S)

        opened = bench.store.open_attempt(2, first.port)

        assert opened.port == first.port


def test_a_node_whose_ranks_run_keeps_its_proposal(tmp_path: Path) -> None:
    with reporting(tmp_path) as bench:
        attempt = LaunchedAttempt(1, 0.0)
        first = bench.proposed(attempt=attempt)

        later = [bench.proposed(after_s=PROPOSED_S, attempt=attempt) for _report in range(3)]

        assert later == [first] * 3
        assert bench.proposed() == first  # it has just become idle


@pytest.mark.parametrize("passed", [True, False])
def test_a_launcher_reports_whether_its_node_has_passed_its_check(
    tmp_path: Path, passed: bool
) -> None:
    with reporting(tmp_path, passed_preflight=passed) as bench:
        report = bench.reporter.write(None, LauncherState(), bench.orders, None, None)

    assert report.passed_preflight is passed
