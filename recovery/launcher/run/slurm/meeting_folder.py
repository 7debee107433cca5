"""The folder in which the launchers of a Slurm step meet that has no checkpoint folder.

It lies in the home folder, which the nodes of a cluster share: $XDG_STATE_HOME or ~/.local/state, then
rankmend/meetings/<job>. Only its owner can read it, since it holds the job's secret.
"""

import contextlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError
from rankmend.own_folder import make_private

_KEPT_S: Final = 30 * 86400.0  # a job may wait so long for its next start
_REMOVED_MAX: Final = 64  # at one start


def make_meeting_folder(environment: Mapping[str, str], name: str) -> Path:
    """Make the folder for a job and return it; remove those of jobs that ended long ago."""
    state = Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    meetings = state / "rankmend" / "meetings"
    try:
        meetings.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make {meetings.parent}, where the launchers of this Slurm job would meet: "
            f"{error.strerror}; give --checkpoint-dir, a folder that all nodes share"
        ) from error
    make_private(meetings, ConfigError, is_secret=True)
    folder = meetings / name
    make_private(folder, ConfigError, is_secret=True)
    _remove_old(meetings, folder)
    return folder


def _remove_old(meetings: Path, own: Path) -> None:
    oldest_unix_s = time.time() - _KEPT_S
    removed = 0
    with contextlib.suppress(OSError):
        for folder in meetings.iterdir():
            if folder == own or folder.is_symlink() or folder.stat().st_mtime > oldest_unix_s:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
            if removed == _REMOVED_MAX:
                return
