"""Jobs under the real torchrun with the rendezvous backend `rankmend`, and agents that say what a test wants."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S
from tests.support.free_port import free_port

CODE = Path(__file__).parents[2]
_ENTRY = "[torchrun.handlers]\nrankmend = rankmend_torchrun:get_handler\n"
# `python -m torch.distributed.run` where rankmend is installed, in a process that has imported PyTorch but nothing of torchrun.
_TORCHRUN = """import sys
sys.path.insert(1, {installed!r})
from torch.distributed.run import main
main()
"""
_METADATA = "Metadata-Version: 2.1\nName: rankmend-beside\nVersion: 1.0\n"


class BesideTorchrun:
    """One job's torchruns on this machine."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.script = folder / "train.py"
        self.script.write_text(script)
        self._endpoint = f"127.0.0.1:{free_port()}"
        installed = folder / "installed" / "rankmend_beside-1.0.dist-info"
        installed.mkdir(parents=True)
        (installed / "entry_points.txt").write_text(_ENTRY)
        (installed / "METADATA").write_text(_METADATA)
        self._path = f"{CODE}{os.pathsep}{installed.parent}"
        self._torchrun = folder / "torchrun.py"
        self._torchrun.write_text(_TORCHRUN.format(installed=str(installed.parent)))
        self._runs: list[TorchrunProcess] = []

    def python(self, code: str) -> str:
        """Return what a program prints where rankmend is installed."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": self._path}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=True
        )
        return done.stdout.strip()

    def start(
        self,
        *arguments: str,
        conf: Mapping[str, object] | None = None,
        nproc: int = 1,
    ) -> "TorchrunProcess":
        settings = {"last_call_timeout": 2, "agent": "http://127.0.0.1:1", **(conf or {})}
        words = [
            *("--rdzv-backend", "rankmend", "--rdzv-endpoint", self._endpoint, "--rdzv-id", "job"),
            *("--rdzv-conf", ",".join(f"{name}={value}" for name, value in settings.items())),
            *("--nproc-per-node", str(nproc), "--max-restarts", "2"),
            *arguments,
            str(self.script),
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": self._path,
            "RANKMEND_STATE_DIR": str(self.state),
            "OMP_NUM_THREADS": "1",
            # PyTorch 2.13: ranks that restart over the launchers' store may find the addresses of the attempt before,
            # also with `c10d` alone (2 of 4 runs of HANGS_ONCE failed).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        output = self.folder / f"torchrun-{len(self._runs)}.log"
        with output.open("wb") as stdout:
            started = forked_cli.start_script(
                self._torchrun, words, environment=environment, stdout=stdout, cwd=self.folder
            )
        self._runs.append(TorchrunProcess(started, output))
        return self._runs[-1]

    def close(self) -> None:
        for run in self._runs:
            run.process.kill()
            run.process.wait(DEADLINE_S)

    def incidents(self) -> list[dict[str, Any]]:
        """Return what `rankmend incidents` shows of this machine."""
        done = forked_cli.run("incidents", "--json", "--state-dir", str(self.state), check=True)
        rows: list[dict[str, Any]] = json.loads(done.stdout)["incidents"]
        return rows


@dataclass(frozen=True, slots=True)
class TorchrunProcess:
    process: forked_cli.ForkedProcess
    output: Path


def ended(run: TorchrunProcess) -> tuple[int, str]:
    """Return how a torchrun ended, and all that it printed."""
    code = run.process.wait(DEADLINE_S)
    return code, run.output.read_text(errors="replace")


class SaidFindings:
    """An agent's page of findings."""

    def __init__(self) -> None:
        self.findings: list[dict[str, Any]] = []
        self.looks = 0  # how often it was asked
        self.may_answer = threading.Event()
        self.may_answer.set()

    def add(self, severity: str = "critical", action: str = "drain", **more: Any) -> None:
        self.findings.append(
            {
                "id": "gpu_ecc:0",
                "severity": severity,
                "action": action,
                "summary": "GPU 0 has uncorrectable errors",
                "is_silenced": False,
                **more,
            }
        )


@contextmanager
def agent_page() -> Iterator[tuple[SaidFindings, str]]:
    """Serve a page as the node's agent does, and return it with its address."""
    said = SaidFindings()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.looks += 1
            said.may_answer.wait()
            page = {"node": "here", "age_s": 1.0, "looks": 5, "findings": said.findings}
            body = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield said, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        said.may_answer.set()
        server.shutdown()
        server.server_close()
