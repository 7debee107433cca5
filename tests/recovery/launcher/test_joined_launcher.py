"""A launcher that is one of several, with real ranks; the test plays the controller."""

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rankmend.clock import SystemClock, read_boot_id
from recovery.checkpoints.marks import FenceFile
from recovery.launcher.agent_link import AgentLink
from recovery.launcher.guardian.guardian_client import Guardian
from recovery.launcher.launcher import Launcher
from recovery.launcher.membership.checkpoint_access import Storage
from recovery.launcher.membership.node_membership import Membership, boot_time_s
from recovery.launcher.membership.peer_launchers import Peers, PeerWord
from recovery.launcher.processes.process_tree import find_marked
from recovery.launcher.ranks.command import RankCommand
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.rank_output import Output, OutputPlan, Streams
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.rendezvous.ports import read_default_range
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict, Share
from recovery.messages.exchange import (
    VERSION,
    Endpoint,
    Order,
    Peer,
    Report,
    Restore,
    Stop,
    StopReason,
)
from tests.support.console import FakeConsole
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = [pytest.mark.process, pytest.mark.safety]
SCRIPT = """
import json, os, sys, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
         "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "RANKMEND_FENCE_FILE")
told = {name: os.environ.get(name) for name in names}
with open(told["RANKMEND_FENCE_FILE"]) as file:
    told["fence"] = file.read()
with open(sys.argv[1] + f"/told-{told['RANK']}.tmp", "w") as file:
    json.dump(told, file)
os.rename(sys.argv[1] + f"/told-{told['RANK']}.tmp", sys.argv[1] + f"/told-{told['RANK']}")
time.sleep(600)
"""

SAVES_LONG = """
import os, pathlib, signal, sys
saves = pathlib.Path(sys.argv[1], f"saves-{os.environ['RANK']}")
signal.signal(signal.SIGTERM, lambda *_: saves.touch())
"""


class Watch:
    """Finds what the test says."""

    def __init__(self) -> None:
        self.verdicts: tuple[CheckpointVerdict, ...] = ()
        self.is_started = False
        self.share = Share()

    def start(self) -> None:
        self.is_started = True

    def stop(self) -> bool:
        return True

    def take_share(self, share: Share) -> None:
        self.share = share

    def check_on(self, path: str) -> None:
        """Read nothing more: there are no files."""

    def known(self) -> tuple[CheckpointVerdict, ...]:
        return self.verdicts

    def candidates(
        self, *, is_training: bool = False, enough: int = 1, timeout_s: float | None = None
    ) -> tuple[CheckpointVerdict, ...]:
        return self.verdicts


class LeasedGuardian(Guardian):
    """A guardian that keeps the ends of leases that it was sent."""

    until_s: float | None = None

    def lease(self, attempt: int, until_s: float | None) -> None:
        super().lease(attempt, until_s)
        self.until_s = until_s


class Member:
    """One launcher of a job, and a controller's view of it."""

    def __init__(
        self, folder: Path, job_id: uuid.UUID, name: str, report_pause_min_s: float = 0.0
    ) -> None:
        self.job_id, self.name, self.folder = job_id, name, folder
        self.reports: list[Report] = []
        self.guardians: list[LeasedGuardian] = []
        clock = SystemClock()
        (folder / "script.py").write_text(SCRIPT)
        self.fence = FenceFile(folder / "fence" / "attempt")
        self.watch = Watch()
        self.launcher_id = str(uuid.uuid4())
        ports = read_default_range()
        word = PeerWord(str(job_id), name, self.launcher_id, 0, 0)
        self.peers = Peers("5" * 64, word, "127.0.0.1", ports, "127.0.0.1")
        plan = LaunchPlan(
            job_id=str(job_id),
            job_name="test",
            node=name,
            boot_id=read_boot_id(),
            command=RankCommand((sys.executable, "script.py", str(folder)), None),
            environment=os.environ,
            folder=folder,
            run_id="test",
            role="default",
            fence_file=self.fence.path,
            is_auto=False,
            time_limit_s=None,
            mark_node=name,
        )
        self.output = Output(
            OutputPlan(None, (Streams.NONE,) * 2, (Streams.NONE,) * 2, None, True), FakeConsole()
        )
        self.store = RendezvousStore(ports, clock, address="127.0.0.1", bind_address="127.0.0.1")
        self.launcher = Launcher(
            plan,
            self._start_guardian,
            self.store,
            self.output,
            RuntimeFolder(Path("/dev/shm"), job_id, name),
            AgentLink([], clock),
            clock,
            self.reports.append,
            membership=Membership(
                self.launcher_id,
                2,
                self.peers,
                Storage(self.fence, self.watch),
                report_pause_min_s=report_pause_min_s,
            ),
            takes_signals=False,
        )
        self.thread = threading.Thread(target=self.launcher.run, args=(0,))
        self.thread.start()
        first = self.wait(lambda report: report.rendezvous is not None)
        self.order = Order(
            version=VERSION,
            job_id=str(job_id),
            revision=1,
            attempt=1,
            ranks=(0, 1),
            world_size=4,
            group_rank=0,
            group_count=2,
            stop=Stop.KILL,
            grace_s=5.0,
            restore=None,
            restarts=0,
            restarts_max=3,
            node=name,
            launcher_id=self.launcher_id,
            epoch=1,
            controller_id="first",
            rendezvous=first.rendezvous,
        )

    def _start_guardian(self) -> Guardian:
        guardian = LeasedGuardian.start(str(self.job_id), node=self.name)
        assert isinstance(guardian, LeasedGuardian)
        self.guardians.append(guardian)
        return guardian

    def wait_for_lease(self, until_s: float) -> None:
        """Wait until its guardian ends the lease then; CLOCK_BOOTTIME."""
        (guardian,) = self.guardians
        eventually(
            lambda: guardian.until_s == until_s, lambda: f"{guardian.until_s} to be {until_s}"
        )

    def send(self, **changes: object) -> None:
        self.order = replace(self.order, **changes)  # type: ignore[arg-type]
        self.launcher.send(self.order)

    def wait(self, is_so: Callable[[Report], bool], what: str = "it") -> Report:
        def look() -> Report | None:
            last = self.reports[-1] if self.reports else None
            if last is not None and is_so(last):
                return last
            assert self.thread.is_alive()
            return None

        return eventually(look, lambda: f"{what}; last: {self.reports[-1:]}")

    def told(self, rank: int) -> dict[str, str]:
        import json

        path = self.folder / f"told-{rank}"
        eventually(path.exists, lambda: f"rank {rank} runs; last: {self.reports[-1:]}")
        told: dict[str, str] = json.loads(path.read_text())
        return told

    def close(self) -> None:
        self.launcher.finish()
        self.thread.join(DEADLINE_S)
        self.launcher.close()
        self.store.close()
        self.output.close()


@pytest.fixture
def job_id() -> uuid.UUID:
    return uuid.uuid4()


@pytest.fixture
def make(tmp_path: Path, job_id: uuid.UUID) -> Iterator[Callable[[str], Member]]:
    members: list[Member] = []

    def made(name: str = "a", report_pause_min_s: float = 0.0) -> Member:
        folder = tmp_path / name
        folder.mkdir()
        members.append(Member(folder, job_id, name, report_pause_min_s))
        return members[-1]

    yield made
    for member in members:
        member.close()


def is_running(report: Report) -> bool:
    return len(report.ranks) == 2 and all(rank.pid for rank in report.ranks)


def test_two_nodes_of_a_job_on_one_machine_fence_only_their_own_ranks(
    make: Callable[[str], Member], job_id: uuid.UUID
) -> None:
    a, b = make("a"), make("b")
    a.send()
    b.send(ranks=(2, 3), group_rank=1, rendezvous=a.order.rendezvous)
    b.wait(is_running)
    a.wait(is_running)

    a.send(revision=2, ranks=())
    gone = a.wait(lambda report: report.revision == 2)

    assert gone.empty_through == 1
    assert len(find_marked(str(job_id), node="b")) == 2
    assert not find_marked(str(job_id), node="a")


def test_ranks_meet_where_the_order_says_and_only_after_the_fence_was_advanced(
    make: Callable[[str], Member],
) -> None:
    a, b = make("a"), make("b")
    offered = a.order.rendezvous
    assert offered is not None
    a.send(attempt=7)
    b.send(attempt=7, ranks=(2, 3), group_rank=1, rendezvous=replace(offered, is_hosted=True))

    first, other = a.told(0), b.told(3)

    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == ("127.0.0.1", str(offered.port))
    assert (other["MASTER_ADDR"], other["MASTER_PORT"]) == ("127.0.0.1", str(offered.port))
    assert first["TORCHELASTIC_USE_AGENT_STORE"] == "False"  # no torch in the plan: rank 0 hosts
    assert other["TORCHELASTIC_USE_AGENT_STORE"] == "True"  # as its order says
    assert (other["GROUP_RANK"], other["GROUP_WORLD_SIZE"]) == ("1", "2")
    assert (other["LOCAL_RANK"], other["LOCAL_WORLD_SIZE"], other["WORLD_SIZE"]) == ("1", "2", "4")
    assert first["fence"] == "7\n"
    again = a.wait(lambda report: report.rendezvous not in (None, offered), "a fresh port")
    assert again.fence_attempt == 7


def test_a_fence_of_a_newer_attempt_keeps_the_ranks_from_starting(
    make: Callable[[str], Member], job_id: uuid.UUID
) -> None:
    a = make("a")
    a.fence.advance(9)

    a.send(attempt=5)
    report = a.wait(lambda report: report.launch_error is not None)

    assert "attempt 9" in (report.launch_error or "")
    assert not find_marked(str(job_id))


def test_a_checkpoint_that_is_not_on_this_node_is_said_and_ranks_start_all_the_same(
    make: Callable[[str], Member], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, there, missing = make("a"), tmp_path / "step-7", tmp_path / "step-8"
    there.mkdir()

    def said() -> list[str]:
        texts = [one.getMessage() for one in caplog.records if "checkpoint-dir" in one.msg]
        return [text.partition(",")[0] for text in texts]

    a.send(attempt=1, restore=Restore(str(there), 7))
    a.wait(is_running)
    a.send(attempt=2, revision=2, restore=Restore(str(missing), 8))
    a.wait(lambda report: report.attempt == 2 and is_running(report) and bool(said()))

    assert said() == [str(missing)]


def test_orders_that_are_not_for_this_launcher_change_nothing(
    make: Callable[[str], Member],
) -> None:
    a = make("a")
    a.send(epoch=3, revision=10)
    pids = [rank.pid for rank in a.wait(is_running).ranks]
    good = a.order

    for wrong in (
        {"node": "b"},
        {"launcher_id": "an older one"},
        {"epoch": 2},
        {"controller_id": "second"},
        {"revision": 9},
        {"job_id": str(uuid.uuid4())},
    ):
        a.launcher.send(replace(good, **{"revision": 11, "ranks": (), **wrong}))  # type: ignore[arg-type]
    a.launcher.send(replace(good, revision=12))
    report = a.wait(lambda report: report.revision == 12)

    assert [rank.pid for rank in report.ranks] == pids
    assert report.empty_through == 0


def test_an_order_of_a_newer_controller_counts_whatever_its_number(
    make: Callable[[str], Member],
) -> None:
    a = make("a")
    a.send(epoch=1, revision=50)
    a.wait(is_running)

    a.send(epoch=2, revision=3, ranks=(), controller_id="second")
    report = a.wait(lambda report: report.revision == 3)

    assert report.empty_through == 1


def test_an_attempt_that_was_said_to_be_gone_is_never_started(
    make: Callable[[str], Member], job_id: uuid.UUID
) -> None:
    a = make("a")
    a.send(attempt=4, ranks=())
    a.wait(lambda report: report.empty_through == 4)

    a.send(revision=2, attempt=4, ranks=(0, 1))
    report = a.wait(lambda report: report.revision == 2)

    assert (report.empty_through, report.ranks) == (4, ())
    assert not find_marked(str(job_id))


def test_a_neighbour_of_the_order_that_does_not_answer_is_reported(
    make: Callable[[str], Member],
) -> None:
    a = make("a")
    silent = Peer("b", "nobody", Endpoint("127.0.0.1", 1))
    a.peers.note_controller(boot_time_s())
    peers = (Peer("a", a.launcher_id, a.peers.endpoint),)

    a.send(lease_s=600.0, peers=peers, neighbours=(silent,))

    assert a.wait(lambda report: bool(report.unreachable)).unreachable == ("b",)


def test_alone_for_the_lease_its_ranks_are_stopped_and_it_says_so(
    make: Callable[[str], Member], job_id: uuid.UUID
) -> None:
    a = make("a")
    silent = Peer("b", "nobody", Endpoint("127.0.0.1", 1))
    a.peers.note_controller(boot_time_s())
    a.send(lease_s=600.0, peers=(Peer("a", a.launcher_id, a.peers.endpoint), silent))
    a.wait(is_running)
    assert find_marked(str(job_id), node="a")

    a.send(revision=2, lease_s=0.5)  # nobody takes a report: half a second later it is over
    report = a.wait(lambda report: report.empty_through == 1, "the lease ends")

    assert all(rank.exit is not None and rank.exit.by_launcher for rank in report.ranks)
    assert not find_marked(str(job_id))


def test_ranks_may_save_for_longer_than_the_lease_in_a_planned_stop_while_the_controller_answers(
    make: Callable[[str], Member],
) -> None:
    a = make("a")
    (a.folder / "script.py").write_text(SAVES_LONG + SCRIPT)
    silent = Peer("b", "nobody", Endpoint("127.0.0.1", 1))
    began_at_s = boot_time_s()
    a.peers.note_controller(began_at_s)
    peers = (Peer("a", a.launcher_id, a.peers.endpoint), silent)
    a.send(lease_s=600.0, kill_bound_s=1.0, peers=peers)
    for rank in (0, 1):
        a.told(rank)  # SIGTERM ends none from here on

    a.send(revision=2, ranks=(), stop=Stop.GRACE, grace_s=6000.0)
    for rank in (0, 1):
        eventually((a.folder / f"saves-{rank}").exists, f"rank {rank} saves")
    for lease in (1, 2, 3):  # the controller answers, a lease later each time
        asked_at_s = began_at_s + lease * 600.0
        a.peers.note_controller(asked_at_s)
        a.wait_for_lease(asked_at_s + 600.0)

    last = a.wait(is_running)
    assert last.empty_through == 0
    assert all(rank.exit is None for rank in last.ranks)


def test_the_guardian_ends_the_lease_of_a_launcher_that_stands_still(
    make: Callable[[str], Member], job_id: uuid.UUID
) -> None:
    ended: list[int] = []
    guardian = Guardian.start(str(job_id), node="x")
    with Path(os.devnull).open("wb") as null:
        from recovery.launcher.guardian.guardian_client import Spawn
        from recovery.launcher.guardian.packets import Emptied, LeaseExpired

        environment = {"RANKMEND_JOB_ID": str(job_id), "RANKMEND_ATTEMPT": "1"}
        argv = ("/bin/sleep", "600")
        fds = (null.fileno(), null.fileno())
        guardian.spawn(Spawn(1, 0, argv, environment, "/", *fds))
    guardian.lease(1, boot_time_s() + 2.0)
    guardian.lease(1, boot_time_s() + 2.3)  # prolonged once, and never again

    events: list[object] = []

    def is_emptied() -> bool:
        events.extend(guardian.read_events())
        return any(isinstance(event, Emptied) for event in events)

    eventually(is_emptied, lambda: f"the attempt is emptied; came: {events}")
    guardian.close()

    ended = [event.through_attempt for event in events if isinstance(event, LeaseExpired)]
    assert ended == [1]


def test_checkpoints_are_looked_for_where_the_order_asks_for_it(
    make: Callable[[str], Member],
) -> None:
    a = make("a")
    candidate = Candidate("/ckpt/step-5.pt", 5, CheckpointFormat.TORCH, 10, 1.0)
    a.watch.verdicts = (CheckpointVerdict(candidate, True, "complete"),)
    a.send(attempt=2, ranks=(), finds_checkpoints=True)

    found = a.wait(lambda report: report.found is not None).found

    assert found is not None
    assert (found.empty_through, found.revision, found.error) == (2, 1, None)
    assert [(one.path, one.step, one.is_valid) for one in found.checkpoints] == [
        ("/ckpt/step-5.pt", 5, True)
    ]


def test_what_was_found_is_reported_at_once_and_not_with_the_next_report(
    make: Callable[..., Member],
) -> None:
    a = make("a", report_pause_min_s=3600.0)

    a.send(attempt=2, ranks=(), finds_checkpoints=True)
    a.wait(lambda report: report.found is not None)


def test_no_ranks_start_from_a_checkpoint_that_was_deleted_after_it_was_found_here(
    make: Callable[[str], Member],
) -> None:
    a = make("a")
    path = a.folder / "step-5.pt"
    path.touch()
    candidate = Candidate(str(path), 5, CheckpointFormat.TORCH, 10, 1.0)
    a.watch.verdicts = (CheckpointVerdict(candidate, True, "complete"),)
    a.send(attempt=2, ranks=(), finds_checkpoints=True)
    a.wait(lambda report: report.found is not None)

    path.unlink()
    a.send(attempt=3, ranks=(0, 1), revision=2, restore=Restore(str(path), 5))
    report = a.wait(lambda report: report.launch_error is not None)

    assert report.launch_error == f"{path} was deleted after it was chosen"
    assert all(rank.pid == 0 for rank in report.ranks)


def test_asked_to_stop_while_no_controller_answers_it_stops_its_own_ranks(
    make: Callable[[str], Member], job_id: uuid.UUID
) -> None:
    a = make("a")
    a.send()
    a.wait(is_running)

    a.launcher.request_stop(StopReason.SIGTERM)
    a.thread.join(DEADLINE_S)

    assert not a.thread.is_alive()
    assert a.reports[-1].empty_through == 1
    assert [rank.exit and rank.exit.signal for rank in a.reports[-1].ranks] == [15, 15]
    assert a.launcher.stop_requested is StopReason.SIGTERM


def test_a_spare_that_is_asked_to_stop_only_leaves(make: Callable[[str], Member]) -> None:
    a = make("a")
    a.send(ranks=(), attempt=0)
    a.wait(lambda report: report.revision == 1)

    a.launcher.request_stop(StopReason.SIGTERM)
    a.thread.join(DEADLINE_S)

    assert not a.thread.is_alive()
    assert all(report.stop_requested is None for report in a.reports)
