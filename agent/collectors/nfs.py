"""NFS mounts: how long the server takes, what had to be sent again, what timed out.

Source: <root>/self/mountstats, net/sunrpc/stats.c and fs/nfs/super.c of Linux 6.12: for each mount a
        table of operations with "operations transmissions timeouts bytes_sent bytes_received
        queue_ms response_ms execute_ms [errors]". Kept by the client: reading it asks no server.
Cost:   one read; 0.1 ms a mount, every 10 s; no privilege. At most `MOUNTS_MAX` mounts are shown.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.metrics import MOUNT_LABELS, Family, Metric, counter
from rankmend.errors import NoSourceError, SourceError

MOUNTS_MAX = 64
_BYTES_MAX = 4 << 20
_OPERATION = re.compile(r"\s*[A-Z][A-Z0-9_]*: (?P<numbers>\d+(?: \d+)+)\s*")
_COLUMNS = 8

FAMILIES: Final[tuple[Family, ...]] = (
    counter("nfs_operations", "", MOUNT_LABELS, "Operations asked of the server since the mount."),
    counter(
        "nfs_retransmissions",
        "",
        MOUNT_LABELS,
        "Requests sent again since the mount, all operations.",
    ),
    counter(
        "nfs_timeouts",
        "",
        MOUNT_LABELS,
        "Operations that waited for their whole timeout since the mount.",
    ),
    counter(
        "nfs_queue_seconds",
        "seconds",
        MOUNT_LABELS,
        "Time that requests waited in the client before they were sent.",
    ),
    counter(
        "nfs_response_seconds",
        "seconds",
        MOUNT_LABELS,
        "Time from sending to the answer; over the operations it is their mean latency.",
    ),
)


@dataclass(frozen=True, slots=True)
class NfsMount:
    """One mount, its operations added up. Counts and seconds since it was mounted."""

    mount: str
    type: str  # nfs, nfs4
    operations: int = 0
    transmissions: int = 0
    timeouts: int = 0
    queued_s: float = 0.0
    response_s: float = 0.0


class NfsCollector:
    name = "nfs"
    interval_s = 10.0

    def __init__(self, procfs_root: Path) -> None:
        self._path = procfs_root / "self" / "mountstats"

    def collect(self) -> Iterator[Metric]:
        try:
            with self._path.open("rb") as file:
                data = file.read(_BYTES_MAX)
        except FileNotFoundError as error:
            raise NoSourceError(f"no {self._path}") from error
        except OSError as error:
            raise SourceError(f"cannot read {self._path}: {error.strerror}") from error
        mounts = parse_mountstats(data.decode("utf-8", "replace"))
        if not mounts:
            raise NoSourceError(f"no NFS mount in {self._path}")
        for mount in mounts[:MOUNTS_MAX]:
            labels = (("mount", mount.mount), ("type", mount.type))
            again = max(0, mount.transmissions - mount.operations)
            yield Metric("rankmend_nfs_operations_total", mount.operations, labels)
            yield Metric("rankmend_nfs_retransmissions_total", again, labels)
            yield Metric("rankmend_nfs_timeouts_total", mount.timeouts, labels)
            yield Metric("rankmend_nfs_queue_seconds_total", mount.queued_s, labels)
            yield Metric("rankmend_nfs_response_seconds_total", mount.response_s, labels)


def parse_mountstats(text: str) -> list[NfsMount]:
    """Return the NFS mounts of a mountstats file, in its order; a mount point twice counts once."""
    found: dict[str, NfsMount] = {}
    for block in re.split(r"(?m)^(?=device )", text):
        head, _newline, rest = block.partition("\n")
        words = head.split(" ")
        # "device SERVER:/EXPORT mounted on /MOUNT with fstype nfs4 statvers=1.1"
        if len(words) < 8 or words[-3] != "fstype" or words[-2] not in ("nfs", "nfs4"):
            continue
        place = head.partition(" mounted on ")[2].rpartition(" with fstype ")[0]
        _events, marker, table = rest.partition("per-op statistics")
        if place and marker:
            found.setdefault(_unescape(place), _sum(_unescape(place), words[-2], table))
    return list(found.values())


def _sum(place: str, kind: str, table: str) -> NfsMount:
    totals = [0] * _COLUMNS
    for line in table.splitlines():
        match = _OPERATION.fullmatch(line)
        numbers = match["numbers"].split() if match else []
        if len(numbers) < _COLUMNS or any(len(number) > 20 for number in numbers):
            continue
        totals = [a + int(b) for a, b in zip(totals, numbers, strict=False)]
    return NfsMount(
        mount=place,
        type=kind,
        operations=totals[0],
        transmissions=totals[1],
        timeouts=totals[2],
        queued_s=totals[5] / 1000,
        response_s=totals[6] / 1000,
    )


def _unescape(place: str) -> str:
    """Return a path as it is: the kernel writes space, tab, newline and backslash in octal."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), place)
