"""NCCL collectives that take a known time beside kernels of known length, against what the hook tells to be hidden.

A process group of one rank has no slow collective. So NCCL's stream is held: by a collective that was issued behind a
kernel on another stream. The one that follows is in flight until that kernel has ended.
"""

import time
from typing import Any

from bench.gpu.own_rank import OwnRank
from bench.gpu.rows import Trial
from bench.gpu.section_truth import OFF_RATIO_MAX, PIECES

SHORT_MS, LONG_MS = 20.0, 60.0
TELL_S = 0.15  # the hook tells what it has timed ten times a second


class HiddenTruth:
    """One rank whose collectives are kept from ending by kernels that spin."""

    def __init__(self, rank: OwnRank) -> None:
        self._rank, self._device = rank, rank.device

    def measured(self, trial: Trial) -> None:
        """The collective takes longer than the compute behind its issue, which hides so much of it."""
        self._rank.hook()
        tensor = self._tensor()

        def one() -> None:
            held = self._hold(LONG_MS)
            work = self._device.torch.distributed.all_reduce(tensor, async_op=True)
            self._device.spin(SHORT_MS)
            work.wait()
            held.wait()

        least_ms, most_ms = self._measure(one)
        self._compare(trial, "least", least_ms, SHORT_MS)
        self._compare(trial, "most", most_ms, SHORT_MS)

    def within(self, trial: Trial) -> None:
        """The collective is over long before the wait for it."""
        self._rank.hook()
        tensor = self._tensor()

        def one() -> None:
            held = self._hold(SHORT_MS)
            work = self._device.torch.distributed.all_reduce(tensor, async_op=True)
            self._device.spin(LONG_MS)
            work.wait()
            held.wait()

        least_ms, most_ms = self._measure(one)
        trial.figure("least_told_ms", least_ms)
        trial.check(least_ms <= SHORT_MS <= most_ms, f"told: {least_ms:.3f} to {most_ms:.3f} ms")
        self._compare(trial, "most", most_ms, LONG_MS)

    def once(self, trial: Trial) -> None:
        """Two are in flight at once; the stream stands still for the first of them, then for the second."""
        self._rank.hook()
        device = self._device
        dist = device.torch.distributed
        tensor, other = self._tensor(), self._tensor()

        def one() -> None:
            held = self._hold(LONG_MS)
            first = dist.all_reduce(tensor, async_op=True)
            device.spin(SHORT_MS / 2)
            second = dist.all_reduce(other, async_op=True)
            device.spin(SHORT_MS / 2)
            first.wait()  # until the kernel that holds both has ended
            second.wait()
            held.wait()

        least_ms, most_ms = self._measure(one)
        self._compare(trial, "least", least_ms, SHORT_MS)
        self._compare(trial, "most", most_ms, SHORT_MS)

    def _tensor(self) -> Any:
        return self._device.torch.ones(1024, device=self._device.name)

    def _hold(self, milliseconds: float) -> Any:
        """Keep NCCL's stream from going on for so long, and return the collective that does so."""
        device = self._device
        other = device.stream()
        device.synchronize()
        device.follow(other)
        with device.on(other):
            device.spin(milliseconds)
            return device.torch.distributed.all_reduce(self._tensor(), async_op=True)

    def _measure(self, one: Any) -> tuple[float, float]:
        """Return milliseconds hidden, at least and at most, for each of PIECES calls."""
        one()
        before = self._told()
        for _ in range(PIECES):
            one()
            self._rank.step()
        after = self._told()
        return (after[0] - before[0]) / PIECES, (after[1] - before[1]) / PIECES

    def _told(self) -> tuple[float, float]:
        for _ in range(2):  # the first reads the events, the second tells of them
            time.sleep(TELL_S)
            self._rank.flush()
        hidden = self._rank.read().hidden
        if hidden is None:
            return 0.0, 0.0
        return hidden.works_least_s * 1000, hidden.works_most_s * 1000

    def _compare(self, trial: Trial, what: str, told_ms: float, truth_ms: float) -> None:
        trial.figure(f"{what}_told_ms", told_ms)
        trial.figure(f"{what}_true_ms", truth_ms)
        trial.check(
            abs(told_ms - truth_ms) <= OFF_RATIO_MAX * truth_ms,
            f"{what}: told {told_ms:.3f} ms, true are {truth_ms:.3f} ms",
        )
