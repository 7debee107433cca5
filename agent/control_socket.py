"""The agent's control path: what an operator tells a running agent, over a Unix socket of packets.

One packet asks (``{"command": "release", "for_s": 600}``), one answers (``{"text": ...}`` or
``{"error": ...}``), and the connection ends. Only root and the agent's own user are heard: the
file mode keeps others out, and the kernel's word for the peer (SO_PEERCRED) is checked as well.
"""

import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final

from rankmend.errors import ConfigError, RankmendError, SourceError

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX: Final = 4096
REQUEST_S_MAX: Final = 5.0  # for a client that connects and sends nothing
ANSWER_S_MAX: Final = 30.0  # a release waits at most 12 s for a child
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))

Command = Callable[[Mapping[str, Any]], str]


def control_path(socket_path: Path) -> Path:
    """Return where an agent with this socket for launchers is told what to do."""
    return socket_path.with_name(f"{socket_path.stem}-control{socket_path.suffix}")


class ControlSocket:
    """Listens in a thread of its own; one command at a time."""

    def __init__(self, path: Path, commands: Mapping[str, Command]) -> None:
        self.path = path
        self._commands = commands
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            path.unlink(missing_ok=True)  # the lock on the launchers' socket says that it is ours
            self._listener.bind(str(path))
            path.chmod(0o600)  # in time: nobody can connect before listen()
            self._listener.listen(4)
        except OSError as error:
            self._listener.close()
            raise ConfigError(f"cannot listen on the control socket {path}: {error}") from error
        self._thread = Thread(target=self._serve, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hear no more commands."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return  # stopped
            with connection:
                try:
                    connection.settimeout(REQUEST_S_MAX)
                    connection.send(json.dumps(self._answer(connection)).encode())
                except OSError as error:
                    log.warning("control connection lost", extra={"error": str(error)})

    def _answer(self, connection: socket.socket) -> dict[str, str]:
        ucred = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _gid = _CREDENTIALS.unpack(ucred)
        if uid not in (0, os.geteuid()):
            log.warning("control refused", extra={"pid": pid, "uid": uid})
            return {"error": f"uid {uid} may not control this agent"}
        try:
            request = _decode(connection.recv(MESSAGE_BYTES_MAX))
            name = request.get("command")
            command = self._commands.get(name) if isinstance(name, str) else None
            if command is None:
                raise SourceError(f"no command {str(name)[:80]!r}")
            log.info("control", extra={"command": name, "pid": pid, "uid": uid})
            return {"text": command(request)}
        except RankmendError as error:
            return {"error": str(error)}


def ask(path: Path, request: Mapping[str, Any]) -> str:
    """Return what the agent at ``path`` answers, or raise SourceError with why it did not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_S_MAX)
        try:
            connection.connect(str(path))
            connection.send(json.dumps(dict(request)).encode())
            answer = _decode(connection.recv(MESSAGE_BYTES_MAX))
        except OSError as error:
            raise SourceError(f"no answer from an agent at {path}: {error}") from error
    if "error" in answer:
        raise SourceError(str(answer["error"]))
    return str(answer.get("text", ""))


def _decode(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError("the message is not JSON") from error
    if not isinstance(value, dict):
        raise SourceError("the message is not a JSON object")
    return value
