"""A launcher's part in copying snapshots: asks its ranks, its copier and its watch, and says what has come of it.

What the controller asks for (`recovery.messages.copying.CopyRequest`) is compared with what is there, each turn anew.
For the launcher's thread.
"""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.hook.snapshots import layout
from recovery.checkpoints.snapshots.copies.copy_messages import (
    CopierCommand,
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
)
from recovery.checkpoints.snapshots.keeping import ask_to_keep, ask_to_leave_copied
from recovery.checkpoints.snapshots.watch import KnownSnapshot, SnapshotWatch
from recovery.messages.copying import CopyOrder, CopyRequest, FetchOrder
from recovery.messages.exchange import CopyFaultTold, Endpoint, HeldSnapshot, Peer

log = logging.getLogger(__name__)

TURN_S: Final = 1.0
# How long ranks leave a snapshot without being asked again: a launcher that is stopped for less loses no copy.
KEEP_S: Final = 30.0
# And what the newest copies are of: a recovery may take so long, and all it costs is a file in the turns.
KEEP_COPIED_S: Final = 600.0
# Without an answer of the controller for so long, nothing more is requested of the ranks.
REQUEST_S_MAX: Final = 60.0
RETRY_S: Final = 10.0
FETCH_RETRY_S: Final = 2.0  # a recovery waits for it
FAULTS_MAX: Final = 64

_Job = tuple[SnapshotDigest, str]  # a snapshot, and the node at the other end


class CopierLink(Protocol):
    @property
    def endpoint(self) -> Endpoint | None:
        """Return where other copiers reach it; None: it is dead."""
        ...

    def believe(self, secrets: tuple[str, ...]) -> None:
        """Accept who knows one of these secrets of the job, the newest first."""
        ...

    def send(self, command: CopierCommand) -> None: ...

    def take_events(self) -> list[CopierEvent]:
        """Return what has happened since the last call. Must not block."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class CopyCounts:
    """Since the launcher's start."""

    sent_bytes: int = 0
    sent: int = 0
    failed: int = 0
    fetched_bytes: int = 0


class NodeCopies:
    def __init__(
        self, folder: Path, node: str, watch: SnapshotWatch, copier: CopierLink, clock: Clock
    ) -> None:
        """``folder``: of this node's own ranks' snapshots."""
        self._folder = folder
        self._node = node
        self._watch = watch
        self._copier = copier
        self._clock = clock
        self._request = CopyRequest()
        self._reported_at_s = float("-inf")
        self._turned_at_s = float("-inf")
        self._under_way: set[_Job] = set()  # that are sent
        self._fetching: dict[str, _Job] = {}  # by the path to which it is brought
        self._sent: set[tuple[SnapshotDigest, str, str]] = set()  # with the launcher there
        self._retry_at_s: dict[_Job, float] = {}
        self._faults: dict[_Job, CopyFaultTold] = {}
        self._held: dict[SnapshotDigest, tuple[int, float]] = {}  # world size, and when it came
        self._served: tuple[LocalFile, ...] = ()
        self._expected: ExpectCopies | None = None
        self.counts = CopyCounts()

    @property
    def endpoint(self) -> Endpoint | None:
        return self._copier.endpoint

    def take_request(self, request: CopyRequest) -> None:
        self._request = request
        self._reported_at_s = self._clock.now_s()

    def tick(self, attempt: int, ranks: Collection[int]) -> bool:
        """Do what is due; ``ranks``: those of the running attempt here, or none. Return whether there is news."""
        now_s = self._clock.now_s()
        events = self._copier.take_events()
        for event in events:
            self._take(event, now_s)
        if events or now_s - self._turned_at_s >= TURN_S:
            self._turned_at_s = now_s
            self._turn(attempt, ranks, now_s)
        return bool(events)

    def held(self) -> tuple[HeldSnapshot, ...]:
        """Return the whole copies of other nodes' snapshots. Their age counts from when they came."""
        now_s = self._clock.now_s()
        return tuple(
            HeldSnapshot(
                rank=item.rank,
                attempt=item.attempt,
                step=item.step,
                world_size=world_size,
                size_bytes=item.size_bytes,
                digest=item.digest,
                age_s=max(0.0, now_s - at_s),
            )
            for item, (world_size, at_s) in self._held.items()
        )

    def faults(self) -> tuple[CopyFaultTold, ...]:
        return tuple(self._faults.values())

    def believe(self, secrets: tuple[str, ...]) -> None:
        self._copier.believe(secrets)

    def close(self) -> None:
        self._copier.close()

    # What has happened.

    def _take(self, event: CopierEvent, now_s: float) -> None:
        match event:
            case CopySent(snapshot=snapshot, node=node):
                self._end(snapshot, node)
                self._sent.add((snapshot, node, self._launcher_of(node)))
                self.counts.sent += 1
                self.counts.sent_bytes += snapshot.size_bytes
            case SnapshotFetched(snapshot=snapshot, path=path):
                job = self._fetching.pop(path, None)
                if job is not None:
                    self._faults.pop(job, None)
                self.counts.fetched_bytes += snapshot.size_bytes
                self._watch.look_now((Path(path),))
            case CopyFailed(snapshot=snapshot, node=node, fault=fault, message=text):
                self._end(snapshot, node)
                self._fail(CopyFaultTold(snapshot.rank, *snapshot.age_key, node, fault), snapshot)
                log.warning("%s was not copied to %s: %s", snapshot, node, text)
            case FetchFailed(snapshot=snapshot, path=path, fault=fault, message=text):
                job = self._fetching.pop(path, None)
                if job is not None:
                    reported = CopyFaultTold(snapshot.rank, *snapshot.age_key, job[1], fault)
                    self._fail(reported, snapshot)
                log.warning("%s was not fetched: %s", snapshot, text)
            case CopyHeld(snapshot=snapshot, world_size=world_size):
                self._held[snapshot] = world_size, now_s
            case CopyDropped(snapshot=snapshot):
                self._held.pop(snapshot, None)
            case CopierWarned(message=text):
                log.warning("%s", text)
            case CopierLost(message=text):
                log.warning("the copier of snapshots died: %s", text)
                self._under_way.clear()
                self._fetching.clear()
                self._held.clear()  # it says again what it finds
                self._served, self._expected = (), None

    def _end(self, snapshot: SnapshotDigest, node: str) -> None:
        self._under_way.discard((snapshot, node))
        self._faults.pop((snapshot, node), None)

    def _fail(self, fault: CopyFaultTold, snapshot: SnapshotDigest) -> None:
        self.counts.failed += 1
        while len(self._faults) >= FAULTS_MAX:
            del self._faults[next(iter(self._faults))]
        self._faults[snapshot, fault.node] = fault
        is_fetch = any(fetch.source.node == fault.node for fetch in self._request.fetches)
        pause_s = FETCH_RETRY_S if is_fetch else RETRY_S
        self._retry_at_s[snapshot, fault.node] = self._clock.now_s() + pause_s

    def _launcher_of(self, node: str) -> str:
        order = self._request.copy
        holders = () if order is None else order.holders
        return next((holder.launcher_id for holder in holders if holder.node == node), "")

    # What is due.

    def _turn(self, attempt: int, ranks: Collection[int], now_s: float) -> None:
        known = self._watch.known
        self._serve(known)
        for fetch in self._request.fetches:
            self._fetch(fetch, known, now_s)
        order = self._request.copy
        if order is None or now_s - self._reported_at_s > REQUEST_S_MAX:
            return
        self._expect(order)
        self._drop_before(order)
        now_ns = time.monotonic_ns()
        if order.complete is not None:
            here = set(ranks) or {item.head.rank for item in known}
            until_ns = now_ns + int(KEEP_COPIED_S * 1e9)
            ask_to_leave_copied(self._folder, here, order.complete, until_ns)
        if order.attempt == attempt and ranks and order.from_step is not None:
            until_ns = now_ns + int(KEEP_S * 1e9)
            ask_to_keep(self._folder, ranks, order.from_step, until_ns)
            self._send(order, order.from_step, known, ranks, now_s)

    def _serve(self, known: Collection[KnownSnapshot]) -> None:
        files = tuple(_local(snapshot) for snapshot in known if not snapshot.is_damaged)
        if files != self._served:
            self._served = files
            self._copier.send(ServeFiles(files))

    def _expect(self, order: CopyOrder) -> None:
        nodes = {rank: item.node for item in order.held_for for rank in item.ranks}
        expected = ExpectCopies(order.attempt, nodes)
        if expected != self._expected:
            self._expected = expected
            self._copier.send(expected)

    def _drop_before(self, order: CopyOrder) -> None:
        """Free the copies of rounds before the newest whole one."""
        whole = order.complete
        if whole is None:
            return
        for held in list(self._held):
            if (held.attempt, held.step) < (whole.attempt, whole.step):
                del self._held[held]
                self._copier.send(DropCopy(held))

    def _send(
        self,
        order: CopyOrder,
        from_step: int,
        known: Collection[KnownSnapshot],
        ranks: Collection[int],
        now_s: float,
    ) -> None:
        unread: list[Path] = []
        for rank in ranks:
            of_round = [
                snapshot
                for snapshot in known
                if (snapshot.head.rank, snapshot.head.attempt) == (rank, order.attempt)
                if snapshot.head.step >= from_step and not snapshot.is_damaged
            ]
            first = min(of_round, key=lambda snapshot: snapshot.head.step, default=None)
            if first is None:
                unread += self._watch.files_from(rank, order.attempt, from_step)[:1]
                continue
            file = _local(first)
            for peer in order.holders:
                job = file.snapshot, peer.node
                is_done = (*job, peer.launcher_id) in self._sent or job in self._under_way
                if not is_done and now_s >= self._retry_at_s.get(job, 0.0):
                    self._under_way.add(job)
                    self._copier.send(SendCopy(file, _peer(peer)))
        if unread:
            self._watch.look_now(unread)
        self._sent = {item for item in self._sent if item[0].step >= from_step}
        self._retry_at_s = {item: at_s for item, at_s in self._retry_at_s.items() if at_s > now_s}

    def _fetch(self, order: FetchOrder, known: Collection[KnownSnapshot], now_s: float) -> None:
        wanted = order.snapshot
        own = [item for item in known if item.head.rank == order.rank]
        is_there = any(
            (item.head.attempt, item.head.step, item.digest.whole)
            == (wanted.attempt, wanted.step, wanted.digest)
            and not item.is_damaged
            for item in own
        )
        snapshot = SnapshotDigest(
            wanted.attempt, wanted.rank, wanted.step, wanted.size_bytes, wanted.digest
        )
        job = snapshot, order.source.node
        point = wanted.attempt, wanted.step
        path = str(self._folder / layout.file_name(order.rank, _free_buffer(own, point)))
        if is_there or path in self._fetching or now_s < self._retry_at_s.get(job, 0.0):
            return
        is_own = order.source.node == self._node
        self._fetching[path] = job
        self._copier.send(
            FetchSnapshot(snapshot, path, order.rank, None if is_own else _peer(order.source))
        )


def _free_buffer(own: Collection[KnownSnapshot], point: tuple[int, int]) -> int:
    """Return which of a rank's files to put a snapshot of this attempt and step into.

    One that holds this step with other content, lest the rank restore that; else none, a damaged one, or the older one.
    """
    by_path = {snapshot.path.name: snapshot for snapshot in own}
    for name, item in by_path.items():
        if (item.head.attempt, item.head.step) == point:
            return int(name.split(".")[1])
    ages = []
    for buffer in range(layout.IN_TURNS):
        there = next(
            (item for name, item in by_path.items() if name.split(".")[1] == str(buffer)), None
        )
        is_worth = there is not None and not there.is_damaged
        ages.append((there.head.attempt, there.head.step) if is_worth and there else (-1, -1))
    return ages.index(min(ages))


def _local(known: KnownSnapshot) -> LocalFile:
    head = known.head
    digest = SnapshotDigest(head.attempt, head.rank, head.step, head.size_bytes, known.digest.whole)
    return LocalFile(digest, str(known.path))


def _peer(peer: Peer) -> CopyPeer:
    return CopyPeer(peer.node, peer.launcher_id, peer.endpoint.address, peer.endpoint.port)
