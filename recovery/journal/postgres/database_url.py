"""The address of a PostgreSQL database as the configuration has it: checked, and never shown with a password."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from rankmend.errors import ConfigError
from rankmend.files import read_capped

SCHEMES: Final = ("postgresql", "postgres")
_PASSWORD_BYTES_MAX: Final = 4096
# libpq's parameters that carry a secret, or name a file that a connection string must not choose for us.
_SECRET: Final = frozenset({"password", "sslpassword"})
# What the controller sets for each session itself (`recovery.journal.postgres.database`).
_OURS: Final = frozenset({"options", "target_session_attrs", "application_name"})


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A connection string without a password, and the file that has it."""

    text: str
    password_file: Path | None = None  # None: libpq looks into PGPASSFILE

    def __str__(self) -> str:
        return self.text

    def credentials(self) -> dict[str, Any]:
        """Return the password as the file has it now, for one connection: it may have been rotated. Raises ConfigError."""
        return (
            {} if self.password_file is None else {"password": _read_password(self.password_file)}
        )


def check_database_url(text: str) -> None:
    """Raise ConfigError for what is no connection string of PostgreSQL, or has a password in it.

    The message never repeats the string: it may hold the password.
    """
    try:
        parts = urlsplit(text)
        names = [name for name, _value in parse_qsl(parts.query, keep_blank_values=True)]
        has_password = parts.password is not None or not _SECRET.isdisjoint(names)
    except ValueError as error:
        raise ConfigError(
            "journal is no URL of the form postgresql://USER@HOST/DATABASE"
        ) from error
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            "journal must be postgresql://USER@HOST/DATABASE; without it the journals are files in state_dir"
        )
    if has_password:
        raise ConfigError(
            "journal has a password in it, which anyone can read who may read the configuration: put it "
            "into a file (mode 0600) that [postgres] password_file or PGPASSFILE names"
        )
    if not parts.path.strip("/"):
        raise ConfigError(f"journal names no database: {text!r}")
    if taken := sorted(_OURS.intersection(names)):
        raise ConfigError(f"journal sets {', '.join(taken)}, which the controller sets itself")


def read_database_url(text: str, password_file: str | None) -> DatabaseUrl:
    """Return the checked connection string with its password, or raise ConfigError."""
    check_database_url(text)
    url = DatabaseUrl(text, None if password_file is None else Path(password_file))
    url.credentials()
    return url


def _read_password(path: Path) -> str:
    """Return the only line of a file that nobody else can read."""
    data = read_capped(path, _PASSWORD_BYTES_MAX, ConfigError, name=f"the password file {path}")
    status = path.stat()
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"the password file {path} must belong to this user, with mode 0600")
    try:
        text = data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the password file {path} is not UTF-8") from error
    if not text or "\n" in text or "\0" in text:
        raise ConfigError(f"the password file {path} must have one line")
    return text
