"""The launchers of one attempt query each other whether they live, and so keep the lease.

A launcher stops its ranks when for `lease_s` it has reached neither the controller nor a majority
of the launchers of its attempt that still run it (docs/internals/design/0003-cluster.md). Then the
controller may assume that the ranks of a silent node have exited without a report from them.

A contact is dated by when the query began, never by when the answer came: the other launcher may
have emptied the attempt while its answer was under way. The clock is CLOCK_BOOTTIME, which goes on
while a machine is suspended, as that of the others does; CLOCK_MONOTONIC stands still, and a
launcher that wakes up would believe in a lease that is long over.

On the wire: three lines of JSON, each at most `LINE_BYTES_MAX`. The queried launcher sends a nonce;
the querying launcher replies with its own and an HMAC over both; the answer carries an HMAC over
both nonces and itself. The key is derived from the job's secret and its id, so nothing of another
job, and nothing recorded, passes.

All of it runs in one thread with an event loop of its own; the launcher's thread calls `Peers`.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from recovery.launcher.membership.node_membership import Lease, boot_time_s
from recovery.launcher.rendezvous.ports import PortRange, reserve
from recovery.messages.exchange import Endpoint, Peer
from recovery.messages.peer_key import PeerKey

log = logging.getLogger(__name__)

# share of the lease; of 15 s 2.5 s, longer than an exchange may take
NEIGHBOURS_EVERY: Final = 1 / 6
TURN_EVERY: Final = 1 / 3  # share of the lease
TURN_PEERS: Final = 8  # in a turn: all 31 of a long list within 4 turns
AGAIN_MAX: Final = 4  # of them, those that did not answer; the others must not wait for ever

LINE_BYTES_MAX: Final = 1024
SECRETS_MAX: Final = 4  # per job; a controller that lost the secret makes a new one
NONCE_BYTES: Final = 32
EXCHANGE_S_MAX: Final = 2.0  # a round trip and an HMAC: milliseconds; a busy machine takes longer
SERVED_MAX: Final = 256  # connections at once; a further one is closed and tries again
ASKED_AT_ONCE: Final = 64
# share of the lease without the controller after which it queries its peers
ASK_AFTER: Final = 1 / 3
ROUND_EVERY: Final = 1 / 6  # share of the lease: several rounds before it ends
UNREACHABLE_MAX: Final = 100
LOOK_S: Final = 0.2
CLOSE_S_MAX: Final = 5.0
_FAILURES: Final = (
    OSError,
    ValueError,
    asyncio.TimeoutError,  # its own class before Python 3.11
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    msgspec.MsgspecError,
)


class PeerTurns:
    """Chooses the launchers to query next, so that nodes which don't reach each other are found.

    The neighbours in the ring of group ranks come first and often: collectives send to them, and in
    a job of more than WITNESSES_MAX nodes no other launcher queries them. The lease's other peers
    follow in turns, each launcher's in another order. Time and chance are arguments. How long it
    takes to find a torn link: docs/internals/design/0003-cluster.md.
    """

    def __init__(self, launcher_id: str, shuffle: Callable[[list[Peer]], object]) -> None:
        """``launcher_id``: our own, which is not queried. ``shuffle`` reorders a list in place."""
        self._launcher_id = launcher_id
        self._shuffle = shuffle
        self._lease: Lease | None = None
        self._neighbours: list[Peer] = []
        self._queue: list[Peer] = []  # the others; the last one queried is at the end
        self._neighbours_at_s = self._turn_at_s = float("-inf")

    def due(self, lease: Lease, unreachable: Collection[str], now_s: float) -> list[Peer]:
        """Return the peers to query now: at once for a new lease, since its attempt may not live long."""
        if lease != self._lease:
            self._begin(lease)
        peers: list[Peer] = []
        if now_s - self._neighbours_at_s >= lease.lease_s * NEIGHBOURS_EVERY:
            self._neighbours_at_s = now_s
            peers += self._neighbours
        if now_s - self._turn_at_s >= lease.lease_s * TURN_EVERY:
            self._turn_at_s = now_s
            peers += self._take_turn(unreachable)
        return peers

    def _begin(self, lease: Lease) -> None:
        self._lease = lease
        self._neighbours_at_s = self._turn_at_s = float("-inf")
        self._neighbours = [
            neighbour
            for neighbour in lease.neighbours
            if neighbour.launcher_id != self._launcher_id
        ]
        known = {self._launcher_id, *(neighbour.launcher_id for neighbour in self._neighbours)}
        self._queue = [peer for peer in lease.peers if peer.launcher_id not in known]
        self._shuffle(self._queue)

    def _take_turn(self, unreachable: Collection[str]) -> list[Peer]:
        again = [item for item in self._queue if item.node in unreachable][:AGAIN_MAX]
        others = [item for item in self._queue if item not in again]
        turn = again + others[: TURN_PEERS - len(again)]
        self._queue = [item for item in self._queue if item not in turn] + turn
        return turn


@dataclass(frozen=True, slots=True)
class PeerWord:
    """What a launcher answers its peers."""

    job_id: str
    node: str
    launcher_id: str
    attempt: int  # its ranks' attempt; 0 before the first
    empty_through: int

    def runs(self, attempt: int) -> bool:
        return self.attempt == attempt and self.empty_through < attempt


class _Question(msgspec.Struct):
    nonce: str
    mac: str
    others: list[str] = []  # proofs by older secrets of the job, which a peer may have alone


class _Answer(msgspec.Struct):
    word: PeerWord
    mac: str


class Peers:
    """Answers peers from its start on, and queries them while there is a lease to keep."""

    def __init__(
        self,
        secret: str,
        word: PeerWord,
        address: str,
        ports: PortRange,
        bind_address: str = "",
        now_s: Callable[[], float] = boot_time_s,
    ) -> None:
        """Listen on a port of the range. ``address``: where the others reach this node."""
        self._keys: tuple[PeerKey, ...] = (PeerKey(secret, word.job_id),)  # the newest first
        self._secrets = [secret]
        self._word = word
        self._now_s = now_s
        reserved = reserve(ports, bind_address)
        self._listener: socket.socket = reserved.listen()
        self._listener.setblocking(False)
        self.endpoint = Endpoint(address, reserved.port)
        self._lease: Lease | None = None
        self._lock = threading.Lock()
        self._reached_at_s = float("-inf")
        self._controller_at_s = float("-inf")
        self._unreachable: dict[str, str] = {}  # node -> its launcher
        self._turns = PeerTurns(word.launcher_id, random.shuffle)
        self._served = 0
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    # The launcher's thread, and the thread that talks to the controller.

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(CLOSE_S_MAX)
        elif not self._loop.is_closed():  # never started
            self._loop.close()
        self._listener.close()

    def take_secret(self, secret: str) -> None:
        """Believe those who know this secret, too: a controller that lost its state has made it."""
        if secret in self._secrets:
            return
        self._secrets = [secret, *self._secrets][:SECRETS_MAX]
        self._keys = tuple(PeerKey(item, self._word.job_id) for item in self._secrets)

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(self._secrets)

    def tell(self, attempt: int, empty_through: int) -> None:
        """Answer so from now on. Must come before the same report to the controller."""
        word = self._word
        if (word.attempt, word.empty_through) != (attempt, empty_through):
            self._word = PeerWord(word.job_id, word.node, word.launcher_id, attempt, empty_through)

    def keep(self, lease: Lease | None) -> None:
        """Keep this lease from now on; None: none.

        Launchers that could not be reached are still reported between attempts, when the controller decides where to go on.
        """
        self._lease = lease
        if lease is not None:
            peers = {(item.node, item.launcher_id) for item in (*lease.peers, *lease.neighbours)}
            with self._lock:
                reported = self._unreachable.items()
                self._unreachable = {node: item for node, item in reported if (node, item) in peers}

    def note_controller(self, asked_at_s: float) -> None:
        """Hear that the controller has taken a report that was sent at that time."""
        with self._lock:
            self._controller_at_s = max(self._controller_at_s, asked_at_s)
            self._reached_at_s = max(self._reached_at_s, asked_at_s)

    @property
    def reached_at_s(self) -> float:
        """Return when the controller or a majority was reached last, by CLOCK_BOOTTIME."""
        with self._lock:
            return self._reached_at_s

    @property
    def unreachable(self) -> tuple[str, ...]:
        return tuple(self._unreachable)

    # The loop.

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, sock=self._listener, limit=LINE_BYTES_MAX)
        asking = asyncio.ensure_future(self._keep_asking())
        try:
            await self._ending.wait()
        finally:
            asking.cancel()
            server.close()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._served >= SERVED_MAX:
            writer.transport.abort()
            return
        self._served += 1
        try:
            await asyncio.wait_for(self._answer_one(reader, writer), EXCHANGE_S_MAX)
        except _FAILURES as error:
            log.debug("cannot answer a peer's query: %r", error)
        finally:
            self._served -= 1
            await _close(writer)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = secrets.token_hex(NONCE_BYTES)
        writer.write(ours.encode() + b"\n")
        await writer.drain()
        line = await reader.readuntil()
        question = msgspec.json.decode(line, type=_Question)
        requested = ("ask", self._word.node, ours, question.nonce)
        macs = (question.mac, *question.others[:SECRETS_MAX])
        key = next(
            (item for item in self._keys if any(item.holds(mac, *requested) for mac in macs)), None
        )
        if key is None:
            log.warning("a peer's query is not authenticated for this job")
            return
        word = self._word
        mac = key.prove("answer", ours, question.nonce, *_parts(word))
        writer.write(msgspec.json.encode(_Answer(word, mac)) + b"\n")
        await writer.drain()

    async def _keep_asking(self) -> None:
        asked_at_s = float("-inf")
        while True:
            await asyncio.sleep(LOOK_S)
            lease, now_s = self._lease, self._now_s()
            if lease is None or lease.lease_s <= 0:
                continue
            with self._lock:
                alone_s = now_s - self._controller_at_s
            try:
                if alone_s >= lease.lease_s * ASK_AFTER:
                    if now_s - asked_at_s >= lease.lease_s * ROUND_EVERY:
                        asked_at_s = now_s
                        await self._query_majority(lease, now_s)
                else:  # for `unreachable`
                    due = self._turns.due(lease, self._unreachable, now_s)
                    await asyncio.gather(*(self._query(peer, lease.attempt) for peer in due))
            except Exception:  # the next round is worth more than this one's reason
                log.exception("asking peers failed")

    async def _query_majority(self, lease: Lease, began_at_s: float) -> None:
        """Ask until more than half of the list are known to run the attempt."""
        others = [peer for peer in lease.peers if peer.launcher_id != self._word.launcher_id]
        random.shuffle(others)  # so that not all query the same ones
        is_counted = len(others) < len(lease.peers)  # a long list names only some peers
        running = int(is_counted and self._word.runs(lease.attempt))
        while others and 2 * running <= len(lease.peers):
            some, others = others[:ASKED_AT_ONCE], others[ASKED_AT_ONCE:]
            reported = await asyncio.gather(*(self._query(peer, lease.attempt) for peer in some))
            running += sum(reported)
        is_majority = 2 * running > len(lease.peers)
        if is_majority and self._word.runs(lease.attempt):
            with self._lock:
                self._reached_at_s = max(self._reached_at_s, began_at_s)

    async def _query(self, peer: Peer, attempt: int) -> bool:
        """Return whether a peer answers that it runs the attempt."""
        try:
            word = await asyncio.wait_for(self._exchange(peer), EXCHANGE_S_MAX)
        except _FAILURES as error:
            with self._lock:
                is_new = peer.node not in self._unreachable
                if is_new and len(self._unreachable) < UNREACHABLE_MAX:
                    log.warning("node %s does not answer: %r", peer.node, error)
                    self._unreachable = {**self._unreachable, peer.node: peer.launcher_id}
            return False
        with self._lock:
            reported = self._unreachable.items()
            self._unreachable = {node: item for node, item in reported if node != peer.node}
        return word.launcher_id == peer.launcher_id and word.runs(attempt)

    async def _exchange(self, peer: Peer) -> PeerWord:
        where = peer.endpoint
        reader, writer = await asyncio.open_connection(
            where.address, where.port, limit=LINE_BYTES_MAX
        )
        try:
            theirs = (await reader.readuntil()).decode("ascii").strip()
            ours = secrets.token_hex(NONCE_BYTES)
            keys = self._keys
            mac, *others = [key.prove("ask", peer.node, theirs, ours) for key in keys]
            writer.write(msgspec.json.encode(_Question(ours, mac, others)) + b"\n")
            await writer.drain()
            answer = msgspec.json.decode(await reader.readuntil(), type=_Answer)
        finally:
            await _close(writer)
        said = ("answer", theirs, ours, *_parts(answer.word))
        if not any(key.holds(answer.mac, *said) for key in keys):
            raise ValueError(f"the answer of {peer.node} carries no proof of this job")
        if (answer.word.job_id, answer.word.node) != (self._word.job_id, peer.node):
            raise ValueError(f"{answer.word.node} answers instead of {peer.node}")
        return answer.word


def _parts(word: PeerWord) -> tuple[str, ...]:
    return (
        word.job_id,
        word.node,
        word.launcher_id,
        str(word.attempt),
        str(word.empty_through),
    )


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), EXCHANGE_S_MAX)
