"""Runs a scenario on a job that torchrun has started and that is only watched: its faults, what was said of it, and its end."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError, RankmendError
from rankmend.loads import drill_job
from recovery.accounting.goodput.job_time import JobTime, stall_outcome
from recovery.api import wire
from recovery.api.wire import IncidentView
from recovery.console.views.watched_time_view import time_of_view
from recovery.lab.drill.runner import DrillRun, JobProcess, OverdueError
from recovery.lab.drill.scenario import DrillFault, DrillPhase
from recovery.lab.drill.verdict import DrillCheck, DrillOutcome, judge_drill
from recovery.lab.drill.watched_site import WatchedSite, watching
from recovery.local.report.overview import StoredRankView

NOTICED_S_MAX: Final = 300.0  # a stop is named within a minute; a requeue takes Slurm half of one
# Not imported: it needs PyTorch.
_SCRIPT: Final = Path(drill_job.__file__).with_name("torchrun_job.py")
_RESTARTS_MAX: Final = 3
STOP: Final = "stop"
_ENDS: Final = ("kill", "exit-code", "exception")
_TROUBLE: Final = frozenset({"hung", "slow"})
_RANK_BYTES_MAX: Final = 4096


def require_torchrun() -> None:
    """Raise ConfigError where this Python has no torchrun."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f'launcher = "torchrun" needs PyTorch in {sys.executable}: pip install torch'
        )


def torchrun(restarts: int, run_id: str, ranks: int) -> list[str]:
    """Return the words that start a job by torchrun on one node; ``run_id`` names it in each of its starts."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={run_id}"),
        f"--max-restarts={restarts}",
    ]


@dataclass(slots=True)
class WatchedRun(DrillRun):
    """A job of torchrun, whose ranks that starts again; ``name``: no other job's begins with it."""

    site: WatchedSite | None = None  # None: it runs one of its own
    name: str = field(default_factory=lambda: f"drill-{uuid.uuid4().hex[:8]}")
    faults_at_unix_s: list[float] = field(default_factory=list)
    attempts: int = 0  # told by the ranks at the end
    _time: wire.WatchedTime | None = None

    def run(self) -> DrillOutcome:
        """Run the job with its faults until it has ended, or its time is over."""
        if self.site is not None:
            return super(WatchedRun, self).run()
        require_torchrun()
        home = self.folder / "site"
        home.mkdir()
        with watching(home) as self.site:
            self.tell("a controller and an agent watch")
            return super(WatchedRun, self).run()

    def services(self) -> WatchedSite:
        assert self.site is not None, "made with one, or runs one"
        return self.site

    # The job.

    def _start(self, log: int) -> JobProcess:
        self._prepare()
        return subprocess.Popen(
            [*torchrun(_RESTARTS_MAX, self.name, self.scenario.job.ranks), *self._script()],
            cwd=self.folder, env=self.services().environment(self.folder),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def _script(self) -> list[str]:
        job = self.scenario.job
        numbers = (job.steps, job.checkpoint_every, job.step_s, job.start_s, job.save_s)
        return [str(_SCRIPT), str(self.folder), *map(str, numbers)]

    def told(self) -> list[dict[str, object]]:
        """Return what each rank has reported, the lowest first."""
        found = []
        for rank in range(self.scenario.job.ranks):
            with contextlib.suppress(OSError, ValueError):
                path = self.folder / f"rank-{rank}.json"
                with path.open("rb") as file:
                    found.append(json.loads(file.read(_RANK_BYTES_MAX)))
        return found

    def attempt(self) -> int | None:
        """Return the attempt that all ranks have told of, or None while they differ."""
        reported = self.told()
        attempts = {int(str(item["attempt"])) for item in reported}
        is_whole = len(attempts) == 1 and len(reported) == self.scenario.job.ranks
        return attempts.pop() if is_whole else None

    def _ranks(self) -> list[StoredRankView]:
        found = []
        for rank, item in enumerate(self.told()):
            step, pid = item["step"], int(str(item["pid"]))
            if Path(f"/proc/{pid}").exists():
                made = None if step is None else int(str(step))
                found.append(StoredRankView(rank, rank, pid, made, section=str(item["section"])))
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
        return view.ranks_seen == self.scenario.job.ranks and view.attempt == attempt + 1

    # Its faults.

    def _prepare(self) -> None:
        """Allow faults of the checkpoints, and have only the attempt wait that is to be broken at its start."""
        marks = f'[drills]\nallow = ["storage"]\npaths = ["{self.checkpoints}"]\n'
        (self.folder / "drills.toml").write_text(marks, encoding="utf-8")
        faults = self.scenario.faults
        if not faults or faults[0].during is not DrillPhase.START:
            (self.folder / "begun-0").touch()

    def _target(self, fault: DrillFault) -> str:
        kind, _, rank = fault.on.partition(":")
        if kind == "rank" and "/" not in rank:
            return f"rank:{self.name}/{rank}"
        return super(WatchedRun, self)._target(fault)

    def _injectors_places(self, fault: DrillFault) -> list[str]:
        places = super(WatchedRun, self)._injectors_places(fault)
        return [*places, f"--marks={self.folder}/drills.toml"]

    def _inject(self, faults: Sequence[DrillFault]) -> None:
        super(WatchedRun, self)._inject(faults)
        self.faults_at_unix_s.append(time.time())
        if any(fault.during in (DrillPhase.START, DrillPhase.RECOVERY) for fault in faults):
            (self.folder / "begun").touch()

    def _let_go(self) -> None:
        """Wait until the faults are noticed and over, and the job goes on."""
        if any(fault.fault == STOP for fault in self.scenario.faults):
            self._wait_noticed(lambda: bool(self.named_after_s() or self.mttr_s()))
        for (
            injector
        ) in self._injectors:  # whoever looks for what is wrong goes on with it in the end
            if (
                injector.process.poll() is None
                and injector.fault.fault == STOP
                and self.ends_stops()
            ):
                injector.process.send_signal(signal.SIGTERM)
            elif injector.fault.fault == "core-load":
                self._until(lambda item=injector: item.process.poll() is not None, "the load ends")  # type: ignore[misc]
        if self.is_recovery_due():  # a job that ends first leaves its failure open
            self._wait_noticed(self._has_recovered)
        (self.folder / "let-go").touch()

    def _wait_noticed(self, is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + NOTICED_S_MAX
        with contextlib.suppress(OverdueError):
            self._until(lambda: is_so() or time.monotonic() > until_s, "it is noticed")

    def is_recovery_due(self) -> bool:
        """Return whether the job is to train again: its launcher starts it again, or its rank is no longer stopped."""
        return any(fault.fault in (STOP, *_ENDS) for fault in self.scenario.faults)

    def ends_stops(self) -> bool:
        """Return whether a stopped rank goes on once it was named."""
        return True

    def _has_recovered(self) -> bool:
        stalls = self.stalls()
        return bool(stalls) and all(stall.recovered_s is not None for stall in stalls)

    # What was said of it.

    def stalls(self) -> list[wire.WatchedStall]:
        """Return the failures of the job as the controller accounts for them."""
        reported = self.services().time_of(self.name)
        return [] if reported is None else reported.stalls

    def named_after_s(self) -> float | None:
        """Return how long after the last fault a rank was named, or None."""
        for look in self.services().looks.get(self.name, ()):
            if look.view.state == "hung" and any(finding.ranks for finding in look.view.findings):
                return look.unix_s - self.faults_at_unix_s[-1] if self.faults_at_unix_s else None
        return None

    def blamed(self) -> tuple[int, ...]:
        """Return each rank that was ever named."""
        looks = self.services().looks.get(self.name, ())
        views = [look.view for look in looks if look.view.state in _TROUBLE]
        return tuple(
            sorted({rank for view in views for finding in view.findings for rank in finding.ranks})
        )

    def mttr_s(self) -> tuple[float, ...]:
        """Return how long each failure of the job took, as the controller accounts for it."""
        return tuple(
            stall.recovered_s - stall.begin_s
            for stall in self.stalls()
            if stall.recovered_s is not None
        )

    def acts(self) -> tuple[str, ...]:
        """Return what the controller has asked the scheduler for."""
        looks = self.services().looks.get(self.name, ())
        return tuple(sorted({look.view.act for look in looks if look.view.act.startswith("asked")}))

    # Its end.

    def _end(self, job: JobProcess) -> None:
        reported = self.told()
        self.attempts = max((int(str(item["attempt"])) for item in reported), default=0)
        super(WatchedRun, self)._end(job)
        if isinstance(job, subprocess.Popen):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)

    def _outcome(self, code: int | None, not_undone: tuple[str, ...]) -> DrillOutcome:
        job = self.scenario.job
        with contextlib.suppress(RankmendError):
            self._time = self.services().time_of(self.name)
        expected = (job.steps, drill_job.replay(job.ranks, job.steps))
        return DrillOutcome(code, self._failures(), self._result(), expected, not_undone)

    def _failures(self) -> tuple[IncidentView, ...]:
        """Return the failures that were told, as incidents: a rank that nobody named is in none."""
        reported = self._time
        return (
            ()
            if reported is None
            else tuple(_incident(reported, stall) for stall in reported.stalls)
        )

    def job_time(self) -> JobTime | None:
        """Return where the job's time went."""
        return None if self._time is None else time_of_view(self._time)

    def checks(self, outcome: DrillOutcome) -> tuple[DrillCheck, ...]:
        """Return what must hold, and what always must of a job that is only watched."""
        broken = {
            int(number)
            for fault in self.scenario.faults
            if (number := fault.on.removeprefix("rank:")).isdigit()
        }
        named = self.blamed()
        said = ", ".join(map(str, named)) or "nobody"
        acts = "; ".join(self.acts()) or "nothing was requested"
        return (
            *judge_drill(self.scenario.holds, outcome),
            DrillCheck("no rank is named that nothing was made on", set(named) <= broken, said),
            DrillCheck("rankmend touches nothing", not self.acts(), acts),
        )


def _incident(reported: wire.WatchedTime, stall: wire.WatchedStall) -> IncidentView:
    return IncidentView(
        incident_id=stall.stall_id,
        job_id=reported.job_id,
        job=reported.name,
        opened_unix_s=reported.began_unix_s + stall.begin_s,
        attempt=0,
        cause=stall.kind,
        signature="",
        summary=stall.kind,
        blame="rank" if stall.ranks else "nobody",
        node=stall.node,
        ranks=stall.ranks,
        victims=[],
        outcome=stall_outcome(stall.recovered_s, has_ended=reported.has_ended).value,
        tries=0,
        steps=[],
        phases={},
        notes=[],
        total_s=None if stall.recovered_s is None else stall.recovered_s - stall.begin_s,
        recovered_s=None,
        steps_recomputed=None,
        caught_up_s=None,
    )
