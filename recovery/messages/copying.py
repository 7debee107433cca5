"""What a controller asks of launchers about copies of snapshots on other nodes.

It rides on the answers to their reports and is requested anew with each of them: nothing of it is journaled, and a lost
answer costs a second. docs/internals/design/0006-snapshots.md.
"""

from dataclasses import dataclass

from recovery.messages.exchange import HeldSnapshot, Peer, SnapshotPoint


@dataclass(frozen=True, slots=True)
class HeldFor:
    """Another node, and those of its ranks whose copies the launcher accepts."""

    node: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """One round of copies: of every rank its first snapshot of the attempt from one step on."""

    attempt: int
    from_step: int | None  # None: nothing to copy for now
    holders: tuple[Peer, ...]  # the copiers that get this node's snapshots
    held_for: tuple[HeldFor, ...]
    # the newest step of which every rank has its copies, of any attempt
    complete: SnapshotPoint | None


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """A snapshot to bring to this node, where its rank is to run."""

    snapshot: HeldSnapshot
    source: Peer  # the copier that has it: this node's own, where it holds the copy itself
    rank: int  # that begins from it: its own, or another one that is equal


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """All requests to one node for now."""

    copy: CopyOrder | None = None
    fetches: tuple[FetchOrder, ...] = ()
