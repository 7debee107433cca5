"""Messages between a launcher and its guardian: JSON, one message per packet.

Both ends are of one version and one user; sizes are checked all the same, because a message
that does not fit a packet would be lost. Arguments and environment, which may be megabytes,
travel in a file of their own (`rank_process`) whose descriptor goes with the command.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from rankmend.errors import SourceError
from recovery.launcher.processes.process_tree import Survivor

PACKET_BYTES_MAX: Final = 64 << 10  # well below the 208 KiB that a socket holds by default
LISTED_MAX: Final = 1000  # pids in one message
SURVIVORS_MAX: Final = 100
TEXT_MAX: Final = 2000  # characters of a message for a person
EVERY_ATTEMPT: Final = 2**62
STANDBY_ATTEMPT: Final = 2**40  # of a process that is no rank yet: newer than every attempt


@dataclass(frozen=True, slots=True)
class Ready:
    """The guardian serves."""

    pid: int


@dataclass(frozen=True, slots=True)
class Spawned:
    """The rank's program runs."""

    attempt: int
    rank: int
    pid: int  # also its process group and session
    start_ticks: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The rank's program failed to start, and no process of it is left."""

    attempt: int
    rank: int
    errno: int
    message: str  # names the program or the folder


@dataclass(frozen=True, slots=True)
class Exiting:
    """The rank is dying and the kernel still frees its memory. Detects, never fences."""

    attempt: int
    rank: int
    exit_code: int | None = None  # how it will have ended, where the kernel tells it already
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    """The rank's process has ended. Exactly one of exit code and signal is set."""

    attempt: int
    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    core_dumped: bool


@dataclass(frozen=True, slots=True)
class KillPending:
    """What `kill_through` has killed is not all gone yet; told after 2 s and then every 10."""

    attempt: int  # the attempt through which it kills
    survivors: tuple[Survivor, ...]


@dataclass(frozen=True, slots=True)
class Emptied:
    """No process of any attempt up to this one is left on this machine."""

    through_attempt: int
    killed_pids: tuple[int, ...]  # pids of all processes that got SIGKILL for it
    unreadable_pids: tuple[int, ...] = ()  # this user's, and no one could see whose they are


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """Nobody has prolonged the lease of these attempts: the guardian kills them. `Emptied` follows."""

    through_attempt: int


@dataclass(frozen=True, slots=True)
class GuardianLost:
    """The guardian is gone; its ranks were killed with it, what they started may not be."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpawnCommand:
    """Start a rank. With it go three descriptors, `SpawnBody`, stdout and stderr, or with stdin four."""

    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class AdoptCommand:
    """Count a standby as a rank from now on. `Spawned` follows, or `SpawnFailed` (ESRCH)."""

    slot: int
    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class SignalCommand:
    attempt: int
    signum: int
    ranks: tuple[int, ...] | None  # None: all


@dataclass(frozen=True, slots=True)
class KillCommand:
    through_attempt: int


@dataclass(frozen=True, slots=True)
class LeaseCommand:
    """Kill all attempts through this one at ``until_s``, unless a later command says otherwise."""

    through_attempt: int
    until_s: float | None  # CLOCK_BOOTTIME; None: never


@dataclass(frozen=True, slots=True)
class LastWordCommand:
    """Run this once the launcher has died and nothing is left of its ranks. With it goes its stdin.

    The attempt through which nothing is left is its last argument. The newest command counts.
    """

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DismissCommand:
    """The launcher ends in good order and speaks for itself: kill what is left, and go."""


Event = (
    Spawned | SpawnFailed | Exiting | Exited | KillPending | Emptied | LeaseExpired | GuardianLost
)
Command = (
    SpawnCommand
    | AdoptCommand
    | SignalCommand
    | KillCommand
    | LeaseCommand
    | LastWordCommand
    | DismissCommand
)
Message = Ready | Event | Command

_TYPES: Final[dict[str, type[Message]]] = {
    kind.__name__: kind
    for kind in (
        Ready,
        Spawned,
        SpawnFailed,
        Exiting,
        Exited,
        KillPending,
        Emptied,
        LeaseExpired,
        GuardianLost,
        SpawnCommand,
        AdoptCommand,
        SignalCommand,
        KillCommand,
        LeaseCommand,
        LastWordCommand,
        DismissCommand,
    )
}


def encode(message: Message) -> bytes:
    """Return the packet of a message."""
    packet = json.dumps([type(message).__name__, asdict(message)]).encode("ascii")
    assert len(packet) <= PACKET_BYTES_MAX, f"{len(packet)} bytes: {packet[:200]!r}"
    return packet


def decode(packet: bytes) -> Message:
    """Return the message of a packet, or raise `SourceError`."""
    try:
        name, fields = json.loads(packet)
        fields = {key: _tuple(key, value) for key, value in fields.items()}
        return _TYPES[name](**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"not a guardian's message: {packet[:200]!r}") from error


def _tuple(key: str, value: object) -> object:
    if not isinstance(value, list):
        return value
    if key == "survivors":
        return tuple(Survivor(**survivor) for survivor in value)
    return tuple(value)
