"""Reads a BMC by HTTPS: bounded in time, size and trust. `detectors.formats.redfish` has the forms.

Standard library only. The DMTF's own client (`redfish` 3.4) is well kept; it was tried and left
because it checks no certificate unless a CA file is named, reads answers of any length, follows
redirects with the password, bounds a silence and not a request, and takes 10 MB: docs/reference/thermal.md.
"""

import base64
import http.client
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Timer
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from rankmend.clock import Clock
from rankmend.errors import ConfigError, RankmendError, SourceError

BODY_BYTES_MAX: Final = 1 << 20  # the largest resource in DMTF's mock-ups has 60 kB
REQUEST_S_MAX: Final = 10.0  # a BMC takes 0.05 to 3 s
_TAKEN: Final = (200, 202, 204)  # DSP0266, 12.3: the action is done, or accepted
RETRIES_MAX: Final = 1  # per request, if the BMC has closed the connection meanwhile
CREDENTIALS_BYTES_MAX: Final = 4096


class BmcFault(Enum):
    """Why a BMC could not be read."""

    UNREACHABLE = "unreachable"  # no address, no route, refused, or cut off
    TIMEOUT = "timeout"
    TLS = "tls"  # the handshake failed: usually the certificate
    REFUSED = "refused"  # user or password
    STATUS = "status"  # an HTTP status that is no success
    ANSWER = "answer"  # not what Redfish has there
    CREDENTIALS = "credentials"  # our own file can't be used, so nothing was asked
    INTERNAL = "internal"  # a defect of ours


class BmcError(SourceError):
    """A request to a BMC failed."""

    def __init__(self, message: str, fault: BmcFault) -> None:
        super().__init__(message)
        self.fault = fault


class BmcRefusedError(RankmendError):
    """The BMC does not accept the user: asking again may lock the account."""


class Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    password: str


@dataclass(frozen=True, slots=True)
class BmcAddress:
    host: str
    port: int
    is_encrypted: bool


def parse_url(url: str) -> BmcAddress:
    """Return where the BMC is; plain HTTP only on this machine, since a password is sent."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"redfish url: {error}") from error
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ConfigError(f"redfish url is not https://HOST[:PORT]: {url.rpartition('@')[2]!r}")
    if parts.username or parts.password:
        raise ConfigError("redfish url contains a user; put it in the credentials file")
    if parts.path not in ("", "/", "/redfish/v1", "/redfish/v1/") or parts.query or parts.fragment:
        raise ConfigError(f"redfish url contains more than host and port: {url!r}")
    is_encrypted = parts.scheme == "https"
    if not is_encrypted and not _is_this_machine(parts.hostname):
        raise ConfigError(f"redfish url would send the password in clear text: {url!r}")
    return BmcAddress(parts.hostname, port or (443 if is_encrypted else 80), is_encrypted)


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_credentials(path: Path) -> Credentials:
    """Return user and password from a TOML file that nobody else may read, or raise ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if os.fstat(descriptor).st_mode & 0o077:
                raise ConfigError(f"other users may read the credentials in {path}: run chmod 600")
            data = os.read(descriptor, CREDENTIALS_BYTES_MAX)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"cannot read the credentials in {path}: {error.strerror}") from error
    try:
        credentials = msgspec.toml.decode(data, type=Credentials)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # without the cause: its text may quote the password
        raise ConfigError(f"{path} does not contain user = ... and password = ...") from None
    if ":" in credentials.user:
        raise ConfigError(f"the user in {path} has a colon, which HTTP does not allow")
    return credentials


def make_context(ca_file: str | None, verify: bool) -> ssl.SSLContext:
    """Return how certificates are checked: against the system's CAs, or those in a file."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the CA file {ca_file}: {error}") from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class RedfishSession:
    """One connection to a BMC, for one run. Used by one thread only."""

    def __init__(
        self,
        address: BmcAddress,
        credentials: Credentials,
        context: ssl.SSLContext | None,
        clock: Clock,
        request_s_max: float = REQUEST_S_MAX,
    ) -> None:
        token = base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Authorization": f"Basic {token}",
            "OData-Version": "4.0",
        }
        self._address = address
        self._context = context
        self._clock = clock
        self._request_s_max = request_s_max
        self._connection: http.client.HTTPConnection | None = None
        self._guard: socket.socket | None = None  # the same connection, to end it from outside
        self._raw: socket.socket | None = None  # connected, and not yet encrypted
        self.requests = 0

    def close(self) -> None:
        for thing in (self._connection, self._guard, self._raw):
            if thing is not None:
                thing.close()
        self._connection = self._guard = self._raw = None

    def get(self, path: str, deadline_s: float) -> dict[str, Any]:
        """Return a resource, or raise BmcError or BmcRefusedError before the deadline."""
        for tries_left in range(RETRIES_MAX, -1, -1):
            was_open = self._connection is not None
            try:
                return self._get_once(path, deadline_s)
            except (http.client.RemoteDisconnected, ConnectionError) as error:
                self.close()
                if not was_open or tries_left == 0:  # a fresh connection has failed as well
                    fault = BmcFault.UNREACHABLE
                    raise BmcError(f"the BMC cut off {path}: {error}", fault) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                raise BmcError(f"the BMC fails at {path}: {error}", _fault_of(error)) from error
        raise AssertionError("the last try returns or raises")

    def post(self, path: str, body: Mapping[str, object], deadline_s: float) -> None:
        """Send an action once, or raise BmcError or BmcRefusedError: then nobody knows whether it was taken."""
        try:
            status, _answer = self._ask("POST", path, msgspec.json.encode(body), deadline_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise BmcError(f"the BMC fails at {path}: {error}", _fault_of(error)) from error
        _check(path, status, _TAKEN)

    def _get_once(self, path: str, deadline_s: float) -> dict[str, Any]:
        status, body = self._ask("GET", path, None, deadline_s)
        return _decode(path, status, body)

    def _ask(
        self, method: str, path: str, content: bytes | None, deadline_s: float
    ) -> tuple[int, bytes]:
        left_s = min(self._request_s_max, deadline_s - self._clock.now_s())
        if left_s <= 0:
            raise BmcError(f"no time left for {path}", BmcFault.TIMEOUT)
        self.requests += 1
        connection = self._connection or self._open(left_s)
        guard = self._guard
        assert guard is not None
        # a peer that sends one byte at a time never trips a socket's timeout
        is_over = Event()
        timer = Timer(left_s, _end, (guard, is_over))
        timer.daemon = True
        timer.start()
        try:
            if connection.sock is None:
                connection.sock = self._encrypted(left_s)
            headers = self._headers
            if content is not None:
                headers = {**headers, "Content-Type": "application/json"}
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            body = answer.read(BODY_BYTES_MAX + 1)
            if is_over.is_set():  # cut off in mid-answer
                raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if is_over.is_set() or isinstance(error, TimeoutError):  # the socket's own was first
                text = f"the BMC takes more than {left_s:.3g} s for {path}"
                raise BmcError(text, BmcFault.TIMEOUT) from error
            raise
        finally:
            timer.cancel()
        if len(body) > BODY_BYTES_MAX:
            self.close()  # the rest is still on its way
            raise BmcError(f"{path} has more than {BODY_BYTES_MAX} bytes", BmcFault.ANSWER)
        if answer.will_close or not answer.isclosed():  # the body was cut short
            self.close()
        return answer.status, body

    def _open(self, left_s: float) -> http.client.HTTPConnection:
        address = self._address
        self._raw = socket.create_connection((address.host, address.port), left_s)
        self._raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._guard = self._raw.dup()
        self._connection = http.client.HTTPConnection(address.host, address.port)
        self._connection.auto_open = 0  # by itself it would connect without TLS
        return self._connection

    def _encrypted(self, left_s: float) -> socket.socket:
        raw, self._raw = self._raw, None
        assert raw is not None, "only a connection that has just been opened has no socket"
        raw.settimeout(left_s)
        if self._context is None:
            return raw
        return self._context.wrap_socket(raw, server_hostname=self._address.host)


def _fault_of(error: Exception) -> BmcFault:
    if isinstance(error, ssl.SSLError):
        return BmcFault.TLS
    if isinstance(error, TimeoutError):
        return BmcFault.TIMEOUT
    return BmcFault.UNREACHABLE if isinstance(error, OSError) else BmcFault.ANSWER


def _end(guard: socket.socket, is_over: Event) -> None:
    is_over.set()
    with suppress(OSError):
        guard.shutdown(socket.SHUT_RDWR)


def _check(path: str, status: int, good: tuple[int, ...]) -> None:
    if status == 401:
        raise BmcRefusedError(f"the BMC rejects the user at {path} (HTTP {status})")
    if status not in good:
        raise BmcError(f"the BMC answers {path} with HTTP {status}", BmcFault.STATUS)


def _decode(path: str, status: int, body: bytes) -> dict[str, Any]:
    _check(path, status, (200,))
    try:
        page = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BmcError(f"{path} is not JSON", BmcFault.ANSWER) from error
    if not isinstance(page, dict):
        raise BmcError(f"{path} is not an object", BmcFault.ANSWER)
    return page
