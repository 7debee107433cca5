"""Ranks that stand still and may go on: SIGCONT once, a suspended job left alone, and no restart from zero for a pause."""

from dataclasses import replace

import pytest

from detectors.finding import Blame
from detectors.hang.live import HungLimits, RankStand, detect_hung
from recovery.controller.job.attempt_diagnosis import Patience, judge_standstill
from recovery.journal.attempt_records import StandKind, StandStill
from recovery.journal.incident_records import IncidentOpened
from recovery.messages.candidates import Hindrance
from tests.support.controller_bench import Bench, begin
from tests.support.job_ledgers import verdict

LIMITS = HungLimits()
PATIENCE = Patience(LIMITS, is_restorable=True, may_continue=True)
MOVING = RankStand(
    rank=0,
    process_state="S",
    state_age_s=400.0,
    is_done=False,
    steps_done=35,
    advanced_age_s=400.0,
    section="communication",
    step_times_s=(0.1,),
)


def judge(patience: Patience, *states: str, stalled_s: float = 400.0) -> StandStill | None:
    stands = [
        replace(
            MOVING, rank=rank, process_state=state, state_age_s=stalled_s, advanced_age_s=stalled_s
        )
        for rank, state in enumerate(states)
    ]
    hang = detect_hung(stands, LIMITS, attempt_age_s=500.0)
    assert hang is not None
    return judge_standstill(3, hang, stands, patience)


def found(patience: Patience, *states: str, stalled_s: float = 400.0) -> tuple[object, object]:
    standing = judge(patience, *states, stalled_s=stalled_s)
    return (None, None) if standing is None else (standing.kind, standing.ranks)


def test_stopped_rank_is_told_to_go_on_once() -> None:
    assert found(PATIENCE, "S", "T", stalled_s=5.0) == (StandKind.CONTINUED, (1,))
    again = replace(PATIENCE, continued=(1,))
    assert judge(again, "S", "T", stalled_s=5.0) is None
    assert found(again, "S", "T", "T", stalled_s=5.0) == (StandKind.CONTINUED, (2,))


def test_rank_that_a_debugger_holds_is_never_told_to_go_on() -> None:
    assert found(PATIENCE, "S", "t") == (None, None)


def test_job_whose_ranks_are_all_stopped_is_suspended() -> None:
    assert found(PATIENCE, "T", "T", stalled_s=5.0) == (StandKind.SUSPENDED, ())
    assert found(PATIENCE, "T", "t", stalled_s=5.0) == (StandKind.SUSPENDED, ())
    assert found(PATIENCE, "T", stalled_s=5.0) == (StandKind.CONTINUED, (0,)), "one rank is no job"


def test_rank_that_is_gone_is_waited_for_by_nobody() -> None:
    nothing = replace(PATIENCE, is_restorable=False)

    assert judge(nothing, "T", "Z") is None


def test_job_without_anything_to_restore_waits_for_the_long_limit() -> None:
    nothing = replace(PATIENCE, is_restorable=False, continued=(1,))

    assert found(nothing, "S", "T", stalled_s=5.0) == (StandKind.WAITS, (1,))
    assert found(nothing, "S", "S", stalled_s=300.0) == (StandKind.WAITS, ())
    assert found(nothing, "S", "D", stalled_s=1799.0) == (StandKind.WAITS, (1,))
    assert judge(nothing, "S", "D", stalled_s=1800.0) is None


def test_nothing_is_sent_in_observe_mode() -> None:
    assert judge(replace(PATIENCE, may_continue=False), "S", "T", stalled_s=5.0) is None


@pytest.fixture
def saved() -> Bench:
    """A job that has made ten steps and saved one of them."""
    bench = Bench()
    bench.storage.is_watched = True
    begin(bench)
    bench.storage.verdicts = [verdict(5)]
    for step in range(11, 21):
        bench.step(step, step)
    assert bench.control.ledger.restorable_path is not None
    return bench


def stand(bench: Bench, for_s: int) -> None:
    for _second in range(for_s):
        for rank, told in bench.ranks.items():
            bench.ranks[rank] = replace(told, step_age_s=told.step_age_s + 1.0)
        bench.tell(after_s=1.0)


def stop(bench: Bench, *ranks: int, letter: str = "T") -> None:
    for rank in ranks:
        bench.ranks[rank] = replace(bench.ranks[rank], process_state=letter)


def kinds(bench: Bench) -> list[StandKind]:
    return [one.kind for one in bench.records(StandStill)]


def test_stopped_rank_that_goes_on_is_no_incident(saved: Bench) -> None:
    stop(saved, 1)
    stand(saved, 7)

    order = saved.orders[-1]
    assert (order.continues, order.ranks) == ((1,), (0, 1))
    assert order.continue_number > 0
    stop(saved, 1, letter="S")
    saved.step(21, 21)

    assert kinds(saved) == [StandKind.CONTINUED, StandKind.ENDED]
    assert saved.records(IncidentOpened) == []


def test_rank_that_is_stopped_again_is_restarted_and_blames_nobody(saved: Bench) -> None:
    stop(saved, 1)
    stand(saved, 7)
    assert saved.records(IncidentOpened) == []
    stand(saved, 7)

    (opened,) = saved.records(IncidentOpened)
    finding = opened.failure.finding
    assert (finding.signature, finding.ranks, finding.blame) == ("hung:stopped", (1,), Blame.NOBODY)
    assert finding.evidence[0].text == "SIGCONT was sent to rank 1 before: it has stopped again"
    assert kinds(saved) == [StandKind.CONTINUED]


def test_rank_that_goes_on_and_does_not_advance_is_restarted_at_the_usual_limit(
    saved: Bench,
) -> None:
    stop(saved, 1)
    stand(saved, 7)
    stop(saved, 1, letter="S")
    stand(saved, 59)
    assert saved.records(IncidentOpened) == []
    stand(saved, 70)

    (opened,) = saved.records(IncidentOpened)
    assert opened.failure.finding.blame is Blame.NOBODY


def test_suspended_job_is_left_alone_and_its_pause_teaches_no_limit(saved: Bench) -> None:
    stop(saved, 0, 1)
    stand(saved, 1000)
    stop(saved, 0, 1, letter="S")
    stand(saved, 3)
    saved.step(21, 21)

    assert kinds(saved) == [StandKind.SUSPENDED, StandKind.ENDED]
    assert saved.records(IncidentOpened) == []
    assert saved.orders[-1].continues == ()
    stand(saved, 125)
    assert len(saved.records(IncidentOpened)) == 1


def test_job_that_has_saved_nothing_waits_before_it_is_thrown_back(training: Bench) -> None:
    stop(training, 1)
    stand(training, 118)
    assert kinds(training) == [StandKind.CONTINUED, StandKind.WAITS]
    assert training.records(IncidentOpened) == []
    stand(training, 20)

    assert len(training.records(IncidentOpened)) == 1


def test_save_of_a_moment_ago_is_something_to_restore(training: Bench) -> None:
    """A job of a few seconds has saved nothing older than the time for which a writer may pause."""
    young = replace(verdict(5), is_valid=False, hindrance=Hindrance.WRITING, is_young=True)
    training.storage.is_watched = True
    training.storage.verdicts = [young]

    stop(training, 1)
    stand(training, 14)

    assert kinds(training) == [StandKind.CONTINUED]
    assert len(training.records(IncidentOpened)) == 1


def test_save_that_is_half_written_is_nothing_to_restore(training: Bench) -> None:
    training.storage.is_watched = True
    training.storage.verdicts = [replace(verdict(5), is_valid=False, hindrance=Hindrance.WRITING)]

    stop(training, 1)
    stand(training, 14)

    assert kinds(training) == [StandKind.CONTINUED, StandKind.WAITS]


def test_order_to_go_on_ends_with_the_attempt(saved: Bench) -> None:
    stop(saved, 1)
    stand(saved, 14)
    saved.empty()
    saved.tell(after_s=1.0)

    assert saved.orders[-1].attempt == 2
    assert (saved.orders[-1].continues, saved.orders[-1].continue_number) == ((), 0)
