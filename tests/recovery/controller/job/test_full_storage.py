"""A job whose checkpoint folder can't be written is held, and goes on by itself."""

from dataclasses import replace

import pytest

from recovery.checkpoints.unwritable import Unwritable, UnwritableError
from recovery.console.views.job_view import state_of
from recovery.console.views.plan_view import view_plan
from recovery.journal.attempt_records import AttemptStarted, StartWaits
from recovery.journal.incident_records import PlanWaits, TryFailed, WaitCause, WaitsFor
from recovery.journal.job_records import OutcomeKind
from recovery.messages.candidates import CheckpointVerdict
from recovery.messages.exchange import RankError, RankExit
from recovery.messages.outside import PersonAct, PersonCommand, Refusal
from tests.support.controller_bench import IMPATIENT, Bench, FakeStorage, begin, fail
from tests.support.job_ledgers import verdict
from tests.support.nodes_bench import SEARCHING
from tests.support.nodes_bench import Bench as NodesBench

FULL = UnwritableError(
    Unwritable.FULL, "/c/.rankmend can't be written: /c is full. Make room there"
)


class FullStorage(FakeStorage):
    """Storage whose fence can't be written while ``full`` is set."""

    full: UnwritableError | None = None
    tries = 0

    def advance(self, attempt: int) -> None:
        self.tries += 1
        if self.full is not None:
            raise self.full
        super().advance(attempt)


def made(bench: Bench) -> Bench:
    bench.storage = FullStorage()
    return bench


@pytest.fixture
def training() -> Bench:
    return begin(made(Bench()))


def test_restart_on_a_full_disk_is_held_and_counts_no_try(training: Bench) -> None:
    training.storage.full = FULL

    fail(training)
    for _turn in range(300):  # half an hour
        training.tell(after_s=6.0)

    (waits,) = training.records(PlanWaits)
    assert (waits.cause, waits.waits_for, waits.about) == (
        WaitCause.STORAGE,
        WaitsFor.STORAGE,
        "full",
    )
    assert waits.reason.startswith(str(FULL))
    assert training.records(TryFailed) == []
    assert training.control.outcome is None
    assert training.storage.tries < 400

    training.storage.full = None
    training.tell(after_s=6.0)
    assert len(training.records(AttemptStarted)) == 2
    assert training.control.ledger.restarts == 1


def test_looks_are_five_seconds_apart(training: Bench) -> None:
    training.storage.full = FULL
    fail(training)
    before = training.storage.tries

    for _turn in range(100):
        training.tell(after_s=0.1)

    assert training.storage.tries - before <= 3


def test_another_reason_is_told_again(training: Bench) -> None:
    training.storage.full = FULL
    fail(training)
    training.storage.full = UnwritableError(Unwritable.READ_ONLY, "/c is mounted read-only")

    training.tell(after_s=6.0)

    assert [one.about for one in training.records(PlanWaits)] == ["full", "read_only"]


def test_no_approval_replaces_room(training: Bench) -> None:
    training.storage.full = FULL
    fail(training)
    incident_id = training.control.ledger.incident.state.incident_id

    acted = training.control.take_command(
        PersonCommand(PersonAct.APPROVE, "ada", "", incident_id=incident_id)
    )

    assert acted.refusal is Refusal.NEEDS_STORAGE
    plan = view_plan(training.control.ledger, "j", "digits")
    assert plan is not None
    assert plan.waits_for == "storage"
    assert plan.gives_up_after_s == 86400.0


def test_job_that_is_held_too_long_is_given_up() -> None:
    bench = begin(made(Bench(IMPATIENT)))
    bench.storage.full = FULL
    fail(bench)

    for _look in range(5):
        bench.tell(after_s=6.0)

    assert bench.control.outcome.kind is OutcomeKind.ESCALATED
    assert "/c is full. Make room there; held for" in bench.control.outcome.reason


def test_start_on_a_full_disk_waits_and_no_approval_has_it_begin_at_zero() -> None:
    bench = made(Bench())
    bench.storage.full = FULL
    bench.start().tell()
    bench.tell(after_s=6.0)

    (waits,) = bench.records(StartWaits)
    acted = bench.control.take_command(PersonCommand(PersonAct.APPROVE, "ada", ""))
    assert (waits.about, waits.is_for_storage) == ("full", True)
    assert state_of(bench.control.ledger) == "waiting"
    assert acted.refusal is Refusal.NEEDS_STORAGE

    bench.storage.full = None
    bench.tell(after_s=6.0)
    assert len(bench.records(AttemptStarted)) == 1


def fail_for_lack_of_room(bench: Bench) -> None:
    full = RankError("OSError", "[Errno 28] No space left on device: '/c/step-20.pt'", "")
    ended = RankExit(0.1, 1, None, False, False, full, ())
    bench.ranks[1] = replace(bench.ranks[1], process_state="", exit=ended)
    bench.tell()
    bench.tell(after_s=1.0)
    bench.empty()
    bench.tell(after_s=1.0)


def saved(size_bytes: int) -> CheckpointVerdict:
    whole = verdict(7)
    return replace(whole, candidate=replace(whole.candidate, size_bytes=size_bytes))


def test_save_that_did_not_fit_holds_the_job_though_the_fence_fits() -> None:
    bench = made(Bench())
    bench.storage.verdicts, bench.storage.is_watched = [saved(5_000_000_000)], True
    begin(bench)
    bench.storage.free_bytes = 4_000_000_000

    fail_for_lack_of_room(bench)
    for _turn in range(100):
        bench.tell(after_s=6.0)

    (waits,) = bench.records(PlanWaits)
    assert (waits.cause, waits.about) == (WaitCause.STORAGE, "full")
    assert "4 GB are free, and a save takes 5 GB" in waits.reason
    assert len(bench.records(AttemptStarted)) == 1
    assert bench.records(TryFailed) == []

    bench.storage.free_bytes = 5_000_000_000
    bench.tell(after_s=6.0)
    assert len(bench.records(AttemptStarted)) == 2


def test_lack_of_room_alone_holds_no_job_that_failed_otherwise() -> None:
    bench = made(Bench())
    bench.storage.verdicts, bench.storage.is_watched = [saved(5_000_000_000)], True
    begin(bench)
    bench.storage.free_bytes = 4_000_000_000

    fail(bench)

    assert len(bench.records(AttemptStarted)) == 2


def test_save_that_did_not_fit_on_a_node_that_looks_holds_the_job() -> None:
    bench = NodesBench(SEARCHING)
    bench.beat(3.0)
    bench.beat(5.0, step=10)
    bench.nodes["a"].found_changes = {"free_bytes": 1000}
    full = RankError("OSError", "[Errno 28] No space left on device: '/c/step-20.pt'", "")
    ended = RankExit(0.1, 1, None, False, False, full, ())
    bench.nodes["b"].ranks = {
        rank: replace(told, process_state="", exit=ended)
        for rank, told in bench.nodes["b"].ranks.items()
    }
    bench.beat(60.0)

    waits = bench.records(PlanWaits)[-1]
    assert (waits.cause, waits.about) == (WaitCause.STORAGE, "full")
    assert len(bench.records(AttemptStarted)) == 1

    bench.nodes["a"].found_changes = {"free_bytes": 1 << 30}
    bench.beat(70.0)
    assert len(bench.records(AttemptStarted)) == 2


def test_on_several_nodes_those_that_look_say_that_nothing_can_be_written() -> None:
    bench = NodesBench(SEARCHING)
    bench.nodes["b"].found_changes = {"unwritable": "quota", "unwritable_text": "no quota left"}
    bench.beat(3.0)

    (waits,) = bench.records(StartWaits)
    assert (waits.about, waits.is_for_storage) == ("quota", True)
    assert "b: no quota left" in waits.reason
    assert bench.records(AttemptStarted) == []

    bench.nodes["b"].found_changes = {}
    bench.beat(70.0)
    assert bench.placed == ["a", "b", "c"]


def test_what_a_newer_launcher_calls_by_another_name_holds_nothing() -> None:
    bench = NodesBench(SEARCHING)
    bench.nodes["b"].found_changes = {"unwritable": "on fire", "unwritable_text": "on fire"}
    bench.beat(3.0)

    assert bench.placed == ["a", "b", "c"]
