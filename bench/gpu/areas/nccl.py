"""NCCL's flight recorder, RAS and errors, of groups of one and, where NCCL lets them, two ranks on one GPU."""

import mmap
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.watch.nccl_ras import ask_ras
from bench.gpu.nccl_group import ANSWER_S_MAX, START_S_MAX, GroupRank, judge
from bench.gpu.nccl_rank import TURNS
from bench.gpu.rows import NotTriedError, Telling, Trial
from detectors.failed.error_classes import classify
from detectors.failed.error_text import parse_error
from detectors.failed.said_error import FailureCause
from detectors.formats.nccl_ras import read_ras
from detectors.formats.plain_pickle import load_plain
from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.flight_dump import OperationState
from rankmend.progress import nccl_version

LIMIT_S = 110.0
TIMEOUT_S = 5  # of the rank that runs into it
LONG_S = 600
TIMEOUT_DUMP_S_MAX = 30.0
LATE_END_S_MAX = 30.0  # its kernel ends before
OFF_RATIO_MAX, OFF_MS_MAX = 0.1, 0.1
_RAS_SINCE = (2, 24)
_SWITCH = re.compile(rb"NCCL_[A-Z_]*MULTI_?RANK[A-Z_]*")
CLAIMS: dict[str, str] = {
    "dump_running": "A running process dumps its flight recorder when rankmend asks at its pipe, with nothing outstanding, and diagnose hang accuses nobody.",
    "loaded": "The NCCL that the hook finds in a rank is the one that PyTorch brought, and the only one.",
    "timing": "The durations of collectives in a dump (TORCH_NCCL_ENABLE_TIMING) are those that events around them measure.",
    "ras": "NCCL's RAS answers rankmend's question, and the answer is read.",
    "dump_stuck": "A process whose GPU keeps a collective from ending still dumps, the dump shows what is outstanding, and diagnose hang says that one rank alone can't tell who is to blame.",
    "ras_stuck": "NCCL's RAS still answers while a collective does not end.",
    "dump_on_timeout": "A collective that runs into its time-out leaves a dump that rankmend can read.",
    "timeout_said": "What the rank says when a collective times out is classified as communication.",
    "duplicate_gpu": "Two ranks on one GPU are refused by NCCL, and rankmend blames the program and not the card.",
    "two_ranks": "Of two ranks on one GPU, one of which does not enter a collective, diagnose hang names that one.",
}


def run(telling: Telling, device: Any = None) -> None:
    """Try the rows. ``device``: stands in for the GPU where this code is tried without one."""
    name = device.name if device else "cuda"
    with tempfile.TemporaryDirectory(prefix="rankmend-nccl-") as folder:
        stage = _Stage(name, Path(folder))
        trials: dict[str, Callable[[Trial], None]] = {
            "dump_running": stage.dump_running,
            "loaded": stage.loaded,
            "timing": stage.timing,
            "ras": lambda trial: stage.ras(trial, "running"),
            "dump_stuck": stage.dump_stuck,
            "ras_stuck": lambda trial: stage.ras(trial, "stuck"),
            "duplicate_gpu": stage.duplicate,
            "dump_on_timeout": stage.dump_on_timeout,
            "timeout_said": stage.timeout_said,
            "two_ranks": stage.two_ranks,
        }
        try:
            for row, attempt in trials.items():
                with telling.row(row) as trial:
                    attempt(trial)
        finally:
            stage.end()


class _Stage:
    """The groups, each started once; a rank that fails fails the rows that need it."""

    def __init__(self, device: str, folder: Path) -> None:
        self._device, self._folder = device, folder
        self._ras_port = _free_port()
        self._ranks: list[GroupRank] = []
        self._running: dict[str, Any] = {}
        self._dump = b""
        quiet = {"NCCL_RAS_ENABLE": "0"}
        asked = {"NCCL_RAS_ENABLE": "1", "NCCL_RAS_ADDR": f"localhost:{self._ras_port}"}
        self._one = self._start("one", 0, 1, asked, LONG_S)
        # As PyTorch has it by default: the process ends without waiting for what is stuck.
        ends = {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
            "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000",
        }
        self._late = self._start("late", 0, 1, {**quiet, **ends}, TIMEOUT_S)
        self._twins = [self._start("twins", rank, 2, quiet, LONG_S) for rank in range(2)]

    def _start(
        self, name: str, rank: int, size: int, more: dict[str, str], timeout_s: int
    ) -> GroupRank:
        started = GroupRank(self._device, self._folder / name, rank, size, more, timeout_s)
        self._ranks.append(started)
        return started

    def end(self) -> None:
        for rank in self._ranks:
            rank.end()

    def dump_running(self, trial: Trial) -> None:
        told = self._run_one()
        trial.figure("nccl", told["nccl"])
        began_s = time.monotonic()
        self._dump = self._one.dump()
        trial.figure("dump_s", time.monotonic() - began_s)
        self._tell_dump(trial, self._dump, outstanding=0)
        verdict = judge(self._folder / "judged-running", {0: self._dump})
        trial.figure("verdict", verdict["verdict"])
        trial.figure("reason", verdict["reason"])
        trial.check(not verdict["culprits"], f"{verdict['culprits']} are named")

    def loaded(self, trial: Trial) -> None:
        told = self._run_one()
        if not told["nccl"]:
            raise NotTriedError("there is no NCCL without a GPU")
        found = [nccl_version(code) for code in told["loaded"]]
        trial.figure("loaded", found)
        trial.figure("torch", told["nccl"])
        trial.figure("found_in_ms", told["loaded_ms"])
        trial.check(found == [told["nccl"]], f"the hook finds {found}")

    def timing(self, trial: Trial) -> None:
        told = self._run_one()["timed"]
        dump = self._dump or self._one.dump()
        entries = load_plain(dump)["entries"]
        large = [one for one in entries if "gather" in str(one.get("profiling_name", ""))]
        durations = [one.get("duration_ms") for one in large][-TURNS:]
        if None in durations or len(durations) != TURNS:
            raise NotTriedError(f"the dump has durations {durations} of {len(large)} collectives")
        trial.figure("dump_ms", [round(float(one), 4) for one in durations])
        trial.figure("events_ms", [round(one, 4) for one in told])
        for own, theirs in list(zip(told, durations, strict=True))[1:]:
            off_ms = abs(own - float(theirs))
            trial.check(
                off_ms <= max(OFF_RATIO_MAX * own, OFF_MS_MAX), f"{theirs} ms told, {own:.3f} true"
            )

    def ras(self, trial: Trial, state: str) -> None:
        told = self._run_one()
        version = tuple(int(part) for part in str(told["nccl"]).split(".")[:2] if part.isdigit())
        if version < _RAS_SINCE:
            raise NotTriedError(f"NCCL {told['nccl'] or '(none)'} has no RAS")
        if state == "stuck" and not self._running.get("is_stuck"):
            raise NotTriedError("no collective is stuck")
        began_s = time.monotonic()
        answer = ask_ras(self._ras_port, os.getuid())
        took_s = time.monotonic() - began_s
        if answer is None:
            raise NotTriedError(f"NCCL {told['nccl']} has no RAS listening for a group of one rank")
        text = answer.decode("utf-8", "replace")
        trial.figure("answer_s", took_s)
        trial.figure("format", "json" if text.lstrip().startswith("{") else "text")
        trial.figure("bytes", len(answer))
        trial.figure("begins", " ".join(text.split())[:300])
        found = read_ras(answer)
        trial.figure("ranks_that_stand_out", len(found))
        trial.check(not found, f"of one rank alone it reads {found[:1]}")

    def dump_stuck(self, trial: Trial) -> None:
        self._run_one()
        self._one.say("stick")
        self._one.hear("stuck")
        self._running["is_stuck"] = True
        began_s = time.monotonic()
        dump = self._one.dump()
        trial.figure("dump_s", time.monotonic() - began_s)
        self._tell_dump(trial, dump, outstanding=1)
        verdict = judge(self._folder / "judged-stuck", {0: dump})
        for name in ("verdict", "class", "reason", "confidence"):
            trial.figure(name, verdict[name])
        trial.check(verdict["verdict"] == "unknown", f"judged {verdict['verdict']}")

    def dump_on_timeout(self, trial: Trial) -> None:
        if self._device == "cpu":
            raise NotTriedError("gloo dumps for nobody")
        self._late.hear("stuck", START_S_MAX)
        dump = self._late.dump(is_asked=False, within_s=TIMEOUT_DUMP_S_MAX)
        trial.figure("timeout_s", TIMEOUT_S)
        self._tell_dump(trial, dump, outstanding=1)

    def timeout_said(self, trial: Trial) -> None:
        until_s = time.monotonic() + LATE_END_S_MAX
        while time.monotonic() < until_s and self._late.process.poll() is None:
            time.sleep(0.1)
        trial.figure("exit", self._late.process.poll())
        self._check_said(trial, self._late, FailureCause.COMMUNICATION)

    def duplicate(self, trial: Trial) -> None:
        self._one.end()  # its kernel still spins
        self._late.say("stick")  # and what comes of it is looked at in the next rows
        until_s = time.monotonic() + START_S_MAX
        while time.monotonic() < until_s and any(one.process.poll() is None for one in self._twins):
            if all(one.has_told for one in self._twins):
                break
            time.sleep(0.1)
        runs = [one for one in self._twins if one.process.poll() is None]
        if runs:
            told = runs[0].hear("running", 1.0)
            raise NotTriedError(f"this NCCL refuses nothing: the ranks sum to {told['value']}")
        said = [line for line in self._twins[0].errors() if "uplicate GPU" in line]
        trial.figure("text", said[-1][:200] if said else "")
        for twin in self._twins:
            self._check_said(trial, twin, FailureCause.PROGRAM)

    def two_ranks(self, trial: Trial) -> None:
        for one in (self._late, *self._twins):
            one.end()
        switch = self._find_switch(trial)
        more = {"NCCL_RAS_ENABLE": "0", switch: "1"}
        pair = [self._start("pair", rank, 2, more, LONG_S) for rank in range(2)]
        try:
            told = [one.hear("running", START_S_MAX) for one in pair]
        except RuntimeError as error:
            raise NotTriedError(f"with {switch}=1: {error}") from error
        trial.figure("sums", [one["value"] for one in told])
        running = {rank: one.dump() for rank, one in enumerate(pair)}
        verdict = judge(self._folder / "judged-pair", running)
        trial.check(verdict["verdict"] == "nobody", f"running: judged {verdict['verdict']}")
        for one in pair:
            one.say("stick")
        for one in pair:
            one.hear("stuck")
        time.sleep(1.0)  # until NCCL's kernel runs
        verdict = judge(
            self._folder / "judged-stuck-pair", {rank: one.dump() for rank, one in enumerate(pair)}
        )
        named = [one["rank"] for one in verdict["culprits"]]
        trial.figure("culprits", named)
        trial.figure("class", verdict["class"])
        trial.check(named == [1], f"ranks {named} are named: {verdict['reason']}")
        trial.check(verdict["class"] == "host-stuck", f"of class {verdict['class']}")

    # Parts ------------------------------------------------------------------------------------

    def _run_one(self) -> dict[str, Any]:
        """Return what the rank of its own has told, once it runs. Raises RuntimeError."""
        if not self._running:
            told = self._one.hear("running", START_S_MAX)
            told["timed"] = self._one.hear("timed", ANSWER_S_MAX)["ms"]
            self._running = told
        return self._running

    def _tell_dump(self, trial: Trial, data: bytes, outstanding: int) -> None:
        dump = parse_dump(data)
        states = [one.state for one in dump.operations]
        left = sum(state is not OperationState.DONE for state in states)
        trial.figure("recorder", dump.version)
        trial.figure("dump_bytes", len(data))
        trial.figure("operations", len(states))
        trial.figure("outstanding", left)
        trial.figure("groups", [list(group.ranks) for group in dump.groups])
        trial.check(states, "the dump holds no operation")
        trial.check(left == outstanding, f"{left} operations are outstanding, not {outstanding}")
        if dump.warnings:
            trial.note("; ".join(dump.warnings))

    def _check_said(self, trial: Trial, rank: GroupRank, expected: FailureCause) -> None:
        error = parse_error(rank.errors())
        if error is None:
            trial.check(False, f"no error was found in its last words: {rank.last_words()}")
            return
        cause = classify(error)
        trial.figure("said", f"{error.type_name}: {error.message}"[:200])
        trial.figure("cause", cause.name.lower())
        trial.check(cause is expected, f"{cause.name.lower()} instead of {expected.name.lower()}")

    def _find_switch(self, trial: Trial) -> str:
        """Return NCCL's variable that lets ranks share a GPU. Raises NotTriedError."""
        if self._device == "cpu":
            return "NCCL_MULTI_RANK"
        library = str(self._run_one()["library"])
        if not library:
            raise NotTriedError("NCCL is not a library of its own, so its switches can't be listed")
        with (
            Path(library).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            found = sorted({one.decode() for one in _SWITCH.findall(text)})
        trial.figure("switches", found)
        if not found:
            version = self._running["nccl"]
            raise NotTriedError(f"NCCL {version} has no switch that lets ranks share a GPU")
        return next((one for one in found if one.endswith("ENABLE")), found[0])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])
