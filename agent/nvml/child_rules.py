"""Rules: when a collector child is overdue, and when to start another. Pure.

A process inside a driver call cannot be killed, so hanging children add up. Their number is bounded, and
a back-off spaces starts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from agent.nvml.fields import NO_GPU, NvmlCall
from rankmend.backoff import Backoff

CALL_S_MAX: Final = 10.0  # a sweep takes 1 ms; a bad GPU, 45 s a call (NVIDIA/DCGM issue 313)
OPEN_S_MAX: Final = 120.0  # without persistence mode the driver sets up each GPU at the first call
SILENT_S_MAX: Final = 30.0  # a child outside a call has been stopped, or gets no CPU time
SPIN_S_MIN: Final = (
    0.5  # on a processor within one call: the dearest one, PCIe throughput, takes 0.02 s
)
STARVED_S_MAX: Final = (
    300.0  # a child that gets no processor for so long is of no use, whatever the cause
)
# Each takes 9.2 MB of private memory (nvidia-ml-py over tests/support/nvml_stub), and took 45 MiB with a
# real driver (H200, 580), libcuda included. The service may use 384 MiB (MemoryHigh).
ABANDONED_MAX: Final = 6
# Children that hang in a call about no GPU, or are about to end. If one more hangs, NVML as a whole does
# not answer.
AIMLESS_MAX: Final = 1
BACKOFF: Final = Backoff(first_s=1.0, cap_s=300.0)  # between two starts of a collector
# Between two starts on a node without the driver's module and library: `DriverTraces` shows a change at once.
UNTRACED_S: Final = 3600.0
HEALTHY_S: Final = 60.0  # a child that lived this long resets the back-off
_OPENING: Final = frozenset({"nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex", "nvmlShutdown"})


class Overdue(NamedTuple):
    """A child that has passed its deadline."""

    call: NvmlCall  # without a name if the child is in no call
    problem: str


def find_overdue(
    call: NvmlCall | None,
    reported_at_s: float,
    resumed_at_s: float,
    now_s: float,
    *,
    call_s_max: float,
    silent_s_max: float,
    interval_s: float,
) -> Overdue | None:
    """Return why a child is overdue, or None. Time before ``resumed_at_s`` does not count.

    ``call``: the child's current call; ``reported_at_s``: the time of its newest message. Until
    ``resumed_at_s`` the agent itself was stopped, and its child too.
    """
    if call is not None:
        limit_s = OPEN_S_MAX if call.name in _OPENING else call_s_max
        if now_s - max(call.began_at_s, resumed_at_s) <= limit_s:
            return None
        where = f" of GPU {call.gpu}" if call.gpu != NO_GPU else ""
        return Overdue(call, f"{call.name}{where} has not returned for {limit_s:g} s")
    if now_s - max(reported_at_s, resumed_at_s) <= silent_s_max + interval_s:
        return None
    return Overdue(
        NvmlCall(0, reported_at_s, NO_GPU, "none"),
        f"the collector of the GPUs has been silent for {silent_s_max:g} s",
    )


class ProcessWork(NamedTuple):
    """What a child's process does now, and for how long it has run since it began."""

    is_ready: bool  # it runs, or waits for nothing but a processor
    ran_s: float


class OverdueLook(NamedTuple):
    """How an overdue child stood when it was first found so."""

    call: NvmlCall
    at_s: float
    ran_s: float


def lacks_processor(first: OverdueLook, work: ProcessWork | None, now_s: float) -> bool:
    """Return whether an overdue child gets no processor: then its lateness says nothing of a driver.

    A call that hangs in the driver waits there, or spins and so runs on. A process whose state isn't known has no excuse.
    """
    return (
        work is not None
        and work.is_ready
        and work.ran_s - first.ran_s < SPIN_S_MIN
        and now_s - first.at_s < STARVED_S_MAX
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


# The GPUs that are left out because a call about them hung, and when to try each again.
#
# Pure: no clock, no process. If a GPU hangs again in its trial, its next trial comes after twice the wait.

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
