"""This user's one folder in a place that all users share: shared memory, the temporary folder, /var/tmp.

`rankmend-<uid>`, 0700. Another user may have made that before us, by mistake or to block this one. Then the folder is
`rankmend-<uid>-<random>` beside it, whose name nobody can foresee; later processes find it by its owner. The place itself
must be sticky, as all of these are, so that nobody removes it.
"""

import logging
import os
import stat
import tempfile
from pathlib import Path

from rankmend.errors import LaunchError
from rankmend.foreign_links import make_private

log = logging.getLogger(__name__)


def own_folder(root: Path) -> Path:
    """Return the one folder of this user below ``root``, made where it is not there."""
    plain = root / f"rankmend-{os.getuid()}"
    blocker = _blocker(plain)
    if blocker is None:
        make_private(plain, LaunchError, is_secret=True)
        return plain
    found = sorted(path for path in root.glob(f"{plain.name}-*") if _is_ours(path))
    if found:
        make_private(found[0], LaunchError, is_secret=True)
        return found[0]
    try:
        made = Path(tempfile.mkdtemp(prefix=f"{plain.name}-", dir=root))  # 0700
    except OSError as error:
        raise LaunchError(f"cannot make a folder in {root}: {error.strerror}") from error
    log.warning(
        "another user's file occupies the path of this user's folder in shared memory; using another folder",
        extra={"blocked": str(plain), "by": blocker, "folder": str(made)},
    )
    return made


def _blocker(path: Path) -> str | None:
    """Return who has something of theirs at ``path``, or None where it is ours or free."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"cannot stat {path}: {error.strerror}") from error
    if found.st_uid == os.getuid() and not stat.S_ISDIR(found.st_mode):
        raise LaunchError(f"{path} is not a folder: remove it")
    return None if found.st_uid == os.getuid() else f"uid {found.st_uid}"


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def find_own_folder(root: Path) -> Path:
    """Return the same without making it, as long as nobody is in the way."""
    plain = root / f"rankmend-{os.getuid()}"
    return plain if _blocker(plain) is None else own_folder(root)
