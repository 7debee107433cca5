"""Asks the launcher of a job on one node through its door (`recovery.launcher.run.job_door`)."""

import os
import socket
import time
from pathlib import Path
from typing import Final

from rankmend.errors import MessageError, SourceError
from recovery.api import job_socket
from recovery.api.controller_errors import LauncherError
from recovery.api.job_socket import JobAnswer, JobAsk
from recovery.launcher.processes.process_tree import read_state

# The controller's thread may be in a look for checkpoints (30 s at most) or write its journal.
PATIENCE_S: Final = 45.0
_LOOK_S: Final = 1.0  # between two looks whether the launcher is stopped
_STOPPED_LOOKS: Final = 2  # in a row: a debugger or Ctrl-Z holds it longer
_READ_BYTES: Final = 65536


class NoDoorError(LauncherError):
    """No launcher listens at the job's socket."""


def ask_door(folder: Path, ask: JobAsk, patience_s: float = PATIENCE_S) -> JobAnswer:
    """Return the launcher's answer; ``folder`` is the job's state folder.

    Raises NoDoorError where nobody listens, and LauncherError for no answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_LOOK_S)
        try:
            with job_socket.short_path(folder) as path:
                connection.connect(path)
        except PermissionError as error:
            raise LauncherError(
                f"the job of {folder} belongs to another user: only that user and root can decide about it"
            ) from error
        except BlockingIOError as error:
            raise LauncherError(
                f"the launcher of {folder} has too many questions to answer"
            ) from error
        except OSError as error:
            raise NoDoorError(f"no launcher listens in {folder}: {error.strerror}") from error
        pid, _uid = job_socket.peer_of(connection)
        try:
            connection.sendall(job_socket.encode_line(ask))
            line = _read_line(connection, pid, patience_s)
            return job_socket.decode_line(line, JobAnswer)
        except (OSError, MessageError) as error:
            raise LauncherError(f"no answer from the launcher (process {pid}): {error}") from error


def _read_line(connection: socket.socket, pid: int, patience_s: float) -> bytes:
    """Return the answer's line. On any error the caller closes the connection, and the launcher then does nothing."""
    body = b""
    until_s = time.monotonic() + patience_s
    stopped = 0
    while not body.endswith(b"\n"):
        try:
            part = connection.recv(_READ_BYTES)
        except TimeoutError:
            stopped = stopped + 1 if _is_stopped(pid) else 0
            if stopped >= _STOPPED_LOOKS:
                raise LauncherError(
                    f"the launcher (process {pid}) is stopped, so it does not answer, and nothing was done: "
                    f"kill -CONT {pid} lets it continue"
                ) from None
            if time.monotonic() >= until_s:
                raise LauncherError(
                    f"the launcher (process {pid}) has not answered within {patience_s:g} s: its storage may hang. "
                    f"`rankmend why` shows whether the command was carried out"
                ) from None
            continue
        if not part:
            raise MessageError("it closed the connection")
        body += part
        if len(body) > job_socket.ANSWER_BYTES_MAX:
            raise MessageError(f"more than {job_socket.ANSWER_BYTES_MAX} bytes")
    return body


def _is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by a signal or a debugger, as far as can be seen."""
    if pid in (0, os.getpid()):
        return False
    try:
        state = read_state(pid)
    except SourceError:
        return False
    return state is not None and state.letter in ("T", "t")
