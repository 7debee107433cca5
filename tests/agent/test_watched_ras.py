"""The agent asks NCCL's RAS of a hung watched job, and nobody who merely listens at its port."""

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.watch.evidence import AskedRank, EvidenceGatherer
from agent.watch.nccl_ras import ask_ras
from rankmend.errors import SourceError
from rankmend.watched_report import ReportedEvidence
from tests.support.eventually import eventually
from tests.support.nccl import RAS_TEXT, ras_answer

pytestmark = pytest.mark.process


class Ras(socketserver.StreamRequestHandler):
    """Speaks as the RAS thread of NCCL does."""

    def handle(self) -> None:
        told: Server = self.server  # type: ignore[assignment]
        while line := self.rfile.readline().decode().strip():
            told.heard.append(line)
            if line.startswith("CLIENT PROTOCOL"):
                self.wfile.write(told.greeting)
            elif line == "SET FORMAT json" and told.body[:1] != b"{":
                return  # an older one
            elif line == "VERBOSE STATUS":
                self.wfile.write(told.body)
                return
            else:
                self.wfile.write(b"OK\n")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, body: bytes, greeting: bytes = b"SERVER PROTOCOL 2\n") -> None:
        super().__init__(("127.0.0.1", 0), Ras)
        self.body = body
        self.greeting = greeting
        self.heard: list[str] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def ras(body: bytes, greeting: bytes = b"SERVER PROTOCOL 2\n") -> Iterator[Server]:
    with Server(body, greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def collect(folder: Path, port: int, pids: list[int]) -> dict[int, ReportedEvidence]:
    """Return by rank what is collected of a job whose ranks tell these pids."""
    ranks = []
    for rank, pid in enumerate(pids):
        progress = folder / f"rank-{rank}.progress"
        (folder / f"rank-{rank}.progress.recorder").write_text(json.dumps({"ras_port": port}))
        ranks.append(AskedRank(("job", rank, pid), pid, os.getuid(), progress, 100.0))
    gatherer = EvidenceGatherer(folder / "no-proc")
    gatherer.start(ranks, 0.0)
    eventually(lambda: not gatherer.is_busy, "the end of the gathering")
    return {key[1]: found for key, found in gatherer.found().items()}


def test_answer_is_told_once_for_the_ranks_of_this_node(tmp_path: Path) -> None:
    with ras(ras_answer([50, 49, 50, 49])) as server:
        found = collect(tmp_path, server.port, [100, 101])  # the pids of ranks 0 and 1

    assert list(found) == [0]
    assert found[0].ras == ("rank 1 (process 101 on 10.0.0.1): 49 AllReduce launched, others 50",)
    assert server.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]


def test_nccl_without_json_is_asked_for_text(tmp_path: Path) -> None:
    with ras(RAS_TEXT) as server:
        found = collect(tmp_path, server.port, [483079])

    assert len(found[0].ras) == 1
    assert "6648 AllReduce launched, others 6650" in found[0].ras[0]
    assert server.heard[-1] == "VERBOSE STATUS"


def test_job_without_nccl_has_nothing_to_tell(tmp_path: Path) -> None:
    with ras(b"") as server:
        port = server.port

    assert collect(tmp_path, port, [100]) == {}


@pytest.mark.parametrize(
    ("body", "greeting", "said"),
    [
        (b"x", b"HTTP/1.1 400 Bad Request\r\n", "is no NCCL RAS"),
        (b"{}", b"S" * 4096, "is no NCCL RAS"),
        (b'{"nccl_version": 3}', b"SERVER PROTOCOL 2\n", "can't be read"),
    ],
)
def test_what_answers_otherwise_is_named(
    tmp_path: Path, body: bytes, greeting: bytes, said: str
) -> None:
    with ras(body, greeting) as server:
        found = collect(tmp_path, server.port, [100])

    (note,) = found[0].notes
    assert said in note


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"", "does not answer: timed out"),
        (b"SERVER PROTOCOL 2\n", "answers more than 60000 bytes"),
    ],
)
def test_one_that_never_answers_or_never_ends_holds_nobody_up(greeting: bytes, said: str) -> None:
    limit_s = 60.0 if greeting else 0.2
    with ras(b"{" + b" " * (1 << 16), greeting) as server, pytest.raises(SourceError, match=said):
        ask_ras(server.port, os.getuid(), limit_s, 60_000)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_port_of_another_user_is_not_asked() -> None:
    code = (
        "import os, socket; os.setuid(65534); s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); s.accept()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    port = int(other.stdout.readline())
    try:
        with pytest.raises(SourceError, match="belongs to uid 65534, not to the job's 0"):
            ask_ras(port, 0)
        assert other.poll() is None, "nobody has connected"
    finally:
        other.kill()
        other.communicate()
