"""Messages between a launcher and its guardian: JSON, one message per packet.

Both ends have the same version and user. Sizes are checked all the same, because a message that
does not fit into a packet would be lost. Arguments and environment, which may take megabytes, travel in
a separate file (`rank_process`) whose descriptor goes with the command.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from rankmend.errors import SourceError
from recovery.launcher.processes.process_tree import ProcessRef, Survivor

PACKET_BYTES_MAX: Final = 64 << 10  # well below the 208 KiB that a socket holds by default
LISTED_MAX: Final = 1000  # pids in one message
SURVIVORS_MAX: Final = 100
TEXT_MAX: Final = 2000  # characters in a message for a person
EVERY_ATTEMPT: Final = 2**62
# attempt of a process that is not a rank yet: newer than every real one
STANDBY_ATTEMPT: Final = 2**40


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
    exit_code: int | None = None  # its exit code, if the kernel reports it already
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
    """Some processes that `kill_through` killed are not gone yet; sent after 2 s, then every 10 s."""

    attempt: int  # the highest attempt to kill
    survivors: tuple[Survivor, ...]


@dataclass(frozen=True, slots=True)
class Emptied:
    """No process of any attempt up to this one is left on this machine."""

    through_attempt: int
    killed_pids: tuple[int, ...]  # pids of all processes that got SIGKILL
    unreadable_pids: tuple[
        int, ...
    ] = ()  # processes of this user whose environment could not be read


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The lease of these attempts ran out: the guardian kills them. `Emptied` follows."""

    through_attempt: int


@dataclass(frozen=True, slots=True)
class GuardianLost:
    """The guardian is gone, and its ranks with it; processes that they started may remain."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpawnCommand:
    """Start a rank. Carries three descriptors (`SpawnBody`, stdout, stderr), or four with stdin."""

    attempt: int
    rank: int
    is_contained: bool = False  # the rank runs behind the program, perhaps in a container


@dataclass(frozen=True, slots=True)
class ForkCommand:
    """Expect a rank that the fork server forks. Carries one descriptor: the guardian's end of its link."""

    attempt: int
    rank: int
    within_s: float


@dataclass(frozen=True, slots=True)
class AdoptCommand:
    """Make a standby a rank. `Spawned` follows, or `SpawnFailed` (ESRCH)."""

    slot: int
    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class ProgressHolder:
    """The process that holds a rank's progress file."""

    rank: int
    pid: int
    start_ticks: int

    @property
    def ref(self) -> ProcessRef:
        return ProcessRef(self.pid, self.start_ticks)


@dataclass(frozen=True, slots=True)
class SignalCommand:
    """Send a signal to ranks (`rank_signals`), or SIGKILL to their process groups."""

    attempt: int
    signum: int
    ranks: tuple[int, ...] | None  # None: all
    holders: tuple[ProgressHolder, ...] = ()  # of the ranks of which that is known


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
    """Run this program once the launcher has died and no process of its ranks is left. Carries its stdin.

    Its last argument is the attempt through which nothing is left. The newest command counts.
    """

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DismissCommand:
    """The launcher exits in good order and reports for itself: kill all remaining processes and exit."""


Event = (
    Spawned | SpawnFailed | Exiting | Exited | KillPending | Emptied | LeaseExpired | GuardianLost
)
Command = (
    SpawnCommand
    | ForkCommand
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
        ForkCommand,
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
    if key == "holders":
        return tuple(ProgressHolder(**holder) for holder in value)
    return tuple(value)
