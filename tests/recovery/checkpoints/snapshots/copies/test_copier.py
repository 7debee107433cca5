"""Two copiers, each a process: what one sends the other holds, and only what it should."""

import contextlib
import os
import secrets
import select
import signal
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from rankmend.hook.snapshots import layout
from recovery.checkpoints.snapshots.copies import copier as copier_module
from recovery.checkpoints.snapshots.copies.copier import CopierProcess
from recovery.checkpoints.snapshots.copies.copy_messages import (
    CopierEvent,
    CopierLost,
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
    LocalFile,
    SendCopy,
    ServeFiles,
    SnapshotDigest,
    SnapshotFetched,
    StartCopier,
)
from recovery.checkpoints.snapshots.files import OpenSnapshot
from recovery.launcher.rendezvous.ports import read_default_range, reserve
from recovery.messages.exchange import CopyFault, Endpoint
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.snapshot_files import JOB_ID, write_snapshot

pytestmark = pytest.mark.process

MIB = 1 << 20


@dataclass
class Node:
    """A launcher's folders and its copier."""

    name: str
    folder: Path
    secret: str = "the job's"
    bytes_per_s: float = 1e12
    job_id: uuid.UUID = JOB_ID
    events: list[CopierEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.own.mkdir(parents=True)
        start = StartCopier(
            str(self.job_id),
            self.name,
            f"{self.name}-1",
            (self.secret,),
            str(self.copies),
            self.bytes_per_s,
        )
        reserved = reserve(read_default_range(), "127.0.0.1")
        endpoint = Endpoint("127.0.0.1", reserved.port)
        self.copier = CopierProcess(start, reserved.listen(), endpoint, SystemClock())

    @property
    def own(self) -> Path:
        return self.folder / "snapshots"

    @property
    def copies(self) -> Path:
        return self.folder / "copies"

    @property
    def peer(self) -> CopyPeer:
        return CopyPeer(self.name, f"{self.name}-1", "127.0.0.1", self.port)

    @property
    def port(self) -> int:
        return self.copier._endpoint.port

    def keep(self, data: bytes, **more: int) -> LocalFile:
        """Write a snapshot as a rank does, and say what it is."""
        path = write_snapshot(self.own, data, **more)
        with OpenSnapshot(path, JOB_ID) as file:
            head = file.read_head()
            assert head is not None
            digest = file.digest().whole
        return LocalFile(
            SnapshotDigest(head.attempt, head.rank, head.step, head.size_bytes, digest), str(path)
        )

    def wait(self, *kinds: type) -> CopierEvent:
        """Return the next event of one of these kinds."""

        def look() -> CopierEvent | None:
            self.events += self.copier.take_events()
            for number, event in enumerate(self.events):
                if isinstance(event, kinds):
                    return self.events.pop(number)
            return None

        return eventually(look, lambda: f"one of {kinds}, but {self.events}")

    def fetch(self, command: FetchSnapshot) -> CopierEvent:
        """Ask again, as a launcher does, until the other copier has read what it serves."""

        def look() -> CopierEvent | None:
            self.copier.send(command)
            event = self.wait(SnapshotFetched, FetchFailed)
            is_early = isinstance(event, FetchFailed) and event.fault is CopyFault.MISSING
            return None if is_early else event

        return eventually(look, "the other copier knows the snapshot", pause_s=0.05)

    def copy(self, command: SendCopy, fault: CopyFault) -> CopierEvent:
        """Ask again until the copy fails so: the other copier reads late what it is to expect."""

        def look() -> CopierEvent | None:
            self.copier.send(command)
            event = self.wait(CopySent, CopyFailed)
            is_as_wanted = isinstance(event, CopyFailed) and event.fault is fault
            return event if is_as_wanted or isinstance(event, CopySent) else None

        return eventually(look, f"a copy that fails with {fault}", pause_s=0.05)


Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Node] = []

    def make_node(name: str, **more: object) -> Node:
        made.append(Node(name, tmp_path / f"{name}-{len(made)}", **more))  # type: ignore[arg-type]
        return made[-1]

    yield make_node
    for node in made:
        node.copier.close()


@pytest.fixture
def one(make: Make) -> Node:
    return make("n1")


@pytest.fixture
def other(make: Make) -> Node:
    """A node whose copier has read what it is to expect: it answers the command after that one."""
    node = make("n2")
    node.copier.send(ExpectCopies(1, {0: "n1"}))
    nothing = SnapshotDigest(1, 0, 1, 8, "0" * 32)
    node.copier.send(FetchSnapshot(nothing, str(node.own / "nothing"), 0, None))
    node.wait(FetchFailed)
    return node


def content_of(path: Path) -> bytes:
    return path.read_bytes()[layout.DATA_AT :]


def test_copy_has_the_bytes_of_the_snapshot_and_comes_back_as_one(
    one: Node, other: Node, make: Make
) -> None:
    kept = one.keep(os.urandom(40 * MIB))
    spare = make("n3")

    one.copier.send(SendCopy(kept, other.peer))
    assert isinstance(one.wait(CopySent, CopyFailed), CopySent)
    held = other.wait(CopyHeld)
    assert (held.snapshot, held.node, held.world_size) == (kept.snapshot, "n1", 2)
    target = spare.own / layout.file_name(0, 0)
    spare.copier.send(FetchSnapshot(kept.snapshot, str(target), 0, other.peer))

    assert isinstance(spare.wait(SnapshotFetched, FetchFailed), SnapshotFetched)
    (copy,) = other.copies.iterdir()
    assert content_of(copy) == content_of(target) == content_of(Path(kept.path))
    with OpenSnapshot(target, JOB_ID) as file:
        head = file.read_head()
        assert head is not None
        assert (head.rank, head.step, file.digest().whole) == (0, 10, kept.snapshot.digest)


def test_holder_that_gets_the_rank_itself_takes_its_own_copy(one: Node, other: Node) -> None:
    kept = one.keep(b"weights" * 1000)
    one.copier.send(SendCopy(kept, other.peer))
    other.wait(CopyHeld)
    target = other.own / layout.file_name(0, 1)

    other.copier.send(FetchSnapshot(kept.snapshot, str(target), 0, None))

    other.wait(SnapshotFetched)
    assert content_of(target) == content_of(Path(kept.path))


def test_snapshot_of_a_rank_that_moves_is_fetched_from_its_old_node(one: Node, other: Node) -> None:
    kept = one.keep(b"weights" * 1000)
    one.copier.send(ServeFiles((kept,)))
    target = other.own / layout.file_name(0, 1)

    fetched = other.fetch(FetchSnapshot(kept.snapshot, str(target), 0, one.peer))

    assert isinstance(fetched, SnapshotFetched)
    assert content_of(target) == content_of(Path(kept.path))


@pytest.mark.parametrize("is_local", [False, True])
def test_snapshot_of_an_equal_rank_becomes_that_of_another_one(
    one: Node, other: Node, *, is_local: bool
) -> None:
    kept = one.keep(b"weights" * 1000)
    one.copier.send(ServeFiles((kept,)))
    target, peer = (one, None) if is_local else (other, one.peer)
    path = target.own / layout.file_name(1, 0)

    fetched = target.fetch(FetchSnapshot(kept.snapshot, str(path), 1, peer))

    assert isinstance(fetched, SnapshotFetched)
    assert content_of(path) == content_of(Path(kept.path))
    with OpenSnapshot(path, JOB_ID) as file:
        head = file.read_head()
        assert head is not None
        assert (head.rank, head.step, file.digest().whole) == (1, 10, kept.snapshot.digest)


def test_what_was_copied_already_is_not_sent_again(one: Node, other: Node) -> None:
    kept = one.keep(b"weights" * 1000)
    for _time in range(2):
        one.copier.send(SendCopy(kept, other.peer))
        assert isinstance(one.wait(CopySent, CopyFailed), CopySent)

    other.wait(CopyHeld)
    assert not [event for event in other.copier.take_events() if isinstance(event, CopyHeld)]


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        (ExpectCopies(2, {0: "n1"}), CopyFault.FENCED),
        (ExpectCopies(1, {1: "n1"}), CopyFault.REFUSED),
        (ExpectCopies(1, {0: "n3"}), CopyFault.REFUSED),
    ],
)
def test_copy_that_is_not_expected_is_refused(
    one: Node, other: Node, expected: ExpectCopies, fault: CopyFault
) -> None:
    kept = one.keep(b"weights" * 1000)
    other.copier.send(expected)

    failed = one.copy(SendCopy(kept, other.peer), fault)

    assert isinstance(failed, CopyFailed)
    assert failed.fault is fault
    assert list(other.copies.iterdir()) == []


def test_stranger_to_the_job_can_neither_give_nor_take(make: Make, one: Node, other: Node) -> None:
    stranger = make("n1", secret="a guess")
    kept = one.keep(b"weights" * 1000)
    one.copier.send(SendCopy(kept, other.peer))
    other.wait(CopyHeld)
    own = stranger.keep(b"poison!" * 1000, step=11)

    stranger.copier.send(SendCopy(own, other.peer))
    stranger.copier.send(FetchSnapshot(kept.snapshot, str(stranger.own / "x"), 0, other.peer))

    for kind in (CopyFailed, FetchFailed):
        assert stranger.wait(kind).fault is CopyFault.UNPROVEN
    assert "no proof" in other.wait(CopierWarned).message
    assert [path.name for path in other.copies.iterdir()] == ["rank-0.1.10.copy"]


def test_impostor_that_relays_the_proofs_is_found_out(
    one: Node, other: Node, tmp_path: Path
) -> None:
    """It ends the encryption with a certificate of its own, and passes on what both sides say."""
    from recovery.checkpoints.snapshots.copies.peer_wire import (
        make_client_context,
        make_server_context,
    )

    context, _digest = make_server_context()
    listener = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        near = context.wrap_socket(listener.accept()[0], server_side=True)
        far = make_client_context().wrap_socket(socket.create_connection(("127.0.0.1", other.port)))
        relay_both(near, far)

    threading.Thread(target=relay, daemon=True).start()
    one.copier.send(SendCopy(one.keep(b"weights" * 1000), other.peer))
    assert isinstance(one.wait(CopySent, CopyFailed), CopySent)
    kept = one.keep(b"weights" * 1000, step=20)
    port = listener.getsockname()[1]

    one.copier.send(SendCopy(kept, CopyPeer("n2", "n2-1", "127.0.0.1", port)))

    assert one.wait(CopySent, CopyFailed).fault is CopyFault.UNPROVEN
    listener.close()


def relay_both(near: ssl.SSLSocket, far: ssl.SSLSocket) -> None:
    """Pass on what either side says, in one thread: a TLS connection may not be used by two."""
    try:
        while True:
            ready, _writable, _failed = select.select([near, far], [], [])
            for source in ready:
                target = far if source is near else near
                source.settimeout(0.05)  # what is readable may be a session ticket and no data
                target.settimeout(DEADLINE_S)
                with contextlib.suppress(TimeoutError):
                    if not (data := source.recv(65536)):
                        return
                    target.sendall(data)
    except OSError:
        pass
    finally:
        near.close()
        far.close()


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        target.close()


@dataclass
class Wire:
    """A TCP relay that changes one byte far into what is sent, or cuts it off there."""

    port: int
    at: int
    cuts: bool = False

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        near, _address = self.listener.accept()
        far = socket.create_connection(("127.0.0.1", self.port))
        threading.Thread(target=pump, args=(far, near), daemon=True).start()
        passed = 0
        try:
            while data := bytearray(near.recv(65536)):
                if passed <= self.at < passed + len(data):
                    if self.cuts:
                        break
                    data[self.at - passed] ^= 1
                passed += len(data)
                far.sendall(data)
        except OSError:
            pass  # the other end has found it out
        finally:
            for end in (far, near):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # the thread that reads it keeps it open
                end.close()


@pytest.mark.parametrize("cuts", [False, True], ids=["flips", "cuts"])
def test_torn_or_changed_transfer_leaves_the_copy_before(
    one: Node, other: Node, *, cuts: bool
) -> None:
    first = one.keep(os.urandom(MIB))
    one.copier.send(SendCopy(first, other.peer))
    one.wait(CopySent)
    wire = Wire(other.port, 2 * MIB, cuts)
    second = one.keep(os.urandom(4 * MIB), step=20, buffer=1, sequence=2)
    peer = CopyPeer("n2", "n2-1", "127.0.0.1", wire.listener.getsockname()[1])

    one.copier.send(SendCopy(second, peer))

    assert one.wait(CopySent, CopyFailed).fault is CopyFault.CUT
    other.wait(CopierWarned)
    assert [path.name for path in other.copies.iterdir()] == ["rank-0.1.10.copy"]


def test_bit_that_flips_on_the_holder_is_found_when_it_is_fetched(
    one: Node, other: Node, make: Make
) -> None:
    kept = one.keep(os.urandom(4 * MIB))
    one.copier.send(SendCopy(kept, other.peer))
    other.wait(CopyHeld)
    (copy,) = other.copies.iterdir()
    with copy.open("r+b") as file:
        file.seek(2 * MIB)
        flipped = bytes([file.read(1)[0] ^ 1])
        file.seek(2 * MIB)
        file.write(flipped)
    spare = make("n3")

    spare.copier.send(
        FetchSnapshot(kept.snapshot, str(spare.own / "rank-0.0.snapshot"), 0, other.peer)
    )

    assert spare.wait(FetchFailed, SnapshotFetched).fault is CopyFault.DAMAGED
    assert other.wait(CopyDropped).snapshot == kept.snapshot
    assert list(spare.own.iterdir()) == []
    assert list(other.copies.iterdir()) == []


def is_being_received(node: Node) -> bool:
    try:
        return any(one.stat().st_size > 0 for one in node.copies.iterdir())
    except FileNotFoundError:  # not there yet
        return False


def test_snapshot_that_is_overwritten_while_it_is_sent_is_not_held(make: Make, other: Node) -> None:
    slow = make("n1", bytes_per_s=2.0 * MIB)
    kept = slow.keep(os.urandom(8 * MIB))
    slow.copier.send(SendCopy(kept, other.peer))
    eventually(lambda: is_being_received(other), "a part of it")

    slow.keep(os.urandom(8 * MIB), step=30, sequence=3)

    assert slow.wait(CopySent, CopyFailed).fault is CopyFault.CHANGED
    eventually(lambda: not list(other.copies.iterdir()), "the part of it is gone")


def test_missing_snapshot_is_told(one: Node, other: Node) -> None:
    unknown = SnapshotDigest(1, 0, 10, 100, "0" * 32)

    one.copier.send(SendCopy(LocalFile(unknown, str(one.own / "nothing")), other.peer))
    one.copier.send(FetchSnapshot(unknown, str(one.own / "rank-0.0.snapshot"), 0, other.peer))

    assert one.wait(CopyFailed).fault is CopyFault.MISSING
    assert one.wait(FetchFailed).fault is CopyFault.MISSING


def test_node_that_does_not_answer_is_unreachable(one: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    kept = one.keep(b"weights")

    one.copier.send(SendCopy(kept, CopyPeer("n2", "x", "127.0.0.1", port)))

    assert one.wait(CopyFailed).fault is CopyFault.UNREACHABLE


def test_copier_that_was_killed_is_replaced_at_its_port_with_its_copies(
    one: Node, other: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier_module, "PAUSE_S", 0.1)
    kept = one.keep(os.urandom(MIB))
    one.copier.send(SendCopy(kept, other.peer))
    other.wait(CopyHeld)
    damaged = other.copies / "rank-0.1.9.copy"
    damaged.write_bytes(b"\0" * 10_000)
    port = other.port

    assert other.copier.pid is not None
    os.kill(other.copier.pid, signal.SIGKILL)

    lost = other.wait(CopierLost)
    assert not lost.is_final
    assert other.wait(CopyHeld).snapshot == kept.snapshot
    assert other.port == port
    eventually(lambda: not damaged.exists(), "the damaged copy is gone")


def test_copies_are_freed_on_request(one: Node, other: Node) -> None:
    kept = one.keep(b"weights" * 1000)
    one.copier.send(SendCopy(kept, other.peer))
    other.wait(CopyHeld)

    other.copier.send(DropCopy(kept.snapshot))

    other.wait(CopyDropped)
    assert list(other.copies.iterdir()) == []


def test_copier_begins_with_its_first_command_and_ends_with_its_launcher(one: Node) -> None:
    assert one.copier.pid is None
    assert one.copier.endpoint is not None
    one.copier.send(ExpectCopies(1, {}))
    pid = one.copier.pid
    assert pid is not None

    one.copier.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_garbage_and_silence_cost_nothing(one: Node, other: Node) -> None:
    silent = [socket.create_connection(("127.0.0.1", other.port)) for _one in range(8)]
    for size in (1, 100, 100_000):
        with socket.create_connection(("127.0.0.1", other.port)) as garbage:
            with contextlib.suppress(OSError):
                garbage.sendall(secrets.token_bytes(size))

    kept = one.keep(b"weights" * 1000)
    one.copier.send(SendCopy(kept, other.peer))

    assert isinstance(one.wait(CopySent, CopyFailed), CopySent)
    for connection in silent:
        connection.close()
