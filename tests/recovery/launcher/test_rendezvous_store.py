"""The launcher's rendezvous store, with real ranks of real PyTorch on gloo."""

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from rankmend.clock import SystemClock
from rankmend.errors import LaunchError
from rankmend.hook import store_host
from recovery.launcher.ranks.environment import Rendezvous
from recovery.launcher.rendezvous.ports import PortRange, reserve, reserve_exactly
from recovery.launcher.rendezvous.rendezvous_store import (
    FIRST_SERVE_S_MAX,
    RendezvousStore,
    StoreFailure,
    TorchBuild,
    host_environment,
    probe_torch,
)
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.torch_ranks import TorchRank

pytestmark = [pytest.mark.process, pytest.mark.torch]

LOOPBACK = "127.0.0.1"
ATTEMPTS = itertools.count(1, 10)
PORTS = PortRange(20_000, 29_999)
BARE = {"PATH": os.environ.get("PATH", "")}

ALL_REDUCE = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print(value.item())
time.sleep(0.5)  # gloo's threads let go of the last collective, else this may hang (pytorch#56297)
"""
SECOND_GROUP = (
    ALL_REDUCE
    + """
import datetime, os, sys
rank = dist.get_rank()
dist.destroy_process_group()
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=rank,
    world_size=2, timeout=datetime.timedelta(seconds=60))
dist.all_reduce(value)
print(value.item())
time.sleep(0.5)
"""
)
OWN_STORE = """
import os, sys, time
import torch.distributed as dist
rank = int(os.environ["RANK"])
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, is_master=rank == 0)
store.set(str(rank), str(rank + 10))
print(store.get(str(1 - rank)).decode())
dist.init_process_group("gloo")
dist.barrier()
time.sleep(0.5)
dist.destroy_process_group()
"""
OWN_PORT = """
import os, sys
os.environ["MASTER_PORT"] = sys.argv[1]
"""
# Each rank says that it is in the group, waits for a line, and reduces once more.
REDUCE_ON_REQUEST = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("joined", flush=True)
sys.stdin.readline()
dist.all_reduce(value)
print(value.item())
"""


class SetClock:
    now = 0.0

    def now_s(self) -> float:
        return self.now

    def unix_s(self) -> float:
        return self.now


def start_ranks(
    endpoint: Rendezvous,
    source: str,
    *arguments: str,
    count: int = 4,
    environment: Mapping[str, str] = BARE,
) -> list[TorchRank]:
    return [
        TorchRank(
            source,
            arguments,
            {
                **environment,
                "MASTER_ADDR": endpoint.address,
                "MASTER_PORT": str(endpoint.port),
                "TORCHELASTIC_USE_AGENT_STORE": endpoint.agent_store,
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
            },
        )
        for rank in range(count)
    ]


def outputs(ranks: list[TorchRank]) -> list[str]:
    """Return what the ranks printed; all of them must end well."""
    try:
        said = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    failed = [
        (rank.returncode, err)
        for rank, (_out, err) in zip(ranks, said, strict=True)
        if rank.returncode
    ]
    assert failed == []
    return [out for out, _err in said]


def wait_for_failure(store: RendezvousStore) -> StoreFailure:
    descriptor = store.fileno()
    assert descriptor is not None
    found: list[StoreFailure] = []

    def has_failed() -> bool:
        is_readable(descriptor, 1.0)
        failure = store.poll()
        if failure is not None:
            found.append(failure)
        return bool(found)

    eventually(has_failed, "the failure of the store")
    return found[0]


def host_pid(store: RendezvousStore) -> int:
    assert store._host is not None
    return store._host.process.pid


def is_refused(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=DEADLINE_S):
            return False
    except ConnectionResetError:  # it closes at this moment
        return False
    except ConnectionRefusedError:
        return True


@pytest.fixture(scope="module")
def torch_here() -> TorchBuild:
    found = probe_torch(sys.executable, BARE)
    assert found is not None
    return found


@pytest.fixture
def store() -> Iterator[RendezvousStore]:
    opened = RendezvousStore(PORTS, SystemClock(), address=LOOPBACK, bind_address=LOOPBACK)
    yield opened
    opened.close()


@pytest.fixture
def hosted(store: RendezvousStore, torch_here: TorchBuild) -> RendezvousStore:
    store.start(sys.executable, BARE, torch_here)
    return store


@pytest.fixture(scope="module")
def shared(torch_here: TorchBuild) -> Iterator[RendezvousStore]:
    """A store that is hosted, for the tests that leave it so."""
    opened = RendezvousStore(PORTS, SystemClock(), address=LOOPBACK, bind_address=LOOPBACK)
    opened.start(sys.executable, BARE, torch_here)
    yield opened
    opened.close()


@pytest.fixture
def attempt() -> int:
    """The first of ten attempts that no other test opens."""
    return next(ATTEMPTS)


def test_torch_is_found_without_importing_it(torch_here: TorchBuild) -> None:
    import torch

    assert torch_here == TorchBuild(str(torch.__version__))
    assert torch_here.can_host


def test_interpreter_without_torch_has_none(tmp_path: Path) -> None:
    bare = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)

    assert probe_torch(str(bare / "bin" / "python"), BARE) is None


def test_folder_called_torch_is_no_torch(tmp_path: Path) -> None:
    bare = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (tmp_path / "torch").mkdir()
    environment = {**BARE, "PYTHONPATH": str(tmp_path)}

    assert probe_torch(str(bare / "bin" / "python"), environment) is None


@pytest.mark.parametrize("printed", ["hello", "torch 9.9"])
def test_probe_is_not_confused_by_what_a_sitecustomize_prints(
    tmp_path: Path, torch_here: TorchBuild, printed: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"print({printed!r})\n")

    assert probe_torch(sys.executable, {**BARE, "PYTHONPATH": str(tmp_path)}) == torch_here


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false", "/bin/echo"])
def test_interpreter_that_can_not_be_asked_is_named(python: str) -> None:
    with pytest.raises(LaunchError, match=python):
        probe_torch(python, BARE)


@pytest.mark.parametrize(
    ("version", "can_host", "agent_store"),
    [
        ("1.13.1", False, "True"),
        ("2.0.0+cu118", True, "True"),
        ("2.7.1", True, "True"),
        ("2.8.0a0+git1", True, "true"),
        ("3.0.0", True, "true"),
    ],
)
def test_flag_follows_the_version_of_torch(version: str, can_host: bool, agent_store: str) -> None:
    build = TorchBuild(version)

    assert (build.can_host, build.agent_store) == (can_host, agent_store)


def test_torch_that_takes_no_socket_is_refused_by_name(store: RendezvousStore) -> None:
    with pytest.raises(LaunchError, match=r"1\.13\.1"):
        store.start(sys.executable, BARE, TorchBuild("1.13.1"))


def test_host_is_told_nothing_that_is_for_ranks() -> None:
    environment = host_environment(
        {"PYTHONPATH": "/lib", "RANKMEND_ATTEMPT": "3", "MASTER_PORT": "1", "CUDA_HOME": "/cuda"}
    )

    assert environment["PYTHONPATH"] == "/lib"
    assert environment["CUDA_HOME"] == "/cuda"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"RANKMEND_ATTEMPT", "MASTER_PORT"} & environment.keys()


def test_four_ranks_meet_in_our_store(shared: RendezvousStore, attempt: int) -> None:
    endpoint = shared.open_attempt(attempt)

    assert endpoint.is_hosted
    assert outputs(start_ranks(endpoint, ALL_REDUCE)) == ["10.0\n"] * 4


def test_eight_clients_that_connect_before_the_host_exists_are_served(
    store: RendezvousStore, torch_here: TorchBuild
) -> None:
    from torch.distributed import TCPStore

    reserved = reserve(PORTS, LOOPBACK)
    reserved.listen()

    def greet(number: int) -> str:
        client = TCPStore(LOOPBACK, reserved.port, is_master=False)
        client.set(str(number), str(number))
        return client.get(str((number + 1) % 8)).decode()

    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(greet, number) for number in range(8)]
        eventually(lambda: count_connections(reserved.port) == 8, "all clients are in the backlog")
        store.start(sys.executable, BARE, torch_here)
        assert store._host is not None
        store._serve(store._host, 1, reserved)
        reserved.release()

        said = [answer.result(DEADLINE_S) for answer in answers]

    assert said == ["1", "2", "3", "4", "5", "6", "7", "0"]


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait with poll(2): select(2) takes no descriptor above 1,023, and a long run has more."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def count_connections(port: int) -> int:
    return sum(
        connection.raddr.port == port and connection.status == psutil.CONN_ESTABLISHED
        for connection in psutil.Process().net_connections("tcp")
        if connection.raddr
    )


def test_second_attempt_sees_no_key_of_the_first(shared: RendezvousStore, attempt: int) -> None:
    from torch.distributed import TCPStore

    first = shared.open_attempt(attempt)
    client = TCPStore(LOOPBACK, first.port, is_master=False)
    client.set("stale", "address of a dead rank")
    assert client.check(["stale"])

    second = shared.open_attempt(attempt + 1)

    assert second.port != first.port
    eventually(lambda: is_refused(first.port), "the store of attempt 1 is gone")
    assert not TCPStore(LOOPBACK, second.port, is_master=False).check(["stale"])
    assert outputs(start_ranks(second, ALL_REDUCE)) == ["10.0\n"] * 4


def test_restart_after_the_death_of_a_rank_meets_anew(
    shared: RendezvousStore, attempt: int
) -> None:
    ranks = start_ranks(shared.open_attempt(attempt), REDUCE_ON_REQUEST)
    for rank in ranks:
        assert rank.stdout.readline() == "joined\n"
    for rank in ranks:
        rank.kill()
        rank.communicate()

    assert outputs(start_ranks(shared.open_attempt(attempt + 1), ALL_REDUCE)) == ["10.0\n"] * 4


def test_dropped_store_refuses_and_dropping_again_does_nothing(
    shared: RendezvousStore, attempt: int
) -> None:
    from torch.distributed import TCPStore

    endpoint = shared.open_attempt(attempt)
    TCPStore(LOOPBACK, endpoint.port, is_master=False)

    shared.drop(attempt)
    shared.drop(attempt)
    shared.drop(attempt + 7)

    eventually(lambda: is_refused(endpoint.port), "the store is gone")
    assert shared.poll() is None


def test_port_that_the_user_insists_on_serves_every_attempt(torch_here: TorchBuild) -> None:
    port = reserve(PORTS, LOOPBACK)
    port.release()
    store = RendezvousStore(port.port, SystemClock(), address=LOOPBACK, bind_address=LOOPBACK)
    store.start(sys.executable, BARE, torch_here)
    try:
        for attempt in (1, 2, 3):
            endpoint = store.open_attempt(attempt)
            assert (endpoint.port, endpoint.is_hosted) == (port.port, True)
            assert outputs(start_ranks(endpoint, ALL_REDUCE, count=2)) == ["3.0\n"] * 2
    finally:
        store.close()


def test_ranks_that_come_before_the_rank_that_hosts_are_refused_and_not_reset() -> None:
    store = RendezvousStore(PORTS, SystemClock(), address=LOOPBACK, bind_address=LOOPBACK)
    proposed = store.propose()
    assert not proposed.is_hosted

    assert is_refused(proposed.port)  # where a connection would be reset by `open_attempt`
    endpoint = store.open_attempt(1, proposed.port)

    with socket.create_server((LOOPBACK, endpoint.port)):
        assert not is_refused(endpoint.port)
    store.close()


def test_busy_port_that_the_user_insists_on_is_an_error_with_the_holder() -> None:
    held = reserve(PORTS, LOOPBACK)
    held.listen()
    store = RendezvousStore(held.port, SystemClock(), address=LOOPBACK, bind_address=LOOPBACK)

    with pytest.raises(LaunchError, match=rf"port {held.port} .* process {os.getpid()} "):
        store.open_attempt(1)

    held.release()


@pytest.mark.parametrize("use_libuv", ["1", "0"])
def test_second_group_on_a_port_of_the_scripts_own_works(
    shared: RendezvousStore, attempt: int, use_libuv: str
) -> None:
    # With TORCHELASTIC_USE_AGENT_STORE=True, as under torchrun, no rank would host it and all
    # would wait for their time-out (pytorch#191957).
    own = reserve(PORTS, LOOPBACK)
    own.release()
    environment = {**BARE, "USE_LIBUV": use_libuv}

    ranks = start_ranks(
        shared.open_attempt(attempt), SECOND_GROUP, str(own.port), count=2, environment=environment
    )

    assert outputs(ranks) == ["3.0\n6.0\n"] * 2


def test_store_of_the_scripts_own_works(shared: RendezvousStore, attempt: int) -> None:
    own = reserve(PORTS, LOOPBACK)
    own.release()

    ranks = start_ranks(shared.open_attempt(attempt), OWN_STORE, str(own.port), count=2)

    assert outputs(ranks) == ["11\n", "10\n"]


def test_script_that_sets_its_own_master_port_works(shared: RendezvousStore, attempt: int) -> None:
    own = reserve(PORTS, LOOPBACK)
    own.release()

    ranks = start_ranks(shared.open_attempt(attempt), OWN_PORT + ALL_REDUCE, str(own.port), count=2)

    assert outputs(ranks) == ["3.0\n"] * 2


def test_killed_store_is_told_once_and_the_next_attempt_meets_at_rank_0(
    hosted: RendezvousStore,
) -> None:
    ranks = start_ranks(hosted.open_attempt(1), REDUCE_ON_REQUEST, count=2)
    for rank in ranks:
        assert rank.stdout.readline() == "joined\n"
    assert hosted.poll() is None

    os.kill(host_pid(hosted), signal.SIGKILL)
    failure = wait_for_failure(hosted)

    assert failure.attempts == (1,)
    assert "killed by SIGKILL" in failure.text
    assert (hosted.poll(), hosted.fileno(), hosted.is_hosting) == (None, None, False)
    for rank in ranks:  # who has met already goes on
        rank.stdin.write("\n")
        rank.stdin.flush()
    assert outputs(ranks) == ["4.0\n"] * 2
    second = hosted.open_attempt(2)
    assert (second.is_hosted, second.agent_store) == (False, "False")
    assert outputs(start_ranks(second, ALL_REDUCE)) == ["10.0\n"] * 4


def test_store_killed_unnoticed_costs_the_next_attempt_nothing(hosted: RendezvousStore) -> None:
    os.kill(host_pid(hosted), signal.SIGKILL)
    eventually(lambda: is_readable(hosted.fileno(), 0.0), "its end")

    endpoint = hosted.open_attempt(1)

    assert not endpoint.is_hosted
    assert outputs(start_ranks(endpoint, ALL_REDUCE, count=2)) == ["3.0\n"] * 2
    assert "attempt 1" in wait_for_failure(hosted).text


def test_ranks_whose_store_died_before_they_came_meet_at_rank_0(hosted: RendezvousStore) -> None:
    endpoint = hosted.open_attempt(1)
    assert endpoint.is_hosted
    os.kill(host_pid(hosted), signal.SIGKILL)
    wait_for_failure(hosted)

    assert outputs(start_ranks(endpoint, ALL_REDUCE, count=2)) == ["3.0\n"] * 2


def test_stopped_store_is_given_up_after_its_time(torch_here: TorchBuild) -> None:
    clock = SetClock()
    store = RendezvousStore(PORTS, clock, address=LOOPBACK, bind_address=LOOPBACK)
    store.start(sys.executable, BARE, torch_here)
    try:
        os.kill(host_pid(store), signal.SIGSTOP)
        store.open_attempt(1)

        clock.now = FIRST_SERVE_S_MAX
        in_time = store.poll()
        clock.now = FIRST_SERVE_S_MAX + 1
        failure = store.poll()
    finally:
        store.close()

    assert in_time is None
    assert failure is not None
    assert failure.attempts == (1,)
    assert "no answer for 301 s to serving attempt 1" in failure.text
    assert "killed by SIGKILL" in failure.text


def test_torch_that_fails_to_import_is_told_with_its_error(
    store: RendezvousStore, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open')\n")

    store.start(sys.executable, {**BARE, "PYTHONPATH": str(tmp_path)}, TorchBuild("2.13.0"))
    failure = wait_for_failure(store)

    assert "libcudart.so.12: cannot open" in failure.text


STORE_OF_A_LIBRARY = """
class TCPStore:
    def __init__(self, host, port, **options): self.keys = {}
    def set(self, name, value): self.keys[name] = value.encode()
    def get(self, name): return self.keys[name]
"""


def make_torch(folder: Path, library: str) -> None:
    """Make a torch whose package can't be imported, and whose library begins with these lines."""
    for name, body in (
        ("__init__.py", "raise ValueError('the whole package')\n"),
        ("version.py", "__version__ = '2.13.0'\n"),
        ("_C/__init__.py", library + "\ndef _c10d_init(): pass\n"),
        ("_C/_distributed_c10d.py", STORE_OF_A_LIBRARY),
    ):
        path = folder / "torch" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(body)


def test_host_needs_no_more_of_torch_than_its_library(tmp_path: Path) -> None:
    make_torch(tmp_path, "")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    environment = {**host_environment({}), "PYTHONPATH": str(tmp_path)}
    host = subprocess.Popen(
        [sys.executable, str(store_host.__file__)], stdin=theirs.fileno(), env=environment
    )
    theirs.close()

    with socket.create_server((LOOPBACK, 0)) as listener:
        order = json.dumps({"do": "serve", "attempt": 1}).encode()
        socket.send_fds(ours, [order], [listener.fileno()])
        reply = json.loads(ours.recv(4096))

    assert reply == {"serving": 1}
    ours.close()
    assert host.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    "library",
    [
        "raise ImportError('undefined symbol')",
        "import os; os.kill(os.getpid(), 11)",
        "import sys; sys.modules['torch._C._distributed_c10d'] = None",
    ],
)
def test_library_that_does_not_work_alone_costs_nobody_the_store(
    store: RendezvousStore, tmp_path: Path, library: str
) -> None:
    make_torch(tmp_path, library)

    store.start(sys.executable, {**BARE, "PYTHONPATH": str(tmp_path)}, TorchBuild("2.13.0"))

    assert "ValueError: the whole package" in wait_for_failure(store).text


def test_modules_beside_the_host_hide_nobody_elses(store: RendezvousStore, tmp_path: Path) -> None:
    # A torch that looks for a module called as one of the hook's, and finds its own.
    (tmp_path / "layout.py").write_text("name = 'mine'\n")
    (tmp_path / "torch.py").write_text("import layout\nraise ValueError(layout.name)\n")

    store.start(sys.executable, {**BARE, "PYTHONPATH": str(tmp_path)}, TorchBuild("2.13.0"))

    assert "ValueError: mine" in wait_for_failure(store).text


def test_planned_stop_of_the_whole_tree_leaves_the_store(hosted: RendezvousStore) -> None:
    endpoint = hosted.open_attempt(1)
    assert outputs(start_ranks(endpoint, ALL_REDUCE, count=2)) == ["3.0\n"] * 2
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(host_pid(hosted), number)

    from torch.distributed import TCPStore

    TCPStore(LOOPBACK, endpoint.port, is_master=False).set("last save", "done")
    assert hosted.poll() is None


def test_closed_store_leaves_neither_process_nor_port(hosted: RendezvousStore) -> None:
    endpoint = hosted.open_attempt(1)
    pid = host_pid(hosted)

    hosted.close()
    hosted.close()

    assert not Path(f"/proc/{pid}").exists()
    reserve_exactly(endpoint.port, LOOPBACK).release()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_killed_launcher_leaves_no_store(is_stopped: bool) -> None:
    from torch.distributed import TCPStore

    source = """
import os, sys, time
from rankmend.clock import SystemClock
from recovery.launcher.rendezvous.ports import PortRange
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore, probe_torch
store = RendezvousStore(PortRange(20000, 29999), SystemClock(), address="127.0.0.1",
                        bind_address="127.0.0.1")
store.start(sys.executable, os.environ, probe_torch(sys.executable, os.environ))
print(store.open_attempt(1).port, store._host.process.pid, flush=True)
time.sleep(600)
"""
    launcher = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert launcher.stdout is not None
    port, pid = (int(word) for word in launcher.stdout.readline().split())
    TCPStore(LOOPBACK, port, is_master=False)  # it serves, so it has set itself up
    if is_stopped:  # it won't read that its socket has ended
        os.kill(pid, signal.SIGSTOP)

    launcher.kill()
    launcher.communicate()

    try:
        eventually(lambda: is_gone(pid), "the end of the store")
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise
    eventually(lambda: is_refused(port), "the end of its socket")


def is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat[stat.rindex(")") + 2] in "ZX"


def test_host_gets_the_descriptor_over_its_socket_and_ends_with_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    host = subprocess.Popen(
        [sys.executable, str(store_host.__file__)], stdin=theirs.fileno(), env=host_environment({})
    )
    theirs.close()
    listener = reserve(PORTS, LOOPBACK)

    def ask(command: object, *descriptors: int) -> object:
        socket.send_fds(ours, [json.dumps(command).encode()], descriptors)
        return json.loads(ours.recv(4096))

    assert ask({"do": "serve", "attempt": 4}) == {
        "failed": 4,
        "error": "ValueError: not understood: {'do': 'serve', 'attempt': 4} with 0 descriptors",
    }
    assert ask({"do": "serve", "attempt": 5}, listener.listen().fileno()) == {"serving": 5}
    listener.release()
    assert not is_refused(listener.port)
    assert ask({"do": "drop", "attempt": 5}) == {"dropped": 5}
    eventually(lambda: is_refused(listener.port), "the store is gone")
    ours.close()
    assert host.wait(DEADLINE_S) == 0
