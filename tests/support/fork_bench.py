"""A guardian and a fork server of one node, with the launcher's part played by the test."""

import json
import os
import select
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rankmend.clock import SystemClock
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT, Event
from recovery.launcher.processes.process_tree import find_marked
from recovery.launcher.ranks.fork_server import ForkServer, ServerState
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from tests.support.eventually import eventually

STDLIB = ["json", "decimal", "multiprocessing", "random", "locale", "resource", "atexit"]


class Node:
    """A guardian and the fork server of one node, with its launcher's part played by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "site-packages"
        self.packages.mkdir()
        self.job = uuid.uuid4()
        self.job_id = str(self.job)
        self.runtime = RuntimeFolder(folder, self.job)
        self.guardian = Guardian.start(self.job_id)
        self.events: list[Event] = []
        self.take_event: Callable[[Event], object] = lambda _event: None  # of all that it tells
        self.python = sys.executable
        self.base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.packages)}
        self.server = self.make_server()

    def make_server(self, **options: Any) -> ForkServer:
        return ForkServer(
            self.python,
            2,
            self.job_id,
            self.base,
            self.runtime.path,
            self.runtime.site,
            # a busy machine forks late, and only a server that is stopped may not
            **{"clock": SystemClock(), "retry_s": 0.1, "fork_s_max": 20.0, **options},
        )

    def add_package(self, name: str, text: str) -> None:
        (self.packages / name).mkdir()
        (self.packages / name / "__init__.py").write_text(text)

    def learn(
        self,
        modules: Sequence[str],
        by_imports: dict[str, dict[str, str]] | None = None,
        unordered: dict[str, str] | None = None,
    ) -> None:
        """Have the server learn that all ranks import these."""
        told = {
            "modules": [[name, self.origin(name)] for name in modules],
            "changes": [] if unordered is None else None,
            "by_imports": by_imports or {},
            "touched": {},
            "environment": unordered or {},
        }
        path = self.folder / "told.json"
        path.write_text(json.dumps(told))
        self.server.learn_from([path])

    def origin(self, name: str) -> str:
        """Return the origin of a module's spec without importing the module: PyTorch takes seconds."""
        own = self.packages / name / "__init__.py"
        if own.exists():
            return str(own)
        first, *inner = name.split(".")
        spec, path = find_spec(first), first
        for part in inner:
            assert spec is not None, f"no module {path}"
            path = f"{path}.{part}"
            spec = PathFinder.find_spec(path, spec.submodule_search_locations)
        assert spec is not None, f"no module {name}"
        assert spec.origin is not None
        return spec.origin

    def begin(self, *states: ServerState) -> None:
        """Let the server start, and wait until it is in one of these states.

        One that runs may be ready before the guardian has named its process.
        """
        running = (ServerState.STARTING, ServerState.READY)
        self.until(
            lambda: (
                self.server.state in states
                and (self.server.state not in running or self.server.pid)
            )
        )

    def make_ready(self, modules: Sequence[str] = STDLIB) -> None:
        self.learn(modules)
        self.begin(ServerState.READY)

    def spawn(
        self,
        *argv: str,
        rank: int = 0,
        attempt: int = 1,
        more: Mapping[str, str] | None = None,
    ) -> Spawn:
        env = {
            **self.base,
            "PYTHONPATH": f"{self.runtime.site}:{self.packages}",
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "PYTHONHASHSEED": "0",
            "RANKMEND_JOB_ID": self.job_id,
            "RANKMEND_ATTEMPT": str(attempt),
            **(more or {}),
        }
        out = os.open(self.output(rank), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        command = (self.python, "-u", *argv)
        return Spawn(attempt, rank, command, env, str(self.folder), out, out)

    def fork(
        self, *argv: str, rank: int = 0, attempt: int = 1, tells_to: Path | None = None
    ) -> bool:
        spawn = self.spawn(*argv, rank=rank, attempt=attempt)
        try:
            return self.server.fork(self.guardian, spawn, tells_to)
        finally:
            os.close(spawn.stdout_fd)

    def start_afresh(
        self,
        *argv: str,
        rank: int = 0,
        attempt: int = 1,
        more: Mapping[str, str] | None = None,
    ) -> None:
        spawn = self.spawn(*argv, rank=rank, attempt=attempt, more=more)
        try:
            self.guardian.spawn(spawn)
        finally:
            os.close(spawn.stdout_fd)

    def script(self, text: str) -> str:
        path = self.folder / f"script-{uuid.uuid4().hex}.py"
        path.write_text(text)
        return str(path)

    def output(self, rank: int = 0) -> Path:
        return self.folder / f"output-{rank}"

    def turn(self) -> None:
        poll = select.poll()
        poll.register(self.guardian.fileno(), select.POLLIN)
        poll.poll(50)
        for event in self.guardian.read_events():
            self.take_event(event)
            of_server = getattr(event, "attempt", None) == STANDBY_ATTEMPT
            if not (of_server and self.server.take_event(event)):
                self.events.append(event)
        self.server.tick(self.guardian, may_start=True)

    def until(self, is_so: Callable[[], object]) -> None:
        def look() -> bool:
            if is_so():
                return True
            self.turn()
            return False

        eventually(look, lambda: (self.server.state, self.server.why_not))

    def of(self, kind: type[Event], count: int = 1) -> list[Any]:
        def told() -> list[Event]:
            return [event for event in self.events if isinstance(event, kind)]

        self.until(lambda: len(told()) >= count)
        return told()

    def close(self) -> None:
        self.guardian.close()
        self.server.close()
        assert find_marked(self.job_id) == []
