"""Runs real jobs under the real `rankmend run`, breaks them, and says what became of them."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from recovery.journal.attempt_records import AttemptStarted, AttemptVerified
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import JobEnded
from recovery.journal.records import Entry
from recovery.launcher.processes.process_tree import find_marked
from recovery.report.overview import read_entries, view_ranks
from tests.support.faults.console import Console

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
JOBS = Path(__file__).resolve().parent / "jobs"
DEADLINE_S = 150.0
# Launchers heed what the tests' own shell may ignore: under nohup, or as a job in the background.
HEEDING = ("env", "--default-signal=HUP,INT,QUIT")
T = TypeVar("T")


def wait_for(get: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Return what ``get`` returns once it is something."""
    until_s = time.monotonic() + deadline_s
    while True:
        value = get()
        if value:
            return value
        assert time.monotonic() < until_s, f"never within {deadline_s:.0f} s: {what}"
        time.sleep(0.01)


@dataclass
class Job:
    """One job in a folder of its own; `start` may be called again, as a person would."""

    folder: Path
    script: Path
    arguments: list[str]
    world_size: int = 4
    flags: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)  # a command that runs the launcher
    console: Console | None = None  # instead of a log file
    stdin: int = subprocess.DEVNULL
    controller: tuple[str, ...] = ("--standalone",)  # how the command line says where it is
    name: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:8]}")
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self, *extra: str) -> None:
        self.starts += 1
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        command = [
            *HEEDING,
            *self.prefix,
            sys.executable,
            "-m",
            "rankmend.cli",
            "run",
            *self.controller,
            f"--nproc-per-node={self.world_size}",
            f"--job={self.name}",
            f"--state-dir={self.folder / 'state'}",
            f"--checkpoint-dir={self.checkpoints}",
            *self.flags,
            *extra,
            str(self.script),
            *self.arguments,
        ]
        with self.log(self.starts).open("wb") as log:
            out = log.fileno() if self.console is None else self.console.inner
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=self.stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, number: int) -> Path:
        return self.folder / f"launcher-{number}.log"

    @property
    def output(self) -> str:
        return self.log(self.starts).read_text(errors="replace")

    def expect_output(self, text: str) -> None:
        """Wait until the launcher has printed ``text``, which comes after its record."""

        def is_told() -> bool:
            has_ended = self.process is None or self.process.poll() is not None
            is_there = text in self.output
            assert is_there or not has_ended, f"never printed: {text}\n{self.output}"
            return is_there

        wait_for(is_told, f"the launcher prints {text!r}")

    @property
    def let_go(self) -> Path:
        """A job may make its last step once this file is there."""
        return self.folder / "let-go"

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Let the job end, and return its exit code once it has."""
        assert self.process is not None
        self.let_go.touch()
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {deadline_s} s:\n{self.output}") from None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        if self.has_state:
            wait_for(lambda: not find_marked(str(self.job_id)), "the job's processes are gone")

    @property
    def has_state(self) -> bool:
        return bool(list(self.state.glob("jobs/*/journal.db")))

    @property
    def state_folder(self) -> Path:
        """The job's folder, once its journal, the last file that is made there, exists."""
        return wait_for(lambda: next(self.state.glob("jobs/*/journal.db"), None), "journal").parent

    @property
    def job_id(self) -> str:
        return str(json.loads((self.state_folder / "job.json").read_text())["job_id"])

    @property
    def runtime(self) -> Path:
        return Path("/dev/shm") / f"rankmend-{os.getuid()}" / self.job_id

    @property
    def entries(self) -> tuple[Entry, ...]:
        return read_entries(self.state_folder)

    def records(self, kind: type[T]) -> list[T]:
        return [entry.record for entry in self.entries if isinstance(entry.record, kind)]

    @property
    def attempts(self) -> list[AttemptStarted]:
        return self.records(AttemptStarted)

    @property
    def incidents(self) -> list[IncidentOpened]:
        return self.records(IncidentOpened)

    @property
    def ended(self) -> list[JobEnded]:
        return self.records(JobEnded)

    def pids_at_step(self, step: int, attempt: int = 1) -> dict[int, int]:
        """Return each rank's process once every rank of the attempt has made this step.

        And once the journal has it verified: what fails before is another try of one incident.
        """

        def look() -> dict[int, int] | None:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"ended before step {step}:\n{self.output}")
            if not self.has_state:
                return None
            ranks = list(view_ranks(self.runtime, time.monotonic))
            told = _attempt_of(self.runtime)
            if told != attempt or len(ranks) != self.world_size:
                return None
            if any(rank.step is None or rank.step < step for rank in ranks):
                return None
            return {rank.rank: rank.pid for rank in ranks}

        pids = wait_for(look, f"step {step} of attempt {attempt} on every rank")
        wait_for(
            lambda: any(one.attempt == attempt for one in self.records(AttemptVerified)),
            f"attempt {attempt} is verified",
        )
        return pids

    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())


def _attempt_of(runtime: Path) -> int | None:
    try:
        return int(json.loads((runtime / "ranks.json").read_text())["attempt"])
    except (OSError, ValueError, KeyError):
        return None


def kill(*pids: int, number: int = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, number)
