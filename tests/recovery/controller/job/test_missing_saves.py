"""A job that trains for long and saves nothing where checkpoints are looked for is told of, once."""

from dataclasses import replace

import pytest

from rankmend.rank_values import Unsaved
from recovery.console.views.checkpoint_view import view_unsaved
from recovery.controller.job.controller import Controller
from recovery.controller.job.restore.restorable import MissingSaves
from recovery.journal.attempt_records import AttemptStarted, CheckpointSeen, SavesMissing, SavesSeen
from recovery.journal.ledger import Ledger, SaveHistory, Wish
from recovery.journal.narration.narrator import narrate
from recovery.messages.candidates import CheckpointVerdict, Hindrance
from tests.support.controller_bench import SETTINGS, Bench, begin
from tests.support.job_ledgers import POLICY, SEEN, verdict

HOUR_S = 3600.0
TORN = verdict(20, is_valid=False, reason="marker file COMMIT is missing")
POINTER = replace(verdict(5, is_valid=False), hindrance=Hindrance.MISSING)
TRAINING = Ledger(attempt=1, is_verified=True)
FOLDER = replace(SETTINGS, checkpoint_folder="/shared/ckpt")


def train(
    watch: MissingSaves,
    ledger: Ledger,
    from_s: float,
    until_s: float,
    known: tuple[CheckpointVerdict, ...] = (),
) -> list[SavesMissing]:
    """Look every 10 s, and fold what is due."""
    told: list[SavesMissing] = []
    for now_s in range(int(from_s), int(until_s) + 1, 10):
        due = watch.due(ledger, known, float(now_s), has_snapshots=False)
        if due is not None:
            told.append(due)
    return told


@pytest.mark.parametrize(
    ("ledger", "known", "cause", "example"),
    [
        (TRAINING, (), Unsaved.NOTHING_FOUND, ""),
        # Only a pointer file names it, or it is another name of one that is listed.
        (TRAINING, (POINTER,), Unsaved.NOTHING_FOUND, ""),
        (TRAINING, (TORN,), Unsaved.NONE_VALID, "20: marker file COMMIT is missing"),
        (TRAINING, (verdict(10),), Unsaved.NONE_NEWER, ""),
        (replace(TRAINING, restorable=SEEN), (TORN,), Unsaved.NONE_NEWER, "20: marker file COMMIT is missing"),
    ],
)  # fmt: skip
def test_cause_is_what_lies_in_the_folder_after_an_hour_of_training(
    ledger: Ledger, known: tuple[CheckpointVerdict, ...], cause: Unsaved, example: str
) -> None:
    watch = MissingSaves(POLICY, "/shared/ckpt")

    early = train(watch, ledger, 0, HOUR_S - 10, known)
    (told, *_later) = train(watch, ledger, HOUR_S, HOUR_S, known)

    assert early == []
    assert (told.cause, told.trained_s, told.example) == (cause, HOUR_S, example)


def test_time_without_training_does_not_count() -> None:
    watch = MissingSaves(POLICY, "")
    restarting = replace(TRAINING, is_verified=False)

    told = train(watch, TRAINING, 0, HOUR_S / 2)
    told += train(watch, restarting, HOUR_S / 2 + 10, 3 * HOUR_S)
    told += train(watch, TRAINING, 3 * HOUR_S + 10, 3.5 * HOUR_S)

    assert told == []
    assert train(watch, TRAINING, 3.5 * HOUR_S + 10, 3.6 * HOUR_S)


def test_hours_without_a_look_count_as_a_minute() -> None:
    watch = MissingSaves(POLICY, "")

    assert watch.due(TRAINING, (), 0.0, has_snapshots=False) is None
    assert watch.due(TRAINING, (), 9 * HOUR_S, has_snapshots=False) is None


def test_save_starts_the_count_again() -> None:
    watch = MissingSaves(POLICY, "")

    train(watch, TRAINING, 0, HOUR_S - 20)
    saved = replace(TRAINING, restorable=SEEN, saved_number=7)

    assert train(watch, saved, HOUR_S - 10, 2 * HOUR_S - 30, (verdict(10),)) == []
    assert train(watch, saved, 2 * HOUR_S - 20, 2 * HOUR_S + 20, (verdict(10),))


def test_job_that_usually_saves_rarely_is_not_told_of_before_three_intervals() -> None:
    watch = MissingSaves(POLICY, "")
    rare = replace(TRAINING, history=SaveHistory((SavesSeen(2, 2 * HOUR_S),)))

    assert train(watch, rare, 0, 6 * HOUR_S - 10) == []
    assert train(watch, rare, 6 * HOUR_S, 6 * HOUR_S)


def test_zero_switches_it_off() -> None:
    watch = MissingSaves(replace(POLICY, save_wait_s=0.0), "")

    assert train(watch, TRAINING, 0, 3 * HOUR_S) == []


def test_causes_that_alternate_make_one_record_an_hour_at_most(training: Bench) -> None:
    training = trained(training, 1.1 * HOUR_S)
    for turn in range(80):
        training.storage.verdicts = [TORN] if turn % 2 else []
        trained(training, 60.0)

    told = training.records(SavesMissing)
    assert [one.cause for one in told] == [Unsaved.NOTHING_FOUND, Unsaved.NONE_VALID]


def trained(bench: Bench, seconds: float) -> Bench:
    """Have both ranks make a step every 9 s."""
    bench.storage.is_watched = True
    step = bench.ranks[0].step or 10
    for _turn in range(int(seconds / 9)):
        step += 1
        bench.step(step, step, after_s=9.0)
    return bench


@pytest.fixture
def training() -> Bench:
    return begin(Bench(FOLDER))


def test_people_are_told_once_and_status_until_it_saves(training: Bench) -> None:
    trained(training, 3 * HOUR_S)

    (told,) = training.records(SavesMissing)
    now = view_unsaved(training.control.ledger, training.clock.unix_s())
    assert narrate(told) == (
        "for 60 min nothing that looks like a checkpoint has been saved in /shared/ckpt: a restart would begin at step 0; "
        "does the script save into this folder, and how often?"
    )
    assert now is not None
    assert now.cause == "nothing_found"
    assert now.since_s == pytest.approx(3 * HOUR_S, abs=120)
    assert now.text.startswith("for 3 h nothing that looks like a checkpoint")

    training.storage.verdicts = [verdict(900)]
    trained(training, 60.0)
    assert [one.path for one in training.records(CheckpointSeen)] == ["/c/900"]
    assert view_unsaved(training.control.ledger, training.clock.unix_s()) is None


def test_time_in_which_a_job_stands_or_waits_is_none_that_a_restart_repeats(
    training: Bench,
) -> None:
    trained(training, 1.1 * HOUR_S)
    ledger, later_unix_s = training.control.ledger, training.clock.unix_s() + 5 * HOUR_S
    first = "for at least 60 min nothing that looks like a checkpoint"

    waits = replace(ledger, wish=Wish.NOTHING)
    restarted = replace(ledger, attempt=ledger.attempt + 1)

    for stands in (waits, restarted):
        view = view_unsaved(stands, later_unix_s)
        assert view is not None
        assert (view.since_s, view.text.startswith(first)) == (pytest.approx(HOUR_S, abs=60), True)


def test_checkpoint_that_the_job_began_from_is_no_save_of_its_own() -> None:
    bench = Bench(FOLDER)
    bench.storage.verdicts = [verdict(5)]
    bench.start().tell()
    bench.run_attempt(1)
    bench.step(10, 10)

    trained(bench, 1.1 * HOUR_S)

    (told,) = bench.records(SavesMissing)
    assert bench.records(CheckpointSeen)
    assert (told.cause, told.newest) == (Unsaved.NONE_NEWER, "/c/5")
    assert "nothing newer than /c/5 has been saved in /shared/ckpt" in str(narrate(told))
    assert "a restart would repeat all of that" in str(narrate(told))


def test_controller_that_comes_back_tells_it_no_second_time(training: Bench) -> None:
    trained(training, 1.1 * HOUR_S)
    again = Bench(FOLDER, training.journal.entries)
    again.attempt, again.ranks, again.orders = 1, training.ranks, training.orders
    again.start()

    trained(again, 1.1 * HOUR_S)

    assert len(again.records(SavesMissing)) == 1


def test_job_without_a_folder_is_told_at_its_start_what_a_restart_costs() -> None:
    bench = Bench(SETTINGS)
    bench.control = Controller(
        bench.journal, bench, None, None, None, bench.clock, replace(SETTINGS, own_node="")
    )
    bench.control.start()
    bench.tell()
    bench.run_attempt(1)
    bench.step(10, 10)

    trained(bench, 1.1 * HOUR_S)

    (started,) = bench.records(AttemptStarted)
    view = view_unsaved(bench.control.ledger, 0.0)
    assert "no --checkpoint-dir" in str(narrate(started))
    assert view is not None
    assert (view.cause, view.since_s) == ("no_folder", None)
    assert bench.records(SavesMissing) == []
