"""Trains for a long time while something breaks every 10 to 30 s, and measures rankmend's own processes meanwhile.

    python -m bench.soak                              # 30 minutes
    python -m bench.soak --minutes 120 --seed 7 --output soak.json --plot soak.svg
    python -m bench.soak --read soak.json --plot soak.svg

A job of four ranks on two nodes of this machine, with a launcher and an agent for each and one controller. Faults are drawn from the seed, and
made by `rankmend inject`; as root agents, the controller and a rank's processor time are broken, too. In the first third of the time services are
also killed, and started again; then they live to the end, so that a leak shows. The exit code is 1 if something did not stay bounded, if an
incident was not recovered or blamed a rank that nobody had broken, or if the job did not end with the parameters of an undisturbed one.
"""

import argparse
import json
import os
import platform
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench.soak import training
from bench.soak.faults import Injector, draw
from bench.soak.report import draw as draw_plot
from bench.soak.report import usage_table
from bench.soak.samples import Sample, Stored, measure_stored, take_samples
from bench.soak.stage import JOB, NODES, RANKS, START_S_MAX, Stage, standing
from bench.soak.verdict import Check, judge_missed, judge_stored, judge_usage, limits_of, usage_of
from rankmend.files import write_output
from rankmend.version import RANKMEND_VERSION
from recovery.api.wire import IncidentView
from recovery.console.views.incident_view import view_incidents
from recovery.journal.folder.job_folder import read_json
from recovery.lab.inject.supervisor import is_supervisor
from recovery.launcher.processes.bound_work import run_bound
from recovery.launcher.processes.prctl import die_with_parent

STEP_S: Final = 0.05
_END_S_MAX: Final = 300.0
_END_GRACE_S: Final = 60.0  # for all parts to end by themselves, after Ctrl-C
_POLL_S: Final = 0.1
_SAMPLES: Final = 360
_BLAMED_WITHIN_S: Final = 180.0  # of a fault; on a busy machine an injector starts late
_RECOVERED: Final = "recovered"


@dataclass(slots=True)
class Soak:
    """One run: what was measured, and what came of it."""

    stage: Stage
    seconds: float
    seed: int
    injector: Injector
    pause_s: float | None = (
        None  # before each fault, once the job is whole; None: as drawn, whatever it is
    )
    began_s: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    _sampled_s: float = 0.0

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def incidents(self) -> list[IncidentView]:
        found = view_incidents(self.stage.entries(), JOB)
        return sorted(found, key=lambda one: one.opened_unix_s)

    def run(self) -> list[Check]:
        """Break the job until the time is over, have it end, and return what held."""
        if not self._await(lambda: any(self.stage.checkpoints.glob("step-*.npz")), START_S_MAX):
            return [Check("the job starts", False, f"no checkpoint within {START_S_MAX:g} s")]
        self.began_s = time.monotonic()
        random_ = random.Random(self.seed)
        while self.now_s < self.seconds and not self._has_ended:
            kills = self.now_s < self.seconds / 3
            drawn = draw(random_, may_kill_services=kills, is_root=os.geteuid() == 0)
            if not self._await_turn(drawn.pause_s):
                break
            made = self.injector.make(drawn)
            if made is not None:
                self._tell(f"{made.kind} on {made.target}")
        problems = self.injector.close()
        self._await(lambda: all(one.total_s is not None for one in self.incidents()), _END_S_MAX)
        self.stage.end_job()
        has_ended = self._await(lambda: self._has_ended, _END_S_MAX)
        self._tell("the job has ended" if has_ended else "the job does not end")
        return self._judge(problems)

    def _await_turn(self, drawn_s: float) -> bool:
        """Wait until the next fault is due; return whether that is before the time is over."""
        pause_s = drawn_s if self.pause_s is None else self.pause_s
        due_s = self.now_s + pause_s

        def is_due() -> bool:
            nonlocal due_s
            if self.pause_s is not None and not self._is_whole:
                due_s = self.now_s + pause_s
            return self.now_s >= min(due_s, self.seconds) or self._has_ended

        self._await(is_due, self.seconds)
        return self.now_s < self.seconds

    @property
    def _is_whole(self) -> bool:
        """Return whether each fault stands or is over, and the job has recovered from all of them."""
        return self.injector.is_idle and all(one.total_s is not None for one in self.incidents())

    @property
    def _has_ended(self) -> bool:
        return (
            all(part.running is None for part in self.stage.launchers)
            and (self.stage.folder / "result.json").exists()
        )

    def _await(self, is_so: Any, within_s: float) -> bool:
        """Keep everything going until something is so; return whether it came to that."""
        until_s = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > until_s:
                return False
            self.stage.keep()
            self.injector.look()
            if time.monotonic() - self._sampled_s >= max(1.0, self.seconds / _SAMPLES):
                self._sample()
            time.sleep(_POLL_S)
        return True

    def _sample(self) -> None:
        self._sampled_s = time.monotonic()
        self.samples += take_samples(self.stage, self.began_s)
        found = [self.stage.runtime_of(node) for node in NODES]
        runtimes = [folder for folder in found if folder is not None]
        self.stored.append(
            measure_stored(self.stage, self.began_s, len(self.incidents()), runtimes)
        )

    def _tell(self, what: str) -> None:
        found = self.incidents()
        closed = sum(one.outcome == _RECOVERED for one in found)
        saved = sorted(self.stage.checkpoints.glob("step-*.npz"))
        step = int(saved[-1].stem.partition("-")[2]) if saved else 0
        print(
            f"{self.now_s / 60:6.1f} min  step {step:6d}  {closed} of {len(found)} incidents recovered  {what}",
            flush=True,
        )

    def usage(self) -> list[Any]:
        parts = dict.fromkeys(one.part for one in self.samples)
        return [usage_of(part, [one for one in self.samples if one.part == part]) for part in parts]

    def _judge(self, problems: list[str]) -> list[Check]:
        found = self.incidents()
        open_ = [one for one in found if one.outcome != _RECOVERED]
        result = read_json(self.stage.folder / "result.json") or {}
        step = int(result.get("step", 0))
        codes = [part.codes[-1] if part.codes else None for part in self.stage.launchers]
        wrong = [one for one in found if not self._is_blamed_rightly(one)]
        return [
            Check("every fault was made and undone", not problems, "; ".join(problems) or "all"),
            judge_missed(len(self.injector.made), sum(one.is_missed for one in self.injector.made)),
            Check("the launchers end with exit code 0", codes == [0] * len(codes), f"{codes}"),
            Check(
                "every incident is recovered", not open_,
                "; ".join(f"{one.incident_id} {one.cause}: {one.outcome}" for one in open_) or f"{len(found)} of {len(found)}",
            ),
            Check(
                "no incident blames a rank that nobody had broken", not wrong,
                "; ".join(f"{one.incident_id} {one.cause}: {one.ranks} ({one.summary})" for one in wrong) or "none",
            ),
            Check(
                f"the parameters after {step} steps are those of an undisturbed job",
                step > 0 and result.get("sha256") == training.replay(RANKS, step), f"{result.get('sha256')}",
            ),
            *judge_stored(self.stored),
            *(judge_usage(one) for one in self.usage()),
        ]  # fmt: skip

    def _is_blamed_rightly(self, incident: IncidentView) -> bool:
        from_s = incident.opened_unix_s - _BLAMED_WITHIN_S
        hit = {
            rank
            for one in self.injector.made
            if from_s <= one.unix_s <= incident.opened_unix_s + 1
            for rank in one.ranks
        }
        return set(incident.ranks) <= hit

    def report(self, checks: list[Check]) -> dict[str, Any]:
        kinds = Counter(one.kind for one in self.injector.made if not one.is_missed)
        mttr = [one.total_s for one in self.incidents() if one.total_s is not None]
        return {
            "seed": self.seed, "minutes": self.seconds / 60, "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "rankmend": RANKMEND_VERSION, "python": platform.python_version(),
            "machine": f"{os.cpu_count()} cores, Linux {platform.release()}", "is_root": os.geteuid() == 0,
            "faults_made": sum(kinds.values()), "faults_missed": sum(one.is_missed for one in self.injector.made),
            "faults": dict(kinds.most_common()), "incidents": len(self.incidents()), "mttr_s": mttr,
            "causes": dict(Counter(one.cause for one in self.incidents())),
            "starts": {part.name: part.starts for part in self.stage.parts},
            "held": all(check.held for check in checks), "checks": [asdict(check) for check in checks],
            "usage": [{**asdict(one), "limits": asdict(limits_of(one.part))} for one in self.usage()],
            "samples": [asdict(one) for one in self.samples], "stored": [asdict(one) for one in self.stored],
        }  # fmt: skip


def show(report: dict[str, Any], plot: Path | None) -> None:
    console = Console(width=160, highlight=False)
    console.print(usage_table(report))
    print()
    for check in report["checks"]:
        print(f"{'held' if check['held'] else 'DID NOT HOLD'}: {check['name']} ({check['said']})")
    mttr = sorted(report["mttr_s"])
    middle = (
        f", MTTR {mttr[len(mttr) // 2]:.1f} s in the median, {mttr[-1]:.1f} s at most"
        if mttr
        else ""
    )
    print(
        f"\n{report['faults_made']} faults in {report['minutes']:g} minutes (seed {report['seed']}), "
        f"{report['faults_missed']} came too late for their target; {report['incidents']} incidents{middle}"
    )
    if plot is not None:
        draw_plot(report, plot)
        print(f"drawn to {plot}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument(
        "--pause-s",
        type=float,
        help="seconds before each fault, from when the job has recovered from the one before [default: 10 to 30, drawn, recovered or not]",
    )
    parser.add_argument("--step-s", type=float, default=STEP_S, help="seconds of a step")
    parser.add_argument("--output", type=Path, help="write all that was measured as JSON")
    parser.add_argument("--plot", type=Path, help="draw this picture; needs matplotlib")
    parser.add_argument("--keep", type=Path, help="keep the job's folder here")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier result")
    parser.add_argument(
        "--end-with-parent", action="store_true", help="end when whoever started it is killed"
    )
    options = parser.parse_args()
    if options.read is not None:
        show(json.loads(options.read.read_text(encoding="utf-8")), options.plot)
        return 0
    if options.end_with_parent:
        die_with_parent(os.getppid())
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="rankmend-soak-") as made:
        folder = (options.keep or Path(made)).resolve() / "soak"
        folder.mkdir(parents=True)
        return run_bound(
            lambda: run_soak(options, folder), grace_s=_END_GRACE_S, is_spared=is_supervisor
        )


def run_soak(options: argparse.Namespace, folder: Path) -> int:
    """Run it, show and write what was measured, and return the exit code."""
    with standing(folder, options.step_s) as stage:
        soak = Soak(stage, options.minutes * 60, options.seed, Injector(stage), options.pause_s)
        checks = soak.run()
        report = soak.report(checks)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_output(options.output, json.dumps(report).encode(), RuntimeError)
    show(report, options.plot)
    return 0 if report["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
