"""A launcher asks its ranks, its copier and its watch for what the controller wants, and says what came of it."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from rankmend.hook.snapshots import layout
from recovery.checkpoints.snapshots.copies import node_copies
from recovery.checkpoints.snapshots.copies.copy_messages import (
    CopierCommand,
    CopierEvent,
    CopierLost,
    CopyFailed,
    CopyHeld,
    CopySent,
    DropCopy,
    ExpectCopies,
    FetchFailed,
    FetchSnapshot,
    SendCopy,
    ServeFiles,
    SnapshotDigest,
    SnapshotFetched,
)
from recovery.checkpoints.snapshots.copies.node_copies import REQUEST_S_MAX, RETRY_S, NodeCopies
from recovery.checkpoints.snapshots.watch import SnapshotWatch
from recovery.messages.copying import CopyOrder, CopyRequest, FetchOrder, HeldFor
from recovery.messages.exchange import CopyFault, Endpoint, HeldSnapshot, Peer, SnapshotPoint
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.snapshot_files import JOB_ID, write_snapshot

pytestmark = pytest.mark.process

N2 = Peer("n2", "l2", Endpoint("10.0.0.2", 4000))
DIGEST = "0" * 32


class FakeCopier:
    """Notes what it is told, and says what the test wants."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = Endpoint("10.0.0.1", 4000)
        self.commands: list[CopierCommand] = []
        self.events: list[CopierEvent] = []
        self.secrets: tuple[str, ...] = ()

    def believe(self, secrets: tuple[str, ...]) -> None:
        self.secrets = secrets

    def send(self, command: CopierCommand) -> None:
        self.commands.append(command)

    def take_events(self) -> list[CopierEvent]:
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        """End nothing."""

    def told(self, kind: type) -> list[CopierCommand]:
        found = [one for one in self.commands if isinstance(one, kind)]
        self.commands = [one for one in self.commands if not isinstance(one, kind)]
        return found


class FakeClock(SystemClock):
    ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


class Launcher:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.news = threading.Semaphore(0)
        self.clock = FakeClock()
        self.watch = SnapshotWatch(folder, JOB_ID, self.clock, self.news.release)
        self.copier = FakeCopier()
        self.copies = NodeCopies(folder, "n1", self.watch, self.copier, self.clock)

    def keep(self, *steps: int, rank: int = 0) -> None:
        for number, step in enumerate(steps):
            write_snapshot(
                self.folder,
                os.urandom(100),
                rank=rank,
                buffer=number,
                step=step,
                sequence=number + 1,
            )
        self.watch.settle(self.watch.settled_through + 1)
        through = self.watch.settled_through
        while self.watch.settled_through <= through and not self.watch.known:
            assert self.news.acquire(timeout=DEADLINE_S)
        eventually(
            lambda: {one.head.step for one in self.watch.known} >= set(steps), "all are known"
        )

    def ask(self, from_step: int | None, complete: SnapshotPoint | None = None) -> None:
        held_for = (HeldFor("n2", (2, 3)),)
        self.copies.take_request(CopyRequest(CopyOrder(1, from_step, (N2,), held_for, complete)))

    def tick(self, after_s: float = 1.1) -> bool:
        self.clock.ahead_s += after_s
        return self.copies.tick(1, (0,))

    def digest_of(self, step: int) -> SnapshotDigest:
        (known,) = [one for one in self.watch.known if one.head.step == step]
        return SnapshotDigest(1, 0, step, known.head.size_bytes, known.digest.whole)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.watch.close()


def kept_from(path: Path) -> int | None:
    data = path.read_bytes()[layout.KEEP_AT : layout.KEEP_AT + layout.KEEP.size]
    step, until_ns = layout.KEEP.unpack(data)
    return step - 1 if until_ns > time.monotonic_ns() else None


def test_first_snapshot_of_the_round_is_sent_once_and_its_rank_leaves_it(
    launcher: Launcher,
) -> None:
    launcher.keep(10, 20)
    launcher.ask(15)

    launcher.tick()
    launcher.tick()

    (sent,) = launcher.copier.told(SendCopy)
    assert sent.file.snapshot == launcher.digest_of(20)
    assert (sent.peer.node, sent.peer.address, sent.peer.port) == ("n2", "10.0.0.2", 4000)
    assert [kept_from(path) for path in sorted(launcher.folder.iterdir())] == [15, 15]
    assert launcher.copier.told(ExpectCopies) == [ExpectCopies(1, {2: "n2", 3: "n2"})]

    launcher.copier.events.append(CopySent(sent.file.snapshot, "n2", 0.1))
    assert launcher.tick()
    launcher.tick(60.0)
    assert launcher.copier.told(SendCopy) == []
    assert launcher.copies.counts.sent == 1


def copied(path: Path) -> tuple[int, int] | None:
    data = path.read_bytes()[layout.COPIED_AT : layout.COPIED_AT + layout.COPIED.size]
    attempt, step, until_ns = layout.COPIED.unpack(data)
    return (attempt, step - 1) if until_ns > time.monotonic_ns() else None


def test_ranks_leave_what_the_newest_copies_are_of_also_between_attempts(
    launcher: Launcher,
) -> None:
    launcher.keep(10, 20)
    launcher.ask(None, complete=SnapshotPoint(1, 20))

    launcher.clock.ahead_s += 1.1
    launcher.copies.tick(0, ())

    assert [copied(path) for path in sorted(launcher.folder.iterdir())] == [(1, 20), (1, 20)]
    assert [kept_from(path) for path in sorted(launcher.folder.iterdir())] == [None, None]
    assert launcher.copier.told(SendCopy) == []


def test_snapshot_of_the_round_is_read_at_once_and_alone(launcher: Launcher) -> None:
    launcher.keep(10)
    for _look in range(2):  # the second one found nothing new, and the next is a second away
        launcher.watch.settle(launcher.watch.settled_through + 1)
    write_snapshot(launcher.folder, b"later" * 20, rank=0, buffer=1, step=20, sequence=2)
    write_snapshot(launcher.folder, b"other" * 20, rank=1, buffer=0, step=20, sequence=1)
    launcher.ask(15)

    launcher.tick()

    def is_sent() -> bool:
        if launcher.copier.told(SendCopy):
            return True
        launcher.tick()
        return False

    eventually(is_sent, "the snapshot of the round is sent")

    assert [path.name for path in launcher.watch.files_from(0, 1, 15)] == ["rank-0.1.snapshot"]
    assert launcher.watch.files_from(0, 2, 15) == []


def test_failed_copy_is_told_and_tried_again(launcher: Launcher) -> None:
    launcher.keep(10)
    launcher.ask(5)
    launcher.tick()
    (sent,) = launcher.copier.told(SendCopy)

    launcher.copier.events.append(CopyFailed(sent.file.snapshot, "n2", CopyFault.FULL, "no room"))
    launcher.tick()
    assert [(one.rank, one.step, one.fault) for one in launcher.copies.faults()] == [
        (0, 10, CopyFault.FULL)
    ]
    assert launcher.copier.told(SendCopy) == []

    launcher.tick(RETRY_S)
    assert len(launcher.copier.told(SendCopy)) == 1
    launcher.copier.events.append(CopySent(sent.file.snapshot, "n2", 0.1))
    launcher.tick()
    assert launcher.copies.faults() == ()


def test_nothing_is_asked_of_ranks_that_have_ended_or_by_a_controller_that_is_silent(
    launcher: Launcher,
) -> None:
    launcher.keep(10)
    launcher.ask(5)
    launcher.copies.tick(1, ())
    launcher.copies.tick(2, (0,))
    launcher.clock.ahead_s += REQUEST_S_MAX
    launcher.tick()

    assert launcher.copier.told(SendCopy) == []
    assert [kept_from(path) for path in launcher.folder.iterdir()] == [None]


def test_copies_of_rounds_before_the_newest_whole_one_are_freed(launcher: Launcher) -> None:
    old, whole = (SnapshotDigest(1, 2, step, 100, DIGEST) for step in (10, 20))
    launcher.copier.events += [CopyHeld(old, "n2", 4), CopyHeld(whole, "n2", 4)]
    launcher.tick()
    assert [(one.rank, one.step, one.world_size) for one in launcher.copies.held()] == [
        (2, 10, 4),
        (2, 20, 4),
    ]

    launcher.ask(30, complete=SnapshotPoint(1, 20))
    launcher.tick()

    assert launcher.copier.told(DropCopy) == [DropCopy(old)]
    assert [one.step for one in launcher.copies.held()] == [20]


def wanted(step: int, digest: str = DIGEST) -> HeldSnapshot:
    return HeldSnapshot(0, 1, step, 2, 100, digest, 1.0)


def test_missing_snapshot_is_fetched_over_the_older_one_until_it_is_there(
    launcher: Launcher,
) -> None:
    launcher.keep(10, 20)
    launcher.copies.take_request(CopyRequest(fetches=(FetchOrder(wanted(15), N2, 0),)))

    launcher.copies.tick(1, ())
    launcher.tick()

    (fetch,) = launcher.copier.told(FetchSnapshot)
    assert Path(fetch.path).name == layout.file_name(0, 0)
    assert fetch.peer is not None
    launcher.copier.events.append(FetchFailed(fetch.snapshot, fetch.path, CopyFault.DAMAGED, "x"))
    launcher.tick()
    assert [(one.node, one.is_final) for one in launcher.copies.faults()] == [("n2", True)]


def test_majoritys_snapshot_takes_the_place_of_the_odd_one_of_the_same_step(
    launcher: Launcher,
) -> None:
    launcher.keep(10, 20)
    launcher.copies.take_request(CopyRequest(fetches=(FetchOrder(wanted(20), N2, 0),)))

    launcher.copies.tick(1, ())

    (fetch,) = launcher.copier.told(FetchSnapshot)
    assert Path(fetch.path).name == layout.file_name(0, 1), "the one that holds step 20"


def test_snapshot_that_is_there_is_not_fetched_and_an_own_copy_needs_no_network(
    launcher: Launcher,
) -> None:
    launcher.keep(10)
    there = launcher.digest_of(10)
    own = Peer("n1", "l1", Endpoint("10.0.0.1", 4000))
    orders = (FetchOrder(wanted(10, there.digest), N2, 0), FetchOrder(wanted(11), own, 0))
    launcher.copies.take_request(CopyRequest(fetches=orders))

    launcher.copies.tick(1, ())

    (fetch,) = launcher.copier.told(FetchSnapshot)
    assert fetch.snapshot.step == 11
    assert fetch.peer is None
    launcher.copier.events.append(SnapshotFetched(fetch.snapshot, fetch.path, 0.1))
    assert launcher.tick()
    assert launcher.copies.counts.fetched_bytes == 100


def test_two_ranks_begin_from_one_equal_ranks_snapshot(launcher: Launcher) -> None:
    orders = tuple(FetchOrder(wanted(15), N2, rank) for rank in (1, 2))
    launcher.copies.take_request(CopyRequest(fetches=orders))

    launcher.copies.tick(1, ())
    launcher.tick()

    first, second = launcher.copier.told(FetchSnapshot)
    assert [(one.rank, Path(one.path).name) for one in (first, second)] == [
        (1, layout.file_name(1, 0)),
        (2, layout.file_name(2, 0)),
    ]
    launcher.copier.events.append(FetchFailed(first.snapshot, first.path, CopyFault.CUT, "x"))
    launcher.copier.events.append(SnapshotFetched(second.snapshot, second.path, 0.1))
    launcher.tick()
    launcher.tick(node_copies.FETCH_RETRY_S)
    assert [one.rank for one in launcher.copier.told(FetchSnapshot)] == [1, 2]


def test_another_copier_is_told_everything_anew(launcher: Launcher) -> None:
    launcher.keep(10)
    launcher.ask(5)
    launcher.tick()
    held = SnapshotDigest(1, 2, 10, 100, DIGEST)
    launcher.copier.events.append(CopyHeld(held, "n2", 4))
    launcher.tick()
    launcher.copier.commands.clear()

    launcher.copier.events.append(CopierLost("killed", is_final=False))
    launcher.tick()

    assert launcher.copies.held() == ()
    kinds = {type(one) for one in launcher.copier.commands}
    assert kinds >= {ServeFiles, ExpectCopies, SendCopy}


def test_faults_are_bounded(launcher: Launcher) -> None:
    for step in range(node_copies.FAULTS_MAX + 10):
        one = SnapshotDigest(1, 0, step, 100, DIGEST)
        launcher.copier.events.append(CopyFailed(one, "n2", CopyFault.CUT, "x"))

    launcher.tick()

    told = launcher.copies.faults()
    assert len(told) == node_copies.FAULTS_MAX
    assert told[-1].step == node_copies.FAULTS_MAX + 9
