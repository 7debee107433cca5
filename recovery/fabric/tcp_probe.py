"""Sends and receives over plain TCP: bandwidth in each direction, the shortest round trip, segments sent again.

A connection begins with a token that only its two ends know, from the coordinator. What follows is blocks of one size; the first byte
of a block says whether it is the last. The end that connects names its source port, which together with the
addresses decides the path through a network with several (ECMP). Every wait has an end, and so has every transfer.
"""

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from recovery.fabric.fabric_messages import FlowFault, FlowOrder, FlowResult

TOKEN_BYTES: Final = 16
HELLO_S_MAX: Final = 10.0  # to connect; to hear of a flow whose other end has connected
BLOCK_BYTES: Final = 1 << 17
PINGS: Final = 12
GRACE_S: Final = 3.0  # beyond the time of sending, until what is under way has arrived
WAITING_MAX: Final = 1024  # connections whose order has not come yet
# The number of a path is added. Where another program has the port, the next of these ranges is taken.
SOURCE_PORTS_FIRST: Final = (43_000, 47_096, 51_192, 55_288)
_UNSENT_BYTES: Final = 2 * BLOCK_BYTES  # what the kernel may hold that was not sent yet
# struct tcp_info of linux/tcp.h, Linux 4.2 and later: offsets of tcpi_total_retrans and tcpi_segs_out
_TCP_INFO_OFFSETS: Final = (100, 136)
_LAST, _MORE = b"\1", b"\0"


class ProbeListener:
    """Accepts the connections of other peers on one rail and keeps them until their order asks for them."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_server(
            (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=256
        )
        self.port = int(self._socket.getsockname()[1])
        self._come = threading.Condition()
        self._waiting: dict[str, tuple[socket.socket, float]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="probes", daemon=True)
        self._thread.start()

    def take(self, token: str, wait_s: float) -> socket.socket | None:
        """Return the connection that has proved to be this flow; None if none comes."""
        with self._come:
            self._come.wait_for(lambda: token in self._waiting, wait_s)
            return self._waiting.pop(token, (None, 0.0))[0]

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._come:
            for connection, _at_s in self._waiting.values():
                connection.close()
            self._waiting.clear()

    def _accept(self) -> None:
        with ThreadPoolExecutor(32, "hello") as pool:
            while not self._closed.is_set():
                try:
                    connection, _address = self._socket.accept()
                except OSError:
                    if self._closed.is_set():
                        return
                    time.sleep(0.05)  # out of descriptors
                    continue
                pool.submit(self._greet, connection)

    def _greet(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(HELLO_S_MAX)
            token = _receive_all(connection, TOKEN_BYTES).hex()
        except (OSError, EOFError):
            connection.close()
            return
        now_s = time.monotonic()
        with self._come:
            for old, (stale, at_s) in list(self._waiting.items()):
                if now_s - at_s > 4 * HELLO_S_MAX:
                    stale.close()
                    del self._waiting[old]
            if self._closed.is_set() or len(self._waiting) >= WAITING_MAX or token in self._waiting:
                connection.close()
                return
            self._waiting[token] = (connection, now_s)
            self._come.notify_all()


@dataclass(slots=True)
class Prober:
    """Carries out the flows of this node. ``rails``: own address and listener of each."""

    rails: list[tuple[str, ProbeListener]]
    _ports: dict[tuple[int, int], int] = field(default_factory=dict)  # rail and path -> source port

    def run(self, flows: tuple[FlowOrder, ...], seconds: float) -> tuple[FlowResult, ...]:
        """Carry out flows side by side; never raises for one that fails."""
        if not flows:
            return ()
        with ThreadPoolExecutor(len(flows), "flow") as pool:
            return tuple(pool.map(lambda flow: self._run_one(flow, seconds), flows))

    def close(self) -> None:
        for _address, listener in self.rails:
            listener.close()

    def _run_one(self, flow: FlowOrder, seconds: float) -> FlowResult:
        try:
            connection = self._connect(flow) if flow.connects else self._wait(flow)
        except OSError as error:
            return FlowResult(flow.id, fault=FlowFault.UNREACHABLE, text=str(error)[:300])
        if connection is None:
            return FlowResult(flow.id, fault=FlowFault.NO_PEER)
        with connection:
            try:
                return _exchange(connection, flow, seconds)
            finally:
                # Leave no TIME_WAIT: the same ports may be asked for again at once.
                with contextlib.suppress(OSError):
                    connection.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )

    def _wait(self, flow: FlowOrder) -> socket.socket | None:
        return self.rails[flow.rail][1].take(flow.token, 2 * HELLO_S_MAX)

    def _connect(self, flow: FlowOrder) -> socket.socket:
        source = self.rails[flow.rail][0]
        known = self._ports.get((flow.rail, flow.path))
        tries = [first + flow.path for first in SOURCE_PORTS_FIRST]
        if known is not None:  # the same path again, if it can be had
            tries = [known, *(port for port in tries if port != known)]
        for port in tries:
            try:
                connection = _open(source, port, flow)
            except OSError as error:
                if port == tries[-1] or not _is_port_taken(error):
                    raise
            else:
                self._ports[flow.rail, flow.path] = port
                return connection
        raise AssertionError("the last try returns or raises")


def _open(source: str, port: int, flow: FlowOrder) -> socket.socket:
    connection = socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.settimeout(HELLO_S_MAX)
        connection.bind((source, port))
        connection.connect((flow.address, flow.port))
        connection.sendall(bytes.fromhex(flow.token))
    except BaseException:
        connection.close()
        raise
    return connection


def _is_port_taken(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL)  # the latter: these four numbers


def _exchange(connection: socket.socket, flow: FlowOrder, seconds: float) -> FlowResult:
    """Measure the round trip, then send and receive in turn; the end that connects sends first."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # a slow path would hold seconds of what was sent
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    port = int(connection.getsockname()[1] if flow.connects else connection.getpeername()[1])
    latency_s: float | None = None
    rate: float | None = None
    resent: float | None = None
    until_s = time.monotonic() + 2 * (seconds + GRACE_S) + HELLO_S_MAX
    steps: list[Callable[[], None]] = []
    has_listened = False

    def send() -> None:
        nonlocal resent
        resent = _send(connection, seconds, until_s)

    def receive() -> None:
        nonlocal rate, has_listened
        has_listened = True
        rate, is_whole = _receive(connection, seconds, until_s)
        if not is_whole:
            raise TimeoutError("the end of the test did not arrive")
        connection.sendall(_MORE)

    if flow.sends:
        steps.append(send)
    if flow.receives:
        steps.append(receive)
    if not flow.connects:
        steps.reverse()
    try:
        if flow.connects:
            latency_s = _ping(connection)
        else:
            _echo(connection)
        for step in steps:
            step()
        return FlowResult(flow.id, port, rate, latency_s, resent)
    except (OSError, EOFError) as error:
        told = f"{type(error).__name__}: {error}"[:300]
        if has_listened and rate is None:
            rate = 0.0
        return FlowResult(flow.id, port, rate, latency_s, resent, FlowFault.CUT, told)


def _ping(connection: socket.socket) -> float:
    best_s = float("inf")
    for _number in range(PINGS):
        began_s = time.perf_counter()
        connection.sendall(_MORE)
        _receive_all(connection, 1)
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s


def _echo(connection: socket.socket) -> None:
    for _number in range(PINGS):
        connection.sendall(_receive_all(connection, 1))


def _send(connection: socket.socket, seconds: float, until_s: float) -> float | None:
    """Send for so long, and return the share of segments that were sent again."""
    block = bytearray(BLOCK_BYTES)
    end_s = time.monotonic() + seconds
    while (now_s := time.monotonic()) < end_s:
        connection.settimeout(max(0.1, min(until_s, end_s + GRACE_S) - now_s))
        connection.sendall(block)
    block[:1] = _LAST
    connection.settimeout(GRACE_S)
    connection.sendall(block)
    _receive_all(connection, 1)  # it has all arrived: closing now throws nothing away
    return resent_ratio(connection)


def _receive(connection: socket.socket, seconds: float, until_s: float) -> tuple[float, bool]:
    """Receive to the last block; return bytes/s from the first byte on, and whether the last came in time."""
    block = bytearray(BLOCK_BYTES)
    view = memoryview(block)
    connection.settimeout(max(0.1, until_s - time.monotonic()))
    at = connection.recv_into(view)
    if not at:
        raise EOFError("the other end has closed before it sent")
    began_s = time.perf_counter()
    total, end_s = at, began_s + seconds + GRACE_S
    is_last = False
    while True:
        if at == BLOCK_BYTES:
            is_last, at = block[:1] == _LAST, 0
            if is_last:
                break
        left_s = end_s - time.perf_counter()
        if left_s <= 0:
            break
        connection.settimeout(left_s)
        try:
            count = connection.recv_into(view[at:])
        except TimeoutError:
            break
        if not count:
            break
        at += count
        total += count
    took_s = time.perf_counter() - began_s
    if not is_last and took_s < seconds:
        raise EOFError("the connection broke while it was measured")
    return total / max(took_s, 1e-6), is_last


def resent_ratio(connection: socket.socket) -> float | None:
    """Return the share of segments sent again, by the kernel's own count; None where it tells none."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        again, sent = (struct.unpack_from("=I", raw, at)[0] for at in _TCP_INFO_OFFSETS)
    except (OSError, struct.error):
        return None
    return again / sent if sent else None


def _receive_all(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError("the other end has closed")
        data += part
    return bytes(data)
