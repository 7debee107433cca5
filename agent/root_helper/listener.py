"""The root helper's socket: checks clients and queries, and runs each query once at a time.

Only root and one uid may ask (SO_PEERCRED). A question is one short line; whoever sends something
else, says nothing or asks too much at once is refused, with a line in the log. An answer is
given again for `REUSE_S`, so that asking often costs nothing but asking.
"""

import logging
import os
import selectors
import signal
import socket
import stat
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore, Event, Lock, Thread
from typing import Final

from agent.root_helper.program_list import Paths, programs_of
from agent.root_helper.program_runner import ProgramRunner
from agent.root_helper.questions import (
    QUERY_S_MAX,
    QUESTION_BYTES_MAX,
    HelperAnswer,
    HelperQuery,
    ProgramOutcome,
    ProgramResult,
    decode_question,
    encode_answer,
    encode_refusal,
)
from rankmend.clock import Clock
from rankmend.errors import ConfigError, SourceError
from rankmend.signals import SignalInbox

log = logging.getLogger(__name__)

IDLE_S: Final = 5.0  # the agent asks at once what it asks each minute; an answer is reused so long
REUSE_S: Final = 5.0  # half of the shortest interval of the agent's collectors that ask
CONNECTIONS_MAX: Final = 9  # one for each query of one agent, and three to spare
QUESTION_S_MAX: Final = 2.0
ANSWER_S_MAX: Final = 10.0  # for a peer that does not read
_LOG_LINES_PER_MINUTE_MAX: Final = 20
_STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


@dataclass(slots=True)
class _Slot:
    """One query: who runs it holds the lock."""

    lock: Lock = field(default_factory=Lock)
    results: tuple[ProgramResult, ...] = ()
    ran_at_s: float | None = None


class HelperService:
    """Answers questions in threads; `serve` returns after `stop`, SIGTERM or SIGINT."""

    def __init__(
        self,
        listener: socket.socket,
        allowed_uid: int,
        clock: Clock,
        paths: Paths,
        excluded: Sequence[str] = (),
        idle_s: float | None = None,
    ) -> None:
        """``idle_s``: end after so long without a question, where systemd starts it again."""
        self._idle_s = idle_s
        self._listener = listener
        self._allowed_uids = frozenset({0, allowed_uid})
        self._clock = clock
        self._paths = paths
        self._excluded = tuple(excluded)
        self._slots = {query: _Slot() for query in HelperQuery}
        self._peers = 0  # who is being answered
        self._peers_lock = Lock()
        self._places = BoundedSemaphore(CONNECTIONS_MAX)
        self._runner = ProgramRunner(clock)
        self._logged_at_s: deque[float] = deque(maxlen=_LOG_LINES_PER_MINUTE_MAX)
        self._stopping = Event()
        self._stopper, self._stopped = socket.socketpair()

    def serve(self, inbox: SignalInbox | None = None) -> None:
        """``inbox``: heeded here and not in a signal handler, which could meet a lock of its own thread."""
        self._listener.setblocking(False)  # a peer may be gone before it is accepted
        idle_since_s = self._clock.now_s()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            if inbox is not None:
                selector.register(inbox, selectors.EVENT_READ)
            while not self._stopping.is_set():
                if selector.select(timeout=1.0):
                    idle_since_s = self._clock.now_s()
                elif self._is_idle_since(idle_since_s):
                    break  # a question from now on waits in systemd's socket
                if inbox is not None:
                    self._heed(inbox.read())
                self._accept()
        self._listener.close()
        self._stopped.close()

    def stop(self) -> None:
        """End `serve` and kill the programs that run.

        The listener is closed and never shut down: it may be systemd's, who listens on.
        """
        self._stopping.set()
        self._stopper.close()
        self._runner.stop()

    def _heed(self, come: frozenset[signal.Signals]) -> None:
        if stopping := come & _STOPPING:
            log.info("stopping", extra={"signal": min(stopping).name})
            self.stop()
        elif come:
            log.info("there is no configuration to reload", extra={"signal": min(come).name})

    def _is_idle_since(self, since_s: float) -> bool:
        if self._idle_s is None or self._clock.now_s() - since_s < self._idle_s:
            return False
        # who was left behind is remembered here only, and is not to be started again
        return self._peers == 0 and not self._runner.has_stuck()

    def _accept(self) -> None:
        try:
            connection, _address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._log_refusal("cannot accept a peer", error=str(error))
            self._stopping.wait(0.1)  # no descriptor left: not at full speed
            return
        if not self._places.acquire(blocking=False):
            connection.close()
            self._log_refusal("peer refused", error="too many at once")
            return
        with self._peers_lock:
            self._peers += 1
        Thread(target=self._handle, args=(connection,), name="peer", daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        try:
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
            pid, uid, _gid = _CREDENTIALS.unpack(credentials)
            try:
                if uid not in self._allowed_uids:
                    raise SourceError(f"uid {uid} may not send queries")
                reply = encode_answer(self._answer(decode_question(self._read(connection))))
            except SourceError as error:
                self._log_refusal("question refused", pid=pid, uid=uid, error=str(error))
                reply = encode_refusal(str(error))
            self._send(connection, reply)
        except OSError as error:  # it has hung up, or doesn't read
            self._log_refusal("peer lost", error=str(error))
        except Exception:
            log.exception("question failed")
        finally:
            connection.close()
            with self._peers_lock:
                self._peers -= 1
            self._places.release()

    def _answer(self, query: HelperQuery) -> HelperAnswer:
        slot = self._slots[query]
        if not slot.lock.acquire(blocking=False):
            raise SourceError(f"another {query.value} query is in progress")
        try:
            now_s = self._clock.now_s()
            if slot.ran_at_s is None or now_s - slot.ran_at_s >= REUSE_S:
                deadline_s = now_s + QUERY_S_MAX
                slot.results = tuple(
                    self._runner.run(program, deadline_s)
                    for program in programs_of(query, self._paths, self._excluded)
                )
                slot.ran_at_s = now_s  # values may be as old as the start of the run
                self._log_failures(query, slot.results)
            return HelperAnswer(query, self._clock.now_s() - slot.ran_at_s, slot.results)
        finally:
            slot.lock.release()

    def _read(self, connection: socket.socket) -> bytes:
        """Return the first line, which has a short time to come."""
        line = b""
        deadline_s = self._clock.now_s() + QUESTION_S_MAX
        while not line.endswith(b"\n"):
            left_s = deadline_s - self._clock.now_s()
            if left_s <= 0:
                raise SourceError("no query came in time")
            connection.settimeout(left_s)
            try:
                data = connection.recv(QUESTION_BYTES_MAX + 1 - len(line))
            except TimeoutError as error:
                raise SourceError("no query came in time") from error
            if not data:
                raise SourceError(f"the query was cut off after {len(line)} bytes")
            line += data
            if len(line) > QUESTION_BYTES_MAX:
                raise SourceError(f"query of more than {QUESTION_BYTES_MAX} bytes")
        return line

    def _send(self, connection: socket.socket, reply: bytes) -> None:
        deadline_s = self._clock.now_s() + ANSWER_S_MAX
        rest = memoryview(reply)
        while rest:
            connection.settimeout(max(0.001, deadline_s - self._clock.now_s()))
            rest = rest[connection.send(rest) :]

    def _log_failures(self, query: HelperQuery, results: Sequence[ProgramResult]) -> None:
        for result in results:
            if result.outcome is ProgramOutcome.FAILED:
                fields = {"query": query.value, "of": result.name, "error": result.error}
                self._log_refusal("program failed", **fields)

    def _log_refusal(self, message: str, **fields: object) -> None:
        """Log it unless a client floods the log."""
        now_s = self._clock.now_s()
        logged = self._logged_at_s
        if len(logged) < _LOG_LINES_PER_MINUTE_MAX or now_s - logged[0] >= 60:
            logged.append(now_s)
            log.warning(message, extra=fields)


def listen(path: Path, uid: int) -> socket.socket:
    """Return a socket at a path that ``uid`` may connect to, or raise ConfigError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder = path.parent.lstat()
        if folder.st_uid not in (0, os.geteuid()) or folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            # root would bind, unlink and chown where somebody else decides what a name means
            raise ConfigError(
                f"other users may write to {path.parent}: the helper's socket can't be there"
            )
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise ConfigError(f"another helper listens on the socket {path}")
            path.unlink()
        old_mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(old_mask)
        os.chown(path, uid, -1, follow_symlinks=False)
        listener.listen(CONNECTIONS_MAX)
    except ConfigError:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on the socket {path}: {error}") from error
    return listener


def inherited_listener(listen_pid: str | None, listen_fds: str | None) -> socket.socket | None:
    """Return the socket that systemd has opened for us (sd_listen_fds(3)), if it has."""
    if listen_pid != str(os.getpid()) or not listen_fds:
        return None
    if listen_fds != "1":
        raise ConfigError(f"systemd passes {listen_fds} sockets, expected 1")
    listener = socket.socket(fileno=3)
    if listener.family != socket.AF_UNIX or listener.type != socket.SOCK_STREAM:
        raise ConfigError("systemd passes a socket that is not a ListenStream= of a path")
    os.set_inheritable(3, False)
    return listener
