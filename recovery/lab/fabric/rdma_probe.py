"""Measures a flow over RDMA: `ib_write_bw` at both ends, one way and then the other.

The two ends already hold a TCP connection that has proved itself by a one-time token. Over it, the receiving end names the port at which
its program listens, once it does; the sending end starts its own then, and says when that is over. So the program, whose exchange is not
authenticated, listens for a moment only, and a rate counts only if both programs report it.
"""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from detectors.formats.ib_write_bw import parse_ib_write_bw
from rankmend.errors import LaunchError, SourceError
from recovery.lab.fabric.fabric_messages import FlowFault, FlowOrder, FlowResult
from recovery.lab.fabric.rdma_ports import (
    SETUP_S_MAX,
    Perftest,
    RailPort,
    failure_of,
    whole_seconds,
)
from recovery.lab.fabric.tcp_probe import receive_all
from recovery.lab.fabric.tied_programs import ProgramEnd, TiedProgram, TiedPrograms

LISTEN_S_MAX: Final = 20.0  # for a program to listen: on a busy machine it starts slowly
PARTING_S: Final = 3.0  # for the receiving end's program to end after the sending end's
STARTS_MAX: Final = 3  # another program may take the port between the choice and the start
_PORT: Final = struct.Struct("!H")  # 0: the program did not start
_OVER: Final = b"\1"
_LISTENS: Final = "0A"  # TCP_LISTEN in /proc/net/tcp
_TEXT_MAX: Final = 300  # of a FlowResult
_LOOK_S: Final = 0.02


def step_s_max(seconds: float) -> float:
    """Return the longest time that one direction takes."""
    return LISTEN_S_MAX + run_s_max(seconds) + PARTING_S + 3.0


def run_s_max(seconds: float, setup_s: float = SETUP_S_MAX) -> float:
    return whole_seconds(seconds) + setup_s


@dataclass(frozen=True, slots=True)
class RdmaRail:
    """This node's end of a rail."""

    port: RailPort
    address: str  # for the exchange between the programs


@dataclass(slots=True)
class _Findings:
    sent: float | None = None
    received: float | None = None
    fault: FlowFault | None = None
    texts: list[str] = field(default_factory=list)

    def fail(self, fault: FlowFault, text: str) -> None:
        self.fault = self.fault or fault
        self.texts.append(text)


class RdmaProbe:
    """Carries out flows of this node over RDMA. For any thread."""

    def __init__(
        self,
        perftest: Perftest,
        rails: Sequence[RdmaRail],
        programs: TiedPrograms,
        setup_s: float = SETUP_S_MAX,
    ) -> None:
        self._setup_s = setup_s
        self._perftest = perftest
        self._rails = rails
        self._programs = programs

    def exchange(self, connection: socket.socket, flow: FlowOrder, seconds: float) -> FlowResult:
        """Send and receive in turn; the end that connects sends first. Never raises for a program that fails."""
        found, rail = _Findings(), self._rails[flow.rail]
        steps = [(flow.sends, self._send), (flow.receives, self._receive)]
        try:
            for is_wanted, step in steps if flow.connects else reversed(steps):
                if is_wanted:
                    step(connection, flow, seconds, rail, found)
        except (OSError, EOFError) as error:
            found.fail(FlowFault.CUT, f"the other end is gone: {error}")
        except LaunchError as error:
            found.fail(FlowFault.LOCAL, str(error))
        return FlowResult(
            flow.id,
            received_bytes_per_s=found.received,
            sent_bytes_per_s=found.sent,
            fault=found.fault,
            text="; ".join(dict.fromkeys(found.texts))[:_TEXT_MAX],
        )

    def _send(
        self, connection: socket.socket, flow: FlowOrder, seconds: float, rail: RdmaRail, found: _Findings
    ) -> None:  # fmt: skip
        connection.settimeout(LISTEN_S_MAX + PARTING_S)
        port = _PORT.unpack(receive_all(connection, _PORT.size))[0]
        if not port:
            return  # the other end says why
        limit_s = run_s_max(seconds, self._setup_s)
        words = self._perftest.words(rail.port, rail.address, port, whole_seconds(seconds), flow.address)  # fmt: skip
        with self._programs.run(words, rail.port.device) as program:
            end = program.wait(limit_s, lambda: _word(connection) is None)
        found.sent = _rate(end, limit_s, found)
        connection.settimeout(PARTING_S)
        connection.sendall(_OVER)

    def _receive(
        self, connection: socket.socket, _flow: FlowOrder, seconds: float, rail: RdmaRail, found: _Findings
    ) -> None:  # fmt: skip
        limit_s = run_s_max(seconds, self._setup_s)
        until_s = time.monotonic() + LISTEN_S_MAX
        for _start in range(STARTS_MAX):
            port = _free_port(rail.address)
            words = self._perftest.words(rail.port, rail.address, port, whole_seconds(seconds), None)  # fmt: skip
            with self._programs.run(words, rail.port.device) as program:
                if _comes_to_listen(program, port, until_s, connection):
                    connection.sendall(_PORT.pack(port))
                    end = _see_through(program, connection, limit_s)
                    found.received = _rate(end, limit_s, found)
                    return
                has_ended = program.has_ended()
                end = program.wait(0.0)
            if not has_ended:
                break  # another start would hang as well
        found.fail(FlowFault.PROGRAM, failure_of(end, LISTEN_S_MAX))
        connection.sendall(_PORT.pack(0))


def _rate(end: ProgramEnd, limit_s: float, found: _Findings) -> float | None:
    if end.code != 0:
        found.fail(FlowFault.PROGRAM, failure_of(end, limit_s))
        return None
    try:
        return parse_ib_write_bw(end.output)[-1].average_bytes_per_s
    except SourceError as error:
        found.fail(FlowFault.PROGRAM, str(error))
        return None


def _see_through(program: TiedProgram, connection: socket.socket, limit_s: float) -> ProgramEnd:
    """Return how the receiving end's program ended: it has a moment after the sending end's."""
    until_s = time.monotonic() + limit_s
    word = None
    while not program.has_ended() and word is None and time.monotonic() < until_s:
        word = _word(connection)
        time.sleep(_LOOK_S)
    end = program.wait(0.0 if word == b"" else PARTING_S)
    if word is None:
        connection.settimeout(limit_s)
        with contextlib.suppress(OSError, EOFError):  # it is over all the same
            receive_all(connection, len(_OVER))
    return end


def _comes_to_listen(
    program: TiedProgram, port: int, until_s: float, connection: socket.socket
) -> bool:
    """Return whether the program listens in time; False as well where it or the other end is gone."""
    while time.monotonic() < until_s and not program.has_ended() and _word(connection) is None:
        if _is_listening(program.pid, port):
            return True
        time.sleep(_LOOK_S)
    return False


def _is_listening(pid: int, port: int) -> bool:
    """Return whether a socket of the process's network listens at the port. A connection to find out would be taken for the client's."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        if any(
            len(fields) > 3 and fields[1].endswith(wanted) and fields[3] == _LISTENS
            for fields in map(str.split, lines)
        ):
            return True
    return False


def _word(connection: socket.socket) -> bytes | None:
    """Return what the other end has said; None: nothing so far; b"": it is gone."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return connection.recv(1) if poll.poll(0) else None


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        return int(listener.getsockname()[1])
