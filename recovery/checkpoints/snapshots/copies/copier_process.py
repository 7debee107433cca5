"""The copier: a process beside a launcher that sends, takes, holds and fetches copies of snapshots.

Its own process, so that gigabytes of encryption never hold up a launcher. It reads commands from its standard input,
writes events to its standard output (`copy_messages`), and ends with the launcher. The socket on which it listens is the
launcher's, so a copier that takes the place of a dead one is reached at the same port.
"""

import logging
import os
import queue
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import xxhash

from recovery.checkpoints.priority import yield_to_training
from recovery.checkpoints.snapshots.copies.copy_files import (
    HeldCopy,
    NewCopy,
    ReadSnapshot,
    copy_name,
    find_copies,
)
from recovery.checkpoints.snapshots.copies.copy_messages import (
    LINE_BYTES_MAX,
    BelieveSecrets,
    CopierCommand,
    CopierEvent,
    CopierWarned,
    CopyDropped,
    CopyFailed,
    CopyHeld,
    CopyPeer,
    CopySent,
    DropCopy,
    ExpectCopies,
    FetchFailed,
    FetchSnapshot,
    SendCopy,
    ServeFiles,
    SnapshotDigest,
    SnapshotFetched,
    StartCopier,
    decode_command,
    encode_line,
)
from recovery.checkpoints.snapshots.copies.link_speed import (
    TokenBucket,
    copy_bytes_per_s,
    interface_to,
)
from recovery.checkpoints.snapshots.copies.peer_wire import (
    FAILURES,
    HELLO_S_MAX,
    End,
    Get,
    PeerAnswer,
    PeerFaultError,
    PeerLine,
    Push,
    accept,
    connect,
    make_client_context,
    make_server_context,
)
from recovery.messages.exchange import CopyFault
from recovery.messages.peer_key import PeerKey

log = logging.getLogger(__name__)

SENDS_AT_ONCE: Final = 2
FETCHES_AT_ONCE: Final = 8
LINES_MAX: Final = 128  # connections from other copiers
WARN_EVERY_S: Final = 60.0


class SnapshotCopier:
    """All threads share it; `_lock` guards what is held and expected."""

    def __init__(
        self, start: StartCopier, listener: socket.socket, tell: Callable[[CopierEvent], None]
    ) -> None:
        self._node = start.node
        self._job_id = uuid.UUID(start.job_id)
        self._job = start.job_id
        self._folder = Path(start.folder)
        self._listener = listener
        self._tell = tell
        self._keys = _keys_of(start.secrets, start.job_id)
        self._server, self._certificate = make_server_context()
        self._client = make_client_context()
        self._limit = start.bytes_per_s
        self._buckets: dict[str | None, TokenBucket] = {}
        self._lock = threading.Lock()
        self._held: dict[SnapshotDigest, HeldCopy] = {}
        self._served: dict[SnapshotDigest, Path] = {}
        self._expected: ExpectCopies | None = None
        self._arriving: set[SnapshotDigest] = set()
        self._lines = 0
        self._warned_at_s = float("-inf")
        self._sends = ThreadPoolExecutor(SENDS_AT_ONCE, "send")
        self._fetches = ThreadPoolExecutor(FETCHES_AT_ONCE, "fetch")

    def start(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for held in find_copies(self._folder, self._job_id):
            self._held[held.snapshot] = held
            self._tell(CopyHeld(held.snapshot, held.node, held.world_size))
        threading.Thread(target=self._listen, name="listen", daemon=True).start()

    def obey(self, command: CopierCommand) -> None:
        match command:
            case SendCopy():
                self._sends.submit(self._send, command)
            case FetchSnapshot():
                self._fetches.submit(self._fetch, command)
            case ServeFiles(files=files):
                self._served = {file.snapshot: Path(file.path) for file in files}
            case ExpectCopies():
                with self._lock:
                    self._expected = command
            case DropCopy(snapshot=snapshot):
                self._drop(snapshot, "a newer one is whole")
            case BelieveSecrets(secrets=secrets):
                self._keys = _keys_of(secrets, self._job)
            case StartCopier():
                raise ValueError("it has been started")

    # To other nodes.

    def _send(self, command: SendCopy) -> None:
        snapshot, peer = command.file.snapshot, command.peer
        began_s = time.monotonic()
        try:
            path = Path(command.file.path)
            with ReadSnapshot(path, snapshot, self._job_id) as file, self._connect(peer) as line:
                self._push(line, file, snapshot, self._bucket_to(line.address))
        except PeerFaultError as error:
            self._tell(CopyFailed(snapshot, peer.node, error.fault, str(error)[:500]))
        except FAILURES as error:
            self._tell(CopyFailed(snapshot, peer.node, CopyFault.CUT, f"{error!r:.500}"))
        except Exception as error:  # the launcher waits for a word
            log.exception("sending a copy failed")
            self._tell(CopyFailed(snapshot, peer.node, CopyFault.LOST, f"{error!r:.500}"))
        else:
            self._tell(CopySent(snapshot, peer.node, time.monotonic() - began_s))

    def _push(
        self, line: PeerLine, file: ReadSnapshot, snapshot: SnapshotDigest, bucket: TokenBucket
    ) -> None:
        line.say(Push(snapshot, file.header.pack()))
        verdict = line.hear(PeerAnswer)
        _believe(verdict)
        if verdict.is_held:
            return
        for chunk in file.chunks():
            if (wait_s := bucket.take(len(chunk), time.monotonic())) > 0:
                time.sleep(wait_s)
            line.send(chunk)
        is_same = file.is_same()
        line.say(End(None if is_same else CopyFault.CHANGED))
        if not is_same:
            raise PeerFaultError(
                CopyFault.CHANGED, f"{snapshot} was overwritten while it was copied"
            )
        _believe(line.hear(PeerAnswer))

    def _bucket_to(self, address: str) -> TokenBucket:
        """Return the limit of the link to an address: all copies over it share one."""
        interface = None if self._limit is not None else interface_to(address)
        with self._lock:
            if interface not in self._buckets:
                rate = copy_bytes_per_s(interface) if self._limit is None else self._limit
                self._buckets[interface] = TokenBucket(rate, time.monotonic())
            return _LockedBucket(self._buckets[interface], self._lock)

    def _connect(self, peer: CopyPeer) -> PeerLine:
        return connect(peer.address, peer.port, self._client, self._node, peer.node, self._keys)

    # From other nodes.

    def _fetch(self, command: FetchSnapshot) -> None:
        snapshot, path = command.snapshot, Path(command.path)
        began_s = time.monotonic()
        try:
            if command.peer is None:
                self._copy_here(command)
            else:
                with self._connect(command.peer) as line:
                    line.say(Get(snapshot))
                    verdict = line.hear(PeerAnswer)
                    _believe(verdict)
                    with NewCopy(path, verdict.head, snapshot, self._job_id, command.rank) as new:
                        new.fill(line.receive)
                        _believe(line.hear(End))
                        new.commit(command.peer.node)
        except PeerFaultError as error:
            self._tell(FetchFailed(snapshot, command.path, error.fault, str(error)[:500]))
        except FAILURES as error:
            self._tell(FetchFailed(snapshot, command.path, CopyFault.CUT, f"{error!r:.500}"))
        except Exception as error:  # the launcher waits for a word
            log.exception("fetching a snapshot failed")
            self._tell(FetchFailed(snapshot, command.path, CopyFault.LOST, f"{error!r:.500}"))
        else:
            took_s = time.monotonic() - began_s
            self._tell(SnapshotFetched(snapshot, command.path, took_s))

    def _copy_here(self, command: FetchSnapshot) -> None:
        snapshot, path = command.snapshot, Path(command.path)
        with ReadSnapshot(self._path_of(snapshot), snapshot, self._job_id) as file:
            chunks = _Refill(file)
            head = file.header.pack()
            with NewCopy(path, head, snapshot, self._job_id, command.rank) as new:
                new.fill(chunks.fill)
                try:
                    new.commit(self._node)
                except PeerFaultError:
                    self._drop(snapshot, "its content has changed")
                    raise

    def _path_of(self, snapshot: SnapshotDigest) -> Path:
        held = self._held.get(snapshot)
        path = self._served.get(snapshot) if held is None else held.path
        if path is None:
            raise PeerFaultError(CopyFault.MISSING, f"{snapshot} is not here")
        return path

    def _drop(self, snapshot: SnapshotDigest, reason: str) -> None:
        with self._lock:
            held = self._held.pop(snapshot, None)
        if held is not None:
            held.path.unlink(missing_ok=True)
            self._tell(CopyDropped(snapshot, reason))

    # What other copiers ask.

    def _listen(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError as error:  # no descriptor is left, for one
                log.warning("no connection can be taken: %s", error)
                time.sleep(1.0)
                continue
            with self._lock:
                has_room = self._lines < LINES_MAX
                self._lines += has_room
            if not has_room:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        whose = "a peer"
        late = threading.Timer(2 * HELLO_S_MAX, _cut, [connection])
        late.daemon = True
        late.start()  # each read has a timeout, but many small ones have none together
        try:
            with accept(
                connection, self._server, self._certificate, self._node, self._keys
            ) as line:
                whose = line.node
                request = line.hear_request()
                late.cancel()
                if isinstance(request, Push):
                    self._take(line, request)
                else:
                    self._give(line, request.snapshot)
        except (*FAILURES, PeerFaultError) as error:
            self._warn(f"a connection of {whose} was ended: {error}")
        except Exception:  # the others go on
            log.exception("serving a peer failed")
        finally:
            late.cancel()
            with self._lock:
                self._lines -= 1

    def _take(self, line: PeerLine, push: Push) -> None:
        """Take a copy of another node's snapshot."""
        snapshot = push.snapshot
        if snapshot in self._held:
            line.say(PeerAnswer(is_held=True))
            return
        try:
            self._check_expected(line.node, snapshot)
        except PeerFaultError as error:
            line.say(PeerAnswer(error.fault, str(error)[:500]))
            raise
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)  # somebody may have removed it
            path = self._folder / copy_name(snapshot)
            with NewCopy(path, push.head, snapshot, self._job_id) as new:
                line.say(PeerAnswer())
                new.fill(line.receive)
                _believe(line.hear(End))
                self._check_expected(line.node, snapshot, is_new=False)  # no order came meanwhile
                held = new.commit(line.node)
        except PeerFaultError as error:
            line.say(PeerAnswer(error.fault, str(error)[:500]))
            return
        finally:
            with self._lock:
                self._arriving.discard(snapshot)
        with self._lock:
            self._held[snapshot] = held
        self._tell(CopyHeld(snapshot, line.node, held.world_size))
        line.say(PeerAnswer())

    def _check_expected(self, node: str, snapshot: SnapshotDigest, *, is_new: bool = True) -> None:
        with self._lock:
            expected = self._expected
            if expected is not None and snapshot.attempt < expected.attempt:
                text = f"attempt {snapshot.attempt} is over: {expected.attempt} runs"
                raise PeerFaultError(CopyFault.FENCED, text)
            if (
                expected is None
                or snapshot.attempt != expected.attempt
                or expected.nodes.get(snapshot.rank) != node
                or (is_new and snapshot in self._arriving)
            ):
                raise PeerFaultError(CopyFault.REFUSED, f"{snapshot} of {node} is not expected")
            self._arriving.add(snapshot)

    def _give(self, line: PeerLine, snapshot: SnapshotDigest) -> None:
        """Give another node a snapshot that lies here."""
        try:
            file = ReadSnapshot(self._path_of(snapshot), snapshot, self._job_id)
        except PeerFaultError as error:
            line.say(PeerAnswer(error.fault, str(error)[:500]))
            return
        with file:
            line.say(PeerAnswer(head=file.header.pack()))
            digest = xxhash.xxh3_128()
            for chunk in file.chunks():
                digest.update(chunk)
                line.send(chunk)
            fault = None if file.is_same() else CopyFault.CHANGED
            if fault is None and digest.hexdigest() != snapshot.digest:
                fault = CopyFault.DAMAGED
                self._drop(snapshot, "its content has changed")
            line.say(End(fault))

    def _warn(self, text: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            is_due = now_s - self._warned_at_s >= WARN_EVERY_S
            if is_due:
                self._warned_at_s = now_s
        if is_due:
            self._tell(CopierWarned(text[:500]))


class _LockedBucket(TokenBucket):
    """A bucket that several threads use."""

    def __init__(self, bucket: TokenBucket, lock: threading.Lock) -> None:
        self._bucket = bucket
        self._lock = lock

    def take(self, size_bytes: int, now_s: float) -> float:
        with self._lock:
            return self._bucket.take(size_bytes, now_s)


class _Refill:
    """Fills chunks from a file, as a connection does."""

    def __init__(self, file: ReadSnapshot) -> None:
        self._chunks = file.chunks()

    def fill(self, chunk: memoryview) -> None:
        piece = next(self._chunks, None)
        if piece is None or len(piece) != len(chunk):
            raise PeerFaultError(CopyFault.CHANGED, "the file was cut off")
        chunk[:] = piece


def _believe(answer: PeerAnswer | End) -> None:
    """Raise PeerFaultError for what the other side reports."""
    if answer.fault is not None:
        raise PeerFaultError(
            answer.fault, getattr(answer, "message", "") or "the other side's word"
        )


def _keys_of(secrets: tuple[str, ...], job_id: str) -> tuple[PeerKey, ...]:
    return tuple(PeerKey(secret, job_id) for secret in secrets)


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def main(arguments: Sequence[str]) -> None:
    """Obey until standard input ends. ``arguments``: the descriptor of the listening socket."""
    listener = socket.socket(fileno=int(arguments[0]))
    yield_to_training()
    events: queue.SimpleQueue[CopierEvent] = queue.SimpleQueue()
    threading.Thread(target=_write, args=(events,), daemon=True).start()
    copier: SnapshotCopier | None = None
    for line in iter(lambda: sys.stdin.buffer.readline(LINE_BYTES_MAX + 1), b""):
        command = decode_command(line)
        if copier is None:
            if not isinstance(command, StartCopier):
                raise ValueError(f"{type(command).__name__} before the start")
            copier = SnapshotCopier(command, listener, events.put)
            copier.start()
        else:
            copier.obey(command)
    os._exit(0)  # transfers under way end with the launcher


def _write(events: "queue.SimpleQueue[CopierEvent]") -> None:
    while True:
        try:
            sys.stdout.buffer.write(encode_line(events.get()))
            sys.stdout.buffer.flush()
        except OSError:  # the launcher has ended
            os._exit(0)
