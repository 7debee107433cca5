"""One scenario on a job of torchrun that is watched: its faults, what the controller said of it, and its end."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.drills.matrix import Cell
from bench.drills.told import Told
from bench.drills.watched_site import WatchedSite, torchrun
from rankmend.loads.drill_job import replay
from recovery.drill.runner import DrillRun, JobProcess, OverdueError
from recovery.drill.scenario import DrillFault, DrillHolds, DrillPhase
from recovery.drill.verdict import DrillCheck, DrillOutcome, judge_drill
from recovery.report.overview import StoredRankView

RANKS: Final = 2
NOTICED_S_MAX: Final = 300.0  # a stop is named within a minute; a requeue takes Slurm half of one
_SCRIPT: Final = Path(__file__).resolve().parents[1] / "jobs" / "drilled_ddp.py"
_STOP: Final = "stop"
_TROUBLE: Final = frozenset({"hung", "slow"})


@dataclass(slots=True)
class WatchedRun(DrillRun):
    """A job of two ranks, rank 1 of which is broken; ``name``: no other job's begins with it."""

    site: WatchedSite | None = None
    name: str = ""
    faults_at_unix_s: list[float] = field(default_factory=list)
    attempts: int = 0  # told by the ranks at the end

    def services(self) -> WatchedSite:
        assert self.site is not None, "made with one"
        return self.site

    # The job.

    def _start(self, log: int) -> JobProcess:
        self._prepare()
        return subprocess.Popen(
            [*torchrun(3, self.name, RANKS), *self._script()],
            cwd=self.folder, env=self.services().environment(),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def _script(self) -> list[str]:
        job = self.scenario.job
        numbers = (job.steps, job.checkpoint_every, job.step_s, job.start_s, job.save_s)
        return [str(_SCRIPT), str(self.folder), *map(str, numbers)]

    def told(self) -> list[dict[str, object]]:
        """Return what each rank has told, the lowest first."""
        found = []
        for rank in range(RANKS):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads((self.folder / f"rank-{rank}.json").read_text()))
        return found

    def attempt(self) -> int | None:
        """Return the attempt that all ranks have told of, or None while they differ."""
        attempts = {int(str(one["attempt"])) for one in self.told()}
        return attempts.pop() if len(attempts) == 1 and len(self.told()) == RANKS else None

    def _ranks(self) -> list[StoredRankView]:
        found = []
        for rank, one in enumerate(self.told()):
            step, pid = one["step"], int(str(one["pid"]))
            if Path(f"/proc/{pid}").exists():
                made = None if step is None else int(str(step))
                found.append(StoredRankView(rank, rank, pid, made, section=str(one["section"])))
        return found

    def _is_recovering(self) -> bool:
        return (self.attempt() or 0) > 0

    def _is_in(self, fault: DrillFault, ranks: Sequence[StoredRankView]) -> bool:
        # A job that is broken before the agent's first report of it was never seen.
        return super(WatchedRun, self)._is_in(fault, ranks) and self._is_seen()

    def _is_seen(self) -> bool:
        looks, attempt = self.services().looks.get(self.name), self.attempt()
        if not looks or attempt is None:
            return False
        view = looks[-1].view
        return view.ranks_seen == RANKS and view.attempt == attempt + 1

    # Its faults.

    def _prepare(self) -> None:
        """Allow faults of the checkpoints, and have only the attempt wait that is to be broken at its start."""
        marks = f'[drills]\nallow = ["storage"]\npaths = ["{self.checkpoints}"]\n'
        (self.folder / "drills.toml").write_text(marks)
        if self.scenario.faults[0].during is not DrillPhase.START:
            (self.folder / "begun-0").touch()

    def _target(self, fault: DrillFault) -> str:
        kind, _, rank = fault.on.partition(":")
        return (
            f"rank:{self.name}/{rank}" if kind == "rank" else super(WatchedRun, self)._target(fault)
        )

    def _injectors_places(self, fault: DrillFault) -> list[str]:
        places = super(WatchedRun, self)._injectors_places(fault)
        return [*places, f"--marks={self.folder}/drills.toml"]

    def _inject(self, faults: Sequence[DrillFault]) -> None:
        super(WatchedRun, self)._inject(faults)
        self.faults_at_unix_s.append(time.time())
        if any(one.during in (DrillPhase.START, DrillPhase.RECOVERY) for one in faults):
            (self.folder / "begun").touch()

    def _let_go(self) -> None:
        """Wait until the faults are noticed and over, and the job goes on."""
        if any(fault.fault == _STOP for fault in self.scenario.faults):
            self._wait_noticed(lambda: bool(self.named_after_s() or self._restarted()))
        for one in self._injectors:  # whoever looks for what is wrong goes on with it in the end
            if one.process.poll() is None and one.fault.fault == _STOP and self.ends_stops():
                one.process.send_signal(signal.SIGTERM)
            elif one.fault.fault == "core-load":
                self._until(lambda one=one: one.process.poll() is not None, "the load ends")  # type: ignore[misc]
        if self.is_restart_due():
            self._wait_noticed(self._restarted)
        (self.folder / "let-go").touch()

    def _wait_noticed(self, is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + NOTICED_S_MAX
        with contextlib.suppress(OverdueError):
            self._until(lambda: is_so() or time.monotonic() > until_s, "it is noticed")

    def is_restart_due(self) -> bool:
        """Return whether whoever started the job is to start it again."""
        return any(
            fault.fault in ("kill", "exit-code", "exception") for fault in self.scenario.faults
        )

    def ends_stops(self) -> bool:
        """Return whether a stopped rank goes on once it was named."""
        return True

    def _restarted(self) -> bool:
        return bool(self.mttr_s())

    # What was said of it.

    def named_after_s(self) -> float | None:
        """Return how long after the last fault a rank was named, or None."""
        for look in self.services().looks.get(self.name, ()):
            if look.view.state == "hung" and any(one.ranks for one in look.view.findings):
                return look.unix_s - self.faults_at_unix_s[-1] if self.faults_at_unix_s else None
        return None

    def blamed(self) -> tuple[int, ...]:
        """Return each rank that was ever named."""
        looks = self.services().looks.get(self.name, ())
        views = [one.view for one in looks if one.view.state in _TROUBLE]
        return tuple(
            sorted({rank for view in views for one in view.findings for rank in one.ranks})
        )

    def mttr_s(self) -> tuple[float, ...]:
        """Return how long each failure of the job took, as the controller accounts for it."""
        stalls = self.services().stalls(self.name)
        return tuple(one.recovered_s - one.begin_s for one in stalls if one.recovered_s is not None)

    def acts(self) -> tuple[str, ...]:
        """Return what the controller has asked the scheduler for."""
        looks = self.services().looks.get(self.name, ())
        return tuple(sorted({one.view.act for one in looks if one.view.act.startswith("asked")}))

    def _end(self, job: JobProcess) -> None:
        told = self.told()
        self.attempts = max((int(str(one["attempt"])) for one in told), default=0)
        super(WatchedRun, self)._end(job)
        if isinstance(job, subprocess.Popen):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)

    def _outcome(self, code: int | None, not_undone: tuple[str, ...]) -> DrillOutcome:
        steps = self.scenario.job.steps
        return DrillOutcome(code, (), self._result(), (steps, replay(RANKS, steps)), not_undone)


HOLDS: Final = DrillHolds(all_recovered=False)


def tell_watched(
    run: WatchedRun, cell: Cell, outcome: DrillOutcome, more: Sequence[DrillCheck]
) -> Told:
    """Return what came of a cell of a watched job; ``more``: what must hold beside it for this kind of launcher."""
    named_s, mttr_s, blamed = run.named_after_s(), run.mttr_s(), run.blamed()
    is_stop = any(fault.fault == _STOP for fault in cell.scenario.faults)
    is_named_due = (
        is_stop and cell.phase is not DrillPhase.TOGETHER
    )  # there the other's death ends it
    if is_named_due:
        detected = DrillCheck("a stopped rank is named", named_s is not None, f"after {named_s} s")
    elif run.is_restart_due():
        detected = DrillCheck("the restart is accounted for", bool(mttr_s), f"{mttr_s}")
    else:
        detected = DrillCheck(
            "nothing is taken for a fault", not mttr_s and not blamed, f"{mttr_s}, {blamed}"
        )
    allowed = {1} if is_stop else set()
    right = DrillCheck("nobody else is named", set(blamed) <= allowed, f"{blamed}")
    base = judge_drill(HOLDS, outcome)
    return Told(
        cell.kind.name,
        cell.phase.value,
        (*base, detected, right, *more),
        is_detected=detected.held,
        is_recovered=outcome.exit_code == 0,
        is_blamed_rightly=right.held,
        is_intact=outcome.result == outcome.expected,
        mttr_s=mttr_s,
        shown=f"named after {named_s:.0f} s" if is_named_due and named_s is not None else "",
    )
