"""Chooses the launchers to ask next, so that nodes which don't reach each other are found.

The neighbours in the ring of group ranks come first and often: collectives send to them, and in a job
of more than WITNESSES_MAX nodes no other launcher asks them. The lease's other peers follow in turns,
each launcher's in another order. Time and chance are arguments. How long it takes to find a torn link:
docs/internals/design/0003-cluster.md.
"""

from collections.abc import Callable, Collection
from typing import Final

from recovery.launcher.membership.lease import Lease
from recovery.messages.exchange import Peer

NEIGHBOURS_EVERY: Final = (
    1 / 6
)  # share of the lease; of 15 s 2.5 s, longer than an exchange may take
TURN_EVERY: Final = 1 / 3  # share of the lease
TURN_PEERS: Final = 8  # in a turn: all 31 of a long list within 4 turns
AGAIN_MAX: Final = 4  # of them, those that did not answer; the others must not wait for ever


class PeerTurns:
    def __init__(self, launcher_id: str, shuffle: Callable[[list[Peer]], object]) -> None:
        """``launcher_id``: our own, which is not asked. ``shuffle`` reorders a list in place."""
        self._launcher_id = launcher_id
        self._shuffle = shuffle
        self._lease: Lease | None = None
        self._neighbours: list[Peer] = []
        self._queue: list[Peer] = []  # the others; whoever was asked last is at the end
        self._neighbours_at_s = self._turn_at_s = float("-inf")

    def due(self, lease: Lease, unreachable: Collection[str], now_s: float) -> list[Peer]:
        """Return the peers to ask now: at once for a new lease, since its attempt may not live long."""
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
        self._neighbours = [one for one in lease.neighbours if one.launcher_id != self._launcher_id]
        known = {self._launcher_id, *(one.launcher_id for one in self._neighbours)}
        self._queue = [one for one in lease.peers if one.launcher_id not in known]
        self._shuffle(self._queue)

    def _take_turn(self, unreachable: Collection[str]) -> list[Peer]:
        again = [one for one in self._queue if one.node in unreachable][:AGAIN_MAX]
        others = [one for one in self._queue if one not in again]
        turn = again + others[: TURN_PEERS - len(again)]
        self._queue = [one for one in self._queue if one not in turn] + turn
        return turn
