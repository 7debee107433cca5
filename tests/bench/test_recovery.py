"""The recovery benchmark runs, small: what it counts and shows is right, how long it takes is not asked here."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.recovery.install import Installed, Package, install, read_installed
from bench.recovery.report import BenchRun, Beside, draw, make_report, print_report, say_medians
from bench.restart import MARK, Event, EventLog, Outcome, Trial, new_steps
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
RUN_S_MAX = 300.0
WORK_MARK = "BENCH_TEST_WORK"  # in the environment of all that a test has started
MACHINE = {"cpu": "C", "cores": 2, "kernel": "K", "python": "P", "torch": "T", "load_1_min": 0.0}


def trial(peer: str, kill: int, first_step_s: float | None = None, **account: float) -> Trial:
    return Trial(
        peer,
        0,
        is_recovered=first_step_s is not None,
        kill=kill,
        first_step_s=first_step_s,
        all_ranks_s=None if first_step_s is None else first_step_s + 0.25,
        steps_recomputed=0,
        **{f"{name}_s": 0.0 for name in ("started", "imported", "connected", "restored")},
        account=account,
    )


def some_report() -> dict[str, Any]:
    """Two rounds of three kills: one launcher recovers, one gives up, one never trains."""

    def run(number: int, peer: str, *trials: Trial) -> BenchRun:
        memory = (300 << 20, 5) if trials[-1].is_recovered else (None, None)
        return BenchRun(number, 2, peer, 3, 9.0, Outcome(list(trials), 1.0, *memory))

    return make_report(
        {
            "machine": MACHINE,
            "versions": {"torchrun": "T"},
            "asked": {"rounds": 2, "ranks": [2], "kills": 3, "settle_s": None},
        },
        {"torchft": "ERROR: no wheel for this [machine]"},
        [
            run(
                1, "rankmend", *(trial("rankmend", kill, 0.25, fence_s=0.125) for kill in (1, 2, 3))
            ),
            run(
                2, "rankmend", *(trial("rankmend", kill, 0.75, fence_s=0.375) for kill in (1, 2, 3))
            ),
            run(1, "torchrun", trial("torchrun", 1, 8.0), trial("torchrun", 2)),
            run(2, "torchrun", trial("torchrun", 1, 9.0), trial("torchrun", 2)),
            BenchRun(1, 2, "ft_launcher", 3, 9.0, None, "ft_launcher never came to step 25"),
        ],
    )


def test_report_counts_each_kill_that_was_asked_for_and_tells_what_never_ran() -> None:
    output = io.StringIO()

    print_report(some_report(), Console(file=output, width=200))

    text = output.getvalue()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    memory = "300 MiB in 5 processes"
    gave_up = ["8.50 (8.75)", "never", "not reached", "1.0 x, -, -", "-"]
    assert ["2", "quiet", "rankmend", "6/6", *["0.50 (0.75)"] * 3, "17.0 x, -, -", memory] in rows
    assert ["2", "quiet", "torchrun", "2/6", *gave_up] in rows
    assert ["2", "quiet", "ft_launcher", "0/3", *["not reached"] * 3, "-, -, -", "-"] in rows
    assert ["-", "-", "torchft: not run, ERROR: no wheel for this [machine]", *["-"] * 6] in rows
    assert ["2", "quiet", "rankmend", "3", "0.250"] in rows, "the phases of the last kill"
    assert "ft_launcher never came to step 25" in text
    assert "medians of 1 to 2 runs." in text


def test_runs_beside_other_work_are_rows_of_their_own_and_compared_among_themselves() -> None:
    def run(peer: str, beside: Beside, first_step_s: float) -> BenchRun:
        outcome = Outcome([trial(peer, 1, first_step_s)], 1.0)
        return BenchRun(1, 2, peer, 1, 9.0, outcome, beside=beside)

    report = make_report(
        {
            "machine": MACHINE,
            "versions": {},
            "asked": {"rounds": 1, "ranks": [2], "kills": 1, "settle_s": None},
        },
        {},
        [
            run("rankmend-known", Beside.STRESS_NG, 0.5),
            run("torchrun", Beside.STRESS_NG, 9.0),
            run("rankmend-known", Beside.QUIET, 0.25),
            run("torchrun", Beside.QUIET, 5.0),
        ],
    )
    output = io.StringIO()

    print_report(json.loads(json.dumps(report)), Console(file=output, width=200))

    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in output.getvalue().splitlines()
    ]
    known = [row for row in rows if row[2:3] == ["rankmend-known"]]
    assert known == [
        ["2", "quiet", "rankmend-known", "1/1", "0.25 (0.50)", "20.0 x", "-"],
        ["2", "stress-ng", "rankmend-known", "1/1", "0.50 (0.75)", "18.0 x", "-"],
    ]


def test_a_report_of_before_the_choice_has_quiet_rows() -> None:
    report = some_report()
    for row in report["medians"]:
        del row["beside"]
    output = io.StringIO()

    print_report(report, Console(file=output, width=200))

    assert "stress-ng" not in output.getvalue()
    assert "quiet" in output.getvalue()


def test_report_says_that_the_last_kill_was_measured_in_fewer_rounds() -> None:
    report = some_report()
    report["medians"] = [row for row in report["medians"] if row["runs"] == 2]
    report["asked"]["long_rounds"] = 1

    assert say_medians(report) == "medians of 2 runs (1 of kill 3)"


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_same_saved_report_makes_the_same_picture(tmp_path: Path) -> None:
    report = some_report()

    draw(report, tmp_path / "one.svg")
    draw(json.loads(json.dumps(report)), tmp_path / "two.svg")

    picture = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert picture == (tmp_path / "two.svg").read_text(encoding="utf-8")
    assert all(text in picture for text in ("2 ranks", "rankmend", "torchrun", "kill 3"))


def test_a_step_of_survivors_alone_is_no_step_of_all_ranks() -> None:
    killed_then_back = [
        Event(10, 0, "step", 100, 5),  # was under way at the kill
        Event(10, 0, "reduced", 200, 6),
        Event(12, 1, "started", 300, 0),
        Event(10, 0, "reduced", 400, 7),
        Event(10, 0, "step", 500, 8),
        Event(12, 1, "step", 501, 8),
    ]

    steps = new_steps(killed_then_back, {10, 11}, keeps_survivors=True)

    assert [event.at_ns for event in steps] == [500, 501]
    assert new_steps(killed_then_back[:3], {10, 11}, keeps_survivors=True) == []
    assert [event.at_ns for event in new_steps(killed_then_back, {10, 11})] == [501]


def test_a_line_still_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank-1-77"
    path.write_bytes(b"started 10 0\nstep 2")
    log = EventLog(tmp_path)

    log.read()
    early = list(log.events)
    with path.open("ab") as file:
        file.write(b"0 1\n")
    log.read()
    log.read()

    assert early == [Event(77, 1, "started", 10, 0)]
    assert log.events == [*early, Event(77, 1, "step", 20, 1)]


def test_a_peer_that_does_not_install_has_a_reason_and_the_others_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "small-1.5-py3-none-any.whl", "w") as wheel:
        about = "small-1.5.dist-info"
        wheel.writestr("small.py", "")
        wheel.writestr("broken_peer.py", "raise OSError('no such processor')")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.5\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    packages = {
        "good": Package("small", "small"),
        "broken": Package("small", "broken_peer"),
        "absent": Package("absent-peer", "absent_peer"),
    }

    found = install(tmp_path / "venv", ["small"], packages)

    assert found["good"] == Installed(version="1.5")
    assert found["broken"].reason == "OSError: no such processor"
    assert found["absent"].reason == "ERROR: No matching distribution found for absent-peer"
    assert read_installed(tmp_path / "venv") == found


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench.recovery", "--ranks=2", "--rounds=1", *arguments]


def started_in(folder: Path) -> Iterator[int]:
    """Yield what a benchmark with this folder for temporary files has started and not ended."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={folder}/".encode() in path.read_bytes():
                yield int(path.parent.name)
        except OSError:
            continue


def light_stress_ng(folder: Path) -> str:
    """Return a PATH whose stress-ng takes a little of each processor: the job needs the rest."""
    program = shutil.which("stress-ng")
    folder.mkdir()
    light = folder / "stress-ng"
    light.write_text(f'#!/bin/sh\nexec {program} --cpu-load 2 "$@"\n')
    light.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.torch
@pytest.mark.skipif(shutil.which("stress-ng") is None, reason="needs stress-ng")
def test_two_kills_under_two_launchers_beside_stress_ng_are_measured_and_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    output = tmp_path / "recovery.json"

    done = subprocess.run(
        [
            *command("--kills=2", "--settle-s=0", "--peers=rankmend-cold,torchrun,torchft"),
            *(f"--peers-venv={tmp_path / 'none'}", f"--output={output}", "--beside=stress-ng"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            WORK_MARK: str(tmp_path),
            "BENCH_LIGHT_REST_S": "0.05",
            "PATH": light_stress_ng(tmp_path / "light"),
        },
        check=True,
        timeout=RUN_S_MAX,
        capture_output=True,
        text=True,
    )

    report = json.loads(output.read_text())
    told = {row["peer"]: row for row in report["medians"]}
    assert {name: (row["beside"], row["recovered"]) for name, row in told.items()} == {
        "rankmend-cold": ("stress-ng", 2),
        "torchrun": ("stress-ng", 2),
    }
    assert all(row["pss_bytes"] > 100 << 20 for row in told.values()), "two ranks with PyTorch"
    assert told["rankmend-cold"]["kills"][1]["account"]["fence_s"] > 0
    assert told["torchrun"]["kills"][1]["account"] == {}
    assert "not installed in" in report["missing"]["torchft"]
    assert "torchft: not run" in done.stdout
    assert list(started_in(tmp_path)) == []
    mark = f"{WORK_MARK}={tmp_path}".encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes_of(path)]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.torch
def test_an_interrupt_ends_everything_that_a_trial_has_started(tmp_path: Path) -> None:
    bench = subprocess.Popen(
        command("--peers=rankmend", f"--output={tmp_path / 'recovery.json'}"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: list(tmp_path.glob("*/log/rank-1-*")), "the log of rank 1")
        started = list(started_in(tmp_path))
        bench.send_signal(signal.SIGINT)
        code = bench.wait(DEADLINE_S)
    finally:
        bench.kill()
        bench.wait()

    assert len(started) >= 4, "launcher, guardian and two ranks"
    assert code == 128 + signal.SIGINT
    assert list(started_in(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
