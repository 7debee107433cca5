"""The GPUs that are left out because a call about them hung, and when to try each again.

Pure: no clock, no process. If a GPU hangs again in its trial, its next trial comes after twice the wait.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rankmend.backoff import Backoff

# Short at first, because a call may return after 45 s (NVIDIA/DCGM issue 313).
TRIAL: Final = Backoff(first_s=60.0, cap_s=3600.0)
FORGET_S: Final = 86_400.0  # time without a hang until the wait is short again


@dataclass(slots=True)
class _Record:
    hung_at_s: float  # the newest time
    hangs: int  # in a row
    is_out: bool = True


class LeftOut:
    """Remembers the GPUs of one node by index."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def __contains__(self, gpu: object) -> bool:
        record = self._records.get(gpu) if isinstance(gpu, int) else None
        return record is not None and record.is_out

    def indexes(self) -> list[int]:
        return sorted(gpu for gpu, record in self._records.items() if record.is_out)

    def add(self, gpu: int, now_s: float) -> None:
        """Note that a call about this GPU hangs, or that its trial has failed."""
        before = self._records.get(gpu)
        is_again = before is not None and now_s - before.hung_at_s < FORGET_S
        self._records[gpu] = _Record(now_s, before.hangs + 1 if before and is_again else 1)

    def take_back(self, gpu: int) -> None:
        """Note that the GPU has answered in its trial."""
        self._records[gpu].is_out = False

    def due(self, now_s: float, hanging: Collection[int]) -> int | None:
        """Return the GPU to try now, if any; never one on which a process still hangs."""
        waiting = [
            (record.hung_at_s + TRIAL.wait_s(record.hangs), gpu)
            for gpu, record in self._records.items()
            if record.is_out and gpu not in hanging
        ]
        at_s, gpu = min(waiting, default=(float("inf"), -1))
        return gpu if now_s >= at_s else None

    def clear(self) -> None:
        """Forget all hangs: an operator has dealt with the GPUs."""
        self._records.clear()
