"""The secret by which a client proves its identity, out of a file that nobody else can read."""

import os
import stat
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError

TOKEN_BYTES_MAX: Final = 4096


def read_token(path: Path) -> str:
    """Return the token in a file; raise ConfigError if other users can read that file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"token file {path} is not a regular file")
            if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
                raise ConfigError(
                    f"token file {path} has mode {stat.S_IMODE(status.st_mode):04o} and owner uid "
                    f"{status.st_uid}: it must belong to you, and only you may read it (chmod 600)"
                )
            text = os.read(descriptor, TOKEN_BYTES_MAX).decode("ascii").strip()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"cannot read token file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"token file {path} does not contain a token") from error
    if not text or not text.isprintable() or " " in text:
        raise ConfigError(f"token file {path} does not contain a token")
    return text
