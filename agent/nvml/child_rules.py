"""Rules: when a collector child is overdue, and when to start another. Pure.

A process inside a driver call cannot be killed, so hanging children add up. Their number is bounded, and
a back-off spaces starts.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.nvml.driver_call import NO_GPU, NvmlCall
from rankmend.backoff import Backoff

CALL_S_MAX: Final = 10.0  # a sweep takes 1 ms; a bad GPU, 45 s a call (NVIDIA/DCGM issue 313)
OPEN_S_MAX: Final = 120.0  # without persistence mode the driver sets up each GPU at the first call
SILENT_S_MAX: Final = 30.0  # a child outside a call has been stopped, or gets no CPU time
# Each takes 9.2 MB of private memory (nvidia-ml-py over tests/support/nvml_stub), and took 45 MiB with a
# real driver (H200, 580), libcuda included. The service may use 384 MiB (MemoryHigh).
ABANDONED_MAX: Final = 6
# Children that hang in a call about no GPU, or are about to end. If one more hangs, NVML as a whole does
# not answer.
AIMLESS_MAX: Final = 1
BACKOFF: Final = Backoff(first_s=1.0, cap_s=300.0)  # between two starts of a collector
# of a node on which neither the driver's module nor its library is found: `DriverTraces` tells of a change at once
UNTRACED_S: Final = 3600.0
HEALTHY_S: Final = 60.0  # a child that lived this long resets the back-off
_OPENING: Final = frozenset({"nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex", "nvmlShutdown"})


class Overdue(NamedTuple):
    """A child that has passed its deadline."""

    call: NvmlCall  # without a name if the child is in no call
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

    ``call``: the child's current call; ``heard_at_s``: the time of its newest message. Until
    ``resumed_at_s`` the agent itself was stopped, and its child too.
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
    """Return whether NVML as a whole hangs. ``hanging``: the GPU of each abandoned child, or NO_GPU."""
    return sum(gpu == NO_GPU for gpu in hanging) > AIMLESS_MAX


def too_many_hang(hanging: Sequence[int]) -> bool:
    """Return whether the allowed number of children hang on GPUs."""
    return sum(gpu != NO_GPU for gpu in hanging) >= ABANDONED_MAX


def may_try(hanging: Sequence[int]) -> bool:
    """Return whether a child may try a left-out GPU: one place stays reserved for the collector."""
    return len(hanging) < ABANDONED_MAX - 1


class Starts:
    """Spaces the starts of collectors."""

    def __init__(self) -> None:
        self.count = 0
        self.due_at_s = 0.0
        self._in_a_row = 0  # starts in a row without a child that lived long enough

    def begin(self, now_s: float) -> None:
        """Count a start and delay the next one."""
        self.count += 1
        self._in_a_row += 1
        self.due_at_s = now_s + BACKOFF.wait_s(self._in_a_row)

    def next_at(self, at_s: float) -> None:
        """Set the time of the next start, however many there were before."""
        self._in_a_row, self.due_at_s = 0, at_s

    def wait_for_driver(self, now_s: float) -> None:
        """Delay the next start for long: only a change of the node can bring a driver."""
        self.due_at_s = now_s + UNTRACED_S

    def add_sweep(self, child_started_at_s: float, now_s: float) -> None:
        """Note that a child has read all GPUs: if it lived long enough, the back-off ends."""
        if now_s - child_started_at_s >= HEALTHY_S:
            self._in_a_row = 0

    def add_end(self, child_started_at_s: float, now_s: float) -> None:
        """Note that a child has ended or hangs: reset the back-off if it lived long enough."""
        if now_s - child_started_at_s >= HEALTHY_S:
            self.next_at(now_s + BACKOFF.first_s)
