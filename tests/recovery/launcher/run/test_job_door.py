"""The door of a job on one node: who may ask, how long, how much, and what happens to questions that nobody waits for."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from rankmend.errors import JournalError
from recovery.api import job_socket, wire
from recovery.api.controller_errors import LauncherError
from recovery.api.job_socket import JobAnswer, JobAsk
from recovery.launcher.run.door_call import NoDoorError, ask_door
from recovery.launcher.run.job_door import JobDoor
from recovery.messages.outside import PersonAct
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

DONE = JobAnswer(done=wire.Done("done"))


class Desk:
    """Takes questions for the test to answer; at once, where it has an answer."""

    def __init__(self, answer: JobAnswer | Exception | None = DONE) -> None:
        self.answer = answer
        self.asked: list[tuple[JobAsk, str]] = []
        self.futures: list[Future[JobAnswer]] = []
        self.is_asked = threading.Event()

    def take(self, ask: JobAsk, who: str) -> "Future[JobAnswer]":
        future: Future[JobAnswer] = Future()
        self.asked.append((ask, who))
        self.futures.append(future)
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer is not None:
            future.set_result(self.answer)
        self.is_asked.set()
        return future


@pytest.fixture
def open_door(tmp_path: Path) -> Iterator[Callable[[Desk], JobDoor]]:
    doors = []

    def make(desk: Desk) -> JobDoor:
        door = JobDoor(tmp_path, desk.take)
        door.open()
        doors.append(door)
        return door

    yield make
    for door in doors:
        door.close()


def connect(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(DEADLINE_S)
    with job_socket.short_path(folder) as path:
        connection.connect(path)
    return connection


def test_command_arrives_with_the_user_that_the_kernel_names(
    tmp_path: Path, open_door: Callable[[Desk], JobDoor]
) -> None:
    desk = Desk()
    open_door(desk)
    command = wire.JobCommand(act=PersonAct.APPROVE, reason="woken", incident_id="abc-1")

    answer = ask_door(tmp_path, JobAsk(command=command))

    assert answer.done == wire.Done("done")
    assert desk.asked == [(JobAsk(command=command), f"uid {os.geteuid()}")]
    assert (tmp_path / job_socket.NAME).stat().st_mode & 0o777 == 0o600


def test_question_is_answered_in_a_folder_with_a_path_longer_than_a_socket_address(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    door = JobDoor(folder, Desk().take)
    door.open()

    assert ask_door(folder, JobAsk()) == DONE

    door.close()
    assert list(folder.iterdir()) == []


def test_socket_of_a_killed_launcher_is_replaced(
    tmp_path: Path, open_door: Callable[[Desk], JobDoor]
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / job_socket.NAME))
    with pytest.raises(NoDoorError, match="refused"):
        ask_door(tmp_path, JobAsk())

    open_door(Desk())

    assert ask_door(tmp_path, JobAsk()) == DONE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_is_refused_even_where_the_folder_lets_him_in(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    desk = Desk()
    door = JobDoor(folder, desk.take)
    door.open()
    try:
        (folder / job_socket.NAME).chmod(0o666)
        code = (
            "import os, socket, sys; os.setuid(12345); s = socket.socket(socket.AF_UNIX); s.settimeout(60); "
            "s.connect(sys.argv[1]); print(s.recv(10000).decode())"
        )
        told = subprocess.run(
            [sys.executable, "-c", code, str(folder / job_socket.NAME)],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        ).stdout
    finally:
        door.close()
        folder.rmdir()

    assert "only that user and root may decide about it, not uid 12345" in told
    assert desk.asked == []


@pytest.mark.parametrize(
    "line", [b"\n", b"{\n", b'{"command": {"act": "explode"}}\n', b"[" * 5000 + b"\n"]
)
def test_what_is_no_question_is_refused_and_the_next_one_answered(
    tmp_path: Path, open_door: Callable[[Desk], JobDoor], line: bytes
) -> None:
    desk = Desk()
    open_door(desk)

    with connect(tmp_path) as connection:
        connection.sendall(line)
        answer = job_socket.decode_line(connection.makefile("rb").readline(), JobAnswer)

    assert answer.status == 400
    assert desk.asked == []
    assert ask_door(tmp_path, JobAsk()) == DONE


def test_endless_question_is_cut_off(tmp_path: Path, open_door: Callable[[Desk], JobDoor]) -> None:
    desk = Desk()
    open_door(desk)

    with connect(tmp_path) as connection, pytest.raises(OSError, match=r"reset|[Pp]ipe"):
        connection.sendall(b" " * 100 * job_socket.ASK_BYTES_MAX)

    assert desk.asked == []
    assert ask_door(tmp_path, JobAsk()) == DONE


def test_question_whose_asker_has_gone_is_not_carried_out(
    tmp_path: Path, open_door: Callable[[Desk], JobDoor]
) -> None:
    desk = Desk(None)
    open_door(desk)

    with pytest.raises(LauncherError, match="has not answered within 0 s"):
        ask_door(tmp_path, JobAsk(), patience_s=0.0)
    assert desk.is_asked.wait(DEADLINE_S)

    desk.answer = DONE
    assert ask_door(tmp_path, JobAsk()) == DONE  # served once the door has dropped the first
    assert desk.futures[0].cancelled()


@pytest.mark.safety
def test_journal_that_cannot_be_written_is_said(
    tmp_path: Path, open_door: Callable[[Desk], JobDoor]
) -> None:
    open_door(Desk(JournalError("disk full")))

    answer = ask_door(tmp_path, JobAsk())

    assert answer.status == 503
    assert answer.problem == wire.Problem("the journal can't be written: disk full")


def test_door_that_closes_answers_the_question_that_waits(
    tmp_path: Path, open_door: Callable[[Desk], JobDoor]
) -> None:
    desk = Desk(None)
    door = open_door(desk)
    answers: list[JobAnswer] = []
    asking = threading.Thread(target=lambda: answers.append(ask_door(tmp_path, JobAsk())))
    asking.start()
    assert desk.is_asked.wait(DEADLINE_S)

    door.close()
    asking.join(DEADLINE_S)

    assert answers == [JobAnswer(problem=wire.Problem("the job has ended"), status=410)]
    with pytest.raises(NoDoorError):
        ask_door(tmp_path, JobAsk())


def test_stopped_launcher_is_named_and_nothing_is_done_once_it_continues(tmp_path: Path) -> None:
    code = f"""
import sys, time
from concurrent.futures import Future
from pathlib import Path
from recovery.api import wire
from recovery.api.job_socket import JobAnswer
from recovery.launcher.run.job_door import JobDoor
def take(ask, who):
    print(ask.node, flush=True)
    future = Future()
    future.set_result(JobAnswer(done=wire.Done("done")))
    return future
JobDoor(Path({str(tmp_path)!r}), take).open()
print("open", flush=True)
time.sleep(600)
"""
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"open\n"
        launcher.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, launcher.pid, os.WSTOPPED | os.WNOWAIT)

        with pytest.raises(LauncherError, match=f"kill -CONT {launcher.pid}"):
            ask_door(tmp_path, JobAsk(node="n1"), patience_s=DEADLINE_S)

        launcher.send_signal(signal.SIGCONT)
        assert ask_door(tmp_path, JobAsk(node="n2"), patience_s=DEADLINE_S) == DONE
        assert launcher.stdout.readline() == b"n2\n"
    finally:
        launcher.kill()
        launcher.wait()
