"""A job that fails for months: what its account keeps stays small, and what it comes to stays the same."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from recovery.accounting.goodput.held_sums import Counted, amounts_of
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_spent import KEPT_MAX, SettledTime, TimeReading
from recovery.accounting.goodput.timeline import TimePart
from recovery.accounting.goodput.totals import PartTime, TimeTotals, totals_of
from recovery.journal.attempt_records import (
    AttemptEnded,
    AttemptResult,
    Milestone,
    SavesStalled,
    SaveStall,
)
from recovery.journal.incident_machine import Event, Outcome
from recovery.journal.incident_records import CaughtUp, IncidentEvent
from recovery.journal.ledger import Moment
from recovery.journal.node_records import Joined, NodesJoined
from recovery.journal.observation_records import SlowEnded, SlowFound
from recovery.messages.codec import symptom_of
from recovery.messages.exchange import NodeKinds
from tests.support.goodput_jobs import (
    BEGIN,
    FINDING,
    OPENED,
    PLACED,
    PLAN,
    VERIFIED,
    Timed,
    entries_of,
    started,
)

FAILURES = 200
EACH_S = 100.0
NODE = Joined("n1", "launcher-n1", "boot-1", 4, kinds=NodeKinds("NVIDIA H100", "", ""))
# Each second failure is of another class, and each third repeats its steps until the next one.
OTHER = replace(OPENED.failure, finding=replace(FINDING, symptom=symptom_of("exit:7")))


def failure(number: int, at_s: float) -> Iterator[Timed]:
    """Give a failure of a job that saves, in which a rank was slow."""
    attempt, name = number + 1, f"inc-{number}"
    failed = OTHER if number % 2 else OPENED.failure
    step = 120 * number

    def event(outcome: Outcome, answers: str) -> IncidentEvent:
        return IncidentEvent(Event(name, outcome, answers, outcome.value))

    yield at_s - 60.0, SavesStalled(attempt - 1, (SaveStall(5.0, 2.0),))
    yield at_s - 50.0, SlowFound(attempt - 1, 2, "compute", 2.0, 40, FINDING, step_factor=1.25)
    yield at_s - 20.0, SlowEnded(attempt - 1, 2, "as fast as its peers")
    yield at_s - 1.0, Milestone(attempt - 1, step, step)
    opened = replace(OPENED, incident_id=name, failure=failed, step_age_s=1.0, highest_step=step)
    yield at_s, replace(opened, failure=replace(failed, attempt=attempt - 1))
    yield at_s, replace(PLAN, incident_id=name)
    yield at_s + 0.25, event(Outcome.ACCEPTED, name)
    yield at_s + 1.0, AttemptEnded(attempt - 1, AttemptResult.FAILED)
    yield at_s + 1.0, event(Outcome.SUCCEEDED, f"{name}/1/fencing")
    yield at_s + 1.125, replace(started(attempt, 1), incident_id=name, placement=PLACED)
    yield at_s + 2.0, event(Outcome.SUCCEEDED, f"{name}/1/restoring")
    yield at_s + 8.0, replace(VERIFIED, attempt=attempt, first_step=step - 10)
    yield at_s + 8.5, event(Outcome.SUCCEEDED, f"{name}/1/verifying")
    if number % 3:
        yield at_s + 22.0, CaughtUp(name, attempt, step + 1, age_s=2.0)


@pytest.fixture(scope="module")
def readings() -> tuple[TimeReading, TimeReading, list[int]]:
    """Return the account of the whole job, that of one that goes on, and how many stretches that kept after each record."""
    records: list[Timed] = [*BEGIN, (20.0, NodesJoined((NODE,)))]
    for number in range(1, FAILURES + 1):
        records += failure(number, EACH_S * number)
    entries = entries_of(*records)
    whole, live = TimeReading(entries[0]), TimeReading(entries[0], 1, is_settled=True)
    kept = []
    for entry in entries:
        whole.take(entry)
        live.take(entry)
        kept.append(len(live.so_far().spans) if entry.number % 200 == 0 else 0)
    return whole, live, kept


def both(
    readings: tuple[TimeReading, TimeReading, list[int]], after_s: float = 0.0
) -> tuple[JobTime, JobTime, TimeTotals]:
    now_s = EACH_S * FAILURES + 30.0 + after_s
    now = Moment(5000.0 + now_s, now_s, "boot-1")
    whole, live = readings[0].so_far(now), readings[1].so_far(now)
    return whole, live, readings[1].totals(live)


def test_what_a_running_job_comes_to_is_the_same_with_its_oldest_time_settled(
    readings: tuple[TimeReading, TimeReading, list[int]],
) -> None:
    whole, live, totals = both(readings)

    assert amounts_of(totals) == pytest.approx(amounts_of(totals_of(whole)), rel=1e-9)
    assert totals.wall_s == pytest.approx(EACH_S * FAILURES + 30.0)
    assert live.begin_s > 0
    kinds = {counted for counted, _label in amounts_of(totals)}
    assert {Counted.RECOVERY_S, Counted.HARDWARE_DEVICE_S, Counted.LOST_DEVICE_S} <= kinds
    assert sum(one.failures for one in totals.by_class.values()) == FAILURES
    assert len(totals.by_class) == 2


def test_totals_of_a_job_that_goes_on_grow_from_its_newest_time(
    readings: tuple[TimeReading, TimeReading, list[int]],
) -> None:
    before, _live, totals = both(readings)
    whole, _live, later = both(readings, after_s=1000.0)

    assert amounts_of(later) == pytest.approx(amounts_of(totals_of(whole)), rel=1e-9)
    grown = amounts_of(totals_of(before).until(whole.length_s))
    assert amounts_of(totals.until(whole.length_s)) == pytest.approx(grown, rel=1e-9)


def test_what_is_kept_of_a_running_job_is_bounded(
    readings: tuple[TimeReading, TimeReading, list[int]],
) -> None:
    whole, live, _totals = both(readings)

    assert len(whole.spans) > 2 * KEPT_MAX
    assert max(readings[2]) <= 1.5 * KEPT_MAX
    kept = len(live.spans) / len(whole.spans)
    for name in ("attempts", "incidents", "slow"):
        assert len(getattr(live, name)) <= kept * len(getattr(whole, name)) + 2


def test_training_since_a_moment_in_settled_time_is_told_as_if_it_had_been_even() -> None:
    totals = TimeTotals({TimePart.PRODUCTIVE: PartTime(60.0), TimePart.RECOMPUTED: PartTime(20.0)})
    settled = SettledTime(100.0, totals)

    assert settled.trained_since(75.0) == 20.0
    assert settled.trained_since(-5.0) == 80.0
    assert settled.trained_since(100.0) == 0.0
    assert SettledTime().trained_since(-5.0) == 0.0
