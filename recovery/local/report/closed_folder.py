"""Says whose a state folder is that this user may not read."""

import os
import pwd
from pathlib import Path

from rankmend.errors import ConfigError


def refuse_closed(state: Path) -> None:
    """Raise ConfigError where this user may not list the jobs of a state folder. One that is missing is empty."""
    for folder in (state, state / "jobs"):
        try:
            os.scandir(folder).close()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise ConfigError(f"cannot read {folder}: {_why(folder, error)}") from error


def _why(folder: Path, error: OSError) -> str:
    try:
        owner = folder.stat().st_uid
    except OSError:
        return str(error.strerror)
    if not isinstance(error, PermissionError) or owner == os.geteuid():
        return str(error.strerror)
    name = _name_of(owner)
    own = _name_of(os.geteuid())
    return f"it belongs to {name}, and this is {own}. Try: sudo -u {name} rankmend ..."


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
