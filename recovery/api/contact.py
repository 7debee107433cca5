"""Addresses of controllers, and the secrets by which a client proves its identity."""

import ipaddress
import os
import stat
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

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


def is_loopback(host: str) -> bool:
    """Return whether ``host`` names this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_url(url: str, *, has_token: bool) -> str:
    """Return the URL of a controller without a final slash, or raise ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ConfigError(f"not a controller URL: {url!r}; write https://HOST[:PORT]")
    if parts.query or parts.fragment:
        raise ConfigError(f"a controller URL must not have a query or fragment: {url!r}")
    if parts.scheme == "http" and has_token and not is_loopback(parts.hostname):
        raise ConfigError(f"{url}: rankmend sends a token over https only, except to this machine")
    return url.rstrip("/")


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs to reach a controller and prove its identity. Holds secrets."""

    urls: tuple[str, ...]
    token_file: str | None = None
    token: str | None = None
    ca_file: str | None = None
    fingerprint: str | None = None
