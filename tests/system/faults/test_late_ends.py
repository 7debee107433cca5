"""One rank ends and others wait; all have trained and something still runs."""

from collections.abc import Callable

import pytest

from detectors.finding import Blame
from recovery.journal.incident_records import EvidenceCollected
from recovery.journal.job_records import OutcomeKind
from tests.system.faults.harness import Job

pytestmark = pytest.mark.process
Make = Callable[..., Job]
LIMITS = ["--hang-min=1.5", "--hang-max=1.5"]


def ended_late(make_job: Make, case: str, world_size: int = 3) -> Job:
    job: Job = make_job("late_ends.py", case, world_size=world_size, flags=LIMITS)
    job.start()
    assert job.wait() == 0, job.output
    return job


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("exit", "rank 1 ended with exit code 0 while ranks 0 and 2 wait for it"),
        ("alone", "rank 1 ended with exit code 0 while ranks 0 and 2 still run"),
    ],
)
def test_rank_that_ends_in_its_loop_is_named_and_the_program_is_to_blame(
    make_job: Make, case: str, words: str
) -> None:
    job = ended_late(make_job, case)

    finding = job.incidents[0].failure.finding
    assert finding.summary == words
    assert (finding.ranks, finding.victims, finding.blame) == ((), (0, 2), Blame.PROGRAM)
    evidence = job.records(EvidenceCollected)[0].finding
    assert evidence is not None
    assert f"{words} in wait_for_ever (" in evidence.summary
    assert len(job.attempts) == 2, "what had not finished is trained on"


@pytest.mark.parametrize(
    ("case", "words", "call"),
    [
        ("thread", "every rank has finished its training (ranks 1 and 2 ended), and rank 0 still runs", "in _shutdown (threading.py:"),
        ("finish", "ranks 1 and 2 finished their training; rank 0 made as many steps and still runs", "in wait_for_ever ("),
        ("all", "every rank has finished its training, and ranks 0, 1 and 2 still run", ""),
    ],
)  # fmt: skip
def test_what_runs_on_after_the_training_is_named_and_ended_and_the_job_is_done(
    make_job: Make, case: str, words: str, call: str
) -> None:
    job = ended_late(make_job, case)

    finding = job.incidents[0].failure.finding
    assert (finding.summary, finding.blame, finding.ranks) == (words, Blame.NOBODY, ())
    assert len(job.attempts) == 1, "nothing is trained again"
    outcome = job.ended[-1].outcome
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.DONE, 0)
    assert outcome.reason.startswith(words)
    assert call in outcome.reason
    assert "it was ended after" in outcome.reason
    job.expect_output(f"done: {outcome.reason}")


def test_rank_that_exits_with_a_code_before_its_thread_hangs_has_not_finished(
    make_job: Make,
) -> None:
    job = ended_late(make_job, "failed")

    assert len(job.attempts) == 2
    finding = job.incidents[0].failure.finding
    assert (finding.ranks, finding.blame) == ((0,), Blame.PROGRAM)
    assert finding.summary == "the script of rank 0 ended with an error, and it still runs"
