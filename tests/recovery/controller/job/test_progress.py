"""The controller gives a job up for lack of progress, and for nothing that merely looks like it."""

from dataclasses import replace

import pytest

from recovery.journal.attempt_records import AttemptStarted, AttemptVerified
from recovery.journal.incident_records import CaughtUp
from recovery.journal.job_records import OutcomeKind
from recovery.journal.narration.narrator import narrate
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict
from recovery.messages.exchange import RankExit, StepTiming
from tests.support.controller_bench import Bench

pytestmark = pytest.mark.safety

FAULTS = 40


def save(bench: Bench, step: int) -> None:
    candidate = Candidate(f"/c/{step}", step, CheckpointFormat.NPZ, 10, 1000.0 + step)
    bench.storage.verdicts.insert(0, CheckpointVerdict(candidate, is_valid=True, reason="whole"))


def fail(bench: Bench, rank: int, signal: int) -> None:
    ended = RankExit(0.1, None, signal, False, False, None, ())
    bench.ranks[rank] = replace(bench.ranks[rank], process_state="", exit=ended)
    bench.tell()


@pytest.fixture
def bench() -> Bench:
    """A job whose rank 1 ran ahead to step 100,000 while rank 0 stood at step 10."""
    bench = Bench().start()
    bench.tell()
    bench.run_attempt(1)
    bench.step(10, 10)
    save(bench, 5)
    bench.ranks[1] = replace(bench.ranks[1], step=100_000, steps_done=100_000)
    bench.tell(after_s=10.0)
    assert bench.control.ledger.highest_step == 100_000
    return bench


def restart(bench: Bench, step: int) -> None:
    """Have the node carry out what is ordered after a failure, and make two steps."""
    bench.empty()
    for _second in range(70):
        if bench.orders[-1].ranks or bench.control.outcome is not None:
            break
        bench.tell(after_s=1.0)
    if bench.control.outcome is None:
        bench.run_attempt(bench.orders[-1].attempt)
        bench.step(step, 1)
        bench.step(step + 1, 2)


def test_job_that_saves_newer_checkpoints_is_not_given_up_below_its_highest_step(
    bench: Bench,
) -> None:
    """Ranks that do not wait for each other, and the same crash again and again."""
    for fault in range(1, FAULTS + 1):
        fail(bench, 0, signal=11)
        restart(bench, 2)
        assert bench.control.outcome is None, bench.control.outcome
        save(bench, 5 + fault)

    started = bench.records(AttemptStarted)
    assert len(started) == FAULTS + 1
    assert all(one.is_progress for one in started[1:])
    assert bench.control.ledger.highest_step == 100_000


def test_same_crash_without_a_newer_checkpoint_ends_the_job(bench: Bench) -> None:
    for _fault in range(4):
        assert bench.control.outcome is None
        fail(bench, 0, signal=11)
        restart(bench, 2)

    outcome = bench.control.outcome
    assert outcome is not None
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.ESCALATED, 139)
    assert "3 restarts after the same failure brought no new step" in outcome.reason
    assert bench.control.ledger.restarts == 3


def test_crashes_of_other_ranks_are_not_one_crash_repeated(bench: Bench) -> None:
    for fault in range(12):
        fail(bench, fault % 2, signal=11)
        restart(bench, 2)

        assert bench.control.outcome is None, bench.control.outcome


def test_checkpoint_that_is_written_again_at_the_same_step_is_no_progress(bench: Bench) -> None:
    for _fault in range(4):
        assert bench.control.outcome is None
        fail(bench, 0, signal=11)
        restart(bench, 2)
        newest = bench.storage.verdicts[0]
        again = replace(newest.candidate, modified_unix_s=newest.candidate.modified_unix_s + 1)
        bench.storage.verdicts = [replace(newest, candidate=again)]

    assert bench.control.outcome is not None


def timing(number: int, step: int, age_s: float) -> StepTiming:
    return StepTiming(number, step, age_s, 0.0, 0.0, 0.0, 0.0, 0.0, None)


def test_catching_up_is_dated_by_the_first_new_step_and_not_by_the_report_that_tells_it() -> None:
    bench = Bench().start()
    bench.tell()
    bench.run_attempt(1)
    bench.step(10, 10)
    fail(bench, 0, signal=11)
    restart(bench, 6)

    told = tuple(timing(number, number + 5, 15.0 - number) for number in range(3, 15))
    bench.step(19, 14, after_s=15.0, timings=told)

    (caught_up,) = bench.records(CaughtUp)
    assert caught_up.step == 11
    assert caught_up.age_s == pytest.approx(9.0)


@pytest.mark.parametrize(("begins", "said"), [(1, True), (6, False)])
def test_attempt_that_begins_anew_although_it_was_given_a_checkpoint_is_told(
    bench: Bench, begins: int, said: bool
) -> None:
    fail(bench, 1, signal=9)
    restart(bench, begins)

    verified = bench.records(AttemptVerified)[-1]
    assert (verified.first_step, verified.unused_step) == (begins, 5 if said else None)
    told = narrate(verified)
    assert told is not None
    assert ("begins at step 1, although it was given step 5" in told) is said


def test_attempt_without_a_checkpoint_begins_at_the_first_step_as_it_should() -> None:
    bench = Bench().start()
    bench.tell()
    bench.run_attempt(1)
    bench.step(1, 1)
    bench.step(2, 2)

    assert bench.records(AttemptVerified)[-1].unused_step is None


@pytest.mark.parametrize(("begins", "chosen"), [(9, 8), (8, 8), (6, None), (7, None)])
def test_attempt_that_begins_behind_a_checkpoint_that_was_passed_over_chose_it_itself(
    bench: Bench, begins: int, chosen: int | None
) -> None:
    torn = Candidate("/c/8", 8, CheckpointFormat.NPZ, 10, 1008.0)
    bench.storage.verdicts.insert(0, CheckpointVerdict(torn, is_valid=False, reason="torn"))

    fail(bench, 1, signal=9)
    restart(bench, begins)

    verified = bench.records(AttemptVerified)[-1]
    assert (verified.first_step, verified.own_choice_step) == (begins, chosen)
    told = narrate(verified)
    assert told is not None
    assert ("behind step 8, of a checkpoint that was passed over" in told) is (chosen == 8)
    assert bench.control.ledger.chooses_itself is (chosen == 8)
