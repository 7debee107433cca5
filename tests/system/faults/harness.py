"""Runs real jobs under the real `rankmend run`, breaks them, and says what became of them."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from recovery.journal.attempt_records import AttemptStarted, AttemptVerified
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import JobEnded, OutcomeKind
from recovery.journal.records import Entry
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT
from recovery.launcher.processes.process_tree import find_marked, read_state
from recovery.local.report.overview import read_entries, view_ranks
from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.console import Console
from tests.support.milestones import Milestones

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
JOBS = Path(__file__).resolve().parent / "jobs"
# Launchers heed what the tests' own shell may ignore: under nohup, or as a job in the background.
HEEDING = ("env", "--default-signal=HUP,INT,QUIT")
# Pauses between looks that cost: the files of all ranks; a whole journal, or the environment of each process.
LOOK_AT_RANKS_S = 0.02
LOOK_AT_ALL_S = 0.05
T = TypeVar("T")


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
    milestones: Milestones | None = None  # what the launcher names goes there
    process: subprocess.Popen[bytes] | forked_cli.ForkedProcess | None = None
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
        arguments = [
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
            environment = {**os.environ, **self.environment}
            is_plain = not self.prefix and self.console is None and self.milestones is None
            if is_plain and forked_cli.can_fork(self.environment):
                self.process = forked_cli.start(
                    arguments,
                    cwd=self.folder,
                    environment=environment,
                    stdin=self.stdin,
                    stdout=out,
                )
                return
            named = self.milestones
            self.process = subprocess.Popen(
                [*HEEDING, *self.prefix, sys.executable, "-m", "rankmend.cli", *arguments],
                cwd=self.folder,
                env=environment if named is None else {**environment, **named.environment},
                pass_fds=() if named is None else (named.descriptor,),
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

        eventually(is_told, f"the launcher prints {text!r}")

    @property
    def let_go(self) -> Path:
        """A job may make its last step once this file is there."""
        return self.folder / "let-go"

    def wait(self) -> int:
        """Let the job end, and return its exit code once it has."""
        assert self.process is not None
        self.let_go.touch()
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {DEADLINE_S:.0f} s:\n{self.output}"
            ) from None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
        if self.has_state:
            job_id = self.job_id
            eventually(
                lambda: not find_marked(job_id),
                "the job's processes are gone",
                pause_s=LOOK_AT_ALL_S,
            )

    @property
    def has_state(self) -> bool:
        return bool(list(self.state.glob("jobs/*/journal.db")))

    @property
    def state_folder(self) -> Path:
        """The job's folder, once its journal, the last file that is made there, exists."""
        return eventually(
            lambda: next(self.state.glob("jobs/*/journal.db"), None), "journal"
        ).parent

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
            if told is not None and told > attempt:
                raise AssertionError(f"attempt {told} runs, and {attempt} is over:\n{self.output}")
            if told != attempt or len(ranks) != self.world_size:
                return None
            if any(rank.step is None or rank.step < step for rank in ranks):
                return None
            return {rank.rank: rank.pid for rank in ranks}

        pids = eventually(
            look, f"step {step} of attempt {attempt} on every rank", pause_s=LOOK_AT_RANKS_S
        )
        eventually(
            lambda: any(one.attempt == attempt for one in self.records(AttemptVerified)),
            f"attempt {attempt} is verified",
            pause_s=LOOK_AT_ALL_S,
        )
        return pids

    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())


def _attempt_of(runtime: Path) -> int | None:
    try:
        return int(json.loads((runtime / "ranks.json").read_text())["attempt"])
    except (OSError, ValueError, KeyError):
        return None


def paced_training(job: Job) -> Path:
    """Write the unchanged example with a pause in each step, so that it doesn't take all processors, and return it."""
    step = "            optimizer.step()\n"
    text = (EXAMPLES / "unchanged" / "train.py").read_text()
    assert step in text
    script = job.folder / "train.py"
    script.write_text(text.replace(step, f"{step}            time.sleep(0.01)\n"))
    return script


def kill(*pids: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to processes; of several that are killed none ends by itself because it misses another."""
    if number == signal.SIGKILL and len(pids) > 1:
        kill(*pids, number=signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, number)


def assert_recovered(job: Job, undisturbed: dict[str, object], incidents: int) -> None:
    assert job.wait() == 0, job.output
    assert job.result() == undisturbed
    assert len(job.incidents) == incidents
    assert job.ended[-1].outcome.kind is OutcomeKind.DONE
    left = [(ref, read_state(ref.pid), command_of(ref.pid)) for ref in find_marked(job.job_id)]
    assert not left, f"{left}\n{job.output}"
    assert not job.runtime.exists()


def kill_launcher(job: Job) -> None:
    job.signal(signal.SIGKILL)
    job.wait()
    job_id = job.job_id
    eventually(lambda: not find_marked(job_id), "no orphan is left", pause_s=LOOK_AT_ALL_S)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> str:
    """Return the command line of a process; nothing where it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def guardian_of(job: Job) -> int:
    assert job.process is not None
    words = "recovery.launcher.guardian.main"
    (pid,) = [one for one in children(job.process.pid) if words in command_of(one)]
    return pid


def kill_with_guardian(job: Job) -> None:
    """Kill the launcher and its guardian before either can act on the other's end: the ranks are left."""
    assert job.process is not None
    guardian = guardian_of(job)
    kill(guardian, number=signal.SIGSTOP)
    kill(job.process.pid, guardian)
    job.wait()


def ready_server(job: Job) -> int:
    """Return the pid of this job's fork server once it has done its imports."""

    def look() -> int | None:
        marked = find_marked(job.job_id)
        waiting = [ref.pid for ref in marked if ref.attempt == STANDBY_ATTEMPT]
        # The others wait for a rank, or serve stores.
        pids = [pid for pid in waiting if session_of(pid) == pid and not _serves_stores(pid)]
        is_importing = list(job.runtime.glob("fork-server-*.log"))
        return pids[0] if len(pids) == 1 and not is_importing else None

    return eventually(look, "the fork server is ready", pause_s=LOOK_AT_ALL_S)


def _serves_stores(pid: int) -> bool:
    try:
        return b"store_host" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def session_of(pid: int) -> int | None:
    state = read_state(pid)
    return None if state is None else state.session


def is_alive(pid: int) -> bool:
    state = read_state(pid)
    return state is not None and not state.is_gone


def status(job: Job) -> list[dict[str, Any]]:
    """Return what `rankmend status --json` says of the ranks."""
    done = forked_cli.run("status", f"--state-dir={job.state}", "--json", check=True)
    told = json.loads(done.stdout)
    ranks: list[dict[str, Any]] = (told["jobs"] if isinstance(told, dict) else told)[0]["ranks"]
    return ranks


def starts(job: Job) -> set[tuple[str, str | None]]:
    return {(rank["start"], rank["why_not_forked"]) for rank in status(job)}
