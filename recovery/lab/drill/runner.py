"""Runs a scenario: starts the job by `rankmend run`, makes each fault by `rankmend inject`, and gathers what came of it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from rankmend.errors import RankmendError, SourceError
from rankmend.files import read_if_there
from rankmend.loads import drill_job
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_window import read_job_time
from recovery.api.wire import IncidentView
from recovery.console.views.incident_view import view_incidents
from recovery.journal.folder.heartbeat import read_heartbeat
from recovery.journal.folder.job_folder import find_jobs, read_json
from recovery.journal.stored_journal import JournalFile
from recovery.lab.drill.scenario import DrillFault, DrillPhase, Scenario
from recovery.lab.drill.verdict import DrillCheck, DrillOutcome, judge_drill
from recovery.lab.inject.fault import FaultKind
from recovery.local.report.overview import StoredRankView, read_entries, view_ranks

JOB: Final = "drill"
_POLL_S: Final = 0.1
_END_S_MAX: Final = 120.0  # for injectors to undo, and for a job that is told to end
_OUTPUT_BYTES_MAX: Final = 65_536
_TOGETHER_S: Final = 3.0  # for injectors to be ready, where a core runs one program at a time
_TOGETHER_S_MAX: Final = 20.0
_NOT_MADE: Final = 1  # exit code of rankmend inject; a refusal has another one
_IN_FORCE: Final = b"in force"
_CHECKPOINT: Final = "checkpoint"  # the section in which ranks save

Tell = Callable[[str], None]

_JOURNAL_FULL: Final = FaultKind.JOURNAL_FULL.value


class OverdueError(RankmendError):
    """The drill's time is over."""


class FolderGoneError(RankmendError):
    """Somebody has removed the drill's folder."""


class JobProcess(Protocol):
    """What runs the job: one launcher, or those of several nodes as if they were one."""

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


@dataclass(slots=True)
class _Injector:
    fault: DrillFault
    process: "subprocess.Popen[bytes]"
    output: Path
    with_others: bool  # its fault is one of several at the same time

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_made(self) -> bool:
        output = read_if_there(self.output, _OUTPUT_BYTES_MAX, SourceError) or b""
        return self.process.poll() == 0 or _IN_FORCE in output


@dataclass(slots=True)
class DrillRun:
    """One run of a scenario, in a folder of its own."""

    scenario: Scenario
    folder: Path
    tell: Tell
    began_s: float = field(default_factory=time.monotonic)
    _injectors: list[_Injector] = field(default_factory=list)
    _log_id: tuple[int, int] | None = None  # device and inode

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def log(self) -> Path:
        return self.folder / "job.log"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def run(self) -> DrillOutcome:
        """Run the job with its faults until it has ended, or its time is over."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._log_id = _id_of(self.log)
            job = self._start(log.fileno())
        self.tell(f"job started: {self.scenario.job.ranks} ranks, log {self.log}")
        code, why_not = None, ""
        try:
            for faults in at_once(self.scenario.faults):
                self._await_phase(job, faults[0])
                self._inject(faults)
            self._let_go()
            self._until(lambda: job.poll() is not None, "the job ends")
            code = job.returncode
            self.tell(f"job ended with exit code {code}")
        except OverdueError as error:
            why_not = str(error)
            self.tell(why_not)
        except (OSError, RankmendError):
            self._require_folder()  # whatever failed: the cause is that files are missing
            raise
        finally:
            try:
                not_undone = self._end_injectors()
            finally:
                self._end(job)
        self._require_folder()
        never_made = self.scenario.faults[len(self._injectors) :]
        missing = [f"{fault.fault}: not made ({why_not})" for fault in never_made]
        return self._outcome(code, (*not_undone, *missing))

    def checks(self, outcome: DrillOutcome) -> tuple[DrillCheck, ...]:
        """Return each thing that must hold."""
        return judge_drill(self.scenario.holds, outcome)

    def _let_go(self) -> None:
        """Let the job make its last step, once its journal can be written again: what held is read there."""
        for injector in self._injectors:
            if injector.fault.fault == _JOURNAL_FULL:
                self._until(injector.has_ended, "the journal is back")
        (self.folder / "let-go").touch()

    def job_time(self) -> JobTime | None:
        """Return where the job's time went."""
        folders = find_jobs(self.state, None)
        return (
            None
            if not folders
            else read_job_time(JournalFile(folders[0]), read_heartbeat(folders[0]))
        )

    def _start(self, log: int) -> JobProcess:
        job = self.scenario.job
        flags = [
            *("run", "--standalone", "--drills", f"--nproc-per-node={job.ranks}", f"--job={JOB}"),
            *(f"--state-dir={self.state}", f"--checkpoint-dir={self.checkpoints}", *job.flags),
        ]
        return self._popen([*flags, *self._script()], log)

    def _script(self) -> list[str]:
        """Return the job's script with its arguments."""
        job = self.scenario.job
        if job.script:
            return [job.script, *job.arguments]
        numbers = (
            *(job.steps, job.checkpoint_every),
            *(job.step_s, job.start_s, job.save_s),
        )
        places = (str(self.folder), str(self.checkpoints))
        return [drill_job.__file__, *places, *map(str, numbers)]

    def _popen(self, arguments: Sequence[str], out: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "rankmend.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        until_s = self.began_s + self.scenario.job.deadline_s
        while not is_so():
            self._require_folder()
            if time.monotonic() > until_s:
                raise OverdueError(f"not within {self.scenario.job.deadline_s:g} s: {what}")
            time.sleep(_POLL_S)

    def _require_folder(self) -> None:
        """Raise FolderGoneError once the drill's files are gone. The folder itself may be there: services make it anew."""
        if _id_of(self.log) != self._log_id:
            raise FolderGoneError(f"{self.folder} was removed while the drill ran")

    def _await_phase(self, job: JobProcess, fault: DrillFault) -> None:
        """Wait until the job is where the fault is to meet it, or raise once it has ended."""
        what = _awaited(fault)

        def is_there() -> bool:
            if job.poll() is not None:
                raise OverdueError(f"the job ended with exit code {job.returncode} before {what}")
            ranks = self._ranks()
            is_whole = len(ranks) == self.scenario.job.ranks
            return is_whole and self._is_in(fault, ranks)

        self._until(is_there, what)

    def _is_in(self, fault: DrillFault, ranks: Sequence[StoredRankView]) -> bool:
        steps = [rank.step for rank in ranks]
        has_stepped = all(step is not None and step >= fault.at_step for step in steps)
        match fault.during:
            case DrillPhase.START:
                return all(step is None for step in steps)
            case DrillPhase.RECOVERY:
                return all(step is None for step in steps) and self._is_recovering()
            case DrillPhase.CHECKPOINT:
                return has_stepped and any(rank.section == _CHECKPOINT for rank in ranks)
            case DrillPhase.STEADY | DrillPhase.TOGETHER:
                return has_stepped

    def _is_recovering(self) -> bool:
        return any(incident.total_s is None for incident in self._incidents())

    def _incidents(self) -> list[IncidentView]:
        """Return the job's incidents, oldest first."""
        folders = find_jobs(self.state, None)
        entries = read_entries(folders[0]) if folders else ()
        return sorted(view_incidents(entries, JOB), key=lambda incident: incident.opened_unix_s)

    def _ranks(self) -> list[StoredRankView]:
        for folder in find_jobs(self.state, None):
            with contextlib.suppress(RankmendError):
                runtime = (read_json(folder / "run.json") or {}).get("runtime")
                if isinstance(runtime, str):
                    found = list(view_ranks(Path(runtime), time.monotonic))
                    return [rank for rank in found if os.path.exists(f"/proc/{rank.pid}")]  # noqa: PTH110
        return []

    def _target(self, fault: DrillFault) -> str:
        """Return the target as `rankmend inject` takes it."""
        kind, _, name = fault.on.partition(":")
        if kind == "rank" and "/" not in name:
            return f"rank:{JOB}/{name}"
        if fault.on == "launcher":
            return f"service:launcher/{JOB}"
        if fault.on == "checkpoint:newest":
            saved = sorted(
                path for path in self.checkpoints.iterdir() if not path.name.startswith(".")
            )
            if not saved:
                raise SourceError("there is no checkpoint to damage yet: choose a later at_step")
            return f"path:{saved[-1]}"
        return fault.on

    def _inject(self, faults: Sequence[DrillFault]) -> None:
        """Make faults at once, and go on when all are in force."""
        # Each injector finds its target before any fault is made: the first fault could take the second one's away.
        at_unix_s = time.time() + _lead_s() if len(faults) > 1 else None
        for made in [self._start_injector(fault, at_unix_s) for fault in faults]:
            self._until(
                lambda made=made: made.is_made or made.process.poll() is not None,  # type: ignore[misc]
                f"{made.fault.fault} is made",
            )

    def _start_injector(self, fault: DrillFault, at_unix_s: float | None) -> _Injector:
        text = self.folder / f"inject-{len(self._injectors)}.log"
        options = [f"--{name}={value}" for name, value in fault.options.items()]
        target = self._target(fault)
        arguments = [
            *("inject", fault.fault, f"--on={target}", f"--for={fault.for_s:g}", "--yes"),
            *(*self._injectors_places(fault), *options),
        ]
        if at_unix_s is not None:
            arguments.append(f"--at={at_unix_s:.3f}")
        with text.open("wb") as log:
            process = self._popen_injector(fault, arguments, log.fileno())
        self._injectors.append(_Injector(fault, process, text, at_unix_s is not None))
        self.tell(f"fault: {fault.fault} on {target}")
        return self._injectors[-1]

    def _injectors_places(self, _fault: DrillFault) -> list[str]:
        """Return the options that say where the job's state and what is to be undone lie."""
        return [f"--state-dir={self.state}", f"--undo-dir={self.folder / 'undo'}"]

    def _popen_injector(
        self, _fault: DrillFault, arguments: Sequence[str], out: int
    ) -> "subprocess.Popen[bytes]":
        return self._popen(arguments, out)

    def _end_injectors(self) -> tuple[str, ...]:
        problems = []
        for injector in self._injectors:
            if injector.process.poll() is None:
                injector.process.send_signal(signal.SIGTERM)
            try:
                code = injector.process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                problems.append(f"{injector.fault.fault}: its injector does not end")
                continue
            if code == _NOT_MADE and self._came_too_late(injector):
                self.tell(
                    f"{injector.fault.fault} came too late: the fault beside it had ended its target"
                )
            elif code != 0:
                data = read_if_there(injector.output, _OUTPUT_BYTES_MAX, SourceError) or b""
                said = data.decode("utf-8", "replace").strip()[-300:]
                problems.append(f"{injector.fault.fault}: {said}")
        return tuple(problems)

    def _came_too_late(self, injector: _Injector) -> bool:
        """Return whether a fault of several at one moment was not made, and another of them was."""
        others = [item for item in self._injectors if item.with_others and item is not injector]
        return (
            injector.with_others and not injector.is_made and any(other.is_made for other in others)
        )

    def _end(self, job: JobProcess) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if job.poll() is None:
                job.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(_END_S_MAX)

    def _outcome(self, code: int | None, not_undone: tuple[str, ...]) -> DrillOutcome:
        job = self.scenario.job
        expected = None if job.script else (job.steps, drill_job.replay(job.ranks, job.steps))
        return DrillOutcome(code, tuple(self._incidents()), self._result(), expected, not_undone)

    def _result(self) -> tuple[int, int] | None:
        data = read_if_there(self.folder / "result.json", _OUTPUT_BYTES_MAX, SourceError)
        if data is None:
            return None
        try:
            found = json.loads(data)
            return int(found["step"]), int(found["state"])
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{self.folder / 'result.json'} is not a result: {error}") from error


def _id_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _lead_s() -> float:
    """Return how long injectors take until they are ready, on a machine as busy as this one."""
    programs_on_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(_TOGETHER_S_MAX, _TOGETHER_S * max(1.0, programs_on_core))


def at_once(faults: Sequence[DrillFault]) -> list[list[DrillFault]]:
    """Return the faults in groups that are made at the same time."""
    groups: list[list[DrillFault]] = []
    for fault in faults:
        if groups and fault.during is DrillPhase.TOGETHER:
            groups[-1].append(fault)
        else:
            groups.append([fault])
    return groups


def _awaited(fault: DrillFault) -> str:
    match fault.during:
        case DrillPhase.START:
            return "the start of every rank"
        case DrillPhase.RECOVERY:
            return "the recovery from the fault before"
        case DrillPhase.CHECKPOINT:
            return f"a checkpoint from step {fault.at_step} on"
        case DrillPhase.STEADY | DrillPhase.TOGETHER:
            return f"step {fault.at_step} on every rank"
