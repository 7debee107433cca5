"""This node's part in a probe of the network: a process of its own, that ends at once when anything else is due.

The controller requests it with each answer to a report (`recovery.messages.probing`). The process is killed when the requests end, when no answer arrived
for `SILENT_S`, at the probe's time limit, when an order brings ranks to this node, and with the launcher. One that has ended is not started again.
"""

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Final

import msgspec

from rankmend.clock import Clock
from rankmend.parts_path import program
from recovery.messages.probing import (
    ORDER_BYTES_MAX,
    ProbeOrder,
    ProbeRequest,
    ProbeState,
    ProbeTold,
)

log = logging.getLogger(__name__)

SILENT_S: Final = (
    10.0  # a launcher reports each second, and each answer has whether the probe goes on
)
LIMIT_S_MAX: Final = 600.0  # whatever the controller asks
LINE_BYTES_MAX: Final = 2 << 20
_READ_BYTES: Final = 1 << 16


class NodeProbe:
    """For the launcher's thread; nothing here blocks."""

    def __init__(self, node: str, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._request: ProbeRequest | None = None
        self._reported_at_s = float("-inf")
        self._until_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._told: ProbeTold | None = None

    @property
    def told(self) -> ProbeTold | None:
        """Return what the controller is to know; None: nobody asks."""
        return self._told

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def take_request(self, request: ProbeRequest | None) -> None:
        """Take what the controller asks now; None: nothing."""
        self._request = request
        self._reported_at_s = self._clock.now_s()

    def tick(self, *, has_ranks: bool) -> bool:
        """Do what is due, and return whether there is news. ``has_ranks``: this node runs ranks, or is about to."""
        before, request = self._told, self._request
        if request is None:
            self._kill()
            self._told = None
            return before is not None
        if self._told is None or self._told.probe_id != request.probe_id:
            self._kill()
            self._told = ProbeTold(request.probe_id, ProbeState.WAITING)
        if self._told.state in (ProbeState.WAITING, ProbeState.RUNNING):
            self._go_on(request, has_ranks=has_ranks)
        return self._told != before

    def close(self) -> None:
        self._kill()

    def _go_on(self, request: ProbeRequest, *, has_ranks: bool) -> None:
        now_s = self._clock.now_s()
        if has_ranks and not request.is_beside_ranks:
            self._end(request, ProbeState.YIELDED)
        elif now_s - self._reported_at_s > SILENT_S:
            self._end(request, ProbeState.FAILED, "the controller does not answer")
        elif self._process is None:
            if request.place == 0 or request.port:
                self._start(request, now_s)
        elif now_s > self._until_s:
            text = f"it did not end within {request.limit_s:g} s"
            self._end(request, ProbeState.FAILED, text)
        else:
            self._hear(request, self._process)

    def _start(self, request: ProbeRequest, now_s: float) -> None:
        self._until_s, self._read = now_s + min(request.limit_s, LIMIT_S_MAX), b""
        order = ProbeOrder(**asdict(request), node=self._node)
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, *program("recovery.lab.fabric.probe_child")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is the launcher's business
            )
        except OSError as error:
            self._end(request, ProbeState.FAILED, f"no process: {error}")
            return
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        os.set_blocking(process.stdin.fileno(), False)
        try:
            fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, ORDER_BYTES_MAX)  # it takes all at once
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
        except OSError as error:
            self._end(request, ProbeState.FAILED, f"its process took no order: {error}")
            return
        self._told = ProbeTold(request.probe_id, ProbeState.RUNNING)
        log.info("testing the network", extra={"probe_id": request.probe_id})

    def _hear(self, request: ProbeRequest, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None, "it is a pipe"
        has_ended = False
        with contextlib.suppress(BlockingIOError):
            while data := os.read(process.stdout.fileno(), _READ_BYTES):
                self._read += data
            has_ended = True
        *lines, self._read = self._read.split(b"\n")
        for line in lines:
            try:
                reported = msgspec.json.decode(line, type=ProbeTold)
            except msgspec.MsgspecError as error:
                self._end(request, ProbeState.FAILED, f"its process said {line[:100]!r}: {error}")
                return
            self._told = reported
            if reported.state is not ProbeState.RUNNING:
                self._kill()
                return
        if has_ended or len(self._read) > LINE_BYTES_MAX:
            self._end(request, ProbeState.FAILED, "its process ended without a word")

    def _end(self, request: ProbeRequest, state: ProbeState, failure: str = "") -> None:
        self._kill()
        self._told = ProbeTold(request.probe_id, state, failure=failure[:500])

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None, "both are pipes"
            with contextlib.suppress(OSError):
                pipe.close()
        process.wait()
