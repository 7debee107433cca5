"""Daemons that are paused: SIGSTOP and SIGCONT, a debugger, `docker pause`, `systemctl freeze`."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.root_helper.client import HelperClient
from agent.root_helper.questions import HelperQuery
from rankmend.clock import SystemClock
from tests.support.agent import ROOT, AgentProcess, is_listening, running_agent
from tests.support.eventually import DEADLINE_S, eventually, fault_lasts
from tests.support.faults import process as faults
from tests.support.faults.fault import Fault
from tests.support.service import make_folder

PAUSES = 8
PING_S = 0.1  # the watchdog has the loop wait no longer: a pause need only outlast this
PAUSE_S = 3 * PING_S

pytestmark = pytest.mark.process


class Manager:
    """systemd's end of the line."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(DEADLINE_S)
        self.environment = {
            "NOTIFY_SOCKET": str(path),
            "WATCHDOG_USEC": str(int(2 * PING_S * 1e6)),
        }

    def wait_for(self, text: str) -> str:
        while True:
            message = self.socket.recv(4096).decode()
            if text in message:
                return message

    def forget(self) -> None:
        """Drop what has come until now."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(4096):
                pass
        except BlockingIOError:
            self.socket.settimeout(DEADLINE_S)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.socket.close()


def pause(agent: AgentProcess, manager: Manager, fault: Callable[[], Fault]) -> None:
    """Pause the agent for longer than its loop waits, and see the loop go on."""
    with fault():
        fault_lasts(PAUSE_S)
        manager.forget()
    manager.wait_for("WATCHDOG=1")
    assert agent.process.poll() is None


def see_it_works(agent: AgentProcess, port: int, manager: Manager) -> None:
    """The page is served, SIGHUP reloads, SIGTERM ends it with 0."""
    status, page = agent.get(port, "/metrics")
    agent.process.send_signal(signal.SIGHUP)
    manager.wait_for("configuration reloaded")
    code = agent.stop()

    assert (status, code) == (200, 0), "".join(agent.lines)
    assert "rankmend_agent_info{" in page
    assert "stopping signal=SIGTERM" in "".join(agent.lines)


def test_agent_survives_being_stopped_and_continued_again_and_again(
    manager: Manager, tmp_path: Path
) -> None:
    arguments = ("--socket", str(tmp_path / "agent.sock"))
    with running_agent(*arguments, environment=manager.environment) as (agent, port):
        manager.wait_for("READY=1")

        for _ in range(PAUSES):
            pause(agent, manager, lambda: faults.stop(agent.process))

        see_it_works(agent, port, manager)


def test_agent_survives_a_frozen_cgroup(manager: Manager, tmp_path: Path) -> None:
    arguments = ("--socket", str(tmp_path / "agent.sock"))
    with running_agent(*arguments, environment=manager.environment) as (agent, port):
        manager.wait_for("READY=1")
        try:
            faults.freeze(agent.process).end()
        except OSError as error:
            pytest.skip(f"no cgroup of version 2 can be made here: {error}")

        for _ in range(PAUSES):
            pause(agent, manager, lambda: faults.freeze(agent.process))

        see_it_works(agent, port, manager)


def has_signal(pid: int, mask_name: str, number: int) -> bool:
    """Tell whether a signal is in a mask of a process: SigCgt (it has a handler) or SigBlk (blocked)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith(f"{mask_name}:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_sighup_while_the_agent_starts_is_neither_its_end_nor_lost(
    manager: Manager, tmp_path: Path
) -> None:
    agent = AgentProcess(
        *("--listen", "127.0.0.1:0", "--socket", str(tmp_path / "agent.sock")),
        environment=manager.environment,
    )
    try:
        pid = agent.process.pid
        eventually(lambda: has_signal(pid, "SigCgt", signal.SIGHUP), "a handler of SIGHUP")
        agent.process.send_signal(signal.SIGHUP)

        started = agent.wait_for_line("agent started")
        agent.wait_for_line("configuration reloaded")
        manager.wait_for("READY=1")

        assert "Traceback" not in "".join(agent.lines)
        assert agent.stop() == 0, started
    finally:
        agent.process.kill()
        agent.process.communicate()


def test_sighup_while_the_controller_starts_is_neither_its_end_nor_lost(tmp_path: Path) -> None:
    config = make_folder(tmp_path / "controller")
    controller = subprocess.Popen(
        [sys.executable, "-m", "rankmend.cli", "controller", "run", "--config", str(config)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pid = controller.pid
        eventually(lambda: has_signal(pid, "SigBlk", signal.SIGHUP), "SIGHUP to be blocked")
        controller.send_signal(signal.SIGHUP)

        assert controller.stderr is not None
        lines = []
        for line in controller.stderr:
            lines.append(line)
            if "configuration reloaded" in line:
                break
        controller.send_signal(signal.SIGTERM)
        lines.append(controller.communicate(timeout=DEADLINE_S)[1])
    finally:
        controller.kill()
        controller.communicate()

    assert "configuration reloaded" in "".join(lines)
    assert controller.returncode == 0, "".join(lines)


@contextmanager
def running_helper(path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = (sys.executable, "-m", "rankmend.cli.__main__", "agent-helper")
    process = subprocess.Popen(
        [*command, "--socket", str(path), "--user", str(os.getuid())],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: is_listening(path), "the helper's socket")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_root_helper_survives_pauses_and_sighup_and_answers_after_them(tmp_path: Path) -> None:
    path = tmp_path / "run" / "helper.sock"
    with running_helper(path) as helper:
        for _ in range(3):
            with faults.stop(helper):
                fault_lasts(1.2)  # its loop waits for 1 s
        helper.send_signal(signal.SIGHUP)
        answer = HelperClient(path, SystemClock(), DEADLINE_S).ask(HelperQuery.TRANSCEIVERS)
        helper.send_signal(signal.SIGTERM)
        _out, text = helper.communicate(timeout=DEADLINE_S)

    assert answer.results[0].name == "all"
    assert helper.returncode == 0, text
    assert "there is no configuration to reload" in text
    assert "stopping signal=SIGTERM" in text
