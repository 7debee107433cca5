"""The agent's view of the GPUs: a thread that supervises the collector children.

Callers never wait for a child: they get the newest values with their ages.
"""

import select
import socket
from collections.abc import Callable, Mapping
from threading import Condition, Thread
from time import sleep
from typing import Any, Final

from agent.control_socket import Command
from agent.nvml.child_rules import CALL_S_MAX, SILENT_S_MAX
from agent.nvml.children import RELEASE_WAIT_S_MAX, ChildProcess, DriverTraces, ReleaseFile, Spawn
from agent.nvml.known_gpus import MonitorView
from agent.nvml.supervisor import GpuSupervisor
from agent.sampling.demand import Demand
from rankmend.clock import Clock
from rankmend.errors import SourceError

VIEW_S_MAX: Final = 0.1  # three collectors look right after each other
_TICK_S: Final = 3.0  # messages wake the thread before, and a collector that finds a child overdue
_NO_DRIVER_TICK_S: Final = 5.0  # nothing runs that could hang: only looks whether a driver has come
_BURY_TICK_S: Final = 0.1  # while a caller may be waiting for the end of a child
_SWEEP_S: Final = 0.005  # 8 GPUs are read in that time; waking for each message took twice the CPU


class GpuMonitor:
    """Keeps a collector child running and its newest values. All methods may be called from any
    thread; the children are handled by a thread of its own, which the first question starts."""

    def __init__(
        self,
        clock: Clock,
        interval_s: float,
        call_s_max: float = CALL_S_MAX,
        spawn: Spawn = ChildProcess,
        kept: ReleaseFile | None = None,
        on_events: Callable[[], None] | None = None,
        silent_s_max: float = SILENT_S_MAX,
        demand: Demand | None = None,
        read_traces: Callable[[], DriverTraces | None] = lambda: None,
    ) -> None:
        """``kept`` remembers a release over a restart of the agent.

        ``on_events`` is called in the monitor's thread after new events of GPUs (XIDs and others).
        ``demand`` says when somebody will look at what no check reads; None: at any time.
        ``silent_s_max`` is how long a child that is in no call may send nothing.
        """
        self._clock = clock
        self._interval_s = interval_s
        self._demand = demand
        self._on_events = on_events
        self._changed = Condition()  # guards everything below
        self._supervisor = GpuSupervisor(
            interval_s, spawn, clock.now_s(), call_s_max, silent_s_max, kept, read_traces
        )
        self._viewed: tuple[float, MonitorView] | None = None  # None: something has happened since
        self._thread: Thread | None = None
        self._is_stopping = False
        self._waker, self._wakened = socket.socketpair()

    # ---- for the collectors

    def steady_number(self) -> int | None:
        """Return a number that stays while nothing is new about the GPUs but the age of their values.

        None while children start, hang or are let go: a collector then looks at the `view`. Each look also
        asks for the values that no check reads, shortly before somebody is expected to read them.
        """
        with self._changed:
            now_s = self._clock.now_s()
            if self._thread is None or self._supervisor.note_question(now_s):
                return None
            # the next sweep reads it, a run of the collector after that takes it up
            if self._demand is None or self._demand.is_expected(
                2 * self._interval_s, 3 * self._interval_s
            ):
                self._supervisor.want_shown(now_s)
            number = self._supervisor.steady_number(now_s)
            if number is None:
                self._wake()
            return number

    def view(self, wait_s: float = 0.0) -> MonitorView:
        """Return the known state; wait at most ``wait_s`` for a first answer."""
        with self._changed:
            if self._supervisor.note_question(self._clock.now_s()):
                self._viewed = None
                self._wake()
            if self._thread is None and not self._is_stopping:
                self._thread = Thread(target=self._run, name="gpu-monitor", daemon=True)
                self._thread.start()
            if wait_s > 0:
                self._changed.wait_for(lambda: self._supervisor.has_answered, timeout=wait_s)
            now_s = self._clock.now_s()
            if self._viewed is None or not 0.0 <= now_s - self._viewed[0] <= VIEW_S_MAX:
                self._viewed = (now_s, self._supervisor.view(now_s))
            return self._viewed[1]

    # ---- for the operator

    def release(self, for_s: float) -> str:
        """Release the GPUs for a time; return the result."""
        with self._changed:
            self._supervisor.release(for_s, self._clock.now_s())
            self._viewed = None
            self._wake()
            self._changed.wait_for(lambda: not self._pids(), timeout=RELEASE_WAIT_S_MAX + 2)
            if not (pids := self._pids()):
                return f"the GPUs are free for {for_s:g} s, or until 'rankmend agent resume'"
            listed = ", ".join(map(str, pids))
            raise SourceError(f"process {listed} is stuck in a driver call and still holds a GPU")

    def resume(self) -> str:
        """Resume reading the GPUs."""
        with self._changed:
            was_released = self._supervisor.resume()
            self._viewed = None
            self._wake()
        return "watching the GPUs again" if was_released else "the GPUs were not released"

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the child within this time if possible; otherwise it ends by itself later."""
        with self._changed:
            self._is_stopping = True
            thread = self._thread
            self._wake()
        if thread is not None:
            thread.join(timeout_s + 1.0)

    def _pids(self) -> list[int]:
        return self._supervisor.children.pids()

    def _wake(self) -> None:
        self._waker.send(b"1")

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                supervisor = self._supervisor
                if self._is_stopping:
                    supervisor.end(self._clock.now_s)
                    return
                supervisor.tick(self._clock.now_s())
                self._viewed = None
                self._changed.notify_all()
                has_new_events = supervisor.pop_new_events()
                channels = supervisor.children.channels()
                tick_s = self._tick_s()
                is_in_sweep = supervisor.is_in_sweep
            if has_new_events and self._on_events is not None:
                self._on_events()  # without the lock, because it may call us in turn
            if is_in_sweep:  # its other messages are read together: most sweeps have one only
                sleep(_SWEEP_S)
            self._wait(channels, tick_s)

    def _tick_s(self) -> float:
        supervisor = self._supervisor
        if supervisor.children.abandoned:
            return _BURY_TICK_S
        return _NO_DRIVER_TICK_S if supervisor.waits_for_driver else _TICK_S

    def _wait(self, channels: list[socket.socket], timeout_s: float) -> None:
        """Wait for a message, a wake-up, or the next tick."""
        poll = select.poll()  # select() can't do descriptors above 1,023
        for connection in (self._wakened, *channels):
            poll.register(connection, select.POLLIN)
        found = [descriptor for descriptor, _events in poll.poll(timeout_s * 1000)]
        if self._wakened.fileno() in found:
            self._wakened.recv(64)


# An operator's commands to the GPU collector: release the GPUs, and resume reading them.
#
# An open handle blocks the reset of a GPU and a change of its MIG mode.

RELEASE_S_MAX: Final = 86_400.0  # a forgotten release ends by itself


def gpu_commands(monitor: GpuMonitor) -> dict[str, Command]:
    """Return the commands by name."""

    def release(request: Mapping[str, Any]) -> str:
        for_s = request.get("for_s")
        if (
            not isinstance(for_s, int | float)
            or isinstance(for_s, bool)
            or not 0 < for_s <= RELEASE_S_MAX
        ):
            raise SourceError(
                f"for_s is not a number of seconds up to {RELEASE_S_MAX:g}: {for_s!r}"
            )
        return monitor.release(float(for_s))

    def resume(_request: Mapping[str, Any]) -> str:
        return monitor.resume()

    return {"release": release, "resume": resume}
