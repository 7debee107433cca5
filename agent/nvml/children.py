"""The collector children of one agent: the reading one, the one on trial, and abandoned ones.

An abandoned child is left to end by itself, because its connection is closed. It is killed only
much later: killing a process in a driver call has frozen GPUs (NVIDIA/dcgm-exporter issue 84).
"""

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from agent.nvml.driver_call import NO_GPU, NvmlCall

ABANDONED_S_MAX: Final = 60.0  # until an abandoned child is killed
RELEASE_S_MAX: Final = 10.0  # until an abandoned child is killed if somebody waits for the GPUs

log = logging.getLogger(__name__)


class CollectorChild(Protocol):
    """A process that reads GPUs: `agent/nvml/child_process.py`."""

    started_at_s: float
    heard_at_s: float  # time of its newest message
    channel: socket.socket
    is_connected: bool
    stuck_call: NvmlCall | None  # the call in which it was abandoned
    killed_at_s: float | None

    @property
    def pid(self) -> int: ...
    def call(self) -> NvmlCall | None: ...
    def disconnect(self) -> None: ...
    def is_gone(self) -> bool: ...
    def status_text(self) -> str: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


Spawn = Callable[[float, Sequence[int], float], CollectorChild]
"""Starts a child with an interval in seconds, the GPUs to leave out, and the time of now."""


class Children:
    def __init__(self) -> None:
        self.collector: CollectorChild | None = None
        self.trial: CollectorChild | None = None  # asks about one left-out GPU
        self.trial_gpu = NO_GPU
        self.abandoned: list[CollectorChild] = []

    def talking(self) -> list[CollectorChild]:
        return [child for child in (self.collector, self.trial) if child is not None]

    def pids(self) -> list[int]:
        return [child.pid for child in (*self.talking(), *self.abandoned)]

    def channels(self) -> list[socket.socket]:
        return [child.channel for child in self.talking()]

    def stuck_calls(self) -> list[NvmlCall]:
        calls = (child.stuck_call for child in self.abandoned)
        return [call for call in calls if call is not None]

    def hanging_gpus(self) -> list[int]:
        """Return the GPU that each abandoned child hangs on, or NO_GPU."""
        calls = (child.stuck_call for child in self.abandoned)
        return [NO_GPU if call is None else call.gpu for call in calls]

    def abandon(self, child: CollectorChild, call: NvmlCall | None) -> None:
        """Abandon a child: it ends when it finds the connection closed."""
        child.stuck_call = call
        child.disconnect()
        if child.call() is None:  # in a call, a signal could harm the driver
            child.terminate()
        self.abandoned.append(child)
        if child is self.trial:
            self.trial, self.trial_gpu = None, NO_GPU
        else:
            self.collector = None

    def bury(self, now_s: float) -> None:
        """Reap the abandoned children that have ended, and kill those abandoned long ago."""
        for child in list(self.abandoned):
            if child.is_gone():
                child.close()
                self.abandoned.remove(child)
                if child.stuck_call is not None:
                    log.info("a stuck GPU collector has ended", extra={"pid": child.pid})
            elif child.killed_at_s is None and now_s - child.heard_at_s > ABANDONED_S_MAX:
                log.warning("killing a GPU collector", extra={"pid": child.pid})
                child.kill()
                child.killed_at_s = now_s

    def hurry_burial(self, now_s: float) -> None:
        """Kill abandoned children sooner, because somebody waits for the GPUs."""
        for child in self.abandoned:
            kill_at_s = now_s + RELEASE_S_MAX
            child.heard_at_s = min(child.heard_at_s, kill_at_s - ABANDONED_S_MAX)

    def abandon_all(self) -> None:
        for child in self.talking():
            self.abandon(child, None)

    def close(self, now_s: Callable[[], float], wait_s: float) -> None:
        """Wait for all to end, at most this long in total, and release them."""
        deadline_s = now_s() + wait_s
        for child in self.abandoned:
            child.wait(max(0.0, deadline_s - now_s()))
            child.close()
        self.abandoned.clear()
