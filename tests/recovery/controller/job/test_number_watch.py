"""Numbers that went wrong are journaled with the rank and step that had them first."""

from dataclasses import replace
from itertools import pairwise

import pytest

from detectors.numbers.wrong import ToldNumber, Trouble
from recovery.controller.job.watch.number_watch import (
    CURVE_POINTS_MAX,
    SETTLE_S,
    LossCurve,
    NumberWatch,
)
from recovery.journal.ledger import Ledger
from recovery.journal.narration.narrator import narrate
from recovery.journal.observation_records import NumbersWrong
from recovery.messages.exchange import (
    BadNumber,
    NotFinite,
    RankReport,
    Report,
    StepNumbers,
)
from tests.support.controller_bench import Bench

NAN, INFINITE = NotFinite.NAN, NotFinite.INFINITE
Number = float | NotFinite


class Job:
    """Ranks that tell numbers, each on a node of its own."""

    def __init__(self, ranks: int) -> None:
        self.watch = NumberWatch()
        self.ledger = Ledger(attempt=1, world_size=ranks)
        self.now_s = 0.0
        self._first: dict[tuple[int, str], BadNumber] = {}

    def tell(
        self, step: int, losses: dict[int, Number], norms: dict[int, Number] | None = None
    ) -> None:
        self.now_s += 1.0
        for rank in sorted(losses.keys() | (norms or {}).keys()):
            loss, norm = losses.get(rank), (norms or {}).get(rank)
            for name, value in (("loss", loss), ("norm", norm)):
                if isinstance(value, NotFinite):
                    self._first.setdefault((rank, name), BadNumber(step, value))
            told = RankReport(
                rank, 0, 10, "S",
                numbers=(StepNumbers(step + 1, step, loss, norm),),
                first_bad_loss=self._first.get((rank, "loss")),
                first_bad_grad_norm=self._first.get((rank, "norm")),
            )  # fmt: skip
            report = Report(1, f"n{rank}", "boot", "job", 1, self.ledger.attempt, (told,), 0)
            self.watch.receive(report, self.ledger, self.now_s)

    def due(self) -> tuple[NumbersWrong, ...]:
        found = self.watch.due(self.ledger, self.now_s)
        self.ledger = replace(self.ledger, wrong_numbers=(*self.ledger.wrong_numbers, *found))
        return found


def test_rank_whose_loss_is_nan_before_the_others_is_named_once() -> None:
    job = Job(3)
    for step in range(5):
        job.tell(step, {0: 1.0, 1: 1.1, 2: 1.2}, {0: 0.5, 1: 0.5, 2: 0.5})
    job.tell(5, {0: 1.0, 1: NAN, 2: 1.2}, {0: NAN, 1: NAN, 2: NAN})

    (found,) = job.due()
    assert found == NumbersWrong(
        1, 5, ToldNumber.LOSS, Trouble.NOT_FINITE, (1,), (0, 1, 2), "NaN", None, "n1"
    )
    assert found.odd_rank == 1
    assert narrate(found) == "critical: the loss became NaN at step 5, first on rank 1 (n1)"
    job.tell(6, {0: NAN, 1: NAN, 2: NAN}, {0: NAN, 1: NAN, 2: NAN})
    assert job.due() == ()


def test_loss_that_is_nan_on_all_ranks_at_once_accuses_nobody() -> None:
    job = Job(2)
    job.tell(7, {0: INFINITE, 1: INFINITE})

    (found,) = job.due()
    assert (found.step, found.ranks, found.odd_rank) == (7, (0, 1), None)
    assert found.in_words == "the loss became infinite at step 7, on all ranks at once"


def test_rank_is_not_accused_before_the_others_have_told_that_step() -> None:
    job = Job(2)
    job.tell(4, {0: 1.0, 1: 1.0})
    job.tell(5, {1: NAN})
    assert job.due() == ()
    job.tell(5, {0: NAN})

    (found,) = job.due()
    assert (found.ranks, found.odd_rank) == ((0, 1), None)


def test_rank_whose_peers_never_tell_the_step_is_told_and_not_accused() -> None:
    job = Job(2)
    job.tell(4, {0: 1.0, 1: 1.0})
    job.tell(5, {1: NAN})
    job.now_s += SETTLE_S

    (found,) = job.due()
    assert (found.ranks, found.group, found.odd_rank) == ((1,), (), None)
    assert found.in_words.endswith("on rank 1; some ranks had not reported that step")


def test_only_rank_that_tells_is_told_and_not_accused() -> None:
    job = Job(4)
    job.tell(5, {0: NAN})

    (found,) = job.due()
    assert found.odd_rank is None
    assert (
        found.in_words == "the loss became NaN at step 5, on rank 0, the only rank that reports it"
    )


def test_infinite_gradient_norm_before_the_loss_is_told_and_so_is_the_loss() -> None:
    job = Job(1)
    job.tell(5, {0: 1.0}, {0: INFINITE})
    first = job.due()
    job.tell(9, {0: NAN}, {0: NAN})

    assert [(one.quantity, one.step) for one in (*first, *job.due())] == [
        (ToldNumber.GRAD_NORM, 5),
        (ToldNumber.LOSS, 9),
    ]


def test_what_the_journal_has_is_not_recorded_again_by_another_controller() -> None:
    job = Job(2)
    job.tell(5, {0: 1.0, 1: NAN})
    assert len(job.due()) == 1

    job.watch = NumberWatch()
    job.tell(6, {0: NAN, 1: NAN})

    assert job.due() == ()


def test_spike_is_named_with_the_rank_that_had_it_alone() -> None:
    job = Job(3)
    for step in range(25):
        job.tell(step, {0: 1.0, 1: 1.1 - step % 2 / 10, 2: 0.9})
    for step in range(25, 29):
        job.tell(step, {0: 1.0, 1: 60.0, 2: 50.0 if step > 25 else 1.0})

    (found,) = job.due()
    assert (found.step, found.trouble, found.ranks) == (25, Trouble.SPIKE, (1,))
    assert narrate(found) == (
        "warning: the loss rose to 60, usual were 1.1, at step 25, first on rank 1 (n1)"
    )


def test_gradient_norm_that_comes_apart_names_the_odd_rank() -> None:
    job = Job(3)
    for step in range(25):
        norm = 1.0 + 0.01 * step
        job.tell(step, {}, {0: norm, 1: norm, 2: norm})
    for step in range(25, 30):
        norm = 1.0 + 0.01 * step
        job.tell(step, {}, {0: norm + 0.001, 1: norm, 2: norm})

    (found,) = job.due()
    assert (found.step, found.trouble, found.ranks, found.node) == (25, Trouble.APART, (0,), "n0")
    assert found.in_words == (
        "the gradient norm of rank 0 (n0) differs from that of ranks 1 and 2 at step 25, and was equal before"
    )


def test_steps_that_one_rank_alone_tells_are_judged_after_a_while() -> None:
    job = Job(8)
    for step in range(40):
        job.tell(step, {0: 1.0 if step < 25 else 9.0})

    (found,) = job.due()
    assert (found.step, found.odd_rank) == (25, None)


def test_other_attempt_is_learned_anew() -> None:
    job = Job(1)
    for step in range(30):
        job.tell(step, {0: 1.0})
    assert job.due() == ()
    job.ledger = replace(job.ledger, attempt=2)
    for step in range(15, 30):
        job.tell(step, {0: 9.0})

    assert job.due() == ()


def test_steps_that_are_never_whole_are_bounded() -> None:
    job = Job(2)
    report = RankReport(
        0, 0, 10, "S", numbers=tuple(StepNumbers(n + 1, n, 1.0) for n in range(10_000))
    )
    job.watch.receive(Report(1, "n", "b", "job", 1, 1, (report,), 0), job.ledger, 0.0)
    job.due()

    assert len(job.watch._steps) <= 4096


@pytest.mark.parametrize("loss", [NAN, INFINITE])
def test_controller_journals_what_ranks_tell(training: Bench, loss: NotFinite) -> None:
    for number, rank in sorted(training.ranks.items()):
        bad = BadNumber(3, loss) if number == 1 else None
        told = StepNumbers(1, 3, loss if number == 1 else 1.0)
        training.ranks[number] = replace(rank, numbers=(told,), first_bad_loss=bad)
    training.tell()

    (found,) = training.records(NumbersWrong)
    assert (found.attempt, found.step, found.ranks) == (1, 3, (1,))


def test_the_curve_of_the_loss_is_the_mean_of_the_ranks_by_step() -> None:
    job = Job(2)
    for step, losses in enumerate([{0: 3.0, 1: 5.0}, {0: 2.0, 1: 4.0}]):
        job.tell(step, losses)
    job.tell(2, {0: NAN, 1: 1.0})
    job.due()

    assert job.watch.losses.points() == ((0, 4.0), (1, 3.0))


def test_a_restart_takes_the_curve_of_the_loss_back_to_its_step() -> None:
    curve = LossCurve()
    for step in range(10):
        curve.add(step, 10.0 - step)

    curve.add(4, 5.5)

    assert curve.points() == ((0, 10.0), (1, 9.0), (2, 8.0), (3, 7.0), (4, 5.5))


def test_the_curve_of_a_long_job_is_thinned_and_ends_with_the_newest_step() -> None:
    curve = LossCurve()
    for step in range(100_001):
        curve.add(step, 1.0)

    points = curve.points()

    assert len(points) <= CURVE_POINTS_MAX + 1
    assert (points[0], points[-1]) == ((0, 1.0), (100_000, 1.0))
    gaps = {after[0] - before[0] for before, after in pairwise(points[:-1])}
    assert gaps == {512}
