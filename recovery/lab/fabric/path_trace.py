"""Finds the routers that a flow passes, by its own addresses and ports: the hash of a network with several paths (ECMP) sees the same four numbers.

One packet for each distance, whose time to live ends there; the router's ICMP answer comes through the socket's error queue, which takes no
privilege (ip(7), IP_RECVERR; for TCP from Linux 5.8 on). Where a program uses the four numbers already, a segment of
TCP goes out by a raw socket, which takes CAP_NET_RAW. It never gets as far as the other end, except with the last distance.
"""

import contextlib
import errno
import select
import socket
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rankmend.errors import SourceError
from recovery.lab.fabric.fabric_messages import TraceOrder, TraceResult, TraceWork

IP_RECVERR: Final = 11  # linux/in.h; Python 3.14 names it
HOPS_MAX: Final = 8  # host, leaf, spine, core, spine, leaf, host are 6
SILENT_MAX: Final = 1  # routers without an answer, after which the trace ends
WAIT_S: Final = 0.3  # for an answer
TRIES: Final = 3  # routers limit their ICMP answers
AT_ONCE: Final = 4
_SO_EE: Final = struct.Struct("=IBBBBII")  # linux/errqueue.h: struct sock_extended_err
_ORIGIN_ICMP: Final = 2
_TIME_EXCEEDED: Final = 11
_ACK: Final = 0x10


def trace_all(work: TraceWork, sources: Sequence[str]) -> tuple[TraceResult, ...]:
    """Trace all orders within the time; one that could not be traced says why."""
    until_s = time.monotonic() + work.limit_s

    def trace(order: TraceOrder) -> TraceResult:
        try:
            hops = trace_path(sources[order.rail], order.source_port, order.address, order.port, work.protocol, until_s, is_silent=order.is_silent)  # fmt: skip
        except (OSError, SourceError) as error:
            return TraceResult(order.id, order.source_port, (), str(error)[:300])
        return TraceResult(order.id, order.source_port, hops)

    with ThreadPoolExecutor(AT_ONCE, "trace") as pool:
        return tuple(pool.map(trace, work.traces))


def trace_path(
    source: str,
    source_port: int,
    address: str,
    port: int,
    protocol: str,
    until_s: float,
    *,
    is_silent: bool = False,
) -> tuple[str, ...]:
    """Return the address of each router on the way; "" for one that gave no answer. The other end is not among them.

    ``is_silent``: over TCP, by a segment of no connection, which a program that listens at the port never sees (CAP_NET_RAW).
    """
    if ":" in source or ":" in address:
        raise SourceError(f"{source} to {address}: paths are traced for IPv4 only")
    hops: list[str] = []
    silent = 0
    for distance in range(1, HOPS_MAX + 1):
        hop, is_there = None, False
        for _try in range(TRIES):
            if time.monotonic() > until_s:
                raise SourceError("the time for tracing paths is over")
            if is_silent and protocol == "tcp":
                hop, is_there = _probe_raw(source, source_port, address, port, distance)
            else:
                hop, is_there = _probe(source, source_port, address, port, protocol, distance)
            if hop is not None or is_there:
                break
        if is_there:
            return tuple(hops)
        silent = silent + 1 if hop is None else 0
        if silent > SILENT_MAX:
            return tuple(hops[:-1])
        hops.append(hop or "")
    return tuple(hops)


def _probe(
    source: str, source_port: int, address: str, port: int, protocol: str, distance: int
) -> tuple[str | None, bool]:
    """Return the router at this distance, and whether the other end answered in its place."""
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.setblocking(False)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _prepare(probe, distance)
        try:
            probe.bind((source, source_port))
            problem = probe.connect_ex((address, port))
        except OSError as error:
            problem = error.errno or 0
        if problem in (errno.EADDRINUSE, errno.EADDRNOTAVAIL) and kind == socket.SOCK_STREAM:
            return _probe_raw(source, source_port, address, port, distance)
        if problem not in (0, errno.EINPROGRESS):
            raise OSError(
                problem, f"{source}:{source_port}: {errno.errorcode.get(problem, problem)}"
            )
        if kind == socket.SOCK_DGRAM:
            probe.send(b"\0" * 8)
        found = _receive(probe, address, WAIT_S, is_tcp=kind == socket.SOCK_STREAM)
        if kind == socket.SOCK_STREAM:  # leave no connection and no TIME_WAIT
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return found


def _probe_raw(
    source: str, source_port: int, address: str, port: int, distance: int
) -> tuple[str | None, bool]:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP) as probe:
        probe.setblocking(False)
        _prepare(probe, distance)
        probe.bind((source, 0))
        probe.connect((address, 0))
        probe.send(tcp_header(source, source_port, address, port))
        return _receive(
            probe, address, WAIT_S, is_tcp=False, ports=struct.pack("!HH", source_port, port)
        )


def _prepare(probe: socket.socket, distance: int) -> None:
    probe.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, distance)
    probe.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)


def _receive(
    probe: socket.socket, address: str, wait_s: float, *, is_tcp: bool, ports: bytes = b""
) -> tuple[str | None, bool]:
    until_s = time.monotonic() + wait_s
    poller = select.poll()
    poller.register(probe, select.POLLERR | (select.POLLOUT if is_tcp else select.POLLIN))
    while (left_s := until_s - time.monotonic()) > 0:
        for _descriptor, events in poller.poll(left_s * 1000):
            if events & select.POLLERR and (hop := _read_error(probe, ports)) is not None:
                return (None, True) if hop == address else (hop, False)
            if is_tcp and (events & select.POLLOUT or events & select.POLLHUP):
                problem = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if problem in (0, errno.ECONNREFUSED):
                    return None, True
            if not is_tcp and events & select.POLLIN:
                with contextlib.suppress(OSError):
                    probe.recv(2048)
    return None, False


def _read_error(probe: socket.socket, ports: bytes) -> str | None:
    """Return who sent the ICMP error at the head of the queue, if it is about these ports."""
    try:
        data, ancillary, _flags, _address = probe.recvmsg(512, 512, socket.MSG_ERRQUEUE)
    except OSError:
        return None
    for level, kind, content in ancillary:
        if level == socket.IPPROTO_IP and kind == IP_RECVERR and len(content) >= 24:
            _errno, origin, icmp, _code, _pad, _info, _data = _SO_EE.unpack_from(content)
            if (
                origin != _ORIGIN_ICMP
                or icmp not in (_TIME_EXCEEDED, 3)
                or not data.startswith(ports)
            ):
                continue
            return socket.inet_ntoa(content[20:24])  # struct sockaddr_in of who sent it
    return None


def tcp_header(source: str, source_port: int, address: str, port: int) -> bytes:
    """Return a TCP header without data that changes nothing at the other end: an acknowledgement out of its window."""
    header = struct.pack("!HHIIBBHHH", source_port, port, 0, 0, 5 << 4, _ACK, 0, 0, 0)
    pseudo = (
        socket.inet_aton(source)
        + socket.inet_aton(address)
        + struct.pack("!BBH", 0, 6, len(header))
    )
    total = sum(struct.unpack(f"!{len(pseudo + header) // 2}H", pseudo + header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return header[:16] + struct.pack("!H", ~total & 0xFFFF) + header[18:]
