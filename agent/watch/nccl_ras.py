"""Asks the RAS thread of NCCL, which each process of a job may have, which ranks stand out.

Protocol (NCCL's sources, src/ras/client.cc): lines over TCP to NCCL_RAS_ADDR, by default localhost:28028, where one process
of the node listens. JSON since NCCL 2.28.7; others answer in text. Unproved on hardware: tested against a server that speaks so.
"""

import contextlib
import socket
import time
from pathlib import Path
from typing import Final

from rankmend.errors import SourceError

CONNECT_S_MAX: Final = 1.0
ANSWER_S_MAX: Final = 10.0  # NCCL waits 5 s for the other processes, and 1 s more
BYTES_MAX: Final = 16 << 20  # 16,384 ranks of one communicator
_TIMEOUT_S: Final = 5
_LINE_BYTES_MAX: Final = 1024
_LISTENS: Final = "0A"  # net/tcp_states.h


def ask_ras(
    port: int, uid: int, answer_s_max: float = ANSWER_S_MAX, bytes_max: int = BYTES_MAX
) -> bytes | None:
    """Return the answer of the RAS that listens at this port of the node; None: nobody does. Raises SourceError.

    ``uid``: whose it must be; another user of the node could answer instead.
    """
    owners = _listeners(port)
    if not owners:
        return None
    if owners != {uid}:
        raise SourceError(
            f"port {port} belongs to uid {min(owners - {uid})}, not to the job's {uid}"
        )
    until_s = time.monotonic() + answer_s_max
    try:
        try:
            return _query_status(port, until_s, bytes_max, is_json=True)
        except _NoJsonError:
            return _query_status(port, until_s, bytes_max, is_json=False)
    except OSError as error:
        raise SourceError(f"NCCL's RAS at port {port} does not answer: {error}") from error


class _NoJsonError(Exception):
    """This NCCL answers in text alone."""


def _listeners(port: int) -> set[int]:
    """Return the users of the sockets that listen at a port."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(int(words[7]))
    return found


def _query_status(port: int, until_s: float, bytes_max: int, *, is_json: bool) -> bytes:
    with socket.create_connection(("localhost", port), CONNECT_S_MAX) as line:
        if not _exchange_line(line, "CLIENT PROTOCOL 2", until_s).startswith(b"SERVER PROTOCOL "):
            raise SourceError(f"what listens at port {port} is no NCCL RAS")
        _exchange_line(line, f"TIMEOUT {_TIMEOUT_S}", until_s)
        if is_json and _exchange_line(line, "SET FORMAT json", until_s).strip() != b"OK":
            raise _NoJsonError
        line.sendall(b"VERBOSE STATUS\n")
        answer = bytearray()
        while part := _receive(line, 65536, until_s):
            answer += part
            if len(answer) > bytes_max:
                raise SourceError(f"NCCL's RAS answers more than {bytes_max} bytes")
        return bytes(answer)


def _exchange_line(line: socket.socket, text: str, until_s: float) -> bytes:
    """Send a line, and return the one that is answered."""
    line.sendall(text.encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < _LINE_BYTES_MAX:
        part = _receive(line, _LINE_BYTES_MAX, until_s)
        if not part:
            break  # an older NCCL leaves at a command that it does not know
        answer += part
    return answer


def _receive(line: socket.socket, count: int, until_s: float) -> bytes:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    line.settimeout(left_s)
    return line.recv(count)
