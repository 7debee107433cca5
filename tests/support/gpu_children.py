"""Collector children of the GPUs that are no processes."""

import json
import socket
from collections.abc import Sequence

from agent.nvml.child_rules import OverdueLook, ProcessWork
from agent.nvml.fields import NvmlCall


class FakeChild:
    """A child that does what a test tells it; one in a call can't be killed, as in D state."""

    def __init__(self, skipped: Sequence[int], now_s: float) -> None:
        self.skipped = list(skipped)
        self.started_at_s = self.reported_at_s = now_s
        self.channel, self.its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        self.pid = 4242
        self.is_connected = True
        self.stuck_call: NvmlCall | None = None
        self.first_overdue: OverdueLook | None = None
        self.process_work: ProcessWork | None = ProcessWork(is_ready=False, ran_s=1.0)
        self.killed_at_s: float | None = None
        self.current: NvmlCall | None = None
        self.signals: list[str] = []

    def call(self) -> NvmlCall | None:
        return self.current

    def work(self) -> ProcessWork | None:
        return self.process_work

    def hang(self, now_s: float, name: str = "nvmlDeviceGetPowerUsage", gpu: int = 3) -> None:
        self.current = NvmlCall(1, now_s, gpu, name)

    def disconnect(self) -> None:
        self.is_connected = False
        self.channel.close()

    def is_gone(self) -> bool:
        return self.current is None

    def status_text(self) -> str:
        return ""

    def terminate(self) -> None:
        self.signals.append("terminate")

    def kill(self) -> None:
        self.signals.append("kill")

    def wait(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        self.its_end.close()

    def say(self, **message: object) -> None:
        self.its_end.send(json.dumps(message).encode())
