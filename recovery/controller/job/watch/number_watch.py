"""Watches the losses and gradient norms that ranks tell: reports in, records for the journal out.

`detectors.numbers` judges them. A step is judged once all ranks have reported it, or after a while those that did: scripts may
let one rank alone tell. Each attempt is learned anew, and what is known may be lost with the controller.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from detectors.numbers.wrong import HELD, ApartWatch, SpikeWatch, ToldNumber, Trouble
from recovery.journal.ledger import Ledger
from recovery.journal.observation_records import NumbersWrong
from recovery.messages.exchange import BadNumber, NotFinite, RankReport, Report

SETTLE_S: Final = 10.0  # launchers report twice a second; ranks are a step apart at most
_STEPS_MAX: Final = (
    4096  # of which not all ranks have reported: 128 a second, in the settling time and on
)
CURVE_POINTS_MAX: Final = 240  # of a job's loss: as many as its curve is wide
_FOUND_MAX: Final = 32  # in an attempt: then no further notice is needed

_WORDS: Final = {
    NotFinite.NAN: "NaN",
    NotFinite.INFINITE: "infinite",
    NotFinite.MINUS_INFINITE: "minus infinite",
}


@dataclass(slots=True)
class _Step:
    reported_at_s: float
    ranks: set[int] = field(default_factory=set)
    values: dict[ToldNumber, dict[int, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Teller:
    """One rank that reports numbers."""

    node: str
    newest_step: int = -1
    first_bad: dict[ToldNumber, BadNumber] = field(default_factory=dict)


@dataclass(slots=True)
class _Watched:
    """What is known of one number."""

    spikes: SpikeWatch
    apart: ApartWatch
    ranks: set[int] = field(default_factory=set)  # that have reported it
    newest: deque[tuple[int, Mapping[int, float]]] = field(
        default_factory=lambda: deque(maxlen=HELD)
    )


class LossCurve:
    """The loss of a job by step, for people: thinned, so that a long job needs no more room than a short one."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._newest: tuple[int, float] | None = None
        self._stride = 1  # of so many steps one is kept
        self._left = 0  # until the next is kept

    def add(self, step: int, loss: float) -> None:
        """Add the loss of a step. Reports of later steps are forgotten: a restart has gone back behind them."""
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        self._newest = (step, loss)
        if self._left:
            self._left -= 1
            return
        self._points.append(self._newest)
        if len(self._points) > CURVE_POINTS_MAX:
            self._points = self._points[::2]
            self._stride *= 2
        self._left = self._stride - 1

    def points(self) -> tuple[tuple[int, float], ...]:
        """Return step and loss, oldest first, the newest step last. For any thread."""
        points, newest = tuple(self._points), self._newest
        if newest is None or (points and points[-1][0] >= newest[0]):
            return points
        return (*points, newest)


class NumberWatch:
    def __init__(self) -> None:
        self.losses = LossCurve()  # of all attempts
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._steps: dict[int, _Step] = {}
        self._judged_through = -1
        self._tellers: dict[int, _Teller] = {}
        self._bad_at_s: float | None = None
        self._told: set[ToldNumber] = set()  # of which it is known that they are no finite number
        self._count = 0
        self._watched = {
            number: _Watched(SpikeWatch(), ApartWatch(number.in_words)) for number in ToldNumber
        }

    def receive(self, report: Report, ledger: Ledger, now_s: float) -> None:
        """Take in a report of the newest attempt."""
        if report.attempt != ledger.attempt:
            return
        if self._attempt != ledger.attempt:
            self._begin(ledger.attempt)
        for rank in report.ranks:
            is_bad = rank.first_bad_loss is not None or rank.first_bad_grad_norm is not None
            if (rank.numbers or is_bad) and 0 <= rank.rank < ledger.world_size:
                self._take(rank, report.node, now_s)

    def _take(self, rank: RankReport, node: str, now_s: float) -> None:
        teller = self._tellers.setdefault(rank.rank, _Teller(node))
        for quantity, bad in _bad_of(rank).items():
            if teller.first_bad.setdefault(quantity, bad) is bad and self._bad_at_s is None:
                self._bad_at_s = now_s
        for reported in rank.numbers:
            teller.newest_step = max(teller.newest_step, reported.step)
            if reported.step <= self._judged_through:
                continue
            step = self._steps.get(reported.step)
            if step is None:
                step = self._steps[reported.step] = _Step(now_s)
            step.ranks.add(rank.rank)
            for quantity, value in (
                (ToldNumber.LOSS, reported.loss),
                (ToldNumber.GRAD_NORM, reported.grad_norm),
            ):
                if value is not None:
                    number = value if isinstance(value, float | int) else math.nan
                    step.values.setdefault(quantity, {})[rank.rank] = number

    def due(self, ledger: Ledger, now_s: float) -> tuple[NumbersWrong, ...]:
        """Return the records of what the journal does not have."""
        if self._attempt != ledger.attempt or not self._tellers:
            return ()
        found = [*self._not_finite(ledger, now_s), *self._judge_steps(ledger.world_size, now_s)]
        new = [item for item in found if item not in ledger.wrong_numbers]
        new = new[: max(0, _FOUND_MAX - self._count)]
        self._count += len(new)
        return tuple(new)

    def _not_finite(self, ledger: Ledger, now_s: float) -> list[NumbersWrong]:
        """Return the first loss and gradient norm that were no finite numbers, each once.

        A gradient norm that follows a loss is no news.
        """
        if self._bad_at_s is None or len(self._told) == len(ToldNumber):
            return []
        known = {
            number.quantity
            for number in ledger.wrong_numbers
            if (number.attempt, number.trouble) == (self._attempt, Trouble.NOT_FINITE)
        }
        self._told |= known
        firsts = {
            quantity: min(steps)
            for quantity in ToldNumber
            if (steps := [t.first_bad[quantity].step for t in self._tellers.values() if quantity in t.first_bad])
        }  # fmt: skip
        loss_step = firsts.get(ToldNumber.LOSS)
        found = []
        for quantity, step in firsts.items():
            late = [teller for teller in self._tellers.values() if teller.newest_step < step]
            if quantity in self._told or (late and now_s - self._bad_at_s < SETTLE_S):
                continue
            self._told.add(quantity)
            if quantity is ToldNumber.LOSS or loss_step is None or step < loss_step:
                found.append(self._bad_record(quantity, step, is_partial=bool(late)))
        return found

    def _bad_record(self, quantity: ToldNumber, step: int, *, is_partial: bool) -> NumbersWrong:
        first = {
            rank: bad.value
            for rank, teller in sorted(self._tellers.items())
            if (bad := teller.first_bad.get(quantity)) is not None and bad.step == step
        }
        group = () if is_partial else tuple(sorted(self._tellers))
        value = NotFinite.NAN if NotFinite.NAN in first.values() else min(first.values(), key=str)
        return self._record(quantity, Trouble.NOT_FINITE, step, first, group, _WORDS[value])

    def _judge_steps(self, world_size: int, now_s: float) -> list[NumbersWrong]:
        found: list[NumbersWrong] = []
        for number in sorted(self._steps):
            step = self._steps[number]
            is_whole = len(step.ranks) == world_size
            if (
                not is_whole
                and now_s - step.reported_at_s < SETTLE_S
                and len(self._steps) < _STEPS_MAX
            ):
                break
            del self._steps[number]
            self._judged_through = number
            for quantity, values in step.values.items():
                found += self._judge(quantity, number, values)
        return found

    def _judge(
        self, quantity: ToldNumber, number: int, values: Mapping[int, float]
    ) -> list[NumbersWrong]:
        if not all(map(math.isfinite, values.values())):
            return []
        if quantity is ToldNumber.LOSS and values:
            self.losses.add(number, fmean(values.values()))
        watched = self._watched[quantity]
        watched.ranks |= values.keys()
        found = []
        watched.newest.append((number, values))
        if (spike := watched.spikes.take(number, max(values.values()))) is not None:
            first = next(reported for step, reported in watched.newest if step == spike.step)
            high = [rank for rank, value in first.items() if value > spike.limit]
            group, value = tuple(sorted(first)), f"{spike.value:.4g}"
            found.append(
                self._record(quantity, Trouble.SPIKE, spike.step, high, group, value, spike.usual)
            )
        if values.keys() == watched.ranks:
            for item in watched.apart.take(number, values):
                found.append(self._record(quantity, Trouble.APART, item.step, item.odd, item.group))
        return found

    def _record(
        self,
        quantity: ToldNumber,
        trouble: Trouble,
        step: int,
        ranks: Iterable[int],
        group: tuple[int, ...],
        value: str = "",
        usual: float | None = None,
    ) -> NumbersWrong:
        ranks = tuple(sorted(ranks))
        node = self._tellers[ranks[0]].node if len(ranks) == 1 else ""
        return NumbersWrong(
            self._attempt, step, quantity, trouble, ranks, group, value, usual, node
        )


def _bad_of(rank: RankReport) -> dict[ToldNumber, BadNumber]:
    reported = {
        ToldNumber.LOSS: rank.first_bad_loss,
        ToldNumber.GRAD_NORM: rank.first_bad_grad_norm,
    }
    return {quantity: bad for quantity, bad in reported.items() if bad is not None}
