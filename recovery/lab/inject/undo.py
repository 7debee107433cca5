"""How each fault is put back: small values that lie on disk before the fault is made. Pure.

Each may be carried out twice, and after anything of the fault has happened or nothing.
"""

from typing import Final

import msgspec

from recovery.lab.inject.permission import is_below

FORMAT: Final = 1


class ResumeProcess(msgspec.Struct, frozen=True, tag="resume_process"):
    """Let a stopped process run again."""

    pid: int
    start_ticks: int

    def in_words(self) -> str:
        return f"let process {self.pid} go on (SIGCONT)"


class RestoreFileLimit(msgspec.Struct, frozen=True, tag="restore_file_limit"):
    """Give a process back how large its files may grow (RLIMIT_FSIZE)."""

    pid: int
    start_ticks: int
    soft_bytes: int  # -1: no limit
    hard_bytes: int

    def in_words(self) -> str:
        return f"give process {self.pid} its limit of file sizes back"


class EndHelper(msgspec.Struct, frozen=True, tag="end_helper"):
    """Kill a process of ours."""

    pid: int
    start_ticks: int

    def in_words(self) -> str:
        return f"end process {self.pid} of rankmend inject"


class Unmount(msgspec.Struct, frozen=True, tag="unmount"):
    """Take away what was mounted on a folder beyond what there was."""

    path: str
    mounts_before: int

    def in_words(self) -> str:
        return f"unmount what covers {self.path}"


class RemoveFile(msgspec.Struct, frozen=True, tag="remove_file", kw_only=True):
    """Remove a file that only we make; ``must_hold``: where that is given, only if it has this text."""

    path: str
    must_hold: str = ""
    outlives_boot: bool = False

    def in_words(self) -> str:
        return f"remove {self.path}"


class PutBackFile(msgspec.Struct, frozen=True, tag="put_back"):
    """Put the kept copy in the place of the file that was damaged, where it is still the damaged one."""

    path: str
    copy: str
    copy_sha256: str
    damaged_sha256: str

    def in_words(self) -> str:
        return f"put {self.copy} back as {self.path}"


class DeleteTable(msgspec.Struct, frozen=True, tag="delete_table"):
    """Delete a table of nftables that has our name."""

    family: str
    name: str

    def in_words(self) -> str:
        return f"delete the nftables table {self.family} {self.name}"


class DeleteQueueing(msgspec.Struct, frozen=True, tag="delete_queueing"):
    """Take our queueing discipline from an interface."""

    interface: str
    kind: str

    def in_words(self) -> str:
        return f"delete {self.kind} from {self.interface}"


class RaiseLink(msgspec.Struct, frozen=True, tag="raise_link"):
    """Bring an interface up again, with the addresses and routes that it had."""

    interface: str
    addresses: bytes  # as `ip addr save` writes them
    routes: bytes  # as `ip route save` writes them
    routes6: bytes = b""

    def in_words(self) -> str:
        return f"bring {self.interface} up, with its addresses and routes"


class LeaveGroup(msgspec.Struct, frozen=True, tag="leave_group"):
    """Put the processes of our control group back where they were, and remove it."""

    group: str
    home: str

    def in_words(self) -> str:
        return f"move the processes of {self.group} to {self.home}"


class StartUnit(msgspec.Struct, frozen=True, tag="start_unit"):
    """Have systemd start a unit, where it is not active by now."""

    unit: str

    def in_words(self) -> str:
        return f"have systemd start {self.unit}, unless it runs"


class ResetClocks(msgspec.Struct, frozen=True, tag="reset_clocks"):
    gpu: str

    def in_words(self) -> str:
        return f"unlock the clocks of {self.gpu}"


class RestorePower(msgspec.Struct, frozen=True, tag="restore_power"):
    gpu: str
    milliwatts: int

    def in_words(self) -> str:
        return f"limit the power of {self.gpu} to {self.milliwatts / 1000:g} W again"


Undo = (
    ResumeProcess
    | RestoreFileLimit
    | EndHelper
    | Unmount
    | RemoveFile
    | PutBackFile
    | DeleteTable
    | DeleteQueueing
    | RaiseLink
    | LeaveGroup
    | StartUnit
    | ResetClocks
    | RestorePower
)


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, as its journal has it: written before the fault is made, removed once all of it is undone."""

    format: int = FORMAT
    injection_id: str
    fault: str
    target: str
    made_unix_s: float
    for_s: float  # from when it is made
    until_boot_s: float  # by CLOCK_BOOTTIME: then it is over, whenever it was made
    boot_id: str
    net_namespace: int
    mount_namespace: int
    undo: tuple[Undo, ...]  # carried out from the last to the first
    pid: int | None = None  # of the rank or service that it is made on


def is_in_the_way(standing: Injection, other: Injection) -> bool:
    """Return whether ``other`` would take what a standing injection has made for what is to be put back.

    So it is where both will put back the same thing, and where one covers a folder in which the other has something.
    """
    if _things_of(standing) & _things_of(other):
        return True
    covered, changed = _covered_by(standing), _paths_of(standing)
    return any(is_below(path, covered) for path in _paths_of(other)) or any(
        is_below(path, _covered_by(other)) for path in changed
    )


def _things_of(injection: Injection) -> frozenset[tuple[str, str]]:
    undone = {
        (type(undo).__name__, str(thing))
        for undo in injection.undo
        if not isinstance(undo, EndHelper)
        for name in ("pid", "path", "interface", "gpu", "unit")
        if (thing := getattr(undo, name, None)) is not None
    }
    own = {(injection.fault, injection.target)}
    if injection.pid is not None:  # which has several names
        own.add((injection.fault, f"pid:{injection.pid}"))
    return frozenset(own | undone)


def _covered_by(injection: Injection) -> tuple[str, ...]:
    return tuple(item.path for item in injection.undo if isinstance(item, Unmount))


def _paths_of(injection: Injection) -> tuple[str, ...]:
    kinds = (Unmount, RemoveFile, PutBackFile)
    return tuple(item.path for item in injection.undo if isinstance(item, kinds))


def outlives_boot(undo: Undo) -> bool:
    """Return whether this is still to be undone once the machine has been started anew."""
    match undo:
        case PutBackFile() | StartUnit():
            return True
        case RemoveFile(outlives_boot=outlives):
            return outlives
        case _:
            return False
