"""What the soak runs on: a controller, two launchers with two ranks each, and an agent for each, all on this machine.

Whoever ends before the job does is started again, as a service manager does.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.soak import training
from rankmend.errors import RankmendError
from recovery.journal.folder.job_folder import find_jobs, find_launchers, read_json
from recovery.journal.records import Entry
from recovery.local.report.overview import read_entries, view_ranks
from tests.support.free_port import free_port
from tests.support.service import make_folder

JOB: Final = "soak"
NODES: Final = ("n1", "n2")
RANKS_OF_NODE: Final = 2
RANKS: Final = RANKS_OF_NODE * len(NODES)
START_S_MAX: Final = 300.0
_END_S_MAX: Final = 60.0
_START_AGAIN_S: Final = 2.0  # as RestartSec of the units
# Two nodes and no spare: they stay, however often a fault is blamed on them.
_POLICY: Final = """
[quarantine]
blames = 1000000
[policy]
restarts_per_day_max = 100000
node_failures_max = 1000000
"""


@dataclass
class Part:
    """One process of rankmend that is kept running."""

    name: str
    command: tuple[str, ...]
    log: Path
    running: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    codes: list[int] = field(default_factory=list)  # of its ends
    is_over: bool = False  # it has ended as it should
    _ended_s: float = -_START_AGAIN_S

    @property
    def pid(self) -> int | None:
        return None if self.running is None or self.running.poll() is not None else self.running.pid

    def keep(self, now_s: float) -> None:
        """Start it, where it has ended and should not have."""
        if self.running is not None and self.running.poll() is not None:
            self.codes.append(self.running.returncode)
            self.running, self._ended_s = None, now_s
        if self.running is None and not self.is_over and now_s - self._ended_s >= _START_AGAIN_S:
            self.starts += 1
            with self.log.open("ab") as log:
                self.running = subprocess.Popen(
                    [sys.executable, "-m", "rankmend.cli", *self.command],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip

    def end(self) -> None:
        self.is_over = True
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            if self.running is None or self.running.poll() is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                self.running.send_signal(number)
            if number != signal.SIGCONT:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.running.wait(_END_S_MAX)


@dataclass
class Stage:
    folder: Path
    controller: Part
    launchers: tuple[Part, ...]
    agents: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.controller, *self.agents, *self.launchers)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def state_of(self, node: str) -> Path:
        return self.folder / f"state-{node}"

    @property
    def journals(self) -> Path:
        """The state folder of the controller."""
        return self.folder / "controller" / "state"

    def keep(self) -> None:
        for part in self.parts:
            part.keep(time.monotonic())

    def entries(self) -> tuple[Entry, ...]:
        folders = find_jobs(self.journals, None)
        return tuple(read_entries(folders[0])) if folders else ()

    def runtime_of(self, node: str) -> Path | None:
        """Return the folder in shared memory of a node's launcher."""
        for folder in find_launchers(self.state_of(node), JOB):
            with contextlib.suppress(RankmendError):
                runtime = (read_json(folder / "run.json") or {}).get("runtime")
                if isinstance(runtime, str):
                    return Path(runtime)
        return None

    def ranks_of(self, node: str) -> list[int]:
        """Return the ranks that a node's launcher runs, or ran last."""
        runtime = self.runtime_of(node)
        return [] if runtime is None else [one.rank for one in view_ranks(runtime, time.monotonic)]

    def end_job(self) -> None:
        """Have the job end after the step that it makes."""
        for part in self.launchers:
            part.is_over = part.running is not None
        (self.folder / "end").touch()


@contextlib.contextmanager
def standing(folder: Path, step_s: float) -> Iterator[Stage]:
    """Stand all of it up in ``folder``, and end it."""
    (folder / "checkpoints").mkdir(parents=True)
    home = folder / "controller"
    port = free_port()
    config = make_folder(home)
    policy = folder / "policy.toml"
    policy.write_text(_POLICY)
    text = config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}")
    config.write_text(f'policy_file = "{policy}"\n' + _without(text, "policy_file"))
    agents = tuple(_agent(folder, node) for node in NODES)
    launchers = tuple(
        _launcher(folder, node, f"https://127.0.0.1:{port}", step_s) for node in NODES
    )
    controller = Part(
        "controller", ("controller", "run", f"--config={config}"), folder / "controller.log"
    )
    stage = Stage(folder, controller, launchers, agents)
    try:
        stage.keep()
        yield stage
    finally:
        for part in reversed(stage.parts):
            part.end()


def _without(text: str, key: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(key))


def _agent(folder: Path, node: str) -> Part:
    port = free_port()
    command = (
        *("agent", f"--listen=127.0.0.1:{port}", f"--node={node}"),
        f"--socket={folder / f'agent-{node}.sock'}",
    )
    return Part(f"agent {node}", command, folder / f"agent-{node}.log")


def _launcher(folder: Path, node: str, url: str, step_s: float) -> Part:
    home = folder / "controller"
    command = (
        *("run", f"--nnodes={len(NODES)}", f"--nproc-per-node={RANKS_OF_NODE}", f"--job={JOB}"),
        *(f"--node-name={node}", f"--controller={url}", f"--ca-file={home / 'ca.crt'}"),
        *(f"--token-file={home / 'launch.token'}", f"--state-dir={folder / f'state-{node}'}"),
        *(f"--checkpoint-dir={folder / 'checkpoints'}", "--drills"),
        f"--agent-socket={folder / f'agent-{node}.sock'}",
        *(training.__file__, str(folder), str(folder / "checkpoints"), f"{step_s:g}"),
    )
    return Part(f"launcher {node}", command, folder / f"launcher-{node}.log")
