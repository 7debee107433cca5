"""Jobs on several nodes: launchers of one machine or of test hosts, and the controller that runs as their service."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery.journal.folder.job_folder import list_folders
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT
from recovery.launcher.processes.process_tree import descendants, pids, read_mark, read_processes
from recovery.local.report.overview import read_entries
from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.clock import FakeClock
from tests.support.faults.process import kill as kill_process
from tests.support.free_port import free_port
from tests.support.hosts import Host, Process
from tests.system.faults.harness import JOBS

ENDLESS = 100_000  # steps, of a job that a test stops
LET_GO = "let-go"  # the job makes its last step once this file is there: no fault comes too late

# Short, so that the tests are, but longer than a busy machine stands still; in the proportions of the defaults.
POLICY = """
[policy]
lease_s = 8
kill_bound_s = 2
lease_margin_s = 1
node_silent_s = 5
join_wait_s = 3
"""
# Where no lease is to end: a busy machine ends none, and takes no node for silent.
PATIENT = POLICY.replace("lease_s = 8", "lease_s = 15").replace("silent_s = 5", "silent_s = 10")


@dataclass
class Nodes:
    """The launchers of one job, each a node, in a folder that they share."""

    folder: Path
    nnodes: str
    arguments: list[str]
    flags: list[str] = field(default_factory=list)
    script: Path = JOBS / "lockstep.py"
    spares: int = 0
    slots: int = 2  # ranks of a node
    hosts: dict[str, Host] = field(default_factory=dict)  # where a node is one; else this machine
    clocks: dict[str, FakeClock] = field(default_factory=dict)  # of nodes on this machine
    running: dict[str, forked_cli.ForkedProcess | subprocess.Popen[bytes] | Process] = field(
        default_factory=dict
    )
    name: str = field(default_factory=lambda: f"nodes-{uuid.uuid4().hex[:8]}")

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def start(self, *names: str) -> None:
        self.checkpoints.mkdir(exist_ok=True)
        for name in names:
            host = self.hosts.get(name)
            state = self.folder / f"state-{name}" if host is None else host.state
            arguments = [
                *("run", f"--nnodes={self.nnodes}"),
                *(
                    f"--spares={self.spares}",
                    f"--nproc-per-node={self.slots}",
                    f"--job={self.name}",
                ),
                f"--node-name={name}",
                *(f"--state-dir={state}", f"--checkpoint-dir={self.checkpoints}"),
                *(f"--agent-socket={state}/none", *self.flags),
                *(str(self.script), *self.arguments),
            ]
            argv = [sys.executable, "-m", "rankmend.cli", *arguments]
            with self.log(name).open("ab") as out:
                if host is None and name not in self.clocks:
                    self.running[name] = forked_cli.start(
                        arguments, cwd=self.folder, environment=os.environ, stdout=out
                    )
                elif host is None:
                    self.running[name] = subprocess.Popen(
                        argv,
                        cwd=self.folder,
                        env={**os.environ, **self.clocks[name].environment},
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                else:
                    self.running[name] = host.popen(
                        argv,
                        cwd=self.folder,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")

    @property
    def output(self) -> str:
        return "\n".join(f"== {name}\n{self.said(name)}" for name in self.running)

    def wait_said(self, name: str, text: str) -> None:
        eventually(lambda: text in self.said(name), lambda: f"{name} says {text!r}:\n{self.output}")

    def wait_step(self, step: int) -> None:
        """Wait until a checkpoint of this step or a later one lies there."""

        def newest() -> int:
            names = [path.stem for path in self.checkpoints.glob("step-*.npz")]
            return max((int(name.partition("-")[2]) for name in names), default=0)

        eventually(
            lambda: newest() >= step,
            lambda: f"step {step}; step {newest()}\n{self.output}",
        )

    def wait_ends(self, *names: str) -> list[int]:
        """Let the job end, and return the launchers' exit codes once they have."""
        (self.folder / LET_GO).touch()
        try:
            return [self.running[name].wait(DEADLINE_S) for name in names]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.output}") from None

    def kill(self, *names: str) -> None:
        """Kill launchers, several at once, and nothing else."""
        for name in names:
            self.running[name].send_signal(signal.SIGKILL)
        for name in names:
            self.running[name].wait(DEADLINE_S)

    def freeze(self, name: str) -> list[int]:
        """Stop everything on a node, so that it falls silent and may wake up; return the processes."""
        launcher = self.running[name]
        assert not isinstance(launcher, Process), "a node on this machine"
        launcher.send_signal(signal.SIGSTOP)
        below = [one.pid for one in descendants(launcher.pid, read_processes())]
        signal_all(below, signal.SIGSTOP)
        return [launcher.pid, *below]

    def vanish(self, name: str) -> None:
        """Kill everything on a node before any process can send a last word."""
        signal_all(self.freeze(name), signal.SIGKILL)
        self.running[name].wait(DEADLINE_S)

    def rank_pids(self, name: str) -> list[int]:
        """Return the processes of a node's ranks, by their mark."""
        found = []
        for job_file in (self.folder / f"state-{name}").glob("nodes/*/jobs/*/job.json"):
            job_id = json.loads(job_file.read_text())["job_id"]
            for pid in pids():
                with contextlib.suppress(PermissionError):
                    marked = read_mark(pid, job_id, node=name)
                    if marked is not None and marked[1].attempt not in (None, STANDBY_ATTEMPT):
                        found.append(pid)
        return found

    def result(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return told

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait(DEADLINE_S)
        for name in self.running:
            if name not in self.hosts:
                eventually(lambda name=name: not self.rank_pids(name), f"{name} is empty")


def signal_all(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def run_controller(tmp_path: Path, policy: str, more: str = "") -> Iterator[str]:
    port = free_port()
    (tmp_path / "ctl").mkdir()
    (tmp_path / "cluster.toml").write_text(policy)
    config = tmp_path / "controller.toml"
    config.write_text(
        f'listen = "127.0.0.1:{port}"\nstate_dir = "{tmp_path}/ctl"\n'
        f'policy_file = "{tmp_path}/cluster.toml"\n{more}'
    )
    with (tmp_path / "controller.log").open("wb") as out:
        process = forked_cli.start(
            ["controller", "run", f"--config={config}"],
            cwd=Path.cwd(),
            environment=os.environ,
            stdout=out,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def journaled(nodes: Nodes, kind: type[Any]) -> list[Any]:
    """Return what the service has journaled of the job."""
    (job,) = list_folders(nodes.folder / "ctl")
    return [one.record for one in read_entries(job) if isinstance(one.record, kind)]


class Service:
    """A controller of this machine alone."""

    def __init__(self, folder: Path, name: str) -> None:
        self.state = folder / name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / f"{name}.toml"
        policy = folder / "cluster.toml"
        policy.write_text(PATIENT)
        self.config.write_text(
            f'listen = "127.0.0.1:{self.port}"\nstate_dir = "{self.state}"\n'
            f'policy_file = "{policy}"\n'
        )
        self.log = folder / f"{name}.log"
        self.running: forked_cli.ForkedProcess | None = None

    def start(self) -> "Service":
        self.state.mkdir(exist_ok=True)
        with self.log.open("ab") as out:
            self.running = forked_cli.start(
                ["controller", "run", f"--config={self.config}"],
                cwd=Path.cwd(),
                environment=os.environ,
                stdout=out,
            )
        return self

    def kill(self) -> None:
        assert self.running is not None, "called while it runs"
        kill_process(self.running)
        self.running.wait(DEADLINE_S)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return forked_cli.run(*words, f"--controller={self.url}")

    def journaled(self, kind: type[Any]) -> list[Any]:
        return [
            entry.record
            for job in list_folders(self.state)
            if (job / "journal.db").is_file()
            for entry in read_entries(job)
            if isinstance(entry.record, kind)
        ]

    def wait_logged(self, text: str, times: int = 1) -> None:
        eventually(
            lambda: self.log.read_text().count(text) >= times,
            lambda: f"{text!r} in the log\n{self.log.read_text()}",
        )


def newest(nodes: Nodes) -> int:
    return max(int(path.stem[5:]) for path in nodes.checkpoints.glob("step-*.npz"))
