"""Addresses of controllers, and what a client needs to reach them."""

import ipaddress
from urllib.parse import urlsplit

import msgspec

from rankmend.errors import ConfigError


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
