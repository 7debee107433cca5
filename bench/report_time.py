"""How long `rankmend report` takes over journals of a week, all of it and its last day, and how much memory it needs.

    python bench/report_time.py                     # 1, 10 and 50 jobs, some minutes
    python bench/report_time.py --jobs 1 --profile  # one job, and the functions that take the time
    python bench/report_time.py --jobs 2 --save /tmp/before   # keep each JSON report, to compare two versions

The journals are synthesised: the real code writes records as a job of 8 nodes has them, under a clock that is
handed in. Every 10 s progress, every minute work and steps, every 10 min a save, a failure each MTBF.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from recovery.journal.attempt_records import (
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    Cause,
    CheckpointSeen,
    Choice,
    Milestone,
    Placement,
    SavesSeen,
    SavesStalled,
    SaveStall,
    StallSource,
    StepsSeen,
    WorkSeen,
)
from recovery.journal.incident_machine import Event, Outcome
from recovery.journal.incident_records import (
    CaughtUp,
    Decided,
    Failure,
    IncidentEvent,
    IncidentOpened,
    Plan,
)
from recovery.journal.job_records import JobOpened, LauncherStarted
from recovery.journal.journal_rows import GROUP_ROWS_MAX
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.node_records import Joined, NodesJoined
from recovery.journal.observation_records import SlowEnded, SlowFound
from recovery.journal.records import Record
from recovery.journal.store import Journal
from recovery.messages.exchange import NodeKinds, Restore

DAY_S: Final = 86400.0
NODES, GPUS = 8, 8
STEP_S, LOOK_S, MINUTE_S, SAVE_S = 2.0, 10.0, 60.0, 600.0
BEGAN_UNIX_S: Final = 1_800_000_000.0

Timed = tuple[float, Record]


@dataclass
class PlannedClock:
    """Gives each record the time that was planned for it."""

    times_s: Iterator[float]
    at_s: float = 0.0

    def unix_s(self) -> float:
        self.at_s = next(self.times_s, self.at_s)
        return BEGAN_UNIX_S + self.at_s

    def now_s(self) -> float:
        return self.at_s


@dataclass
class Job:
    """A job whose records are made up, in the order in which they are written."""

    number: int
    length_s: float
    mtbf_s: float
    attempt: int = 1
    step: int = 0
    saved_step: int = 0
    saved_at_s: float = 0.0

    def __post_init__(self) -> None:
        self.random = Random(self.number)
        self.job_id = f"{self.number:08d}-0000-4000-8000-000000000000"
        self.nodes = tuple(f"n{self.number}-{node}" for node in range(NODES))
        self.placement = tuple(
            Placement(node, tuple(range(place * GPUS, (place + 1) * GPUS)))
            for place, node in enumerate(self.nodes)
        )
        self.ranks = tuple(range(NODES * GPUS))

    def records(self) -> Iterator[Timed]:
        joined = tuple(
            Joined(node, f"launcher-{node}", "boot-1", GPUS, kinds=NodeKinds("NVIDIA H100", "", ""))
            for node in self.nodes
        )
        yield 0.0, JobOpened(self.job_id, f"job-{self.number}")
        yield 0.0, LauncherStarted(self.nodes, NODES * GPUS, 1, "0")
        yield 1.0, NodesJoined(joined)
        choice = Choice(True, None, "none there")
        yield 2.0, AttemptStarted(1, Cause.FIRST, choice, placement=self.placement)
        at_s = 60.0
        yield at_s, self._verified(1)
        while at_s < self.length_s:
            fails_s = at_s + self.random.expovariate(1 / self.mtbf_s)
            yield from self._train(at_s, min(fails_s, self.length_s))
            at_s = fails_s + 60.0
            if at_s < self.length_s:
                yield from self._recover(fails_s)

    def _verified(self, first_step: int) -> AttemptVerified:
        return AttemptVerified(self.attempt, True, self.ranks, 9.0, 8.0, 5.0, 2.0, first_step)

    def _train(self, begin_s: float, end_s: float) -> Iterator[Timed]:
        is_slow = self.random.random() < 0.2
        for look in range(1, int((end_s - begin_s) / LOOK_S)):
            at_s = begin_s + look * LOOK_S
            self.step += int(LOOK_S / STEP_S)
            yield at_s, Milestone(self.attempt, self.step, self.step - 1)
            if is_slow and look in (10, 30):
                yield at_s, self._slow() if look == 10 else SlowEnded(self.attempt, 3, "even")
            if look % int(MINUTE_S / LOOK_S) == 0:
                yield from self._minute(at_s)
            if look % int(SAVE_S / LOOK_S) == 0:
                yield from self._save(at_s)

    def _minute(self, at_s: float) -> Iterator[Timed]:
        ranks, steps = len(self.ranks), int(MINUTE_S / STEP_S) * len(self.ranks)
        work = (1e18, 4096.0 * steps, 8.0 * steps, "bf16", "NVIDIA H100 80GB HBM3")
        yield at_s, WorkSeen(self.attempt, MINUTE_S, 0.5, ranks, *work)
        step_s = steps * STEP_S
        parts = (step_s, step_s * 0.7, step_s * 0.2, step_s * 0.05, step_s * 0.05, 0.0)
        yield at_s, StepsSeen(self.attempt, ranks, steps, *parts)

    def _save(self, at_s: float) -> Iterator[Timed]:
        self.saved_step, self.saved_at_s = self.step, at_s
        saves = SavesSeen(1, SAVE_S, 3.0, StallSource.SECTION, 20.0)
        if self.number % 2:  # else only their length is known
            yield at_s, SavesStalled(self.attempt, (SaveStall(4.0, 3.0),))
        path = f"/c/step-{self.step}"
        reason, unix_s = "complete", BEGAN_UNIX_S + at_s
        yield at_s, CheckpointSeen(path, self.step, "torch", "torch", unix_s, reason, 10, saves)

    def _slow(self) -> SlowFound:
        symptom = Symptom(SymptomKind.UNKNOWN, "compute")
        finding = self._finding(Kind.RANK_FAILED, 3, symptom, "rank 3 is slow")
        return SlowFound(self.attempt, 3, "compute", 1.4, self.step, finding, 1.3)

    def _finding(self, kind: Kind, rank: int, symptom: Symptom, summary: str) -> Finding:
        return Finding(
            kind=kind,
            severity=Severity.CRITICAL,
            blame=Blame.RANK,
            summary=summary,
            job_id=self.job_id,
            attempt=self.attempt,
            node=self.nodes[rank // GPUS],
            ranks=(rank,),
            victims=(),
            since_age_s=0.5,
            symptom=symptom,
        )

    def _recover(self, at_s: float) -> Iterator[Timed]:
        rank, incident = self.random.choice(self.ranks), f"inc-{self.attempt}"
        symptom = Symptom(self.random.choice(list(SymptomKind)), "SIGKILL")
        finding = self._finding(Kind.RANK_FAILED, rank, symptom, f"rank {rank} failed")
        failure = Failure(self.attempt, finding, 137, rank, None, self.step, False, self.ranks)
        yield at_s, IncidentOpened(incident, failure, 0.5, self.step, Policy(), step_age_s=1.0)
        yield at_s, Decided(incident, 1, Plan(PlanStep.RESTART_IN_PLACE, "because", ()))
        yield at_s + 0.25, _event(incident, Outcome.ACCEPTED, incident)
        yield at_s + 1.0, AttemptEnded(self.attempt, AttemptResult.FAILED)
        yield at_s + 1.0, _event(incident, Outcome.SUCCEEDED, f"{incident}/1/fencing")
        self.attempt += 1
        restore = Restore(f"/c/step-{self.saved_step}", self.saved_step)
        choice = Choice(True, restore, "complete", (), BEGAN_UNIX_S + self.saved_at_s)
        yield (
            at_s + 1.25,
            AttemptStarted(
                self.attempt, Cause.INCIDENT, choice, incident, 1, placement=self.placement
            ),
        )
        yield at_s + 3.0, _event(incident, Outcome.SUCCEEDED, f"{incident}/1/restoring")
        passed, self.step = self.step + 1, self.saved_step + 1
        yield at_s + 30.0, self._verified(self.step)
        yield at_s + 31.0, _event(incident, Outcome.SUCCEEDED, f"{incident}/1/verifying")
        yield at_s + 55.0, CaughtUp(incident, self.attempt, passed, age_s=0.5)


def _event(incident: str, outcome: Outcome, answers: str) -> IncidentEvent:
    return IncidentEvent(Event(incident, outcome, answers, outcome.value))


def write_job(state: Path, job: Job) -> int:
    """Write the journal of one job; return its number of records."""
    folder = state / "jobs" / f"job-{job.number}"
    folder.mkdir(parents=True)
    described = {"job_id": job.job_id, "name": f"job-{job.number}"}
    (folder / "job.json").write_text(json.dumps(described), encoding="utf-8")
    planned: Sequence[Timed] = list(job.records())
    clock = PlannedClock(iter([at_s for at_s, _record in planned]))
    journal = Journal(folder / "journal.db", clock, "boot-1")  # type: ignore[arg-type]
    for begin in range(0, len(planned), GROUP_ROWS_MAX):
        journal.append_many([record for _at_s, record in planned[begin : begin + GROUP_ROWS_MAX]])
    journal.close()
    return len(planned)


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    peak_mb: float


def run(command: Sequence[str]) -> Cost:
    """Run a command to its end, and return what it took."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out)
        _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(time.monotonic() - began_s, cpu_s, usage.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, action="append", help="how many; repeat it for several")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--mtbf-h", type=float, default=2.0)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--save", type=Path, help="folder for the JSON reports")
    parser.add_argument("--output", type=Path, help="JSON file of the figures")
    options = parser.parse_args()
    rows = []
    print(" jobs    records  report                wall s   CPU s  peak MB")
    with tempfile.TemporaryDirectory() as folder:
        state, written, records = Path(folder), 0, 0
        for jobs in sorted(options.jobs or (1, 10, 50)):
            for number in range(written, jobs):
                records += write_job(
                    state, Job(number, options.days * DAY_S, options.mtbf_h * 3600.0)
                )
            written = jobs
            week, day = (
                ("--cluster", "--since", _since(options.days, days)) for days in (7.0, 1.0)
            )
            for name, more in (("all jobs", ()), ("--cluster 7d", week), ("--cluster 1d", day)):
                start = [sys.executable]
                if options.profile:
                    start += ["-m", "cProfile", "-o", str(state / "profile")]
                start += ["-m", "rankmend.cli", "report", "--state-dir", str(state), "--json"]
                if options.save is not None:
                    options.save.mkdir(parents=True, exist_ok=True)
                    path = options.save / f"{jobs}-{name.replace(' ', '-')}.json"
                    with path.open("wb") as out:
                        subprocess.run([*start, *more], stdout=out, check=True)
                cost = run([*start, *more])
                print(
                    f"{jobs:>5} {records:>10,}  {name:<20} {cost.wall_s:>7.1f} {cost.cpu_s:>7.1f}"
                    f" {cost.peak_mb:>8.0f}"
                )
                rows.append({"jobs": jobs, "records": records, "report": name} | vars(cost))
                if options.profile:
                    _show_profile(state / "profile")
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _since(length_days: float, days: float) -> str:
    """Return the moment so many days before the journals end."""
    at_s = BEGAN_UNIX_S + max(0.0, length_days - days) * DAY_S
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def _show_profile(path: Path) -> None:
    import pstats

    pstats.Stats(str(path)).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
