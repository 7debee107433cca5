"""The rendezvous store in a process of the fork server, with real PyTorch: what it survives, and what it never does."""

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from rankmend.clock import SystemClock
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT, Emptied, Event, Spawned
from recovery.launcher.processes.process_tree import read_state
from recovery.launcher.ranks.fork_server import FIRST_STORE_SLOT, ServerState
from recovery.launcher.ranks.waiting_processes import WaitingProcesses
from recovery.launcher.rendezvous.ports import PortRange
from recovery.launcher.rendezvous.rendezvous_store import (
    FORKED_LOST_MAX,
    RendezvousStore,
    StoreFailure,
    StoreFork,
    TorchBuild,
    probe_torch,
)
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.fork_bench import Node

pytestmark = [pytest.mark.process, pytest.mark.torch]

LOOPBACK = "127.0.0.1"
TORCH = ["torch", "torch.distributed"]
OWN_MIB_MAX = 30.0  # 2 to 4 here; one that imports torch by itself has 144


class Bench:
    """A node with a fork server, and its store; the launcher's part is played by the test."""

    def __init__(self, folder: Path, torch: TorchBuild) -> None:
        self.node = Node(folder)
        self.torch = torch
        ports = PortRange(20_000, 29_999)
        self.store = RendezvousStore(ports, SystemClock(), address=LOOPBACK, bind_address=LOOPBACK)
        self.failures: list[StoreFailure] = []
        self.pids: list[int] = []  # of the processes that were forked for stores
        self.node.take_event = self.take_event

    def take_event(self, event: Event) -> None:
        self.store.take_event(event)
        is_ours = getattr(event, "attempt", None) == STANDBY_ATTEMPT
        if is_ours and isinstance(event, Spawned) and event.rank >= FIRST_STORE_SLOT:
            self.pids.append(event.pid)

    def pid(self, number: int = 1) -> int:
        """Return the process of the store that was forked as this one; the store may serve before the event comes."""
        self.until(lambda: len(self.pids) >= number)
        return self.pids[number - 1]

    def forked(self) -> StoreFork:
        fork = WaitingProcesses(None, self.node.server).store_fork(self.node.guardian)
        assert fork is not None
        return fork

    def prepare(self) -> None:
        self.store.prepare(self.node.python, self.node.base, self.torch)

    def start(self) -> None:
        self.store.start(self.node.python, self.node.base, self.torch)

    def until(self, is_so: object) -> None:
        def look() -> object:
            failure = self.store.poll()
            if failure is not None:
                self.failures.append(failure)
            return is_so() if callable(is_so) else is_so

        self.node.until(look)

    def exchange(self, port: int) -> None:
        """Have two clients exchange a key through the store, and wait until its process has reported that it serves.

        It serves a little earlier: one that dies in between has its socket handed to another, and no loss is reported.
        """
        from torch.distributed import TCPStore

        def greet(number: int) -> str:
            client = TCPStore(LOOPBACK, port, is_master=False)
            client.set(str(number), str(number))
            return client.get(str(1 - number)).decode()

        with ThreadPoolExecutor(2) as clients:
            answers = [clients.submit(greet, number) for number in range(2)]
            self.until(lambda: all(answer.done() for answer in answers))
        assert [answer.result(DEADLINE_S) for answer in answers] == ["1", "0"]
        self.until(self.has_reported)

    def has_reported(self) -> bool:
        host = self.store._host
        return host is not None and not host.asked_at_s

    def fence(self, through: int) -> None:
        self.node.guardian.kill_through(through)
        self.until(
            lambda: any(
                isinstance(event, Emptied) and event.through_attempt == through
                for event in self.node.events
            )
        )

    def close(self) -> None:
        self.node.close()
        self.store.close()
        assert not any(is_running(pid) for pid in self.pids)


def is_running(pid: int) -> bool:
    state = read_state(pid)
    return state is not None and not state.is_gone


def own_mib(pid: int) -> float:
    memory = psutil.Process(pid).memory_full_info()
    return memory.uss / 2**20


def own_host_pid(store: RendezvousStore) -> int:
    assert store._host is not None
    assert store._host.process is not None
    return store._host.process.pid


@pytest.fixture(scope="module")
def torch_here() -> TorchBuild:
    found = probe_torch(sys.executable, {"PATH": os.environ["PATH"]})
    assert found is not None
    return found


@pytest.fixture
def bench(tmp_path: Path, torch_here: TorchBuild) -> Iterator[Bench]:
    made = Bench(tmp_path, torch_here)
    yield made
    made.close()


def test_a_store_out_of_a_ready_server_serves_with_hardly_any_memory_of_its_own(
    bench: Bench,
) -> None:
    bench.prepare()
    bench.node.make_ready(TORCH)

    endpoint = bench.store.open_attempt(1, forked=bench.forked())
    bench.exchange(endpoint.port)

    assert endpoint.is_hosted
    assert bench.store.is_forked
    assert own_mib(bench.pid()) < OWN_MIB_MAX
    command = Path(f"/proc/{bench.pid()}/cmdline").read_text()
    assert "rankmend.hook.store_host" in command


def test_ranks_wait_for_the_store_of_a_server_that_still_imports(bench: Bench) -> None:
    bench.prepare()
    bench.node.learn(TORCH)
    bench.node.begin(ServerState.STARTING)

    endpoint = bench.store.open_attempt(1, forked=bench.forked())
    bench.exchange(endpoint.port)

    assert bench.store.is_forked
    assert bench.failures == []


def test_a_server_killed_before_it_forks_costs_no_rank_its_store(bench: Bench) -> None:
    bench.prepare()
    bench.node.learn(TORCH)
    bench.node.begin(ServerState.STARTING)
    bench.until(lambda: bench.node.server.pid)
    endpoint = bench.store.open_attempt(1, forked=bench.forked())

    os.kill(bench.node.server.pid, signal.SIGKILL)
    bench.exchange(endpoint.port)

    assert not bench.store.is_forked, "it was started as without a server"
    assert bench.failures == []


def test_a_server_without_torch_is_asked_for_no_store(bench: Bench) -> None:
    bench.prepare()
    bench.node.make_ready(["json"])

    endpoint = bench.store.open_attempt(1, forked=bench.forked())
    bench.exchange(endpoint.port)

    assert not bench.store.is_forked


@pytest.mark.safety
def test_neither_the_end_of_the_server_nor_a_fence_ends_the_store(bench: Bench) -> None:
    bench.prepare()
    bench.node.make_ready(TORCH)
    endpoint = bench.store.open_attempt(2, forked=bench.forked())
    bench.exchange(endpoint.port)

    os.kill(bench.node.server.pid, signal.SIGKILL)
    bench.until(lambda: bench.node.server.state is not ServerState.READY)
    bench.fence(through=2)

    assert is_running(bench.pid())
    bench.exchange(endpoint.port)
    assert bench.failures == []


def test_a_planned_stop_of_the_whole_tree_leaves_the_forked_store(bench: Bench) -> None:
    bench.prepare()
    bench.node.make_ready(TORCH)
    endpoint = bench.store.open_attempt(1, forked=bench.forked())
    bench.exchange(endpoint.port)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(bench.pid(), number)

    bench.exchange(endpoint.port)


def test_the_store_moves_into_the_server_at_the_next_attempt(bench: Bench) -> None:
    bench.start()
    first = bench.store.open_attempt(1, forked=bench.forked())
    before = own_host_pid(bench.store)
    bench.exchange(first.port)
    bench.node.make_ready(TORCH)

    bench.store.move(bench.forked())
    bench.exchange(first.port)  # the present attempt keeps its store
    assert own_host_pid(bench.store) == before
    second = bench.store.open_attempt(2, forked=bench.forked())
    bench.exchange(second.port)

    assert bench.store.is_forked
    assert second.port != first.port
    bench.until(lambda: not is_running(before))
    assert bench.failures == []


def test_a_forked_store_that_is_killed_is_told_once_and_the_next_attempt_has_another(
    bench: Bench,
) -> None:
    bench.prepare()
    bench.node.make_ready(TORCH)
    first = bench.store.open_attempt(1, forked=bench.forked())
    bench.exchange(first.port)

    os.kill(bench.pid(), signal.SIGKILL)
    bench.until(lambda: bench.failures)
    second = bench.store.open_attempt(2, forked=bench.forked())
    bench.exchange(second.port)

    assert [failure.attempts for failure in bench.failures] == [(1,)]
    assert "another process hosts the store" in bench.failures[0].text
    assert (second.is_hosted, bench.store.is_forked) == (True, True)


def test_no_more_are_forked_after_three_that_ended(bench: Bench) -> None:
    bench.prepare()
    bench.node.make_ready(TORCH)
    for attempt in range(1, FORKED_LOST_MAX + 1):
        endpoint = bench.store.open_attempt(attempt, forked=bench.forked())
        bench.exchange(endpoint.port)
        os.kill(bench.pid(attempt), signal.SIGKILL)
        bench.until(lambda: len(bench.failures) == attempt)  # noqa: B023 - called at once

    endpoint = bench.store.open_attempt(9, forked=bench.forked())
    bench.exchange(endpoint.port)

    assert (endpoint.is_hosted, bench.store.is_forked) == (True, False)


@pytest.mark.safety
def test_a_server_that_goes_on_too_late_makes_no_second_store(bench: Bench) -> None:
    bench.prepare()
    bench.node.make_ready(TORCH)
    os.kill(bench.node.server.pid, signal.SIGSTOP)
    server = bench.node.server.pid
    endpoint = bench.store.open_attempt(1, forked=bench.forked())

    bench.exchange(endpoint.port)  # by one that was started once the guardian had given up
    os.kill(server, signal.SIGCONT)
    bench.exchange(endpoint.port)

    assert not bench.store.is_forked
    assert bench.pids == []
    eventually(lambda: holders(endpoint.port) == [own_host_pid(bench.store)], "one process has it")


def holders(port: int) -> list[int | None]:
    return [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]


def test_a_killed_guardian_leaves_no_store_and_the_next_attempt_has_another(bench: Bench) -> None:
    bench.prepare()
    bench.node.make_ready(TORCH)
    endpoint = bench.store.open_attempt(1, forked=bench.forked())
    bench.exchange(endpoint.port)

    pid = bench.pid()

    os.kill(bench.node.guardian.pid, signal.SIGKILL)

    eventually(lambda: not is_running(pid), "the end of the store")
    second = bench.store.open_attempt(2)
    assert second.is_hosted
    assert not bench.store.is_forked
