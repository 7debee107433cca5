"""The agent's main loop and its words to the service manager."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.assembly.families import FAMILIES
from agent.daemon.main_loop import RELOADING, STOPPING, MainLoop
from agent.sampling.runner import Runner
from agent.sampling.schedule import Schedule
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError
from rankmend.notify import Notifier
from rankmend.signals import SignalInbox
from tests.support.agent import FakeClock
from tests.support.collectors import LOAD, FakeCollector, StuckCollector
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process


class Manager:
    """systemd's end of the line."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.socket.close()


class FakeSampling:
    def __init__(self) -> None:
        self.pending: tuple[str, ...] = ()
        self.samples = True
        self.watched = 0

    def watch(self) -> None:
        self.watched += 1

    def absent(self) -> tuple[str, ...]:
        return ("md", "nfs")

    def unanswered(self) -> tuple[str, ...]:
        return self.pending

    def is_sampling(self) -> bool:
        return self.samples


class FakeServing:
    is_serving = True


class Bed:
    """A loop with everything around it in the test's hand."""

    def __init__(self, path: Path, watchdog_s: float | None = 30.0) -> None:
        self.sampling, self.serving, self.clock = FakeSampling(), FakeServing(), FakeClock()
        self.reloads = 0
        self.error: ConfigError | None = None
        self.on_reload: Callable[[], None] = lambda: None
        notifier = Notifier(str(path), watchdog_s)
        self.service = MainLoop(self.sampling, self.serving, notifier, self.clock, self.reload)

    def reload(self) -> None:
        self.reloads += 1
        self.on_reload()
        if self.error is not None:
            raise self.error


@pytest.fixture
def bed(tmp_path: Path, manager: Manager) -> Bed:
    return Bed(tmp_path / "notify")


def test_ready_is_said_once_and_only_after_every_collector_has_answered(
    bed: Bed, manager: Manager
) -> None:
    bed.sampling.pending = ("gpu",)
    bed.service.tick()
    before = manager.heard()
    bed.sampling.pending = ()

    bed.service.tick()
    bed.service.tick()

    assert before == ["WATCHDOG=1"]
    assert manager.heard() == [
        "READY=1\nSTATUS=all collectors answer",
        "WATCHDOG=1",
        "WATCHDOG=1",
    ]


def test_collector_that_hangs_from_the_start_delays_ready_by_ten_seconds_and_is_named(
    bed: Bed, manager: Manager
) -> None:
    bed.sampling.pending = ("gpu", "mounts")
    bed.clock.time_s += 9.99
    bed.service.tick()
    before = manager.heard()
    bed.clock.time_s += 0.01

    bed.service.tick()

    assert before == ["WATCHDOG=1"]
    assert manager.heard()[0] == "READY=1\nSTATUS=without gpu, mounts"


def test_watchdog_is_not_pinged_while_nothing_is_sampled_and_the_log_says_so_once(
    bed: Bed, manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bed.service.tick()
    manager.heard()
    bed.sampling.samples = False

    bed.service.tick()
    bed.service.tick()
    silent = manager.heard()
    bed.sampling.samples = True
    bed.service.tick()

    assert silent == []
    assert manager.heard() == ["WATCHDOG=1"]
    assert [record.message for record in caplog.records][-2:] == [
        "sampling is stuck; the watchdog gets no ping",
        "sampling continues",
    ]


def test_watchdog_is_not_pinged_when_the_endpoint_is_dead(bed: Bed, manager: Manager) -> None:
    bed.service.tick()
    manager.heard()
    bed.serving.is_serving = False

    bed.service.tick()

    assert manager.heard() == []


def test_reload_is_announced_and_ends_ready_also_when_it_is_refused(
    bed: Bed, manager: Manager
) -> None:
    bed.service.tick()
    manager.heard()
    bed.error = ConfigError("no collector 'gpus'")

    bed.service.reload()

    began, ended = manager.heard()
    assert began.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert ended == "READY=1\nSTATUS=configuration not reloaded: no collector 'gpus'"
    assert bed.reloads == 1


@pytest.mark.parametrize(
    ("watchdog_s", "expected_s"), [(None, 5.0), (30.0, 5.0), (1.0, 0.5), (2.0, 1.0)]
)
def test_loop_wakes_often_enough_for_the_watchdog(
    tmp_path: Path, manager: Manager, watchdog_s: float | None, expected_s: float
) -> None:
    bed = Bed(tmp_path / "notify", watchdog_s)
    bed.service.tick()

    assert bed.service.wait_s() == expected_s


def test_collectors_are_looked_after_every_five_seconds(bed: Bed) -> None:
    for _look in range(21):
        bed.service.tick()
        bed.clock.time_s += 0.5

    assert bed.sampling.watched == 2


def test_sighup_reloads_and_sigterm_ends_the_loop(bed: Bed, manager: Manager) -> None:
    loop = threading.get_ident()

    def send() -> None:
        # To this thread alone: another test may have left one that blocks them.
        signal.pthread_kill(loop, signal.SIGHUP)
        eventually(lambda: bed.reloads == 1, "the reload")
        signal.pthread_kill(loop, signal.SIGTERM)

    with SignalInbox({RELOADING, *STOPPING}) as inbox:
        sender = threading.Thread(target=send)
        sender.start()
        bed.service.run(inbox)
        sender.join()

    assert manager.heard()[-1] == "STOPPING=1"


def test_sighup_that_comes_before_the_loop_reloads_once_it_runs(bed: Bed) -> None:
    with SignalInbox({RELOADING}) as inbox:
        os.kill(os.getpid(), signal.SIGHUP)
        inbox.catch(STOPPING)
        bed.on_reload = lambda: os.kill(os.getpid(), signal.SIGTERM)

        bed.service.run(inbox)

    assert bed.reloads == 1


def test_inbox_gives_each_signal_once_and_the_handlers_back_at_its_end() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with SignalInbox({signal.SIGHUP}) as inbox:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        inbox.wait(DEADLINE_S)
        first, second = inbox.read(), inbox.read()

    assert (first, second) == ({signal.SIGHUP}, frozenset())
    assert signal.getsignal(signal.SIGHUP) is before


# -- the notifier


def test_nobody_is_told_where_systemd_names_no_socket() -> None:
    notifier = Notifier.from_environment({"WATCHDOG_USEC": "1000000"}, pid=7)

    notifier.ready("x")

    assert notifier.ping_s is None


def test_socket_and_watchdog_are_taken_from_the_environment(manager: Manager) -> None:
    path = manager.socket.getsockname()
    environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}

    notifier = Notifier.from_environment(environment, pid=7)
    notifier.ping()
    notifier.close()

    assert notifier.ping_s == 15.0
    assert manager.heard() == ["WATCHDOG=1"]


def test_watchdog_of_another_process_is_not_ours(tmp_path: Path) -> None:
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "x"),
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": "8",
    }

    assert Notifier.from_environment(environment, pid=7).ping_s is None


def test_abstract_socket_is_reached() -> None:
    name = f"rankmend-test-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind("\0" + name)
    listener.settimeout(DEADLINE_S)
    notifier = Notifier(f"@{name}")

    notifier.ready("two\nlines")

    assert listener.recv(4096) == b"READY=1\nSTATUS=two lines"
    notifier.close()
    listener.close()


@pytest.mark.parametrize(
    "environment",
    [
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
    ],
)
def test_environment_that_makes_no_sense_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"relative|soon|'0'"):
        Notifier.from_environment(environment, pid=7)


def test_manager_that_is_gone_costs_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(str(tmp_path / "gone"), watchdog_s=1.0)

    notifier.ping()
    notifier.ping()

    assert len(caplog.records) == 1
    notifier.close()


# -- what the loop asks of the runner


def test_runner_is_sampling_until_an_idle_collector_has_waited_for_ten_intervals() -> None:
    clock = FakeClock()
    runner = Runner(
        [FakeCollector("host", LOAD)], clock, Schedule(SystemClock()), FAMILIES, {"host": 2.0}
    )
    runner.collect_once(60.0)

    clock.time_s += 20.0
    at_bound = runner.is_sampling()
    clock.time_s += 0.01

    assert at_bound
    assert not runner.is_sampling()


def test_collector_that_hangs_is_no_reason_to_restart_the_agent() -> None:
    stuck = StuckCollector("host")
    runner = Runner([stuck], SystemClock(), Schedule(SystemClock()), FAMILIES, {"host": 0.1})
    runner.start()
    try:
        eventually(lambda: stuck.runs == 2, "the collector to hang")

        assert runner.unanswered() == ()
        assert runner.is_sampling()
    finally:
        stuck.release.set()
        runner.stop()


def test_collector_that_has_not_answered_is_named() -> None:
    runner = Runner(
        [FakeCollector("host", LOAD)], FakeClock(), Schedule(SystemClock()), FAMILIES, {"host": 1.0}
    )

    before = runner.unanswered()
    runner.collect_once(60.0)

    assert (before, runner.unanswered()) == (("host",), ())
