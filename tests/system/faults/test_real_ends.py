"""Ends of the corpus as real jobs: class, culprit and blame, and a traceback without frames of rankmend."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from detectors.finding import Blame
from recovery.journal.job_records import OutcomeKind
from tests.support.faults.mounts import tmpfs
from tests.support.real_ends import PRELUDE, REAL_ENDS, RealEnd
from tests.support.torch_here import needs_torch
from tests.system.faults.harness import Job

pytestmark = pytest.mark.process
AT_ONCE = ("--no-fork-server", "--store=ranks")  # no restart: no process for it


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(end, id=end.name, marks=[pytest.mark.torch] if end.needs_torch else [])
        for end in REAL_ENDS
    ],
)
def test_end_of_a_real_rank_has_its_class_culprit_and_blame(
    make_job: Callable[..., Job], tmp_path: Path, end: RealEnd
) -> None:
    if end.needs_torch:
        needs_torch()
    with ExitStack() as stack:
        job = make_job("", world_size=2, flags=["--max-restarts=0", *AT_ONCE])
        if end.needs_small_disk:
            disk = stack.enter_context(tmpfs(tmp_path / "disk", "size=1m"))
            job.environment["SMALL"] = str(disk)
        if end.has_peer:
            job.environment["GLOO"] = "1"
        job.script = job.folder / "train.py"
        job.script.write_text(f"{PRELUDE}{end.body}\n")

        job.start()

        code = job.wait()
    finding = job.incidents[0].failure.finding
    found = (finding.symptom.kind, finding.blame, finding.ranks, code)
    assert found == (end.kind, end.blame, end.ranks, end.exit_code), job.output
    assert end.line in finding.summary
    assert job.ended[-1].outcome.kind is OutcomeKind.ESCALATED
    frames = [line for line in job.output.splitlines() if ' File "' in line]
    assert [line for line in frames if "/rankmend/" in line] == []


def test_no_end_of_code_data_or_a_service_blames_a_rank() -> None:
    culprits = {"code", "data", "service", "storage", "person"}

    assert [e.name for e in REAL_ENDS if e.culprit in culprits and e.blame is Blame.RANK] == []
    assert len(REAL_ENDS) >= 25
