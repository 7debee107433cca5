"""Refuses to keep a journal on a network file system, where a lock or a sync may mean nothing."""

import re
from pathlib import Path
from typing import Final

from rankmend.errors import JournalError

# Type names of /proc/self/mountinfo. File locks and fdatasync of these are a server's or a
# cluster's affair, and SQLite's WAL needs shared memory (sqlite.org/wal.html, "does not work
# over a network filesystem").
_NETWORK = """
    nfs nfs3 nfs4 cifs smb3 smbfs afs ncpfs lustre gpfs mmfs beegfs ceph glusterfs orangefs
    pvfs2 panfs wekafs daos ocfs2 gfs2 coda 9p vboxsf
"""


_NETWORK_FUSE = """
    sshfs ceph glusterfs s3fs goofys gcsfuse blobfuse blobfuse2 rclone juicefs cvmfs cvmfs2
    beegfs moosefs mfs dfuse davfs mountpoint-s3 weed alluxio curlftpfs
"""
NETWORK_TYPES: Final = frozenset(_NETWORK.split())
NETWORK_FUSE_TYPES: Final = frozenset(f"fuse.{name}" for name in _NETWORK_FUSE.split())
# Of these one kernel decides alone: what it says of a lock is so.
LOCAL_TYPES: Final = frozenset(
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "overlay"]
)


def refuse_network_file_system(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """Raise where ``path`` lies on a network file system, by the kernel's list of mounts."""
    found_point, found_type = _find_mount(path, mountinfo)
    if found_type in NETWORK_TYPES or found_type in NETWORK_FUSE_TYPES:
        raise JournalError(
            f"{path} lies on {found_type} (mounted at {found_point}): a network file system cannot "
            f"guarantee that acknowledged records survive. Give a folder on a local disk with "
            f"--state-dir"
        )


def find_file_system_type(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system on which ``path`` lies; "" where that is not reported."""
    return _find_mount(path, mountinfo)[1]


def _find_mount(path: Path, mountinfo: Path) -> tuple[Path, str]:
    """Return the mount point and the type of a path's file system.

    Form of a line: proc(5), /proc/pid/mountinfo: fields 5 (mount point) and, behind a lone
    dash, the type.
    """
    found_point, found_type = Path("/"), ""
    try:
        text = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return found_point, found_type  # no /proc: nothing to judge by
    target = path.resolve()
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if not dash or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        covers = target == point or point in target.parents
        if covers and len(point.parts) >= len(
            found_point.parts
        ):  # the last of several equal mounts is on top
            found_point, found_type = point, kind
    return found_point, found_type
