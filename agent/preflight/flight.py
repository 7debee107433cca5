"""Runs one pre-flight check: loads by the plan, the health meanwhile, a second measurement of what was bad, the verdicts.

The parent opens no file that may hang: what touches storage, drivers or the agent runs in children with deadlines.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import rankmend
from agent.preflight.children import ChildEnd, ChildEndKind, LoadChildren
from agent.preflight.result_file import FlightResult
from detectors.preflight.answers import StepAnswers, StepEndKind, judge_end, read_answers
from detectors.preflight.baseline import Baseline
from detectors.preflight.figures import KINDS, LoadFigure, better
from detectors.preflight.health import judge_health
from detectors.preflight.levels import (
    HEALTH_S,
    MARGIN_S,
    REAP_S,
    FlightLevel,
    FlightRound,
    FlightStep,
    stage_s,
)
from detectors.preflight.tools import NvidiaTool, read_tool
from detectors.preflight.verdicts import (
    BitCheck,
    CheckStanding,
    CheckVerdict,
    FlightOutcome,
    in_order,
    judge_bits,
    judge_figures,
    outcome_of,
)
from rankmend.clock import Clock

START: Final = Path(rankmend.__file__).resolve().parent / "loads" / "start.py"
HEALTH: Final = "health"
GPU_WATCH: Final = "gpu_clocks"
# Before each further measurement of what was too bad: other programs disturb for seconds, a fault stays.
RETEST_PAUSES_S: Final = (0.0, 2.0, 5.0)
_LOOK_S: Final = 0.1

MakeHealth = Callable[[int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class FlightSetup:
    """What a check needs besides its plan."""

    node: str
    level: FlightLevel
    bound_s: float
    interpreter: str
    environment: Mapping[str, str]
    host_model: str = ""
    baseline: Baseline = field(default_factory=lambda: Baseline({}))
    rounds_max: int = 1
    gpu_model: str = ""  # of figures of vendors' tools
    start_file: Path = START
    retest_pauses_s: Sequence[float] = RETEST_PAUSES_S


@dataclass(slots=True)
class _Gathered:
    """What all steps so far have reported."""

    figures: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    bits: list[BitCheck] = field(default_factory=list)
    signs: dict[str, float] = field(default_factory=dict)
    verdicts: list[CheckVerdict] = field(default_factory=list)

    def take(self, answers: StepAnswers) -> None:
        for figure in answers.figures:
            self.figures.setdefault((figure.name, figure.part, figure.model), []).append(
                figure.value
            )
        self.bits += answers.bits
        self.verdicts += answers.verdicts
        for name, value in answers.signs.items():
            self.signs[name] = self.signs.get(name, 0.0) + value

    def take_better(self, answers: StepAnswers) -> None:
        """Take in a second measurement: the better figure counts, and all that was wrong."""
        for figure in answers.figures:
            values = self.figures.setdefault(
                (figure.name, figure.part, figure.model), [figure.value]
            )
            best = better(KINDS[figure.name], median(values), figure.value)
            self.figures[figure.name, figure.part, figure.model] = [best]
        self.bits += answers.bits
        self.verdicts += answers.verdicts

    def forget_silence(self, steps: Collection[str]) -> None:
        """Drop that these gave no answer: they are asked again."""
        self.verdicts = [
            verdict
            for verdict in self.verdicts
            if verdict.part not in steps or verdict.standing is not CheckStanding.SILENT
        ]

    def all_figures(self) -> list[LoadFigure]:
        return [
            LoadFigure(name, median(values), part, model)
            for (name, part, model), values in self.figures.items()
        ]


class Flight:
    """One check. ``make_health`` watches the node until its descriptor ends, ``make_gpu_watch`` its GPUs; None: nobody watches."""

    def __init__(
        self,
        setup: FlightSetup,
        plan: FlightRound,
        children: LoadChildren,
        clock: Clock,
        make_health: MakeHealth | None,
        is_stopped: Callable[[], bool],
        say: Callable[[str], None] = lambda _text: None,
        make_gpu_watch: MakeHealth | None = None,
    ) -> None:
        self._setup = setup
        self._plan = plan
        self._children = children
        self._clock = clock
        self._make_health = make_health
        self._make_gpu_watch = make_gpu_watch
        self._is_stopped = is_stopped
        self._say = say
        self._gathered = _Gathered()
        self._rounds = 0

    def run(self, began_s: float, early: Sequence[CheckVerdict] = ()) -> FlightResult:
        """Return the result. ``began_s``: monotonic, when the bound began; ``early``: verdicts from before the load."""
        began_unix_s = self._clock.unix_s()
        self._gathered.verdicts += early
        until_s = began_s + self._setup.bound_s
        load_until_s = until_s - MARGIN_S - HEALTH_S
        if self._make_health is not None:
            left_s = max(1.0, load_until_s - time.monotonic() + HEALTH_S)
            self._children.start_function(HEALTH, self._make_health, left_s)
        if self._make_gpu_watch is not None:
            left_s = max(1.0, load_until_s - time.monotonic() + HEALTH_S)
            self._children.start_function(GPU_WATCH, self._make_gpu_watch, left_s)
        while self._may_begin_round(load_until_s):
            self._run_round(load_until_s)
            if any(bit.bad for bit in self._gathered.bits):
                break  # what computes wrongly needs no further proof
        self._measure_again(load_until_s)
        self._end_gpu_watch()
        health = self._end_health()
        verdicts = [*self._judge(), *health]
        outcome = FlightOutcome.STOPPED if self._is_stopped() else outcome_of(verdicts)
        return FlightResult(
            self._setup.node,
            self._setup.level.value,
            outcome,
            began_unix_s,
            round(time.monotonic() - began_s, 3),
            self._setup.bound_s,
            self._rounds,
            tuple(in_order(verdicts)),
            tuple(self._gathered.all_figures()),
            tuple(self._children.left_behind),
            self._setup.host_model,
        )

    def _may_begin_round(self, until_s: float) -> bool:
        if self._is_stopped() or self._rounds >= self._setup.rounds_max or self._has_hung():
            return False
        return self._rounds == 0 or time.monotonic() + self._plan.bound_s <= until_s

    def _has_hung(self) -> bool:
        return any(verdict.standing is CheckStanding.HUNG for verdict in self._gathered.verdicts)

    def _run_round(self, until_s: float) -> None:
        self._rounds += 1
        for planned in self._plan.stages:
            if self._is_stopped():
                return
            stage = [item for item in planned if self._rounds == 1 or not item.needs_others]
            for answers in self._run_stage(stage, until_s):
                self._gathered.take(answers)
        bad = [item for item in self._judge() if item.standing is CheckStanding.FAILED]
        self._say(f"round {self._rounds}: {len(bad)} failed" if bad else f"round {self._rounds}")

    def _run_stage(self, stage: Sequence[FlightStep], until_s: float) -> list[StepAnswers]:
        limits_s: dict[str, float] = {}
        for step in stage:
            left_s = until_s - time.monotonic() - REAP_S
            limit_s = min(step.waits_s + step.deadline_s, left_s)
            if limit_s <= 0:
                text = "no time was left for it"
                self._gathered.verdicts.append(
                    CheckVerdict(step.name, step.name, CheckStanding.SILENT, text)
                )
                continue
            limits_s[step.name] = limit_s
            self._children.start_program(
                step.name, _words(self._setup, step, limit_s), self._setup.environment, limit_s
            )
        ends = self._children.wait(list(limits_s))
        steps = {step.name: step for step in stage}
        return [self._read(steps[name], end, limits_s[name]) for name, end in ends.items()]

    def _read(self, step: FlightStep, end: ChildEnd, limit_s: float) -> StepAnswers:
        name = step.name
        if step.tool is not None and end.kind is ChildEndKind.ENDED:
            return read_tool(
                NvidiaTool(step.tool), end.output.decode("utf-8", "replace"), self._setup.gpu_model
            )
        lines = end.lines()
        answers = read_answers(lines, self._setup.host_model)
        if not self._is_stopped():
            kind = StepEndKind(end.kind.value)
            verdict = judge_end(name, kind, end.status, lines, end.waits_in, end.errors, limit_s)
            answers.verdicts += [verdict] if verdict is not None else []
        return answers

    def _judge(self) -> list[CheckVerdict]:
        gathered = self._gathered
        return [
            *gathered.verdicts,
            *judge_bits(_summed(gathered.bits)),
            *judge_figures(
                gathered.all_figures(), self._setup.node, self._setup.baseline, gathered.signs
            ),
        ]

    def _measure_again(self, until_s: float) -> None:
        """Run the steps of figures that are too bad again, while there is time: another program may have disturbed them."""
        for pause_s in self._setup.retest_pauses_s:
            bad = {
                item.part
                for item in self._judge()
                if item.standing is CheckStanding.SILENT
                or (item.standing is CheckStanding.FAILED and item.value is not None)
            }
            stages = [
                [step for step in stage if _parts_of(step) & bad and not step.needs_others]
                for stage in self._plan.stages
            ]
            stages = [stage for stage in stages if stage]
            if not stages or not self._pause(pause_s, until_s):
                return
            for stage in stages:
                if self._is_stopped() or time.monotonic() + stage_s(stage) > until_s:
                    return
                names = {step.name for step in stage}
                self._gathered.forget_silence(names)
                for answers in self._run_stage(stage, until_s):
                    self._gathered.take_better(answers)

    def _pause(self, pause_s: float, until_s: float) -> bool:
        """Wait, and return whether there is time for more and nobody asked to stop."""
        end_s = time.monotonic() + pause_s
        while end_s < until_s and not self._is_stopped():
            if (left_s := end_s - time.monotonic()) <= 0:
                return True
            time.sleep(min(left_s, _LOOK_S))
        return False

    def _end_gpu_watch(self) -> None:
        """Take in what the GPUs showed meanwhile: these figures are of all the load, and measured once."""
        if self._make_gpu_watch is None:
            return
        self._children.ask_to_end(GPU_WATCH)
        end = self._children.wait([GPU_WATCH]).get(GPU_WATCH)
        if end is None or self._is_stopped():
            return
        lines = end.lines()
        if end.kind is ChildEndKind.ENDED and lines and "lines" in lines[0]:
            self._gathered.take(read_answers(lines[0]["lines"], self._setup.host_model))
            return
        kind, last = StepEndKind(end.kind.value), end.errors.strip().splitlines()[-1:]
        said = judge_end(
            GPU_WATCH, kind, end.status or 1, [], end.waits_in, "\n".join(last), HEALTH_S
        )
        self._gathered.verdicts += [said] if said is not None else []

    def _end_health(self) -> list[CheckVerdict]:
        if self._make_health is None:
            return []
        self._children.ask_to_end(HEALTH)
        end = self._children.wait([HEALTH]).get(HEALTH)
        if end is None or self._is_stopped():
            return []
        lines = end.lines()
        if end.kind is ChildEndKind.ENDED and lines and "page" in lines[0]:
            reported = lines[0]
            may_read_all = bool(reported.get("may_read_all", True))
            return judge_health(reported["page"], reported["before"], may_read_all=may_read_all)
        last = end.errors.strip().splitlines()[-1:]
        kind = StepEndKind(end.kind.value)
        said = judge_end(HEALTH, kind, end.status or 1, [], end.waits_in, "\n".join(last), HEALTH_S)
        return [said] if said is not None else []


def _words(setup: FlightSetup, step: FlightStep, limit_s: float) -> Callable[[int], Sequence[str]]:
    def make(lifeline: int) -> Sequence[str]:
        if step.program:
            return step.program
        spec = {
            "loads": list(step.loads),
            "lifeline": lifeline,
            "alone_s": limit_s + REAP_S,
            "waits_s": step.waits_s,
        }
        return (setup.interpreter, "-u", str(setup.start_file), json.dumps(spec))

    return make


def _parts_of(step: FlightStep) -> set[str]:
    """Return the parts whose figures a step measures."""
    named = {str(load["part"]) for load in step.loads if "part" in load}
    return {step.name} | named | ({"cpu", "memory"} if step.name == "host" else set())


def _summed(bits: Iterable[BitCheck]) -> list[BitCheck]:
    """Return each comparison once: all that was wrong in all rounds, in the words of the worst."""
    found: dict[tuple[str, str, str, str], BitCheck] = {}
    for bit in bits:
        key = (bit.name, bit.part, bit.kind, bit.digest)
        known = found.get(key)
        if known is None or bit.bad > known.bad:
            found[key] = bit
    return list(found.values())


def environment_for_loads(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of loads: the caller's, without what would start code of the hook in them."""
    retained = {
        name: value for name, value in environment.items() if not name.startswith("RANKMEND_")
    }
    # cuda:0 is then the GPU that NVML calls 0, and not the fastest one.
    retained.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return {
        **retained,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": environment.get("LC_ALL", "C.UTF-8"),
    }
