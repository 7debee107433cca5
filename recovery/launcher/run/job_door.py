"""The door of a job on one node: takes the queries and commands of its user, and of root, from other terminals.

Its thread serves one connection at a time, each within bounds of time and size. The controller's
thread carries the commands out, between two reports, and journals them with the user's id as the
kernel gives it.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Final

from rankmend.errors import JournalError, MessageError, RankmendError
from recovery.api import job_socket, wire
from recovery.api.job_socket import JobAnswer, JobAsk
from recovery.console.views.plan_view import foresee, view_plan
from recovery.controller.cluster.gate import OpenGate
from recovery.controller.job.controller import Controller
from recovery.controller.job.planner import Scene
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.spelling import say_unknown
from recovery.journal.ledger import Ledger
from recovery.journal.node_records import LeaveCause, LeaveReason
from recovery.messages.outside import PersonCommand

log = logging.getLogger(__name__)

ASK_S_MAX: Final = 5.0  # for a line that a command sends at once
_BACKLOG: Final = 8
_LOOK_S: Final = 0.2  # between two looks whether the asker is still there
_JOIN_S_MAX: Final = 10.0
_READ_BYTES: Final = 4096

Answerer = Callable[[JobAsk, str], "Future[JobAnswer]"]


def answer_person(
    controller: Controller, settings: JobSettings, ask: JobAsk, who: str
) -> JobAnswer:
    """Carry out the command, or return the plan that it requests. Raises JournalError. For the controller's thread."""
    if ask.command is not None:
        return _obey(controller, settings, ask.command, who)
    ledger, node = controller.ledger, ask.node
    if ledger.ended is not None:
        return _refused(410, f"the job has ended: {ledger.ended.reason}")
    if node is not None and node not in ledger.members:
        return _refused(404, f"the job has {say_unknown('node', node, ledger.members)}")
    scene = _scene(settings, ledger, node)
    judge = OpenGate().judge
    return JobAnswer(plan=foresee(ledger, settings, settings.name, scene, judge, node))


def _obey(
    controller: Controller, settings: JobSettings, requested: wire.JobCommand, who: str
) -> JobAnswer:
    if requested.plan_id:
        pending = view_plan(controller.ledger, settings.job_id, settings.name)
        if pending is None or pending.plan_id != requested.plan_id:
            return _refused(409, "the named plan is no longer pending")
    acted = controller.take_command(
        PersonCommand(
            requested.act,
            who,
            requested.reason,
            requested.incident_id,
            requested.node,
            requested.key,
        )
    )
    if acted.is_refused:
        refusal = "" if acted.refusal is None else acted.refusal.value
        return _refused(409, acted.result, refusal)
    return JobAnswer(done=wire.Done(acted.result))


def _refused(status: int, text: str, refusal: str = "") -> JobAnswer:
    return JobAnswer(problem=wire.Problem(text, refusal=refusal), status=status)


def _scene(settings: JobSettings, ledger: Ledger, lost: str | None) -> Scene:
    """Return the job's only node as a plan would find it, or as lost."""
    placed = tuple(place.node for place in ledger.placement)
    must = {lost: LeaveReason(LeaveCause.SILENT)} if lost in placed and lost is not None else {}
    return Scene(placed, 0, settings.sizes, must)


class JobDoor:
    def __init__(self, folder: Path, answer: Answerer) -> None:
        """``folder``: the job's state folder, locked by this process. ``answer`` gets a query and the user who sent it."""
        self._folder = folder
        self._answer = answer
        self._listener: socket.socket | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)

    def open(self) -> None:
        """Listen, or raise OSError. A socket that a killed launcher left is replaced: the folder's lock is ours."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), 0o600)  # the mode of the file that `bind` makes
            with job_socket.short_path(self._folder) as path:
                Path(path).unlink(missing_ok=True)
                listener.bind(path)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._thread.start()

    def close(self) -> None:
        if self._listener is None:
            return
        self._ends.set()
        with contextlib.suppress(OSError):
            (self._folder / job_socket.NAME).unlink()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends a waiting `accept`
        self._thread.join(_JOIN_S_MAX)
        self._listener.close()

    def _run(self) -> None:
        assert self._listener is not None, "opened"
        while not self._ends.is_set():
            try:
                connection, _address = self._listener.accept()
            except OSError as error:
                if not self._ends.wait(1.0):  # such as too many open files
                    log.warning("cannot take a connection", extra={"error": str(error)})
                continue
            with connection:
                try:
                    connection.settimeout(ASK_S_MAX)
                    self._serve(connection)
                except (OSError, MessageError) as error:
                    log.warning("question dropped", extra={"error": str(error)})

    def _serve(self, connection: socket.socket) -> None:
        _pid, uid = job_socket.peer_of(connection)
        if uid not in (0, os.geteuid()):
            text = f"the job belongs to uid {os.geteuid()}: only that user and root may decide about it, not uid {uid}"
            _send(connection, _problem(403, text))
            return
        line = _read_line(connection)
        try:
            ask = job_socket.decode_line(line, JobAsk)
        except MessageError as error:
            _send(connection, _problem(400, str(error)))
            return
        if _has_hung_up(connection):  # while this process was stopped
            return
        future = self._answer(ask, f"uid {uid}")
        answer = self._wait(future, connection)
        if answer is not None:
            _send(connection, answer)

    def _wait(self, future: "Future[JobAnswer]", connection: socket.socket) -> JobAnswer | None:
        """Return the answer, or None if nobody waits for it any longer: then nothing is done."""
        while not future.done():
            if _has_hung_up(connection):
                future.cancel()
                return None
            if self._ends.is_set():
                future.cancel()
            wait((future,), _LOOK_S)
        if future.cancelled():
            return _problem(410, "the job has ended")
        error = future.exception()
        return future.result() if error is None else _explain(error)


def _explain(error: BaseException) -> JobAnswer:
    if isinstance(error, JournalError):
        return _problem(503, f"the journal can't be written: {error}")
    if isinstance(error, RankmendError):
        return _problem(400, str(error))
    log.error("question failed", exc_info=error)
    return _problem(500, "the launcher failed on this; its log has the traceback")


def _problem(status: int, text: str) -> JobAnswer:
    return JobAnswer(problem=wire.Problem(text), status=status)


def _send(connection: socket.socket, answer: JobAnswer) -> None:
    connection.sendall(job_socket.encode_line(answer))


def _read_line(connection: socket.socket) -> bytes:
    """Return the question's line; each part must come within ASK_S_MAX."""
    body = b""
    while not body.endswith(b"\n"):
        part = connection.recv(_READ_BYTES)
        if not part:
            raise MessageError("the asker closed the connection in the middle of its question")
        body += part
        if len(body) > job_socket.ASK_BYTES_MAX:
            raise MessageError(f"a question of more than {job_socket.ASK_BYTES_MAX} bytes")
    return body


def _has_hung_up(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(ASK_S_MAX)
