"""Sends and receives over plain TCP: bandwidth in each direction, the shortest round trip, segments sent again.

The sender's kernel says for how long it had something to send, so a busy processor, on which programs wait for their turn, does not look like a slow path.

A connection begins with a token that only its two ends know, from the coordinator. What follows is zeros, then the byte that ends
the transfer. The end that connects names its source port, which together with the
addresses decides the path through a network with several (ECMP). Every wait has an end, and so has every transfer.
"""

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from recovery.lab.fabric.fabric_messages import FlowFault, FlowOrder, FlowResult
from recovery.lab.fabric.send_bounds import FlowBound, SendBounds
from recovery.lab.fabric.tied_programs import TiedPrograms

TOKEN_BYTES: Final = 16
HELLO_S_MAX: Final = 10.0  # to connect; to hear of a flow whose other end has connected
BLOCK_BYTES: Final = 1 << 17  # of one call
PINGS: Final = 12
GRACE_S: Final = 3.0  # beyond the time of sending, until what is under way has arrived
WAITING_MAX: Final = 1024  # connections whose order has not come yet
# The number of a path is added. Where another program has the port, the next of these ranges is taken.
SOURCE_PORTS_FIRST: Final = (43_000, 47_096, 51_192, 55_288)
# Where other programs of this host have all of them, any will do: that is no fault of the network.
_ANY_PORT: Final = 0
# What the kernel may hold that was not sent yet: so long at the rate reached so far. A busy processor is bridged, and a slow path soon empty.
_UNSENT_S: Final = 0.1
_UNSENT_BYTES_MIN: Final = 1 << 15
_UNSENT_BYTES_MAX: Final = 1 << 23
# The kernel counts in its ticks, of up to 10 ms: it must have been busy for several of them.
_BUSY_S_MIN: Final = 0.05
# struct tcp_info of linux/tcp.h: total_retrans, bytes_acked, segs_out (Linux 4.2), busy_time and rwnd_limited in microseconds (4.10),
# dsack_dups (5.0)
_INFO: Final = struct.Struct("=100xI16xQ8xI28xQQ32xI")
_LAST, _MORE = b"\1", b"\0"
Exchange = Callable[[socket.socket, FlowOrder, float], FlowResult]  # the float: seconds of sending


@dataclass(frozen=True, slots=True)
class TcpCounts:
    """What the kernel has counted of a connection."""

    resent: int  # segments
    bytes_acked: int
    segments: int
    busy_us: int  # with something to send or to be acknowledged
    reader_us: int  # of it, while the other end's program read too slowly
    doubled: int = (
        0  # segments that came twice: sent again for nothing, as a busy processor answered late
    )

    @property
    def resent_ratio(self) -> float | None:
        """Share of the segments that were sent again because they were lost."""
        return max(0, self.resent - self.doubled) / self.segments if self.segments else None


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
            self._come.wait_for(lambda: token in self._waiting or self._closed.is_set(), wait_s)
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
            self._come.notify_all()

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
            token = receive_all(connection, TOKEN_BYTES).hex()
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
    bounds: SendBounds | None = None  # None: as fast as it goes
    programs: TiedPrograms = field(default_factory=TiedPrograms)  # that flows run
    _ports: dict[tuple[int, int], int] = field(default_factory=dict)  # rail and path -> source port
    _busy: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def run(
        self, flows: tuple[FlowOrder, ...], seconds: float, exchange: Exchange | None = None
    ) -> tuple[FlowResult, ...]:
        """Carry out flows side by side; never raises for one that fails. ``exchange``: what measures, in place of TCP."""
        if not flows:
            return ()
        measure = exchange or self._over_tcp(sum(flow.sends for flow in flows))
        with ThreadPoolExecutor(len(flows), "flow") as pool:
            try:
                is_tcp = exchange is None
                return tuple(
                    pool.map(lambda flow: self._run_one(flow, seconds, measure, is_tcp), flows)
                )
            except BaseException:
                self.close()  # the pool waits for its threads
                raise

    def close(self) -> None:
        """End all flows, whatever they are doing, and begin no other. For any thread."""
        with self._lock:
            self._is_closed = True
            for connection in self._busy:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.programs.close()
        for _address, listener in self.rails:
            listener.close()

    def _over_tcp(self, count: int) -> Exchange:
        """Return what measures over TCP, in so many flows that send at the same time."""
        bounds = self.bounds

        def exchange(connection: socket.socket, flow: FlowOrder, seconds: float) -> FlowResult:
            bound = None if bounds is None else bounds.of_one(count)
            return _exchange(connection, flow, seconds, bound)

        return exchange

    def _run_one(
        self, flow: FlowOrder, seconds: float, measure: Exchange, is_tcp: bool
    ) -> FlowResult:
        try:
            if not flow.connects:
                connection = self._wait(flow)
            elif is_tcp:
                connection = self._connect(flow)
            else:  # the port decides no path of what else carries the data
                connection = _open(self.rails[flow.rail][0], 0, flow)
        except OSError as error:
            return FlowResult(flow.id, fault=FlowFault.UNREACHABLE, text=str(error)[:300])
        if connection is None:
            return FlowResult(flow.id, fault=FlowFault.NO_PEER)
        with connection, self._noted(connection) as may_run:
            if not may_run:
                return FlowResult(flow.id, fault=FlowFault.CUT, text="the test was stopped")
            try:
                return measure(connection, flow, seconds)
            finally:
                # Leave no TIME_WAIT: the same ports may be requested again at once.
                with contextlib.suppress(OSError):
                    connection.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )

    @contextlib.contextmanager
    def _noted(self, connection: socket.socket) -> Iterator[bool]:
        """Have `close` end the connection; whether it may be used at all."""
        with self._lock:
            may_run = not self._is_closed
            self._busy.add(connection)
        try:
            yield may_run
        finally:
            with self._lock:
                self._busy.discard(connection)

    def _wait(self, flow: FlowOrder) -> socket.socket | None:
        return self.rails[flow.rail][1].take(flow.token, 2 * HELLO_S_MAX)

    def _connect(self, flow: FlowOrder) -> socket.socket:
        source = self.rails[flow.rail][0]
        known = self._ports.get((flow.rail, flow.path))
        tries = [*(first + flow.path for first in SOURCE_PORTS_FIRST), _ANY_PORT]
        if known is not None:  # the same path again, if it can be had
            tries = [known, *(port for port in tries if port != known)]
        for port in tries:
            try:
                connection = _open(source, port, flow)
            except OSError as error:
                if port == tries[-1] or not _is_port_taken(error):
                    raise
            else:
                self._ports[flow.rail, flow.path] = connection.getsockname()[1]
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


def _exchange(
    connection: socket.socket, flow: FlowOrder, seconds: float, bound: FlowBound | None
) -> FlowResult:
    """Measure the round trip, then send and receive in turn; the end that connects sends first."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    port = int(connection.getsockname()[1] if flow.connects else connection.getpeername()[1])
    latency_s: float | None = None
    rate: float | None = None
    sent: float | None = None
    resent: float | None = None
    until_s = time.monotonic() + 2 * (seconds + GRACE_S) + HELLO_S_MAX
    steps: list[Callable[[], None]] = []
    has_listened = False

    def send() -> None:
        nonlocal sent, resent
        sent, resent = _send(connection, seconds, until_s, bound)

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
        return FlowResult(flow.id, port, rate, latency_s, resent, sent_bytes_per_s=sent)
    except (OSError, EOFError) as error:
        reported = f"{type(error).__name__}: {error}"[:300]
        if has_listened and rate is None:
            rate = 0.0
        return FlowResult(flow.id, port, rate, latency_s, resent, FlowFault.CUT, reported)


def _ping(connection: socket.socket) -> float:
    best_s = float("inf")
    for _number in range(PINGS):
        began_s = time.perf_counter()
        connection.sendall(_MORE)
        receive_all(connection, 1)
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s


def _echo(connection: socket.socket) -> None:
    for _number in range(PINGS):
        connection.sendall(receive_all(connection, 1))


def _send(
    connection: socket.socket, seconds: float, until_s: float, bound: FlowBound | None
) -> tuple[float | None, float | None]:
    """Send for so long; return bytes/s while there was something to send, and the share of segments that were sent again."""
    block, allowed = bytes(BLOCK_BYTES), _UNSENT_BYTES_MIN
    _allow_unsent(connection, allowed)
    if bound is not None:
        bound.pace(connection)
    before = read_counts(connection)
    began_s = time.monotonic()
    end_s = began_s + seconds
    while (now_s := time.monotonic()) < end_s:
        if bound is not None and not bound.take(len(block), now_s - began_s):
            break
        connection.settimeout(max(0.1, min(until_s, end_s + GRACE_S) - now_s))
        connection.send(block)
        now = read_counts(connection)
        arrived = now.bytes_acked - before.bytes_acked if now and before else 0
        wanted = unsent_bytes(arrived, time.monotonic() - began_s)
        if not allowed / 2 < wanted < allowed * 2:
            allowed = wanted
            _allow_unsent(connection, allowed)
    connection.settimeout(GRACE_S)
    connection.sendall(_LAST)
    receive_all(connection, 1)  # it has all arrived: closing now throws nothing away
    after = read_counts(connection)
    if before is None or after is None:
        return None, None
    return sending_rate(before, after), after.resent_ratio


def sending_rate(before: TcpCounts, after: TcpCounts) -> float | None:
    """Return bytes/s of the time in which there was something to send; None where that was too short to tell."""
    busy_s = (after.busy_us - before.busy_us - (after.reader_us - before.reader_us)) / 1e6
    count = after.bytes_acked - before.bytes_acked
    return count / busy_s if count and busy_s >= _BUSY_S_MIN else None


def unsent_bytes(arrived: int, took_s: float) -> int:
    """Return how much the kernel may hold unsent at the rate reached so far."""
    wanted = round(arrived * _UNSENT_S / max(took_s, _UNSENT_S))
    return min(max(wanted, _UNSENT_BYTES_MIN), _UNSENT_BYTES_MAX)


def _allow_unsent(connection: socket.socket, count: int) -> None:
    with contextlib.suppress(OSError):  # without it, a slow path holds seconds of what was sent
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, count)


def _receive(connection: socket.socket, seconds: float, until_s: float) -> tuple[float, bool]:
    """Receive to the last byte; return bytes/s from the first byte on, and whether the last came in time."""
    block = bytearray(BLOCK_BYTES)
    connection.settimeout(max(0.1, until_s - time.monotonic()))
    total = connection.recv_into(block)
    if not total:
        raise EOFError("the other end has closed before it sent")
    is_last = block[total - 1] == _LAST[0]
    began_s = time.perf_counter()
    end_s = began_s + seconds + GRACE_S
    while not is_last and (left_s := end_s - time.perf_counter()) > 0:
        connection.settimeout(left_s)
        try:
            count = connection.recv_into(block)
        except TimeoutError:
            break
        if not count:
            break
        total += count
        is_last = block[count - 1] == _LAST[0]
    took_s = time.perf_counter() - began_s
    if not is_last and took_s < seconds:
        raise EOFError("the connection broke while it was measured")
    return total / max(took_s, 1e-6), is_last


def read_counts(connection: socket.socket) -> TcpCounts | None:
    """Return what the kernel has counted so far; None where it tells none of it."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        return TcpCounts(*_INFO.unpack(raw.ljust(_INFO.size, b"\0")))  # older kernels tell less
    except (OSError, struct.error):
        return None


def receive_all(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError("the other end has closed")
        data += part
    return bytes(data)
