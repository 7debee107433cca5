"""The socket by which people reach the launcher of a job on one node, and the exchange over it.

`<job's state folder>/decide.sock`, 0600 in a folder that is 0700. The kernel says who asks (SO_PEERCRED). One
connection is one question: a line of JSON, and a line of JSON as the answer. Who no longer wants the answer
closes the connection, and a question whose asker has gone is not carried out.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from rankmend.errors import MessageError
from recovery.api import wire

NAME: Final = "decide.sock"
VERSION: Final = 1
ASK_BYTES_MAX: Final = 64 * 1024
ANSWER_BYTES_MAX: Final = 1024 * 1024  # a plan with 20 checkpoints that it passes over takes 10 kB

_T = TypeVar("_T", bound=Struct)


class JobAsk(Struct):
    """A command to the job. Without one: what would be done if ``node``, or a rank, failed now?"""

    version: int = VERSION
    command: wire.JobCommand | None = None
    node: wire.Name | None = None


class JobAnswer(Struct, omit_defaults=True):
    """Exactly one of the three is set."""

    plan: wire.PlanView | None = None
    done: wire.Done | None = None
    problem: wire.Problem | None = None
    status: int = 200  # with a problem, as the API of a controller has it


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """Give a path of the socket that fits into the 108 bytes of an address, however long the folder's is."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end; process 0: it is in a namespace that this one can't see."""
    body = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", body)
    return pid, uid


def encode_line(message: Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_line(line: bytes, kind: type[_T]) -> _T:
    """Return the message, or raise MessageError."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageError(f"not a {kind.__name__}: {error}") from error
