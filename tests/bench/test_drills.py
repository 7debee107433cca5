"""The matrix of drills."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bench.drills.__main__ import SECTIONS
from bench.drills.told import PHASES, Section
from recovery.lab.drill.scenario import DrillPhase
from tests.support.eventually import eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
BY_NAME = {section.name: section for section in SECTIONS}


@pytest.mark.parametrize("section", SECTIONS, ids=list(BY_NAME))
def test_every_kind_meets_the_job_in_every_phase_that_has_what_it_needs(section: Section) -> None:
    assert list(PHASES) == list(DrillPhase)
    assert {cell.kind.name for cell in section.cells} == set(section.kinds)
    for kind in section.kinds:
        cells = [cell for cell in section.cells if cell.kind.name == kind]
        left_out = {DrillPhase.START} if cells[0].kind.needs_checkpoint else set()
        assert {cell.phase for cell in cells} == set(DrillPhase) - left_out
    for cell in section.cells:
        assert cell.phase in {fault.during for fault in cell.scenario.faults}


def test_sections_have_at_least_48_scenarios_together() -> None:
    assert sum(len(section.cells) for section in SECTIONS) >= 48


def run(folder: Path, *options: str) -> tuple[list[dict[str, object]], str]:
    """Run a part of the matrix in which all must hold; return what was told, and the page."""
    output, page = folder / "drills.json", folder / "drills.md"
    argv = [sys.executable, "-m", "bench.drills", *options, f"--output={output}", f"--page={page}"]

    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    told: list[dict[str, object]] = json.loads(output.read_text())
    assert all(one["is_detected"] and one["is_recovered"] for one in told)
    return told, page.read_text()


@pytest.mark.timeout(1300)  # five jobs, one after the other
def test_a_rank_that_raises_is_recovered_in_every_phase(tmp_path: Path) -> None:
    told, page = run(tmp_path, "--section=one-host", "--only=raises")

    assert [one["phase"] for one in told] == [phase.value for phase in DrillPhase]
    assert "| scenarios | 5 |" in page


@pytest.mark.timeout(1300)  # a busy machine starts PyTorch in minutes
def test_jobs_of_other_launchers_and_of_several_hosts_are_broken_too(tmp_path: Path) -> None:
    names = [name for name in ("nodes", "watched") if not BY_NAME[name].why_not()]
    if not names:
        pytest.skip("; ".join(BY_NAME[name].why_not() for name in ("nodes", "watched")))
    kinds = ["--only=link of a node down, 5 s", "--only=exits with code 7"]

    told, page = run(tmp_path, *(f"--section={name}" for name in names), *kinds, "--phase=steady")

    assert [one["section"] for one in told] == names
    for name in names:
        assert f"## {BY_NAME[name].title}" in page


def started_for(folder: Path) -> dict[int, str]:
    """Return the command lines of processes that name a folder, by pid."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes()
            if bytes(folder) in words:
                found[int(path.parent.name)] = words.replace(b"\0", b" ").decode("utf-8", "replace")
    return found


def test_nothing_is_left_of_make_drills_when_make_is_killed(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    name, daemon = ("slurm", "slurmd") if not BY_NAME["slurm"].why_not() else ("one-host", " run ")
    arguments = f"--section={name} --only=killed --phase=steady --keep={tmp_path / 'kept'}"
    argv = ["make", "-o", f"{sys.prefix}/.dev", f"VENV={sys.prefix}", "drills"]
    with (tmp_path / "make.log").open("wb") as log:
        make = subprocess.Popen(
            [*argv, f"DRILLS_ARGS={arguments}"], cwd=ROOT, stdout=log, stderr=log
        )
    try:
        eventually(
            lambda: any(daemon in words for words in started_for(tmp_path / "kept").values()),
            f"{daemon} runs",
        )

        make.kill()
        make.wait()

        eventually(lambda: not started_for(tmp_path / "kept"), "all of it ends")
    except AssertionError as error:
        said = (tmp_path / "make.log").read_text(errors="replace")
        raise AssertionError(f"{started_for(tmp_path)}\n{said}") from error
    finally:
        make.kill()
        for pid in started_for(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
