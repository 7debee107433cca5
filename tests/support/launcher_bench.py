"""A launcher's loop in a thread, with real ranks; the test plays the controller."""

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rankmend.clock import SystemClock, read_boot_id
from recovery.launcher.agent_link import AgentLink
from recovery.launcher.guardian.guardian_client import Guardian
from recovery.launcher.launcher import Launcher
from recovery.launcher.membership.node_membership import alone
from recovery.launcher.ranks.command import RankCommand
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.rank_output import Output, OutputPlan, Streams
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.rendezvous.ports import read_default_range
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore
from recovery.messages.exchange import VERSION, Order, RankReport, Report, Stop
from tests.support.console import FakeConsole
from tests.support.eventually import DEADLINE_S, eventually

STEPS = """
import time, rankmend
for step in range(1, 100000):
    with rankmend.section("compute"):
        time.sleep(0.005)
    rankmend.step(step)
"""
ARGV = (sys.executable, "script.py", "--from", "{checkpoint}")


JOB = "00000000-0000-0000-0000-000000000007"


def report(number: int = 1, *ranks: RankReport, attempt: int = 1) -> Report:
    return Report(
        version=VERSION,
        node="a",
        boot_id="boot",
        job_id=JOB,
        revision=0,
        attempt=attempt,
        ranks=ranks,
        empty_through=0,
        number=number,
    )


def order(revision: int, epoch: int = 1) -> Order:
    return Order(
        version=VERSION,
        job_id=JOB,
        revision=revision,
        attempt=1,
        ranks=(),
        world_size=1,
        group_rank=0,
        group_count=1,
        stop=Stop.KILL,
        grace_s=0.0,
        restore=None,
        restarts=0,
        restarts_max=1,
        epoch=epoch,
    )


class Node:
    """A launcher in the main thread's place, and a controller's view of it."""

    def __init__(self, folder: Path, code: str, argv: tuple[str, ...]) -> None:
        self.job_id = uuid.uuid4()
        self.reports: list[Report] = []
        self.console = FakeConsole()
        (folder / "script.py").write_text(code)
        clock = SystemClock()
        self.plan = LaunchPlan(
            job_id=str(self.job_id),
            job_name="test",
            node="here",
            boot_id=read_boot_id(),
            command=RankCommand(argv, None),
            environment=os.environ,
            folder=folder,
            run_id="test",
            role="default",
            fence_file=None,
            is_auto=True,
            time_limit_s=None,
        )
        self.output = Output(
            OutputPlan(None, (Streams.NONE,) * 2, (Streams.NONE,) * 2, None, True), self.console
        )
        self.store = RendezvousStore(
            read_default_range(), clock, address="127.0.0.1", bind_address="127.0.0.1"
        )
        self.runtime = RuntimeFolder(Path("/dev/shm"), self.job_id)
        self.launcher = Launcher(
            self.plan,
            lambda: Guardian.start(str(self.job_id)),
            self.store,
            self.output,
            self.runtime,
            AgentLink([], clock),
            clock,
            self.reports.append,
            alone(2),
            takes_signals=False,
        )
        self.thread = threading.Thread(target=self.launcher.run, args=(0,))
        self.thread.start()
        self.order = Order(
            version=VERSION,
            job_id=str(self.job_id),
            revision=1,
            attempt=1,
            ranks=(0, 1),
            world_size=2,
            group_rank=0,
            group_count=1,
            stop=Stop.KILL,
            grace_s=5.0,
            restore=None,
            restarts=0,
            restarts_max=3,
        )

    def send(self, **changes: object) -> None:
        self.order = replace(self.order, **changes)  # type: ignore[arg-type]
        self.launcher.send(self.order)

    def wait(self, is_so: Callable[[Report], bool]) -> Report:
        def look() -> Report | None:
            last = self.reports[-1] if self.reports else None
            if last is not None and is_so(last):
                return last
            assert self.thread.is_alive()
            return None

        return eventually(look, lambda: f"a report; last: {self.reports[-1:]}")

    def close(self) -> None:
        self.launcher.finish()
        self.thread.join(DEADLINE_S)
        self.launcher.close()
        self.store.close()
        self.output.close()


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    nodes: list[Node] = []

    def make(code: str = STEPS, argv: tuple[str, ...] = ARGV) -> Node:
        nodes.append(Node(tmp_path, code, argv))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


def both(report: Report, is_so: Callable[[RankReport], bool]) -> bool:
    return len(report.ranks) == 2 and all(is_so(rank) for rank in report.ranks)
