"""Evidence of a hang is saved before the ranks are stopped, in time, and names the culprit."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from detectors.finding import Kind
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.incident_records import Decided, EvidenceCollected
from tests.support.eventually import eventually
from tests.support.faults.mounts import hanging_mount
from tests.support.faults.process import keep_stopped
from tests.support.torch_here import needs_torch
from tests.system.faults.harness import Job

pytestmark = pytest.mark.process
Make = Callable[..., Job]


def evidence_of(job: Job) -> tuple[EvidenceCollected, Path]:
    """Return the record of the first attempt's evidence, and the folder that it names."""
    (record,) = (one for one in job.records(EvidenceCollected) if one.attempt == 1)
    (saved,) = record.saved
    return record, Path(saved.folder)


def assert_in_time(job: Job) -> None:
    """Check by the journal that evidence was saved once, after the decision.

    The restart waits for the files, and not for the record: what the ranks' output says is judged after they were stopped.
    """
    kinds = (Decided, EvidenceCollected, AttemptStarted)
    found = [type(entry.record) for entry in job.entries if isinstance(entry.record, kinds)]
    assert found[:2] == [AttemptStarted, Decided]
    assert set(found[2:4]) == {EvidenceCollected, AttemptStarted}


@pytest.fixture
def make_hang(make_job: Make) -> Make:
    needs_torch()

    def make(how: str, rank: int, *flags: str) -> Job:
        job = make_job("torch_hang.py", how, str(rank), *flags, world_size=3)
        job.flags = ["--hang-min=3", "--hang-max=3", "--hang-stopped=1"]
        return job

    return make


@pytest.mark.torch
def test_a_rank_that_waits_for_a_lock_is_shown_at_its_line_and_named_by_the_dumps(
    make_hang: Make,
) -> None:
    job = make_hang("lock", 1, "--answers-pipe")

    job.start()

    assert job.wait() == 0, job.output
    record, folder = evidence_of(job)
    assert "in hang_here" in (folder / "stacks-rank-1.txt").read_text()
    assert "in all_reduce" in (folder / "stacks-rank-0.txt").read_text()
    assert (folder / "flight-rank-0.pkl").stat().st_size > 0
    assert record.finding is not None
    assert record.finding.kind is Kind.RANK_HUNG
    assert record.finding.ranks == (1,)
    assert_in_time(job)
    job.expect_output(record.reason)


@pytest.mark.torch
def test_a_stopped_rank_shows_its_state_and_its_peers_their_stacks(make_hang: Make) -> None:
    job = make_hang("stop", 2)

    job.start()

    assert job.wait() == 0, job.output
    record, folder = evidence_of(job)
    assert ": state T" in (folder / "processes-rank-2.txt").read_text()
    assert not (folder / "stacks-rank-2.txt").exists()
    assert "in all_reduce" in (folder / "stacks-rank-0.txt").read_text()
    assert any("rank 2: no Python stacks" in note for note in record.saved[0].notes)
    assert job.incidents[0].failure.finding.ranks == (2,)
    assert_in_time(job)


@pytest.mark.real_fault("rank stuck in the kernel")
def test_a_rank_stuck_in_the_kernel_holds_up_nothing(make_lockstep: Make, tmp_path: Path) -> None:
    with hanging_mount(tmp_path / "fuse") as mounted:
        mounted.stop_answering()
        job = make_lockstep(
            "--fail-rank=1",
            "--fail-step=25",
            f"--fail-with=statvfs:{mounted.point}",
            world_size=3,
            flags=["--hang-min=3", "--hang-max=3", "--hang-stopped=1"],
        )

        job.start()

        record = eventually(lambda: next(iter(job.records(EvidenceCollected)), None), "evidence")
        mounted.answer_again()  # before that, no signal ends the rank
        assert job.wait() == 0, job.output
    folder = Path(record.saved[0].folder)
    assert "fuse" in (folder / "processes-rank-1.txt").read_text()
    assert "_receive" in (folder / "stacks-rank-0.txt").read_text()


def test_a_death_saves_the_last_lines_and_waits_for_nothing(make_lockstep: Make) -> None:
    job = make_lockstep("--fail-rank=2", "--fail-step=25", "--fail-with=exception")

    job.start()

    assert job.wait() == 0, job.output
    _record, folder = evidence_of(job)
    assert "the loss is not a number" in (folder / "stderr-rank-2.txt").read_text()
    assert not list(folder.glob("stacks-*")), "ranks that die are not asked"


def test_a_full_disk_stops_no_recovery(make_lockstep: Make, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    job = make_lockstep(flags=["--hang-stopped=1"])
    job.start()
    pids = job.pids_at_step(25)
    # Over the place of the incidents only: what happens to a full journal is tested elsewhere.
    incidents = job.state_folder / "incidents"
    incidents.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(incidents)], check=True)
    try:
        keep_stopped(pids[1])
        assert job.wait() == 0, job.output
        record, _folder = evidence_of(job)
    finally:
        subprocess.run(["umount", "-l", str(incidents)], check=True)
    assert any("No space left on device" in note for note in record.saved[0].notes)
    assert job.incidents[0].failure.finding.ranks == (1,)
