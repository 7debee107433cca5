import gc
from dataclasses import replace

from detectors.finding import Kind
from recovery.journal.accounting import Account, Accounting, RecoveryPhase, Tier, account_all
from recovery.journal.attempt_records import (
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    Cause,
    Choice,
    Placement,
)
from recovery.journal.incident_machine import Outcome, Phase
from recovery.journal.incident_records import (
    Decided,
    IncidentEvent,
    Plan,
    PlanStep,
    PlanWaits,
    WaitsFor,
)
from recovery.journal.records import Entry, Record
from recovery.messages.exchange import SnapshotPoint
from tests.support.goodput_jobs import FINDING, OPENED, RECOVERY, VERIFIED, event, started


def account(records: tuple[tuple[float, Record], ...], boots: tuple[str, ...] = ()) -> Account:
    entries = [
        Entry(number, 5000.0 + at_s, at_s, boots[number - 1] if boots else "boot-1", record)
        for number, (at_s, record) in enumerate(records, start=1)
    ]
    (found,) = account_all(entries)
    return found


def phases(found: Account) -> dict[str, float]:
    return {phase.value: seconds for phase, seconds in found.phases.items()}


def test_phases_are_divided_by_the_order_and_the_marks_of_the_slowest_rank() -> None:
    found = account(RECOVERY)

    assert phases(found) == {
        "detect": 0.5,
        "decide": 0.25,
        "fence": 0.75,
        "retries": 0.0,
        "prepare": 0.125,  # fence over at 101, attempt ordered at 101.125
        "start": 2.375,  # checkpoint asked for at 103.5
        "restore": 1.5,
        "first_step": 2.0,
    }
    assert found.total_s == 7.5
    assert found.recovered_s == 9.0
    assert found.steps_recomputed == 20
    assert (found.caught_up_s, found.caught_up_step) == (20.5, 121)
    assert found.state.phase is Phase.RECOVERED
    assert found.notes == ()


def test_where_the_ranks_formed_a_process_group_their_start_ends_with_its_begin() -> None:
    met = replace(VERIFIED, rendezvous_began_age_s=5.5, rendezvous_ended_age_s=3.5)

    found = account(tuple((at, met if record is VERIFIED else record) for at, record in RECOVERY))

    assert list(phases(found).items())[4:] == [
        ("prepare", 0.125),
        ("start", 1.375),  # began at 102.5
        ("rendezvous", 2.0),
        ("restore", 0.5),  # first section at 105
        ("first_step", 2.0),
    ]
    assert found.total_s == 7.5


def test_waiting_for_evidence_prepares_the_attempt_and_is_no_part_of_its_start() -> None:
    late = tuple((at + 20.0 * (number > 3), record) for number, (at, record) in enumerate(RECOVERY))

    found = account(late)

    assert (phases(found)["prepare"], phases(found)["start"]) == (20.125, 2.375)
    assert found.total_s == 27.5


def test_a_rank_that_never_asks_for_the_checkpoint_starts_until_it_attaches() -> None:
    records = tuple(
        (at, replace(r, resumed_age_s=None) if r is VERIFIED else r) for at, r in RECOVERY
    )

    found = account(records)

    assert (phases(found)["start"], phases(found)["restore"]) == (1.875, 2.0)


def test_a_phase_without_its_mark_is_part_of_the_next_and_said_so() -> None:
    bare = AttemptVerified(2, True, (0,), first_step_age_s=1.0, first_step=101)
    records = tuple((at, bare if record is VERIFIED else record) for at, record in RECOVERY)

    found = account(records)

    assert not {"start", "restore"} & phases(found).keys(), "never zero"
    assert phases(found)["first_step"] == 5.875
    assert found.total_s == 7.5
    assert [note.split(":")[0] for note in found.notes] == [
        "restore includes start",
        "the first step includes restore",
    ]


def test_ranks_that_tell_nothing_are_accounted_to_the_verification() -> None:
    bare = AttemptVerified(2, False, ())
    records = tuple((at, bare if record is VERIFIED else record) for at, record in RECOVERY)

    found = account(records)

    assert phases(found)["first_step"] == 6.875
    assert found.total_s == 8.5
    assert found.steps_recomputed is None
    assert "the total ends at the verification" in found.notes[-1]


def test_failed_tries_are_a_phase_of_their_own() -> None:
    records = (
        *RECOVERY[:6],
        (104.0, event(Outcome.FAILED, "inc-1/1/verifying")),
        (105.0, event(Outcome.SUCCEEDED, "inc-1/2/fencing")),
        (105.5, started(3, 2)),
        (105.5, event(Outcome.SUCCEEDED, "inc-1/2/restoring")),
        (112.0, replace(VERIFIED, attempt=3)),
        (112.0, event(Outcome.SUCCEEDED, "inc-1/2/verifying")),
    )

    found = account(records)

    assert phases(found)["retries"] == 4.0
    assert phases(found)["prepare"] == 0.5, "of the try that worked"
    assert found.total_s == 0.5 + 0.25 + 0.75 + 4.0 + 6.0
    assert found.state.try_number == 2
    assert found.choice == started(3, 2).choice


def test_where_an_attempts_ranks_were_is_not_kept_once_its_incident_is_over() -> None:
    """A record of an attempt names every rank of the job, and an account is kept for each incident."""
    accounting = Accounting()
    placement = tuple(Placement(f"n{node}", (2 * node, 2 * node + 1)) for node in range(500))
    for number, (at_s, record) in enumerate(RECOVERY, start=1):
        if isinstance(record, AttemptStarted):
            record = replace(record, placement=placement)  # noqa: PLW2901
        accounting.take(Entry(number, 5000.0 + at_s, at_s, "boot-1", record))
    del placement, record
    gc.collect()

    kept = [one for one in gc.get_objects() if isinstance(one, Placement) and one.node == "n499"]
    (found,) = accounting.accounts()
    assert (found.ranks, found.tier, kept) == (1000, Tier.CHECKPOINT, [])


def test_an_incident_that_is_still_under_way_has_no_total() -> None:
    found = account(RECOVERY[:4])

    assert list(phases(found)) == ["detect", "decide", "fence", "retries"]
    assert (found.total_s, found.recovered_s) == (None, None)


def test_across_a_reboot_unix_time_is_used() -> None:
    boots = ("boot-1",) * 3 + ("boot-2",) * 6
    records = tuple(
        (at_s if number < 3 else at_s - 90.0, record)
        for number, (at_s, record) in enumerate(RECOVERY)
    )
    entries = [
        Entry(number, 5000.0 + RECOVERY[number - 1][0], at_s, boots[number - 1], record)
        for number, (at_s, record) in enumerate(records, start=1)
    ]

    (found,) = account_all(entries)

    assert phases(found)["fence"] == 0.75
    assert found.total_s == 7.5


def test_each_incident_has_its_own_account() -> None:
    second = replace(OPENED, incident_id="inc-2", fault_age_s=2.0)
    entries = [
        Entry(number, at_s, at_s, "boot-1", record)
        for number, (at_s, record) in enumerate((*RECOVERY, (200.0, second)), start=1)
    ]

    found = account_all(entries)

    assert [one.incident_id for one in found] == ["inc-1", "inc-2"]
    assert found[1].phases == {RecoveryPhase.DETECT: 2.0}
    assert found[1].state.phase is Phase.OPENED


def test_account_says_what_the_last_try_restored() -> None:
    begun = RECOVERY[4][1]
    assert isinstance(begun, AttemptStarted)
    choices = {
        Tier.CHECKPOINT: begun.choice,
        Tier.MEMORY: replace(begun.choice, snapshot=SnapshotPoint(1, 110)),
        Tier.START: Choice(True, None, "none there"),
    }

    for tier, choice in choices.items():
        told = replace(begun, choice=choice)
        assert account((*RECOVERY[:4], (101.125, told), *RECOVERY[5:])).tier is tier
    assert account(RECOVERY[:4]).tier is None


FROM_START = Choice(True, None, "no --checkpoint-dir")


def relative(*, failed_at: int, began: Choice, begins: Choice) -> tuple[tuple[float, Record], ...]:
    """Return a recovery of ranks whose steps count from the start of their process."""
    opened = replace(
        OPENED, highest_step=None, failure=replace(OPENED.failure, step=failed_at, is_relative=True)
    )
    verified = replace(VERIFIED, is_comparable=False, first_step=1)
    first = replace(started(1, 1), cause=Cause.FIRST, incident_id=None, choice=began)
    swapped = {id(OPENED): opened, id(VERIFIED): verified}
    rest = tuple((at, swapped.get(id(record), record)) for at, record in RECOVERY[:-1])
    return (
        (1.0, first),
        *(
            (at, replace(r, choice=begins) if isinstance(r, AttemptStarted) else r)
            for at, r in rest
        ),
    )


def test_what_is_lost_in_all_ends_where_the_job_has_caught_up() -> None:
    found = account(RECOVERY)

    assert (found.lost_s, found.is_lost_least) == (20.5, False)
    assert account(RECOVERY[:-1]).lost_s is None, "it still makes them again"


def test_a_restart_from_the_beginning_counts_the_steps_of_the_attempt_that_failed() -> None:
    found = account(relative(failed_at=40, began=FROM_START, begins=FROM_START))

    assert found.steps_recomputed == 40
    assert (found.lost_s, found.is_lost_least) == (7.5, True)


def test_steps_that_count_from_different_checkpoints_are_not_compared() -> None:
    other = started(1, 1).choice

    found = account(relative(failed_at=40, began=other, begins=FROM_START))

    assert found.steps_recomputed is None
    assert found.is_lost_least


def test_an_attempt_that_ends_before_it_caught_up_closes_the_loss() -> None:
    ended = AttemptEnded(2, AttemptResult.STOPPED)

    found = account((*RECOVERY[:-1], (112.5, ended)))

    assert (found.lost_s, found.is_lost_least) == (13.0, True)


def test_a_try_whose_ranks_fail_after_their_first_steps_is_no_end_of_the_outage() -> None:
    """What is known of its start belongs to the tries that failed."""
    met = replace(VERIFIED, rendezvous_began_age_s=5.5, rendezvous_ended_age_s=3.5)
    first = (*RECOVERY[:6], (108.0, met), (110.0, event(Outcome.FAILED, "inc-1/1/verifying")))
    second = tuple((at_s + 20.0, again(record)) for at_s, record in RECOVERY[3:8])

    failed, over = account(first), account((*first, *second))

    assert (failed.total_s, failed.steps_recomputed) == (None, None)
    assert phases(failed) == {"detect": 0.5, "decide": 0.25, "fence": 0.75, "retries": 0.0}
    assert "rendezvous" not in phases(over), "nobody saw the second one's"
    assert over.total_s == sum(phases(over).values()) == 27.5


def again(record: Record) -> Record:
    """Return a record of the first try as one of the second."""
    if isinstance(record, IncidentEvent):
        return event(record.event.outcome, record.event.answers.replace("inc-1/1", "inc-1/2"))
    return started(3, 2) if isinstance(record, AttemptStarted) else record


SLOW = replace(
    OPENED, failure=replace(OPENED.failure, finding=replace(FINDING, kind=Kind.RANK_SLOW))
)


def after_hours(records: tuple[tuple[float, Record], ...]) -> tuple[tuple[float, Record], ...]:
    """Return a recovery of which a person approves the plan an hour after it was made."""
    return ((100.0, SLOW), *((at_s + 3600.0, record) for at_s, record in records[1:]))


def test_what_ranks_train_until_a_plan_about_them_is_approved_is_neither_mttr_nor_lost() -> None:
    found = account(after_hours(RECOVERY))

    assert phases(found) == phases(account(RECOVERY)) | {
        "detect": 0.0,
        "decide": 0.0,
        "fence": 0.75,
    }
    assert (found.total_s, found.lost_s, found.trained_s) == (6.75, 19.75, 3600.25)


def test_a_plan_about_ranks_that_train_costs_nothing_while_it_waits_or_once_it_is_dropped() -> None:
    cancelled = event(Outcome.CANCEL, "inc-1")

    waits = account(((100.0, SLOW),))
    dropped = account(((100.0, SLOW), (3700.0, cancelled)))
    failed = account(((100.0, OPENED), (160.0, cancelled)))

    assert (waits.trained_s, waits.lost_s) == (None, None)
    assert (dropped.trained_s, dropped.lost_s) == (3600.0, 0.0)
    assert (failed.trained_s, failed.lost_s) == (0.0, 60.5)
    assert (dropped.is_lost_least, failed.is_lost_least) == (False, True), (
        "ranks may be left stopped"
    )


def test_an_incident_waits_until_its_plan_is_decided() -> None:
    plan = Plan(PlanStep.RESTART_IN_PLACE, "because", ())
    waits = PlanWaits("inc-1", 1, plan, "0 of 1 nodes", WaitsFor.NODES)

    waiting = account((*RECOVERY[:4], (101.1, waits)))
    going = account((*RECOVERY[:4], (101.1, waits), (101.2, Decided("inc-1", 1, plan))))

    assert (waiting.waits_for, going.waits_for) == (WaitsFor.NODES, None)
