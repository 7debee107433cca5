"""When a collector child is overdue, and when another may be started. Pure.

A process inside a driver call cannot be killed, so children that hang add up. They are bounded, and
starts are spaced by a back-off.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.nvml.driver_call import NO_GPU, NvmlCall
from rankmend.backoff import Backoff

CALL_S_MAX: Final = 10.0  # a sweep takes 1 ms; a bad GPU, 45 s a call (NVIDIA/DCGM issue 313)
OPEN_S_MAX: Final = 120.0  # without persistence mode the driver sets up each GPU at the first call
SILENT_S_MAX: Final = 30.0  # a child that is in no call has been stopped, or gets no CPU time
# Each takes 9.2 MB of its own (nvidia-ml-py over tests/support/nvml_stub). The service may use
# 128 MB (MemoryHigh).
ABANDONED_MAX: Final = 6
# Children that hang in a call about no GPU, or are about to end. One more hangs as well: it is NVML
# as a whole that does not answer.
AIMLESS_MAX: Final = 1
BACKOFF: Final = Backoff(first_s=1.0, cap_s=300.0)  # between two starts of a collector
HEALTHY_S: Final = 60.0  # a child that lived so long lets the back-off begin anew
_OPENING: Final = frozenset({"nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex", "nvmlShutdown"})


class Overdue(NamedTuple):
    """A child that is over its deadline."""

    call: NvmlCall  # one without a name where the child is in no call
    problem: str


def find_overdue(
    call: NvmlCall | None,
    heard_at_s: float,
    resumed_at_s: float,
    now_s: float,
    *,
    call_s_max: float,
    silent_s_max: float,
    interval_s: float,
) -> Overdue | None:
    """Return why a child is overdue, or None. Time before ``resumed_at_s`` does not count.

    ``call`` is the call that the child is in, ``heard_at_s`` the time of its newest message. The
    agent itself stood still until ``resumed_at_s``, and its child did as well.
    """
    if call is not None:
        limit_s = OPEN_S_MAX if call.name in _OPENING else call_s_max
        if now_s - max(call.began_at_s, resumed_at_s) <= limit_s:
            return None
        where = f" of GPU {call.gpu}" if call.gpu != NO_GPU else ""
        return Overdue(call, f"{call.name}{where} has not returned for {limit_s:g} s")
    if now_s - max(heard_at_s, resumed_at_s) <= silent_s_max + interval_s:
        return None
    return Overdue(
        NvmlCall(0, heard_at_s, NO_GPU, "none"),
        f"the collector of the GPUs has been silent for {silent_s_max:g} s",
    )


def nvml_hangs(hanging: Sequence[int]) -> bool:
    """Tell whether NVML as a whole hangs. ``hanging``: the GPU of each abandoned child, or NO_GPU."""
    return sum(gpu == NO_GPU for gpu in hanging) > AIMLESS_MAX


def too_many_hang(hanging: Sequence[int]) -> bool:
    """Tell whether as many children hang on GPUs as may."""
    return sum(gpu != NO_GPU for gpu in hanging) >= ABANDONED_MAX


def may_try(hanging: Sequence[int]) -> bool:
    """Tell whether a child may try a GPU that was left out: one place stays for the collector."""
    return len(hanging) < ABANDONED_MAX - 1


class Starts:
    """Spaces the starts of collectors."""

    def __init__(self) -> None:
        self.count = 0
        self.due_at_s = 0.0
        self._in_a_row = 0  # without a child that lived long enough

    def begin(self, now_s: float) -> None:
        """Count a start; the next one waits."""
        self.count += 1
        self._in_a_row += 1
        self.due_at_s = now_s + BACKOFF.wait_s(self._in_a_row)

    def next_at(self, at_s: float) -> None:
        """Start the next one at this time, however many starts there were before."""
        self._in_a_row, self.due_at_s = 0, at_s

    def add_sweep(self, child_started_at_s: float, now_s: float) -> None:
        """A child has read all GPUs: one that lived long enough ends the back-off."""
        if now_s - child_started_at_s >= HEALTHY_S:
            self._in_a_row = 0

    def add_end(self, child_started_at_s: float, now_s: float) -> None:
        """A child has ended or hangs: begin the back-off anew if it lived long enough."""
        if now_s - child_started_at_s >= HEALTHY_S:
            self.next_at(now_s + BACKOFF.first_s)
