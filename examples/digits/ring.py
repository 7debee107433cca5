"""Sums arrays over all ranks of a job, over TCP, with the same bits every time.

A partial sum travels once round the ring, from rank 0 to the last one, and the total once
more. Every element is therefore added in rank order, whatever the timing, and a run that is
repeated or resumed gives equal bits. Nobody sends and receives at the same time, so no two
full socket buffers can block each other.

Rank 0 listens on MASTER_ADDR:MASTER_PORT until every rank has said where it listens itself;
then each connects to its right neighbour. A neighbour that goes away, or that says nothing
for `timeout_s`, raises `PeerLostError` with its rank.
"""

import json
import os
import socket
import time
from collections.abc import Mapping

import numpy as np

LINE_BYTES_MAX = 65_536  # one line of JSON; the addresses of 1,000 ranks need 30,000
RETRY_S = 0.02  # between tries to reach a rank 0 that does not listen yet

Address = tuple[str, int]


class PeerLostError(ConnectionError):
    """Another rank is gone or silent."""


class Ring:
    """The two connections of one rank. Owns their sockets."""

    def __init__(
        self, rank: int, world_size: int, address: str, port: int, timeout_s: float = 60.0
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not within a world of {world_size}")
        self.rank = rank
        self.world_size = world_size
        self._left_rank = (rank - 1) % world_size
        self._right_rank = (rank + 1) % world_size
        self._timeout_s = timeout_s
        self._left: socket.socket | None = None
        self._right: socket.socket | None = None
        if world_size > 1:
            self._connect((address, port), _Deadline(timeout_s))

    def close(self) -> None:
        for end in (self._left, self._right):
            if end is not None:
                end.close()
        self._left = self._right = None

    def __enter__(self) -> "Ring":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace ``values`` on every rank by their sum over all ranks, in place."""
        if self.world_size == 1:
            return
        last = self.world_size - 1
        if self.rank > 0:
            partial = np.empty_like(values)
            self._receive(partial)
            np.add(partial, values, out=values)
        self._send(values)  # the partial sum; from the last rank the total, to rank 0
        if self.rank != last:
            self._receive(values)
            if self._right_rank != last:
                self._send(values)

    def _send(self, values: np.ndarray) -> None:
        assert self._right is not None, "not connected"
        try:
            self._right.sendall(memoryview(values).cast("B"))
        except OSError as error:
            raise self._lost("send to", self._right_rank, error) from error

    def _receive(self, values: np.ndarray) -> None:
        assert self._left is not None, "not connected"
        rest = memoryview(values).cast("B")
        try:
            while rest:
                count = self._left.recv_into(rest)
                if count == 0:
                    raise ConnectionResetError("it closed the connection")
                rest = rest[count:]
        except OSError as error:
            raise self._lost("receive from", self._left_rank, error) from error

    def _lost(self, doing: str, peer: int, error: OSError) -> PeerLostError:
        silent = f"nothing for {self._timeout_s:g} s"
        reason = silent if isinstance(error, TimeoutError) else (error.strerror or error)
        return PeerLostError(f"rank {self.rank} can't {doing} rank {peer}: {reason}")

    def _connect(self, master: Address, deadline: "_Deadline") -> None:
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
            peer = 0
            try:
                if self.rank == 0:
                    addresses = _gather(master, port, self.world_size, deadline)
                else:
                    addresses = _register(master, port, self.rank, self.world_size, deadline)
                peer = self._right_rank
                self._right = socket.create_connection(addresses[peer], deadline.left_s())
                peer = self._left_rank
                server.settimeout(deadline.left_s())
                self._left, _address = server.accept()
            except OSError as error:
                self.close()
                if isinstance(error, PeerLostError):
                    raise
                raise self._lost("connect to", peer, error) from error
        for end in (self._left, self._right):
            end.settimeout(self._timeout_s)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _Deadline:
    """The moment by which the ring has to be closed."""

    def __init__(self, timeout_s: float) -> None:
        self._at_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds that are left, or raise when there are none."""
        left_s = self._at_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def _gather(master: Address, port: int, world_size: int, deadline: _Deadline) -> list[Address]:
    """Wait at rank 0 for all the others, and tell each one where each one listens."""
    addresses: dict[int, Address] = {0: (master[0], port)}
    members = []
    try:
        with _listen(master, world_size) as server:
            while len(addresses) < world_size:
                try:
                    server.settimeout(deadline.left_s())
                    member, sender = server.accept()
                except TimeoutError as error:
                    missing = sorted(set(range(world_size)) - set(addresses))
                    raise PeerLostError(f"ranks {missing} never came to rank 0") from error
                members.append(member)
                hello = _read_line(member, deadline)
                rank = hello.get("rank")
                if hello.get("world_size") != world_size or rank in addresses:
                    raise PeerLostError(f"{hello} does not fit a world of {world_size} ranks")
                addresses[rank] = (sender[0], hello["port"])
        table = [addresses[rank] for rank in range(world_size)]
        for member in members:
            _send_line(member, {"addresses": table})
        return table
    finally:
        for member in members:
            member.close()


def _listen(master: Address, world_size: int) -> socket.socket:
    try:
        return socket.create_server(master, backlog=world_size)
    except OSError as error:
        raise PeerLostError(
            f"rank 0 can't listen on {master[0]}:{master[1]}: {os.strerror(error.errno or 0)}"
        ) from error


def _register(
    master: Address, port: int, rank: int, world_size: int, deadline: _Deadline
) -> list[Address]:
    """Tell rank 0 where this rank listens, and return where each one does."""
    while True:
        try:
            connection = socket.create_connection(master, deadline.left_s())
            break
        except ConnectionRefusedError:
            time.sleep(min(RETRY_S, deadline.left_s()))
    with connection:
        _send_line(connection, {"rank": rank, "port": port, "world_size": world_size})
        return [(host, port) for host, port in _read_line(connection, deadline)["addresses"]]


def _send_line(connection: socket.socket, message: Mapping[str, object]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _read_line(connection: socket.socket, deadline: _Deadline) -> dict:
    connection.settimeout(deadline.left_s())
    with connection.makefile("rb") as stream:
        line = stream.readline(LINE_BYTES_MAX)
    if not line.endswith(b"\n"):
        raise ConnectionResetError("it closed the connection")
    return json.loads(line)
