"""Mounted file systems: whether they answer, how full they are, whether they became read-only.

Source: <root>/self/mountinfo (else 1/mountinfo, self/mounts, mounts), Linux
        Documentation/filesystems/proc.rst 3.5; statvfs(3), through agent/sources/mount_prober.py where it may
        wait for ever on a dead server.
Cost:   1 ms a run, and a child of 10 ms where a file system is neither ext4, XFS nor tmpfs.

A file system became read-only when it says so of itself (``ro`` or ext4's ``emergency_ro`` among
its own options: what the kernel changes after an error) while a mount of it is still one to write
to. Whoever mounts it read-only on purpose marks the mount, too; a service's sandbox marks only
mounts. Process 1's mounts count beside our own, since ours may all be the sandbox's.
"""

import errno
import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.metrics import MOUNT_LABELS, Family, Metric, gauge
from agent.sources.mount_prober import Answer, HungMount, MountRefusal, MountSpace
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

MOUNTS_MAX: Final = 256
_FILE_BYTES_MAX: Final = 4 << 20
_FILES: Final = ("self/mountinfo", "1/mountinfo", "self/mounts", "mounts")
_READ_ONLY: Final = frozenset({"ro", "emergency_ro"})
# as node_exporter's filesystem collector leaves them out, and others that hold nobody's data
_PSEUDO_TYPES: Final = re.compile(
    r"autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|efivarfs|erofs|fusectl"
    r"|fuse\.(lxcfs|portal|gvfsd-fuse)|hugetlbfs|iso9660|mqueue|nsfs|overlay|proc(fs)?|pstore|ramfs"
    r"|rootfs|rpc_pipefs|securityfs|selinuxfs|squashfs|sysfs|tracefs"
)
_MEMORY_TYPES: Final = frozenset(
    {"devtmpfs", "ext2", "ext3", "ext4", "ramfs", "rootfs", "tmpfs", "xfs"}
)
_PRIVATE_POINTS: Final = re.compile(
    r"/(dev|proc|sys|run/credentials/.+|run/user/\d+|var/lib/(docker|containerd|kubelet)/.+"
    r"|var/lib/containers/storage/.+)(/.*)?"
)
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a place to look at: nothing is written there
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_NOT_OURS: Final = frozenset({errno.EACCES, errno.EPERM})  # another user's FUSE mount

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "mount_success",
        "",
        MOUNT_LABELS,
        "1 when the file system answered, 0 when it failed or hangs.",
    ),
    gauge(
        "mount_hung_seconds",
        "seconds",
        MOUNT_LABELS,
        "How long it has not answered; 0 when it does.",
    ),
    gauge(
        "mount_answer_seconds", "seconds", MOUNT_LABELS, "How long it took to say how full it is."
    ),
    gauge(
        "mount_read_only",
        "",
        MOUNT_LABELS,
        "1 when it became read-only, as after an error; 0 for one mounted read-only on purpose.",
    ),
    gauge("mount_present", "", ("mount",), "1 when a mount of the configuration is there."),
    gauge(
        "mount_size_bytes", "bytes", MOUNT_LABELS, "Size of a file system that is on no local disk."
    ),
    gauge("mount_available_bytes", "bytes", MOUNT_LABELS, "Space left on it for ordinary users."),
    gauge("mount_inodes", "", MOUNT_LABELS, "Files that it can hold; no series where not limited."),
    gauge("mount_inodes_available", "", MOUNT_LABELS, "Files that ordinary users can still make."),
)


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system, at the place where it is asked."""

    point: str
    device: str  # what is mounted: /dev/sda1, server:/export, tmpfs
    type: str
    number: str  # major:minor, the same for all mounts of one file system
    root: str  # which part of it is mounted here
    is_read_only: bool  # the file system says so, whatever its mounts do
    is_for_writing: bool  # this mount of it

    @property
    def is_disk(self) -> bool:
        return self.device.startswith("/dev/")


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the mounts of a ``mountinfo``, in its order."""
    mounts = []
    for line in _lines(text):
        words = line.split(" ")
        try:
            dash = words.index("-", 6)  # optional fields lie between 6 and the dash
            kind, device, options = words[dash + 1 : dash + 4]
            number, root, point = words[2:5]
        except ValueError as error:
            raise SourceError(f"mountinfo line has not its fields: {line[:200]!r}") from error
        mounts.append(
            Mount(
                point=_unescaped(point),
                device=_unescaped(device),
                type=kind,
                number=number,
                root=_unescaped(root),
                is_read_only=not _READ_ONLY.isdisjoint(options.split(",")),
                is_for_writing="ro" not in words[5].split(","),
            )
        )
    return mounts


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts of the older ``mounts``: no number, no part, and one ``ro`` for both."""
    mounts = []
    for line in _lines(text):
        words = line.split(" ")
        if len(words) != 6:
            raise SourceError(f"mounts line has not 6 fields: {line[:200]!r}")
        device, point, kind, options = words[:4]
        mounts.append(
            Mount(
                point=_unescaped(point),
                device=_unescaped(device),
                type=kind,
                number=device if device.startswith("/dev/") else point,
                root="/",
                is_read_only="emergency_ro" in options.split(","),
                is_for_writing=True,
            )
        )
    return mounts


def _lines(text: str) -> list[str]:
    """Return the lines. A file name may hold whatever else `str.splitlines` would split at."""
    return text.removesuffix("\n").split("\n") if text else []


def _unescaped(text: str) -> str:
    """Return a path in which ``\\040`` and the like are the characters again."""
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 8) & 0xFF), text)


def choose_mounts(mounts: Sequence[Mount], ignored: Sequence[str] = ()) -> list[Mount]:
    """Return the mounts worth asking, each file system once, at its shortest place."""
    chosen: dict[str, Mount] = {}
    visible = {mount.point: mount for mount in mounts}  # a later mount covers an earlier one
    for mount in visible.values():
        is_private = _PRIVATE_POINTS.fullmatch(mount.point) and mount.point != _SHARED_MEMORY
        if _PSEUDO_TYPES.fullmatch(mount.type) or is_private:
            continue
        if any(fnmatch.fnmatchcase(mount.point, pattern) for pattern in ignored):
            continue
        known = chosen.get(mount.number)
        if known is None or _order_of(mount) < _order_of(known):
            chosen[mount.number] = mount
    return sorted(chosen.values(), key=lambda mount: mount.point)[:MOUNTS_MAX]


def _order_of(mount: Mount) -> tuple[bool, int, str]:
    return mount.root != "/", len(mount.point), mount.point


def answers_from_memory(mount: Mount, mounts: Sequence[Mount]) -> bool:
    """Return whether neither statvfs nor the way to the mount waits for a disk or a server.

    ext4_statfs, xfs_fs_statvfs and shmem_statfs read counters that the kernel holds in memory. The way leads through the
    file systems of all folders above.
    """
    above = [item for item in mounts if is_above(item.point, mount.point)]
    return all(item.type in _MEMORY_TYPES for item in (mount, *above))


def is_above(folder: str, point: str) -> bool:
    return point.startswith(folder.rstrip("/") + "/")


class MountsCollector:
    name = "mounts"
    interval_s = 30.0

    def __init__(
        self,
        procfs_root: Path,
        clock: Clock,
        probe: Callable[[Sequence[str]], Mapping[str, Answer]] | None,
        required: Sequence[str] = (),
        ignored: Sequence[str] = (),
        read_space: Callable[[str], Answer] | None = None,
    ) -> None:
        """``probe`` None: the tree is a recorded one, and its mounts are not here to be asked.

        ``read_space`` asks a local file system without a child; None: the probe asks them all.
        """
        self._root = procfs_root
        self._clock = clock
        self._probe = probe
        self._read_space = read_space
        self._required = tuple(required)
        self._ignored = tuple(ignored)

    def collect(self) -> Iterator[Metric]:
        mounts = self._read_mounts(_FILES)
        points = {mount.point for mount in mounts if mount.type != "autofs"}
        for point in self._required:
            yield Metric("rankmend_mount_present", int(point in points), (("mount", point),))
        for_writing = {mount.number for mount in mounts if mount.is_for_writing}
        for_writing |= self._for_writing_outside()
        chosen = choose_mounts(mounts, self._ignored)
        answers = self._ask(mounts, chosen)
        for mount in chosen:
            labels = (("mount", _printable(mount.point)), ("type", mount.type))
            is_lost = mount.is_read_only and mount.number in for_writing
            yield Metric("rankmend_mount_read_only", int(is_lost), labels)
            if (answer := answers.get(mount.point)) is not None:
                yield from self._describe(mount, answer, labels)

    def _ask(self, mounts: Sequence[Mount], chosen: Sequence[Mount]) -> Mapping[str, Answer]:
        """Return how full these mounts are: the local ones answer here, the others through the probe."""
        if self._probe is None:
            return {}
        read_space = self._read_space
        local = {
            mount.point for mount in chosen if read_space and answers_from_memory(mount, mounts)
        }
        try:
            answers = dict(
                self._probe([mount.point for mount in chosen if mount.point not in local])
            )
        except OSError as error:
            raise SourceError("cannot start the probe of the mounts") from error
        if read_space is not None:
            answers |= {point: read_space(point) for point in local}
        return answers

    def _describe(
        self, mount: Mount, answer: Answer, labels: tuple[tuple[str, str], ...]
    ) -> Iterator[Metric]:
        if isinstance(answer, MountRefusal) and answer.errno in _NOT_OURS:
            return
        is_answered = isinstance(answer, MountSpace)
        hung_s = self._clock.now_s() - answer.since_s if isinstance(answer, HungMount) else 0.0
        yield Metric("rankmend_mount_success", int(is_answered), labels)
        yield Metric("rankmend_mount_hung_seconds", hung_s, labels)
        disk = (("device", _printable(mount.device)), labels[0])
        if mount.is_disk:
            yield Metric("rankmend_disk_usage_success", int(is_answered), disk)
        if not isinstance(answer, MountSpace):
            return
        yield Metric("rankmend_mount_answer_seconds", answer.took_s, labels)
        subject, place = ("disk", disk) if mount.is_disk else ("mount", labels)
        if answer.size_bytes:  # some FUSE file systems don't say
            yield Metric(f"rankmend_{subject}_size_bytes", answer.size_bytes, place)
            yield Metric(f"rankmend_{subject}_available_bytes", answer.available_bytes, place)
        if answer.inodes:  # btrfs and Lustre clients have no fixed number
            yield Metric(f"rankmend_{subject}_inodes", answer.inodes, place)
            yield Metric(f"rankmend_{subject}_inodes_available", answer.inodes_available, place)

    def _for_writing_outside(self) -> set[str]:
        """Return the file systems that process 1 can write to, if we may know."""
        try:
            mounts = self._read_mounts(("1/mountinfo",))
        except (NoSourceError, SourceError):
            return set()
        return {mount.number for mount in mounts if mount.is_for_writing}

    def _read_mounts(self, names: Sequence[str]) -> list[Mount]:
        for name in names:
            path = self._root / name
            try:
                with path.open("rb") as file:
                    data = file.read(_FILE_BYTES_MAX)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise SourceError(f"cannot read {path}") from error
            text = os.fsdecode(data)
            return parse_mountinfo(text) if name.endswith("info") else parse_mounts(text)
        raise NoSourceError(f"no list of mounts under {self._root}")


def _printable(text: str) -> str:
    """Return a path as a label may hold it: file names are bytes, labels are UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
