"""Where the time of a job went, by its journal: each second once, and each in its part."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_spent import read_time
from recovery.accounting.goodput.timeline import Timeline, TimePart, TimeSpan
from recovery.journal.attempt_records import (
    Adopted,
    AttemptAbandoned,
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    Cause,
    CheckpointSeen,
    Choice,
    Milestone,
    Placement,
    RelativeMilestone,
    SavesSeen,
    SavesStalled,
    SaveStall,
    StallSource,
    StartWaits,
)
from recovery.journal.incident_machine import Outcome
from recovery.journal.incident_records import Plan, PlanWaits, WaitsFor
from recovery.journal.job_records import (
    LauncherStarted,
)
from recovery.journal.ledger import Moment
from recovery.journal.limits import PlanStep
from recovery.journal.node_records import Joined, NodesJoined
from recovery.journal.observation_records import SlowEnded, SlowFound
from recovery.journal.records import Entry
from recovery.messages.exchange import Restore
from tests.support.goodput_jobs import (
    BEGIN,
    END,
    FAILED,
    FINDING,
    FIRST,
    LAUNCHED,
    PLACED,
    SECOND,
    VERIFIED,
    check_partition,
    entries_of,
    event,
    started,
    time_of,
)
from tests.support.old_journals import JOBS, read


def parts(time: JobTime) -> dict[str, float]:
    found: dict[str, float] = {}
    for span in time.spans:
        found[span.part.value] = found.get(span.part.value, 0.0) + span.length_s
    return {part: pytest.approx(seconds) for part, seconds in found.items()}


def test_each_second_of_a_job_with_a_failure_has_one_part() -> None:
    found = time_of(*BEGIN, *FAILED, *END)

    assert found.length_s == 2010.0
    assert parts(found) == {
        "wait_nodes": 1.0,  # until the first attempt was ordered
        "startup": 7.0,  # to its first step at 8 s
        "productive": 991.0 + 980.0,  # to the last step at 999 s; from passing step 120 at 1,020 s
        "unfinished": 0.5,
        "detect": 0.5,
        "decide": 0.25,
        "fence": 0.75,
        "prepare": 0.125,
        "start": 2.375,
        "restore": 1.5,
        "first_step": 2.0,
        "recomputed": 13.0,  # from 1,007 to 1,020 s
        "stopping": 10.0,
    }
    assert {span.incident_id for span in found.spans if span.part is TimePart.RECOMPUTED} == {
        "inc-1"
    }
    assert {span.devices for span in found.spans} == {4}


def test_tries_that_failed_are_retries_and_waiting_is_told_apart() -> None:
    waits = PlanWaits("inc-1", 2, Plan(PlanStep.MOVE, "because", ()), "no node", WaitsFor.NODES)
    again = (
        *FAILED[:8],
        (1010.0, event(Outcome.FAILED, "inc-1/1/verifying")),
        (1012.0, AttemptEnded(2, AttemptResult.FAILED)),
        (1012.0, event(Outcome.SUCCEEDED, "inc-1/2/fencing")),
        (1013.0, waits),
        (1113.0, replace(started(3, 2), placement=PLACED)),
        (1113.5, event(Outcome.SUCCEEDED, "inc-1/2/restoring")),
        (1120.0, replace(VERIFIED, attempt=3)),
    )

    found = time_of(*BEGIN, *again)

    assert found.seconds_of(TimePart.RETRIES) == 11.0  # from the first fence to the second
    assert found.seconds_of(TimePart.WAIT_NODES) == 1.0 + 100.0
    assert found.seconds_of(TimePart.PREPARE) == 1.0  # to the wait


def test_a_wait_for_a_folder_that_cannot_be_written_is_no_wait_for_a_person() -> None:
    waits = PlanWaits(
        "inc-1", 1, Plan(PlanStep.RESTART_IN_PLACE, "because", ()), "full", WaitsFor.STORAGE
    )
    held = StartWaits("the checkpoint folder can't be written", "", is_for_storage=True)

    in_incident = time_of(*BEGIN, *FAILED[:6], (1013.0, waits), (1113.0, SECOND))
    at_start = time_of(*BEGIN[:2], (3.0, held), (103.0, FIRST))

    for found in (in_incident, at_start):
        assert found.seconds_of(TimePart.WAIT_STORAGE) == 100.0
        assert found.seconds_of(TimePart.WAIT_PERSON) == 0.0


def test_saves_are_taken_from_training_where_they_stalled_it() -> None:
    stalled = SavesStalled(1, (SaveStall(150.0, 3.0), SaveStall(50.0, 5.0)))
    saves = SavesSeen(2, 100.0, 4.0, StallSource.SECTION)
    seen = CheckpointSeen("/c/1", 1, "dcp", "DCP", 1.0, "complete", saves=saves)

    found = time_of(*BEGIN, (500.0, stalled), (501.0, seen), (600.0, Milestone(1, 50)))

    stalls = [span for span in found.spans if span.part is TimePart.CHECKPOINT]
    assert [(span.begin_s, span.end_s) for span in stalls] == [(347.0, 350.0), (445.0, 450.0)]
    assert found.seconds_of(TimePart.PRODUCTIVE) == 592.0 - 8.0


def test_saves_of_an_older_journal_are_taken_from_the_time_before_the_record() -> None:
    older = SavesSeen(2, 100.0, 4.0, StallSource.SECTION)
    seen = CheckpointSeen("/c/1", 1, "dcp", "DCP", 1.0, "complete", saves=older)

    found = time_of(*BEGIN, (500.0, seen), (600.0, Milestone(1, 50)))

    (stall,) = [span for span in found.spans if span.part is TimePart.CHECKPOINT]
    assert (stall.begin_s, stall.end_s, stall.is_estimated) == (492.0, 500.0, True)


TAKEN_OVER = AttemptStarted(
    2, Cause.TAKEOVER, Choice(True, Restore("/c/90", 90), "", (), 5000.0), placement=PLACED
)


@pytest.mark.parametrize(
    ("alive_age_s", "productive", "others"),
    [
        (8880.0, 112.0, {"interrupted": 8882.0}),  # alive until 120 s
        (None, 102.0, {"unaccounted": 8890.0, "interrupted": 2.0}),  # an older journal
    ],
)
def test_time_without_a_launcher_is_interrupted_from_its_last_sign_of_life(
    alive_age_s: float | None, productive: float, others: dict[str, float]
) -> None:
    found = time_of(
        *BEGIN,
        (110.0, Milestone(1, 100)),
        (9000.0, replace(LAUNCHED, alive_age_s=alive_age_s)),
        (9001.0, AttemptAbandoned(1, "gone")),
        (9001.5, AttemptEnded(1, AttemptResult.LOST)),
        (9002.0, TAKEN_OVER),
        (9010.0, replace(VERIFIED, first_step=91)),
        (9050.0, Milestone(2, 101)),
    )

    assert found.seconds_of(TimePart.PRODUCTIVE) == productive
    assert {part: found.seconds_of(TimePart(part)) for part in others} == others
    assert found.seconds_of(TimePart.RECOMPUTED) == 41.0  # from 9,009 s until step 101


def test_training_that_went_on_without_a_controller_is_training() -> None:
    found = time_of(
        *BEGIN,
        (110.0, Milestone(1, 100)),
        (900.0, replace(LAUNCHED, alive_age_s=700.0)),
        (905.0, Milestone(1, 500)),
        (906.0, AttemptAbandoned(1, "gone")),
    )

    assert parts(found) == {"wait_nodes": 1.0, "startup": 7.0, "productive": 898.0}


def test_time_between_an_end_and_the_next_start_holds_no_devices() -> None:
    resumed = AttemptStarted(3, Cause.RESUMED, TAKEN_OVER.choice, placement=PLACED)

    found = time_of(*BEGIN, *FAILED, *END, (9000.0, LAUNCHED), (9001.0, resumed))

    (ended,) = [span for span in found.spans if span.part is TimePart.ENDED]
    assert (ended.length_s, ended.devices, ended.device_s) == (6990.0, 0, 0.0)


def test_steps_that_count_from_the_process_start_are_compared_from_the_same_checkpoint() -> None:
    relative = replace(VERIFIED, attempt=1, is_comparable=False, first_step=1, first_step_age_s=2.0)
    first = (*BEGIN[:3], (10.0, relative), (999.0, RelativeMilestone(1, 120, 120)))
    restarted = (
        *FAILED[1:6],
        (1001.125, replace(SECOND, choice=FIRST.choice)),
        (1002.0, event(Outcome.SUCCEEDED, "inc-1/1/restoring")),
        (1008.0, replace(relative, attempt=2, first_step_age_s=1.0)),
        (1008.5, event(Outcome.SUCCEEDED, "inc-1/1/verifying")),
        (1900.0, RelativeMilestone(2, 121, 121)),
    )

    found = time_of(*first, *restarted)

    assert found.seconds_of(TimePart.RECOMPUTED) == 893.0  # from 1,007 s to step 121


def test_recomputing_from_a_newer_checkpoint_is_estimated_by_its_age() -> None:
    relative = replace(VERIFIED, attempt=1, is_comparable=False, first_step=1, first_step_age_s=2.0)
    newer = Choice(True, Restore("/c/step-100", 100), "complete", (), 5000.0 + 900.0)
    found = time_of(
        *BEGIN[:3],
        (10.0, relative),
        *FAILED[1:6],
        (1001.125, replace(SECOND, choice=newer)),
        (1002.0, event(Outcome.SUCCEEDED, "inc-1/1/restoring")),
        (1008.0, replace(relative, attempt=2, first_step_age_s=1.0)),
        (1008.5, event(Outcome.SUCCEEDED, "inc-1/1/verifying")),
        (2000.0, RelativeMilestone(2, 500, 500)),
    )

    (again,) = [span for span in found.spans if span.part is TimePart.RECOMPUTED]
    assert (again.begin_s, again.end_s, again.is_estimated) == (1007.0, 1106.0, True)


def test_ranks_that_tell_no_step_are_not_called_productive() -> None:
    blind = replace(VERIFIED, attempt=1, telling_ranks=(), is_comparable=False)

    found = time_of(*BEGIN[:3], (10.0, blind), now_s=500.0)

    assert found.seconds_of(TimePart.UNDIVIDED) == 491.0
    assert found.seconds_of(TimePart.PRODUCTIVE) == 0.0


def test_attempt_whose_start_the_journal_lost_is_undivided_and_what_follows_is_not() -> None:
    joined = Joined("n1", "launcher-1", "boot-1", 4)
    adopted = Adopted(7, 2, 1, PLACED, (joined,), ("n1",), 3, True)
    again = (
        (
            at_s,
            replace(one, attempt=8) if isinstance(one, AttemptStarted | AttemptVerified) else one,
        )
        for at_s, one in FAILED[1:]
    )

    found = time_of(*BEGIN[:2], (1.0, adopted), (990.0, Milestone(7, 120, 120)), *again)

    assert found.seconds_of(TimePart.UNDIVIDED) == 998.0  # to the last step before the fault
    assert found.seconds_of(TimePart.RECOMPUTED) == 13.0
    assert found.seconds_of(TimePart.PRODUCTIVE) == 2.0


def test_slow_ranks_are_told_with_their_factor_and_time() -> None:
    slow = SlowFound(1, 2, "compute", 2.0, 40, FINDING, step_factor=1.25)

    found = time_of(*BEGIN, (100.0, slow), (500.0, SlowEnded(1, 2, "as fast as its peers")))

    (one,) = found.slow
    assert (one.rank, one.node, one.step_factor, one.begin_s, one.end_s) == (
        2,
        "n1",
        1.25,
        100.0,
        500.0,
    )


def test_a_running_job_is_accounted_until_now_and_an_ended_one_until_its_end() -> None:
    assert time_of(*BEGIN, now_s=70.0).length_s == 70.0
    assert time_of(*BEGIN, *FAILED, *END, now_s=7000.0).length_s == 2010.0


def test_wall_clock_that_goes_back_over_a_reboot_takes_no_time_away() -> None:
    entries = [*entries_of(*BEGIN), Entry(5, 10.0, 3.0, "boot-2", LAUNCHED)]

    found = read_time(entries)

    assert found is not None
    check_partition(found)
    assert found.length_s == 10.0


@pytest.mark.parametrize("case", JOBS)
def test_older_journals_are_read_and_divided_without_gap(case: str) -> None:
    entries = list(read(case).entries())

    found = read_time(entries)

    assert found is not None
    check_partition(found)
    whole_s = sum(
        Moment(a.unix_s, a.monotonic_s, a.boot_id).until_s(
            Moment(b.unix_s, b.monotonic_s, b.boot_id)
        )
        for a, b in pairwise(entries)
    )
    assert found.length_s == pytest.approx(whole_s)


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 100), st.sampled_from(list(TimePart))),
        max_size=20,
    )
)
def test_painting_never_makes_a_gap_or_an_overlap(
    strokes: list[tuple[float, float, TimePart]],
) -> None:
    line = Timeline()
    for end_s in (10.0, 40.0, 90.0):
        line.append(end_s, TimeSpan(0.0, 0.0, TimePart.STARTUP, attempt=int(end_s)))

    for begin_s, end_s, part in strokes:
        line.paint(begin_s, end_s, part)

    spans = line.spans
    assert (spans[0].begin_s, spans[-1].end_s) == (0.0, 90.0)
    assert all(one.end_s == two.begin_s for one, two in pairwise(spans))
    assert all(span.length_s > 0 for span in spans)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(("n1",), {"interrupted": 300.0}), ((), {"unaccounted": 300.0})],
    ids=["launcher", "controller of several nodes"],
)
def test_time_after_the_last_sign_of_life_is_unknown_where_ranks_could_have_trained_on(
    nodes: tuple[str, ...], expected: dict[str, float]
) -> None:
    back = LauncherStarted(nodes, 4, 2, "0", alive_age_s=300.0)

    found = time_of(*BEGIN, (800.0, back), (800.0, AttemptAbandoned(1, "not found")))

    seconds = parts(found)
    assert {part: seconds.get(part, 0.0) for part in expected} == expected
    assert seconds["productive"] == 492.0


def test_ranks_that_outlived_the_controller_have_trained_all_the_time() -> None:
    back = LauncherStarted((), 4, 2, "0", alive_age_s=300.0)

    found = time_of(*BEGIN, (800.0, back), (805.0, Milestone(1, 800, 800)), now_s=900.0)

    assert parts(found) == {"wait_nodes": 1.0, "startup": 7.0, "productive": 892.0}


def test_job_that_goes_on_with_fewer_ranks_is_counted_with_what_it_holds() -> None:
    small = replace(SECOND, placement=(Placement("n1", (0, 1)),))
    records = tuple((at_s, small if record is SECOND else record) for at_s, record in FAILED)
    spare = NodesJoined((Joined("n2", "launcher-n2", "boot-1", 4),))

    found = time_of(*BEGIN[:2], (0.5, spare), *BEGIN[2:], *records, now_s=1500.0)

    trained = [span for span in found.spans if span.part is TimePart.PRODUCTIVE]
    assert [span.devices for span in trained] == [4, 2]  # a spare counts as none
    assert sum(span.length_s for span in found.spans) == pytest.approx(1500.0)
    wall_s = sum(span.device_s for span in found.spans if span.attempt == 2)
    assert wall_s == pytest.approx(2 * (1500.0 - 1001.125))
