"""The word that a launcher is dead and its node empty: who says it, when, and for how long."""

import contextlib
import http.server
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from recovery.api import wire
from recovery.api.contact import Contact
from recovery.api.controller_errors import ConflictError, JobEndedError, UnreachableError
from recovery.launcher.guardian.last_word import say
from recovery.launcher.guardian.word import LastWord
from recovery.launcher.processes.process_tree import fence_leftovers, find_marked, search_marks
from recovery.messages.codec import decode_report
from recovery.messages.exchange import Report
from tests.support.eventually import DEADLINE_S, deadline_s, eventually

pytestmark = [pytest.mark.process, pytest.mark.safety]

REPOSITORY = Path(__file__).parents[3]
TOKEN = "c0ffee" * 10
LAUNCHER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
folder, job_id = sys.argv[2:4]
guardian = Guardian.start(job_id, node="n1")
env = {"PATH": os.environ["PATH"], "RANKMEND_JOB_ID": job_id, "RANKMEND_ATTEMPT": "7"}
guardian.spawn(Spawn(7, 0, ["sleep", "600"], env, "/", 1, 2))
with open(os.path.join(folder, "body"), "rb") as body:
    guardian.leave_word(body.read())
while not guardian.read_events():
    time.sleep(0.01)
open(os.path.join(folder, "ready"), "w").close()
"""
KILLED = "time.sleep(600)"
GOOD_ORDER = "guardian.close()\ntime.sleep(600)"
LIVES_ON = "guardian._link.close()\ntime.sleep(600)"  # as one that stands still does in the end


class Ear:
    """A controller that takes the first word and has it on record at the second."""

    def __init__(self) -> None:
        self.heard: list[tuple[Report, str, int]] = []  # with its token, and how many ranks lived
        ear = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                report = decode_report(self.rfile.read(int(self.headers["Content-Length"])))
                token = self.headers.get("Authorization", "")
                ear.heard.append((report, token, len(find_marked(report.job_id))))
                is_known = len([one for one in ear.heard if one[0].job_id == report.job_id]) > 1
                body = b'{"error": "it has ended"}' if is_known else b'{"revision": 3}'
                self.send_response(409 if is_known else 202)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    thread = threading.Thread(target=ear.server.serve_forever)
    thread.start()
    yield ear
    ear.server.shutdown()
    ear.server.server_close()
    thread.join()


def word_of(job_id: str, url: str) -> LastWord:
    return LastWord(
        job_id=job_id, node="n1", launcher_id="l-1", boot_id="b-1", slots=2, launcher_started_s=5.0,
        contact=Contact(urls=(url,), token=TOKEN),
    )  # fmt: skip


@contextlib.contextmanager
def launcher(folder: Path, job_id: str, url: str, end: str) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher in a process of its own, whose rank runs and whose word is left."""
    folder.mkdir()
    (folder / "body").write_bytes(msgspec.json.encode(word_of(job_id, url)))
    argv = [sys.executable, "-c", LAUNCHER + end, str(REPOSITORY), str(folder), job_id]
    process = subprocess.Popen(argv)
    try:
        eventually((folder / "ready").exists, "a rank runs")
        yield process
    finally:
        process.kill()
        process.wait()
        fence_leftovers(job_id, None, deadline_s())


def test_the_guardian_of_a_killed_launcher_says_that_nothing_is_left_until_that_is_on_record(
    tmp_path: Path, ear: Ear
) -> None:
    job_id = str(uuid.uuid4())
    with launcher(tmp_path / "a", job_id, ear.url, KILLED) as process:
        assert find_marked(job_id)
        (guardian,) = search_marks(job_id).guardians
        seen = b"".join(
            Path(f"/proc/{guardian.pid}/{name}").read_bytes() for name in ("cmdline", "environ")
        )

        process.kill()
        process.wait()
        eventually(
            lambda: len(ear.heard) == 2 and not search_marks(job_id).guardians, "it was said"
        )

    word = word_of(job_id, ear.url).report(7)
    assert ear.heard == [(word, f"Bearer {TOKEN}", 0)] * 2
    assert TOKEN.encode() not in seen


def test_nobody_speaks_for_a_launcher_that_lives(tmp_path: Path, ear: Ear) -> None:
    ended, lives = str(uuid.uuid4()), str(uuid.uuid4())
    with (
        launcher(tmp_path / "a", ended, ear.url, GOOD_ORDER),
        launcher(tmp_path / "b", lives, ear.url, LIVES_ON),
    ):
        for job_id in (ended, lives):
            eventually(
                lambda job_id=job_id: not search_marks(job_id).guardians, "the guardian is gone"
            )
            assert not find_marked(job_id)

        assert ear.heard == []


class Line:
    """The way to a controller that answers so, one after the other, and then so for ever."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.sent = 0

    def __call__(self, _report: Report) -> None:
        self.sent += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer


PROBLEM = wire.Problem(error="it has ended")
LOST = UnreachableError("no answer")
KNOWN = ConflictError("it has ended", 409, PROBLEM)


@pytest.mark.parametrize(
    ("line", "is_said", "sent"),
    [
        (Line(None, KNOWN), True, 2),  # taken once, on record then
        (Line(LOST, KNOWN), True, 2),
        (Line(JobEndedError("done", 410, PROBLEM, None)), True, 1),
        (Line(LOST), False, 1),  # the next try would come too late
    ],
)
def test_a_word_is_repeated_until_it_is_on_record(line: Line, is_said: bool, sent: int) -> None:
    within_s = DEADLINE_S if is_said else 0.01

    assert say(line, word_of("job", "http://127.0.0.1:1").report(7), within_s) is is_said
    assert line.sent == sent
