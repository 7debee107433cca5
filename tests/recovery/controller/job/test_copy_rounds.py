"""One step of all ranks is copied at a time, and the one before is kept until it is there."""

from dataclasses import dataclass, field, replace

import pytest

from recovery.checkpoints.snapshots.copies.placement import holders
from recovery.controller.job.restore.copy_rounds import (
    HEAR_S,
    PAUSE_S,
    PAUSED_S,
    ROUND_S_MAX,
    CopyRounds,
)
from recovery.journal.attempt_records import Placement
from recovery.messages.copying import CopyOrder
from recovery.messages.exchange import (
    VERSION,
    CopyFault,
    CopyFaultTold,
    Endpoint,
    HeldSnapshot,
    Report,
    SnapshotPoint,
)

PLACEMENT = (Placement("n1", (0, 1)), Placement("n2", (2, 3)))
RANKS = {place.node: place.ranks for place in PLACEMENT}


def snapshot(rank: int, step: int, age_s: float = 0.0, attempt: int = 1) -> HeldSnapshot:
    return HeldSnapshot(rank, attempt, step, 4, 100, f"{rank:032x}", age_s)


@dataclass
class Job:
    """Two nodes with two ranks each, whose launchers hear of an order at their next report."""

    rounds: CopyRounds = field(default_factory=lambda: CopyRounds(1, copies=1))
    now_s: float = 100.0
    reports: dict[str, Report] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, node in enumerate(RANKS):
            self.reports[node] = Report(
                version=VERSION,
                node=node,
                boot_id="b",
                job_id="j",
                revision=1,
                attempt=1,
                ranks=(),
                empty_through=0,
                launcher_id=f"l{number}",
                copier=Endpoint(f"10.0.0.{number}", 4000),
            )

    def tell(self, node: str, **changes: object) -> None:
        self.reports[node] = replace(self.reports[node], **changes)

    def write(self, *steps: int, age_s: float = HEAR_S) -> None:
        """Have every rank keep these steps."""
        for node, ranks in RANKS.items():
            self.tell(
                node, snapshots=tuple(snapshot(one, step, age_s) for one in ranks for step in steps)
            )

    def copy(self, *steps: int, but: tuple[int, ...] = ()) -> None:
        """Have the other node hold copies of these steps."""
        for node, (holder,) in holders(self.rounds.groups).items():
            copies = tuple(
                snapshot(one, step) for one in RANKS[node] for step in steps if one not in but
            )
            self.tell(holder, copies=copies)

    def look(self, after_s: float = 0.0) -> dict[str, CopyOrder]:
        self.now_s += after_s
        self.rounds = self.rounds.observe(PLACEMENT, self.reports, self.now_s)
        return self.rounds.orders(PLACEMENT, self.reports)


@pytest.fixture
def job() -> Job:
    return Job()


def test_first_snapshot_of_all_ranks_is_copied_to_the_other_node(job: Job) -> None:
    job.write(10)

    orders = job.look()

    assert {node: order.from_step for node, order in orders.items()} == {"n1": 10, "n2": 10}
    assert [peer.node for peer in orders["n1"].holders] == ["n2"]
    assert [(one.node, one.ranks) for one in orders["n1"].held_for] == [("n2", (2, 3))]
    assert orders["n1"].complete is None


def test_next_round_begins_once_every_copy_is_there(job: Job) -> None:
    job.write(10)
    job.look()
    job.copy(10, but=(3,))
    job.write(20)
    assert job.look(60.0)["n1"].from_step == 10

    job.copy(10)
    orders = job.look(1.0)
    assert {(order.from_step, order.complete) for order in orders.values()} == {
        (None, SnapshotPoint(1, 10))
    }
    assert job.rounds.complete == SnapshotPoint(1, 10)

    orders = job.look(PAUSE_S)
    assert {(order.from_step, order.complete) for order in orders.values()} == {
        (20, SnapshotPoint(1, 10))
    }


def test_node_that_ran_ranks_before_frees_what_it_holds(job: Job) -> None:
    job.reports["n3"] = replace(job.reports["n2"], node="n3", copies=(snapshot(0, 5),))
    job.write(10)
    job.look()
    job.copy(10)
    job.look()
    job.write(20)

    order = job.look(PAUSE_S)["n3"]

    assert order.complete == SnapshotPoint(1, 10)
    assert (order.holders, order.held_for) == ((), ())


def test_nothing_is_copied_twice(job: Job) -> None:
    job.write(10)
    job.look()
    job.copy(10)
    job.look()

    assert {one.from_step for one in job.look(3600.0).values()} == {None}


def test_newest_snapshot_with_copies_is_left_also_in_the_next_attempt(job: Job) -> None:
    job.write(10)
    job.look()
    job.copy(10)
    job.look()

    job.rounds = job.rounds.of_next_attempt(2, copies=1)
    job.tell("n1", attempt=2)
    job.tell("n2", attempt=2)

    orders = job.look(1.0)
    assert {(order.from_step, order.complete) for order in orders.values()} == {
        (None, SnapshotPoint(1, 10))
    }
    assert [peer.node for peer in orders["n1"].holders] == ["n2"]


def test_first_round_waits_for_a_second_snapshot_which_tells_how_soon_each_is_overwritten(
    job: Job,
) -> None:
    job.write(10, age_s=1.0)
    assert job.look() == {}

    for node in RANKS:
        (first, *_others) = job.reports[node].snapshots
        assert first.step == 10
    job.write(11, age_s=0.8)

    assert job.look()["n1"].from_step > 20


@pytest.mark.parametrize(
    ("interval_s", "expected"),
    [(60.0, 20), (3.0, 20), (1.0, 40), (0.5, 70)],
)
def test_step_is_named_that_no_rank_has_passed_when_it_hears_of_it(
    job: Job, interval_s: float, expected: int
) -> None:
    job.rounds = replace(job.rounds, complete=SnapshotPoint(1, 5), complete_at_s=99.0)
    job.write(10, age_s=0.0)
    job.look()
    job.write(20, age_s=0.0)
    job.now_s += interval_s
    job.rounds = replace(job.rounds, complete_at_s=0.0)

    assert job.look()["n1"].from_step == expected


def pause(job: Job, *, after_s: float) -> None:
    """Have the ranks make two snapshots in a second, and then none for so long."""
    job.write(10, age_s=0.0)
    job.look()
    job.write(10, 20, age_s=0.0)
    job.now_s += 1.0
    assert job.look()["n1"].from_step == 40
    job.now_s += after_s


def test_newest_snapshots_are_copied_while_the_ranks_pause(job: Job) -> None:
    pause(job, after_s=3 + PAUSED_S)

    assert job.look()["n1"].from_step == 20

    job.copy(20)
    assert {order.complete for order in job.look(1.0).values()} == {SnapshotPoint(1, 20)}
    assert {order.from_step for order in job.look(3600.0).values()} == {None}

    job.write(20, 30, age_s=0.0)  # the ranks go on
    assert (job.look(1.0)["n1"].from_step or 0) >= 30


def test_late_report_is_no_pause(job: Job) -> None:
    pause(job, after_s=PAUSED_S)

    assert job.look()["n1"].from_step == 40


def test_step_that_a_rank_lacks_is_not_copied_in_a_pause(job: Job) -> None:
    pause(job, after_s=3 + PAUSED_S)
    job.tell("n2", snapshots=tuple(snapshot(rank, 10) for rank in RANKS["n2"]))

    assert job.look()["n1"].from_step == 10


def test_copies_of_several_steps_end_the_round_and_the_next_one_waits_for_later_ones(
    job: Job,
) -> None:
    job.write(10)
    job.look()
    job.copy(10)
    (holder,) = holders(job.rounds.groups)["n2"]
    job.tell(holder, copies=(snapshot(2, 20), snapshot(3, 20)))

    job.look()

    assert job.rounds.complete is None
    assert job.rounds.hear_s == 2 * HEAR_S


@pytest.mark.parametrize(("fault", "is_over"), [(CopyFault.CHANGED, True), (CopyFault.FULL, False)])
def test_overwritten_snapshot_ends_the_round_and_a_full_node_does_not(
    job: Job, fault: CopyFault, *, is_over: bool
) -> None:
    job.write(10)
    job.look()
    job.write(10, 20)
    job.tell("n1", copy_faults=(CopyFaultTold(0, 1, 10, "n2", fault),))

    job.look()

    assert (job.rounds.hear_s > HEAR_S) is is_over


def test_round_without_an_end_is_given_up(job: Job) -> None:
    job.write(10)
    job.look()

    job.write(900)
    assert job.look(ROUND_S_MAX + 1)["n1"].from_step == 900


def test_nothing_is_asked_while_a_launcher_has_no_copier(job: Job) -> None:
    job.tell("n2", copier=None)
    job.write(10)

    assert job.look() == {}


def test_nothing_is_asked_while_a_rank_keeps_none(job: Job) -> None:
    job.write(10)
    job.tell("n2", snapshots=(snapshot(2, 10),))

    assert job.look() == {}


def test_job_on_one_node_copies_nothing() -> None:
    job = Job()
    job.write(10)

    rounds = job.rounds.observe(PLACEMENT[:1], job.reports, 100.0)

    assert rounds.orders(PLACEMENT[:1], job.reports) == {}
