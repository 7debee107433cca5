"""What servers need to listen: the address of a setting, and a TLS context of certificate files."""

import errno
import socket
import ssl
from typing import Final, Protocol

from rankmend.errors import ConfigError

# The kernel has no IPv6, or it is switched off (net.ipv6.conf.*.disable_ipv6).
_NO_IPV6: Final = frozenset((errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EADDRNOTAVAIL))


class ServerFiles(Protocol):
    """The certificate files of a server, as its configuration names them."""

    @property
    def cert_file(self) -> str: ...

    @property
    def key_file(self) -> str: ...

    @property
    def client_ca_file(self) -> str | None: ...


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of text such as ``127.0.0.1:9477``, ``[::1]:9477`` or ``:9477``, whose host is empty."""
    host, separator, port_text = text.rpartition(":")
    is_port = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5
    if not separator or not is_port or int(port_text) > 65535:
        raise ConfigError(f"listen is not HOST:PORT: {text!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(f"listen: write an IPv6 address in brackets, [::1]:PORT: {text!r}")
    return host.strip("[]"), int(port_text)


def bind(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket, or raise OSError. An empty host: every address of this machine, IPv6 and IPv4."""
    if not host:
        try:
            return _bind(socket.AF_INET6, ("::", port))
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            return _bind(socket.AF_INET, ("0.0.0.0", port))  # noqa: S104 - asked for by ":PORT"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _type, _protocol, _name, address = found[0]
    return _bind(family, address)


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and address[0] == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def plain_address(host: str) -> str:
    """Return a peer's address; an IPv4 one as such, also on a socket for both."""
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host


def make_server_context(files: ServerFiles, clients: ssl.VerifyMode) -> ssl.SSLContext:
    """Return the context of these files, or raise ConfigError that names the one at fault.

    ``clients``: whether a client must show a certificate, where ``files`` name an authority of theirs.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:  # a key with a passphrase is refused: a service has nobody to ask
        context.load_cert_chain(files.cert_file, files.key_file, password=lambda: "")
    except OSError as error:
        named = f"cert_file {files.cert_file} with key_file {files.key_file}"
        raise ConfigError(f"cannot use {named}: {error}") from error
    if files.client_ca_file is not None:
        context.verify_mode = clients
        try:
            context.load_verify_locations(files.client_ca_file)
        except OSError as error:
            named = f"client_ca_file {files.client_ca_file}"
            raise ConfigError(f"cannot use {named}: {error}") from error
    return context


def hide_versions() -> None:
    """Have every answer of an aiohttp server in this process name no version: who looks for old ones learns nothing."""
    from aiohttp import web_response  # noqa: PLC0415 - the agent, which has none of it, listens too

    web_response.SERVER_SOFTWARE = "rankmend"  # type: ignore[attr-defined]
