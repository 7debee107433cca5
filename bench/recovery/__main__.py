"""Measures the recovery from `kill -9` of a rank under rankmend and under every peer that installs.

    python -m bench.recovery [--rounds 5] [--ranks 2,4,8] [--kills 10] [--long-rounds 1] [--peers rankmend,rankmend-known,torchrun]
        [--beside quiet,stress-ng] [--output FILE.json] [--plot FILE.svg]
    python -m bench.recovery --read FILE.json [--plot FILE.svg]

The trials are those of bench/restart.py. The launchers take turns, round after round, at each size of the job. In each run
one rank is killed after another, 1 s after the recovery from the one before; the first kill comes after the
first step by twice the time of the script's imports. `rankmend` is the first run of a script, `rankmend-known` a later one. Beside `stress-ng` a
worker of it for each processor computes during the whole run, as data loaders do. The report is saved after each run, so that what was measured before Ctrl-C is kept.
"""

import argparse
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.recovery.peers import NAMES, peers_of, versions, why_missing
from bench.recovery.report import (
    TABLE_COLUMNS_MAX,
    BenchRun,
    Beside,
    draw,
    make_report,
    print_report,
)
from bench.restart import NeverTrainedError, Outcome, Plan, describe_machine, run_trials

START_S_MAX = 300.0
RECOVER_S_MAX = 120.0


def measure(arguments: argparse.Namespace, names: Sequence[str]) -> Iterator[BenchRun]:
    total = arguments.rounds * len(arguments.ranks) * len(arguments.beside) * len(names)
    began_s, done = time.monotonic(), 0
    for number in range(arguments.rounds):
        kills = arguments.kills if number < arguments.long_rounds else min(2, arguments.kills)
        for ranks in arguments.ranks:
            plan = Plan(
                ranks,
                kills,
                arguments.settle_s,
                START_S_MAX,
                RECOVER_S_MAX,
                measures_memory=True,
            )
            peers = peers_of(ranks, arguments.kills, arguments.peers_venv)
            for beside, name in itertools.product(arguments.beside, names):
                run_began_s = time.monotonic()
                outcome, failure = None, ""
                try:
                    with running_beside(beside):
                        outcome = run_trials(peers[name], plan, number % ranks)
                except NeverTrainedError as error:
                    failure = str(error)
                except (OSError, subprocess.SubprocessError) as error:  # the other runs go on
                    failure = f"{type(error).__name__}: {error}"
                now_s = time.monotonic()
                done += 1
                left_min = (now_s - began_s) / done * (total - done) / 60
                print(
                    f"round {number + 1}/{arguments.rounds}  {ranks} ranks  {beside.value:<10}{name:<18}"
                    f"{describe(outcome)}  [{done}/{total}, about {left_min:.0f} min left]",
                    flush=True,
                )
                yield BenchRun(
                    number + 1, ranks, name, kills, now_s - run_began_s, outcome, failure, beside
                )


@contextmanager
def running_beside(beside: Beside) -> Iterator[None]:
    """Keep every processor busy with other work, or leave it to the run."""
    if beside is Beside.QUIET:
        yield
        return
    # 0: a worker for each processor that is online (stress-ng(1)). Its workers end with it.
    work = subprocess.Popen(["stress-ng", "--quiet", "--cpu", "0"], stdin=subprocess.DEVNULL)
    try:
        yield
        if work.poll() is not None:
            raise OSError(f"stress-ng ended with {work.returncode}: the run was not beside it")
    finally:
        work.terminate()
        work.wait()


def describe(outcome: Outcome | None) -> str:
    if outcome is None:
        return "failed"
    times = [trial.first_step_s for trial in outcome.trials]
    return ", ".join("never" if one is None else f"{one:.2f}" for one in times) + " s"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.recovery", description="Recovery from kill -9.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=_numbers, default=[2, 4, 8], help="sizes of the job: 2,4,8")
    parser.add_argument("--kills", type=int, default=10, help="kills in each run")
    parser.add_argument(
        "--long-rounds",
        type=int,
        help="rounds with all these kills, the first ones; the others have two. Otherwise all",
    )
    parser.add_argument("--peers", default=",".join(NAMES))
    parser.add_argument(
        "--beside",
        type=_besides,
        default=[Beside.QUIET],
        help="what else runs on the machine: quiet, stress-ng, or both with a comma between",
    )
    parser.add_argument(
        "--settle-s",
        type=float,
        help="from the first step to the first kill, for all alike; otherwise twice the time of the script's imports",
    )
    parser.add_argument(
        "--peers-venv",
        type=Path,
        default=Path(".venv/peers"),
        help="where bench.recovery.install has put the peers",
    )
    parser.add_argument("--output", type=Path, default=Path("results/recovery.json"))
    parser.add_argument("--plot", type=Path, help="draw this picture; needs matplotlib")
    parser.add_argument("--read", type=Path, help="show a saved report, measure nothing")
    arguments = parser.parse_args()
    arguments.peers_venv = arguments.peers_venv.resolve()
    if arguments.long_rounds is None:
        arguments.long_rounds = arguments.rounds
    if unknown := set(arguments.peers.split(",")) - set(NAMES):
        parser.error(f"unknown peers {sorted(unknown)}; known are {', '.join(NAMES)}")
    if Beside.STRESS_NG in arguments.beside and shutil.which("stress-ng") is None:
        parser.error("--beside stress-ng: the program stress-ng is not installed")
    for name in ("rounds", "kills"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is {getattr(arguments, name)}, but has to be 1 or more")
    return arguments


def _numbers(text: str) -> list[int]:
    numbers = [int(one) for one in text.split(",")]
    if min(numbers) < 2:
        raise ValueError(text)
    return numbers


def _besides(text: str) -> list[Beside]:
    return [Beside(word) for word in text.split(",")]


def show(report: dict[str, Any], plot: Path | None) -> None:
    print_report(report, Console(width=TABLE_COLUMNS_MAX))
    if plot is not None:
        draw(report, plot)
        print(f"\ndrawn to {plot}")


def main() -> None:
    arguments = parse_arguments()
    if arguments.read is not None:
        show(json.loads(arguments.read.read_text(encoding="utf-8")), arguments.plot)
        return
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # runs what ends a trial
    asked = arguments.peers.split(",")
    reasons = {name: why_missing(name, arguments.peers_venv) for name in asked}
    missing = {name: reason for name, reason in reasons.items() if reason}
    for name, reason in missing.items():
        print(f"{name} is not run: {reason}", flush=True)
    about = {
        "machine": describe_machine(),
        "versions": versions(arguments.peers_venv),
        "asked": {
            name: getattr(arguments, name)
            for name in ("rounds", "long_rounds", "ranks", "kills", "settle_s", "beside")
        },
    }
    runs: list[BenchRun] = []
    report = make_report(about, missing, runs)
    is_interrupted = False
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        for run in measure(arguments, [name for name in asked if name not in missing]):
            runs.append(run)
            report = make_report(about, missing, runs)
            arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except KeyboardInterrupt:
        is_interrupted = True
        print("\ninterrupted", flush=True)
    if runs:
        show(report, arguments.plot)
        print(f"\nwritten to {arguments.output}")
    if is_interrupted:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
