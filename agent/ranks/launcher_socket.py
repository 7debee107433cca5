"""The agent's Unix socket: takes progress files from launchers (`rankmend.agent_socket`).

The kernel shows the peer's uid (SO_PEERCRED). A descriptor is looked at only once it is known
to lie on tmpfs: a peer could pass a file of a file system of his own (FUSE), and asking that
for anything could hang the agent. A connection that breaks a rule is closed, with one log line,
and its ranks are dropped; nothing else notices.
"""

import array
import fcntl
import logging
import os
import selectors
import socket
import stat
import struct
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Final

from agent.ranks.table import CONNECTIONS_MAX, RankTable, ShownRank
from rankmend import agent_socket
from rankmend.clock import Clock
from rankmend.errors import ConfigError, SourceError
from rankmend.hook import layout
from rankmend.progress import ProgressReader

log = logging.getLogger(__name__)

FIRST_MESSAGE_S_MAX: Final = 10.0  # a launcher sends right after connecting
MESSAGES_PER_MINUTE_MAX: Final = 120  # one an attempt: a restart takes longer than 0.5 s
_LOG_LINES_PER_MINUTE_MAX: Final = 20
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


@dataclass(slots=True)
class _Peer:
    connection: socket.socket
    number: int
    pid: int
    uid: int
    connected_at_s: float
    messages_at_s: deque[float] = field(
        default_factory=lambda: deque(maxlen=MESSAGES_PER_MINUTE_MAX)
    )


class RankSocket:
    """Listens in a thread of its own and keeps a `RankTable` up to date."""

    def __init__(self, path: Path, table: RankTable, clock: Clock) -> None:
        self.path = path
        self._table = table
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        self._next_number = 1
        self._logged_at_s: deque[float] = deque(maxlen=_LOG_LINES_PER_MINUTE_MAX)
        self._lock_descriptor, self._listener = _listen(path)
        self._stopper, self._stopped = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = Thread(target=self._serve, name="rank-socket", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and remove the socket."""
        self._stopper.close()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)  # the thread never blocks: this takes microseconds
        self.path.unlink(missing_ok=True)
        os.close(self._lock_descriptor)

    def _serve(self) -> None:
        is_stopped = False
        while not is_stopped:
            # only a peer that may say nothing is waited for with a clock
            timeout_s = 1.0 if self._has_silent_peers() else None
            for key, _events in self._selector.select(timeout=timeout_s):
                if key.fileobj is self._stopped:
                    is_stopped = True
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._receive(self._peers[key.fd])
            self._close_silent_peers()
        for peer in list(self._peers.values()):
            self._close(peer)
        self._listener.close()
        self._stopped.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _address = self._listener.accept()
        except OSError as error:  # aborted by the peer, or no descriptor left
            self._log_refusal("cannot accept a launcher", error=str(error))
            return
        connection.setblocking(False)
        number, self._next_number = self._next_number, self._next_number + 1
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        pid, uid, _gid = _CREDENTIALS.unpack(credentials)
        try:
            self._table.open(number, uid)
        except SourceError as error:
            connection.close()
            self._log_refusal("launcher refused", pid=pid, uid=uid, error=str(error))
            return
        peer = _Peer(connection, number, pid, uid, self._clock.now_s())
        self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, peer: _Peer) -> None:
        readers: list[ProgressReader] = []
        try:
            data, descriptors = _receive_packet(peer.connection)
            if not data:
                _close_all(descriptors)
                log.info("launcher disconnected", extra={"pid": peer.pid, "uid": peer.uid})
                self._close(peer)
                return
            readers = _open_readers(descriptors, peer.uid)
            self._count_message(peer)
            message = agent_socket.decode(data, self._clock.now_s())
            if isinstance(message, agent_socket.Told):
                if readers:
                    raise SourceError("findings came with files")
                self._table.tell(peer.number, message)
            elif isinstance(message, agent_socket.ShownCheckpoint):
                if readers:
                    raise SourceError("figures of checkpoints came with files")
                self._table.show_checkpoint(peer.number, message)
            else:
                self._table.show(peer.number, _match(message, readers))
        except BlockingIOError:
            return
        except (SourceError, OSError) as error:
            for reader in readers:
                reader.close()
            self._log_refusal("launcher refused", pid=peer.pid, uid=peer.uid, error=str(error))
            self._close(peer)
            return
        fields: dict[str, object] = {"job_id": str(message.job_id)}
        if isinstance(message, agent_socket.Told):
            log.info("findings told", extra={**fields, "findings": len(message.findings)})
            return
        if isinstance(message, agent_socket.ShownCheckpoint):
            log.debug("checkpoint figures shown", extra=fields)
            return
        fields |= {"attempt": message.attempt, "ranks": len(message.ranks)}
        log.info("ranks shown", extra={"pid": peer.pid, "uid": peer.uid, **fields})

    def _count_message(self, peer: _Peer) -> None:
        now_s = self._clock.now_s()
        sent = peer.messages_at_s
        if len(sent) == MESSAGES_PER_MINUTE_MAX and now_s - sent[0] < 60:
            raise SourceError(f"more than {MESSAGES_PER_MINUTE_MAX} messages in a minute")
        sent.append(now_s)

    def _has_silent_peers(self) -> bool:
        return any(not peer.messages_at_s for peer in self._peers.values())

    def _close_silent_peers(self) -> None:
        now_s = self._clock.now_s()
        for peer in list(self._peers.values()):
            if not peer.messages_at_s and now_s - peer.connected_at_s > FIRST_MESSAGE_S_MAX:
                self._log_refusal(
                    "launcher refused", pid=peer.pid, uid=peer.uid, error="it sends nothing"
                )
                self._close(peer)

    def _close(self, peer: _Peer) -> None:
        self._selector.unregister(peer.connection)
        del self._peers[peer.connection.fileno()]
        self._table.drop(peer.number)
        peer.connection.close()

    def _log_refusal(self, message: str, **fields: object) -> None:
        """Count a refusal, and log it unless a client floods the log."""
        self._table.count_refusal()
        now_s = self._clock.now_s()
        logged = self._logged_at_s
        if len(logged) < _LOG_LINES_PER_MINUTE_MAX or now_s - logged[0] >= 60:
            logged.append(now_s)
            log.warning(message, extra=fields)


def _listen(path: Path) -> tuple[int, socket.socket]:
    """Return the descriptor that holds the lock on ``path``, and a socket that listens there."""
    listener = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    )
    lock = -1
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.is_socket():
            path.unlink()  # left by an agent that was killed: the lock says that it is gone
        listener.bind(str(path))
        path.chmod(0o666)  # any user may show his own ranks
        listener.listen(CONNECTIONS_MAX)
    except BlockingIOError as error:
        listener.close()
        os.close(lock)
        raise ConfigError(f"another agent listens on the socket {path}") from error
    except OSError as error:
        listener.close()
        if lock >= 0:
            os.close(lock)
        raise ConfigError(f"cannot listen on the socket {path}: {error}") from error
    return lock, listener


def _receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return one packet with its descriptors; no data means that the peer has closed."""
    room = agent_socket.RANKS_MAX * array.array("i").itemsize
    data, ancillary, flags, _address = connection.recvmsg(
        agent_socket.MESSAGE_BYTES_MAX, socket.CMSG_SPACE(room), socket.MSG_CMSG_CLOEXEC
    )
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        _close_all(list(descriptors))
        raise SourceError(f"packet of more than {agent_socket.MESSAGE_BYTES_MAX} bytes or files")
    return data, list(descriptors)


def _open_readers(descriptors: list[int], uid: int) -> list[ProgressReader]:
    """Return a reader for each descriptor, or close them all and raise SourceError."""
    readers: list[ProgressReader] = []
    waiting = deque(enumerate(descriptors))
    try:
        while waiting:
            place, descriptor = waiting[0]
            _check_file(descriptor, uid, f"file {place}")
            waiting.popleft()  # from here on the reader owns it, also when it refuses it
            readers.append(ProgressReader(descriptor, f"file {place}"))
    except SourceError:
        for reader in readers:
            reader.close()
        _close_all([descriptor for _place, descriptor in waiting])
        raise
    return readers


def _check_file(descriptor: int, uid: int, name: str) -> None:
    try:
        # answered by the kernel alone, and only for files of tmpfs (fcntl(2), EINVAL elsewhere)
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise SourceError(f"{name} is not a file on a tmpfs such as /dev/shm") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{name} is not a regular file (mode {found.st_mode:o})")
    if found.st_uid != uid:
        raise SourceError(f"{name} belongs to uid {found.st_uid}, not to {uid}")
    if found.st_size != layout.FILE_SIZE:
        raise SourceError(f"{name} is {found.st_size} bytes long instead of {layout.FILE_SIZE}")


def _match(offer: agent_socket.Offer, readers: list[ProgressReader]) -> list[ShownRank]:
    """Return the offered ranks with their files, or raise SourceError where they differ."""
    if len(readers) != len(offer.ranks):
        raise SourceError(f"{len(readers)} files for {len(offer.ranks)} ranks")
    shown = []
    for rank, reader in zip(offer.ranks, readers, strict=True):
        identity = reader.identity
        reported = (offer.job_id, offer.attempt, rank.rank, rank.local_rank)
        if reported != (identity.job_id, identity.attempt, identity.rank, identity.local_rank):
            raise SourceError(f"the file of rank {rank.rank} belongs to {identity}")
        shown.append(ShownRank(reader, rank.pid, offer.job_name))
    return shown


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
