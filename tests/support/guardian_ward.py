"""A guardian under test, with its events kept in the order in which they came."""

import os
import select
import sys
import uuid
from pathlib import Path

from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import Event
from tests.support.eventually import eventually

PYTHON = [sys.executable, "-I", "-S", "-c"]

# A grandchild with nothing in common with the rank but its mark and its subreaper.
DAEMON = """
import os, sys, time
def daemonise():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
    os._exit(0)
"""


class Ward:
    """A guardian, with its events kept in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        self.job_id = str(uuid.uuid4())
        self.folder = folder
        self.guardian = Guardian.start(self.job_id)
        self.events: list[Event] = []

    def environment(self, attempt: int) -> dict[str, str]:
        marks = {"RANKMEND_JOB_ID": self.job_id, "RANKMEND_ATTEMPT": str(attempt)}
        return {"PATH": os.environ["PATH"], **marks}

    def spawn(
        self,
        *argv: str,
        rank: int = 0,
        attempt: int = 1,
        cwd: str = "/",
        env: dict[str, str] | None = None,
    ) -> None:
        with self.output(rank).open("wb") as file:
            env = self.environment(attempt) if env is None else env
            fds = (file.fileno(), file.fileno())
            self.guardian.spawn(Spawn(attempt, rank, argv, env, cwd, *fds))

    def output(self, rank: int = 0) -> Path:
        return self.folder / f"output-{rank}"

    def take(self) -> None:
        poll = select.poll()
        poll.register(self.guardian.fileno(), select.POLLIN)
        poll.poll(100)
        self.events += self.guardian.read_events()

    def of(self, kind: type[Event], count: int = 1) -> list[Event]:
        def has_come() -> bool:
            self.take()
            return len(self.told(kind)) >= count

        eventually(has_come)
        return self.told(kind)

    def told(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def spawn_daemon(self, rank: int = 0, attempt: int = 1, then: str = "time.sleep(600)") -> int:
        """Start a rank with a daemonised grandchild, and return the pid of that."""
        path = self.folder / f"daemon-{attempt}-{rank}"
        self.spawn(*PYTHON, f"{DAEMON}\ndaemonise()\n{then}", str(path), rank=rank, attempt=attempt)
        eventually(lambda: path.exists() and path.read_text())
        return int(path.read_text())
