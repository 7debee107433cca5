"""The matrix of drills."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.drills.__main__ import PHASES
from bench.drills.matrix import KINDS, make_matrix
from recovery.drill.scenario import DrillPhase

ROOT = Path(__file__).parents[2]


def test_every_kind_meets_the_job_in_every_phase_that_has_what_it_needs() -> None:
    cells = make_matrix()

    assert len(cells) >= 48
    assert list(PHASES) == list(DrillPhase)
    for kind in KINDS:
        phases = {cell.phase for cell in cells if cell.kind is kind}
        assert phases == set(DrillPhase) - ({DrillPhase.START} if kind.needs_checkpoint else set())
    for cell in cells:
        assert cell.phase in {fault.during for fault in cell.scenario.faults}


@pytest.mark.real
@pytest.mark.long
def test_a_rank_that_raises_is_recovered_in_every_phase(tmp_path: Path) -> None:
    output, page = tmp_path / "drills.json", tmp_path / "drills.md"

    done = subprocess.run(
        [sys.executable, "-m", "bench.drills", "--only=raises", f"--output={output}", f"--page={page}"],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(output.read_text())
    assert [one["phase"] for one in told] == [phase.value for phase in DrillPhase]
    assert all(one["is_detected"] and one["is_recovered"] for one in told)
    assert "| scenarios | 5 |" in page.read_text()
