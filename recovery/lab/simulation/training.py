"""A simulated job's training: the steps it makes, its saves and snapshots, what a failure leaves of them.

Work is counted in seconds of training at full size and speed.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from recovery.lab.simulation.assumptions import Assumptions
from recovery.lab.simulation.outcome import SAVES, RunAccount, RunPart

_KEPT: Final = 5  # checkpoints; older ones are deleted


@dataclass(frozen=True, slots=True)
class Saved:
    work_s: float
    durable_at_s: float


class Training:
    def __init__(self, assumptions: Assumptions, account: RunAccount) -> None:
        self._assumptions = assumptions
        self._account = account
        self.work_s = 0.0
        self.highest_s = 0.0
        self.size_ratio = 1.0  # of the nodes that the job wants
        self.slow_factor = 1.0
        self._now_s = 0.0
        self._began_s = 0.0
        self._next_save_s = 0.0
        self._saves: deque[Saved] = deque(maxlen=_KEPT)
        self._behind = ""  # for which cause work is done again

    def begin(self, now_s: float, work_s: float, behind: str) -> None:
        """Begin an attempt at this work; what is done again counts as lost to the cause ``behind``."""
        self.work_s = work_s
        self._behind = behind
        self._now_s = self._began_s = now_s
        self._next_save_s = now_s + self._assumptions.interval_s

    def go_on(self, now_s: float) -> None:
        """Train until now."""
        stall_s = self._assumptions.save_stall_s
        while self._next_save_s < now_s:
            self._make(self._next_save_s)
            self._saves.append(Saved(self.work_s, self._next_save_s + self._assumptions.save_s))
            stalled_until_s = min(now_s, self._next_save_s + stall_s)
            self._account.spend(RunPart.CHECKPOINT, max(0.0, stalled_until_s - self._now_s), SAVES)
            self._now_s = max(self._now_s, stalled_until_s)
            self._next_save_s += self._assumptions.interval_s
        self._make(now_s)

    def _make(self, until_s: float) -> None:
        """Make steps, and the snapshots between them."""
        took_s = until_s - self._now_s
        if took_s <= 0:
            return
        self._now_s = until_s
        every_s, account = self._assumptions.snapshot_interval_s, self._account
        stalled_s = took_s * self._assumptions.snapshot_stall_s / every_s if every_s else 0.0
        took_s -= stalled_s
        slow_s = took_s * (1.0 - 1.0 / self.slow_factor)
        shrunk_s = (took_s - slow_s) * (1.0 - self.size_ratio)
        made_s = took_s - slow_s - shrunk_s
        again_s = min(made_s, max(0.0, self.highest_s - self.work_s))
        self.work_s += made_s
        self.highest_s = max(self.highest_s, self.work_s)
        account.spend(RunPart.CHECKPOINT, stalled_s, SAVES)
        account.spend(RunPart.SLOW, slow_s, "slow node")
        account.spend(RunPart.SHRUNK, shrunk_s, "too few nodes")
        account.spend(RunPart.RECOMPUTED, again_s, self._behind)
        account.spend(RunPart.PRODUCTIVE, made_s - again_s, "")

    def stop(self, cause: str) -> None:
        """Lose the step that is under way, and the saves that are not durable."""
        step_s = self._assumptions.step_s
        whole_s = self.work_s // step_s * step_s
        if self.work_s >= self.highest_s:
            cut_s = min(self.work_s - whole_s, self._account.parts[RunPart.PRODUCTIVE])
            self._account.parts[RunPart.PRODUCTIVE] -= cut_s
            self._account.spend(RunPart.RECOMPUTED, cut_s, cause)
            self.highest_s = whole_s
        self.work_s = whole_s

    @property
    def step(self) -> int:
        """Return the number of the newest step."""
        return int(self.work_s / self._assumptions.step_s + 1e-6)

    def durable(self, now_s: float) -> list[Saved]:
        """Return the saves that can be restored, newest first, and forget those that a failure cut off."""
        retained = [save for save in self._saves if save.durable_at_s <= now_s]
        self._saves = deque(retained, maxlen=_KEPT)
        return retained[::-1]

    def snapshot_work_s(self) -> float | None:
        """Return the work that the newest snapshot of this attempt holds; None: there is none."""
        every_s = self._assumptions.snapshot_interval_s
        trained_s = self._now_s - self._began_s
        if not every_s or trained_s < every_s:
            return None
        step_s = self._assumptions.step_s
        age_s = trained_s % every_s * self.size_ratio / self.slow_factor
        return max(0.0, (self.work_s - age_s) // step_s * step_s)
