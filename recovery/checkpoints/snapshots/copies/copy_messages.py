"""What a launcher and its copier tell each other: typed messages, a line of JSON each.

Both ends have the same version and user. A path never comes from another node.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from recovery.messages.exchange import CopyFault

LINE_BYTES_MAX: Final = 4 << 20  # a list of 1,024 ranks with paths is some 300 kB
RANKS_MAX: Final = 1024  # of one node, or held for others by one node
NAME_MAX: Final = 256
TEXT_MAX: Final = 500  # characters of a message for a person

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Rank = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]  # XXH3-128 of data and structure
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Port = Annotated[int, Meta(ge=1, le=65_535)]


class SnapshotDigest(Struct, frozen=True):
    """A whole snapshot: which one, and what its data and structure are (`recovery.checkpoints.snapshots.files.Digest.whole`)."""

    attempt: Rank
    rank: Rank
    step: Count
    size_bytes: Count
    digest: Digest

    @property
    def age_key(self) -> tuple[int, int]:
        """Return what grows from each snapshot of a rank to its next."""
        return self.attempt, self.step

    def __str__(self) -> str:
        return f"rank {self.rank}'s snapshot of attempt {self.attempt}, step {self.step}"


class CopyPeer(Struct, frozen=True):
    """The copier of another launcher."""

    node: Name
    launcher_id: Name
    address: Name
    port: Port


class LocalFile(Struct, frozen=True):
    snapshot: SnapshotDigest
    path: str


# Commands.


class StartCopier(Struct, frozen=True, tag=True):
    """The first command."""

    job_id: Name
    node: Name
    launcher_id: Name
    secrets: Annotated[tuple[str, ...], Meta(min_length=1, max_length=4)]  # the newest first
    folder: str  # for copies of other nodes' snapshots; its parent exists
    bytes_per_s: float | None  # None: a share of the link's speed


class BelieveSecrets(Struct, frozen=True, tag=True):
    secrets: Annotated[tuple[str, ...], Meta(min_length=1, max_length=4)]  # the newest first


class ExpectCopies(Struct, frozen=True, tag=True):
    """Accept copies of these ranks of this attempt, each from its node, and of no others and no other attempt."""

    attempt: Rank
    nodes: Annotated[dict[Rank, Name], Meta(max_length=RANKS_MAX)]  # rank -> node


class SendCopy(Struct, frozen=True, tag=True):
    """`CopySent` or `CopyFailed` follows, or neither where a newer one replaces it in the queue."""

    file: LocalFile
    peer: CopyPeer


class ServeFiles(Struct, frozen=True, tag=True):
    """Let peers fetch these snapshots of our own ranks, and no others of theirs."""

    files: Annotated[tuple[LocalFile, ...], Meta(max_length=2 * RANKS_MAX)]


class FetchSnapshot(Struct, frozen=True, tag=True):
    """Bring a snapshot to this path, as the one of a rank: `SnapshotFetched` or `FetchFailed` follows."""

    snapshot: SnapshotDigest
    path: str
    rank: Rank  # the snapshot's own, or another one that is equal
    peer: CopyPeer | None = None  # None: from the copies held here


class DropCopy(Struct, frozen=True, tag=True):
    """Free a held copy: `CopyDropped` follows if it was there."""

    snapshot: SnapshotDigest


# Events.


class CopySent(Struct, frozen=True, tag=True):
    """The peer has verified and holds it."""

    snapshot: SnapshotDigest
    node: str
    took_s: float


class CopyFailed(Struct, frozen=True, tag=True):
    snapshot: SnapshotDigest
    node: str
    fault: CopyFault
    message: str


class CopyHeld(Struct, frozen=True, tag=True):
    """This node holds a verified copy for another one. Repeated for what a copier finds at its start."""

    snapshot: SnapshotDigest
    node: str
    world_size: Rank


class CopyDropped(Struct, frozen=True, tag=True):
    """This node no longer holds a copy: a newer one takes its place, or it was damaged or in the way."""

    snapshot: SnapshotDigest
    reason: str


class SnapshotFetched(Struct, frozen=True, tag=True):
    snapshot: SnapshotDigest
    path: str
    took_s: float


class FetchFailed(Struct, frozen=True, tag=True):
    snapshot: SnapshotDigest
    path: str
    fault: CopyFault
    message: str


class CopierWarned(Struct, frozen=True, tag=True):
    """Something for the log: a stranger at the port, a peer that breaks the rules."""

    message: str


class CopierLost(Struct, frozen=True, tag=True):
    """The copier died. Unless this was the last try, another one starts with the same port."""

    message: str
    is_final: bool


CopierCommand = (
    StartCopier | BelieveSecrets | ExpectCopies | SendCopy | ServeFiles | FetchSnapshot | DropCopy
)
CopierEvent = (
    CopySent
    | CopyFailed
    | CopyHeld
    | CopyDropped
    | SnapshotFetched
    | FetchFailed
    | CopierWarned
    | CopierLost
)

_commands: Final = msgspec.json.Decoder(CopierCommand)
_events: Final = msgspec.json.Decoder(CopierEvent)


def encode_line(message: CopierCommand | CopierEvent) -> bytes:
    line = msgspec.json.encode(message) + b"\n"
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"{type(message).__name__} has {len(line)} bytes, over {LINE_BYTES_MAX}")
    return line


def decode_command(line: bytes) -> CopierCommand:
    command: CopierCommand = _commands.decode(line)
    return command


def decode_event(line: bytes) -> CopierEvent:
    event: CopierEvent = _events.decode(line)
    return event
