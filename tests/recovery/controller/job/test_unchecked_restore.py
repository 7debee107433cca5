"""A checkpoint that was not read to its end is restored rather than nothing, and left once a sum of it fails."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from detectors.finding import Kind, SymptomKind
from recovery.controller.job.restore.restore_choice import choose_checkpoint, damage_found
from recovery.controller.job.restore.snapshot_choice import snapshot_from_damage
from recovery.journal.attempt_records import (
    AttemptStarted,
    Cause,
    Choice,
    RestoreDamaged,
)
from recovery.journal.faults import Fault
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.narration.narrator import narrate
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict, Hindrance
from recovery.messages.exchange import Restore, SnapshotPoint
from tests.support.controller_bench import Bench
from tests.support.job_ledgers import verdict

POLICY = Policy()
DAMAGE = RestoreDamaged(2, "/c/30", 30, 1030.0, "CRC of archive/data/7 does not fit", True)


def unchecked(step: int) -> CheckpointVerdict:
    reason = "whole in its structure; its last 3.2 GB were not checked yet"
    return replace(verdict(step, reason=reason), unchecked_bytes=3_200_000_000)


def damaged(step: int) -> CheckpointVerdict:
    torn = verdict(step, is_valid=False, reason="CRC of archive/data/7 does not fit")
    return replace(torn, hindrance=Hindrance.DAMAGED, has_wrong_sum=True)


def training(step: int, **changes: object) -> Ledger:
    """Return the ledger of an attempt that began from this checkpoint before all of it was checked."""
    choice = choose_checkpoint(Ledger(), POLICY, [unchecked(step)])
    started = AttemptStarted(2, Cause.INCIDENT, choice)
    return replace(Ledger(), attempt=2, is_attempt_open=True, started=started, **changes)


def test_unchecked_one_is_restored_where_there_is_no_other() -> None:
    choice = choose_checkpoint(Ledger(), POLICY, [unchecked(30)])

    assert choice.is_possible
    assert choice.restored_path == "/c/30"
    assert choice.unchecked_bytes == 3_200_000_000
    assert "its last 3.2 GB were not checked yet" in choice.reason


@pytest.mark.parametrize(("older", "begins_at"), [(71, 71), (70, 70), (69, 100)])
def test_checked_one_is_preferred_as_long_as_it_costs_little_training(
    older: int, begins_at: int
) -> None:
    choice = choose_checkpoint(Ledger(), POLICY, [unchecked(100), verdict(older), verdict(60)])

    assert choice.begins_at == begins_at


def test_passed_over_unchecked_one_is_named_with_what_that_costs() -> None:
    choice = choose_checkpoint(Ledger(), POLICY, [unchecked(100), verdict(90)])

    (newer,) = choice.passed_over
    assert newer.path == "/c/100"
    assert newer.reason == (
        "3.2 GB of it were not checked yet; 90 was checked to its end, and is 10 s older"
    )


def test_checked_one_that_has_failed_too_often_replaces_none() -> None:
    fault = Fault(Kind.RANK_FAILED, SymptomKind.EXCEPTION, 1)
    state = replace(Ledger(), restores=(("/c/90@1090.0", (fault, fault)),))

    assert choose_checkpoint(state, POLICY, [unchecked(100), verdict(90)]).begins_at == 100


def test_wrong_sum_of_what_was_restored_sends_the_job_back() -> None:
    known = [verdict(40), damaged(30), verdict(20)]

    assert damage_found(training(30), POLICY, known) == DAMAGE


@pytest.mark.parametrize(
    "known",
    [
        [],
        [unchecked(30), verdict(20)],  # is still being read
        [verdict(30), verdict(20)],  # was whole
        [replace(damaged(30), has_wrong_sum=False), verdict(20)],  # a rotation takes it away
        [damaged(40), verdict(20)],  # another one
        [
            replace(
                damaged(30),
                candidate=Candidate("/c/30", 30, CheckpointFormat.NPZ, 10, 1031.0),
            ),
            verdict(20),
        ],  # saved over it since
    ],
)
def test_nothing_but_a_wrong_sum_of_the_same_files_does(known: list[CheckpointVerdict]) -> None:
    assert damage_found(training(30), POLICY, known) is None


def checked(state: Ledger) -> Ledger:
    assert state.started is not None
    started = replace(state.started, choice=replace(state.started.choice, unchecked_bytes=0))
    return replace(state, started=started)


def from_memory(state: Ledger) -> Ledger:
    assert state.started is not None
    choice = replace(state.started.choice, snapshot=SnapshotPoint(1, 35))
    return replace(state, started=replace(state.started, choice=choice))


@pytest.mark.parametrize(
    "change",
    [
        checked,
        from_memory,
        lambda state: replace(state, is_attempt_open=False),
        lambda state: replace(state, damaged_restores=(DAMAGE,)),
    ],
    ids=["checked before", "read from memory", "attempt over", "known already"],
)
def test_attempt_that_read_nothing_unchecked_is_left_alone(
    change: Callable[[Ledger], Ledger],
) -> None:
    assert damage_found(change(training(30)), POLICY, [damaged(30), verdict(20)]) is None


@pytest.mark.parametrize(
    ("known", "policy"),
    [
        ([verdict(40), damaged(30)], POLICY),
        ([damaged(30), replace(verdict(20), is_valid=False)], POLICY),
        (
            [damaged(30), verdict(20)],
            replace(POLICY, allow={Kind.NUMBERS_WRONG: (PlanStep.MOVE,)}),
        ),
    ],
    ids=["only saved since", "older one torn", "forbidden"],
)
def test_job_that_could_go_back_to_nothing_trains_on_and_says_so(
    known: list[CheckpointVerdict], policy: Policy
) -> None:
    damage = damage_found(training(30), policy, known)

    assert damage is not None
    assert not damage.goes_back
    assert narrate(damage).endswith("nothing older can be restored: it trains on")


def test_snapshots_of_an_earlier_attempt_are_something_to_go_back_to() -> None:
    damage = damage_found(training(30), POLICY, [damaged(30)], [SnapshotPoint(1, 29)])

    assert damage == DAMAGE


def test_what_was_saved_since_is_not_restored_now_or_later_and_new_saves_are() -> None:
    there = [verdict(40), damaged(30), verdict(20)]

    choice = choose_checkpoint(training(30, leaves_damaged=DAMAGE), POLICY, there)

    assert choice.begins_at == 20
    assert [one.reason for one in choice.passed_over] == [
        "saved by ranks that began from /c/30, which is damaged",
        "CRC of archive/data/7 does not fit",
    ]
    later = replace(Ledger(), spoiled=choice.spoiled)
    assert choose_checkpoint(later, POLICY, there).begins_at == 20
    assert choose_checkpoint(later, POLICY, [verdict(50), *there]).begins_at == 50


def test_snapshots_of_ranks_that_began_from_it_are_not_restored_and_others_are() -> None:
    state = replace(Ledger(), damaged_restores=(DAMAGE,))

    assert snapshot_from_damage(SnapshotPoint(2, 41), state) == (
        "attempt 2 began from a damaged checkpoint"
    )
    assert snapshot_from_damage(SnapshotPoint(1, 29), state) is None
    assert snapshot_from_damage(SnapshotPoint(3, 41), state) is None


def test_choice_of_an_older_version_counts_as_checked() -> None:
    older = b'{"is_possible":true,"restore":{"path":"/c/30","step":30},"reason":"whole"}'

    choice = msgspec.json.decode(older, type=Choice)

    assert choice.unchecked_bytes == 0


def test_running_job_goes_back_to_the_older_one_when_a_sum_fails() -> None:
    bench = Bench()
    bench.storage.verdicts = [unchecked(60), verdict(20)]
    bench.start().tell()
    assert bench.orders[-1].restore == Restore("/c/60", 60)
    bench.run_attempt(1)
    bench.step(61, 1)
    bench.step(62, 2)

    bench.storage.is_watched = True
    bench.storage.verdicts = [verdict(70), damaged(60), verdict(20)]
    bench.step(71, 11)
    bench.empty()

    (opened,) = bench.records(IncidentOpened)
    assert "before all of it was checked, is damaged" in opened.failure.finding.summary
    assert [one.goes_back for one in bench.records(RestoreDamaged)] == [True]
    assert bench.orders[-1].restore == Restore("/c/20", 20)
    bench.run_attempt(2)
    bench.step(21, 1)
    bench.step(22, 2)
    assert len(bench.records(IncidentOpened)) == 1


def test_running_job_whose_check_ends_well_trains_on() -> None:
    bench = Bench()
    bench.storage.verdicts = [unchecked(60), verdict(20)]
    bench.start().tell()
    bench.run_attempt(1)

    bench.storage.is_watched = True
    bench.storage.verdicts = [verdict(60), verdict(20)]
    bench.step(61, 1)
    bench.step(62, 2)

    assert bench.records(IncidentOpened) == []
    assert bench.records(RestoreDamaged) == []
