"""How two copiers talk: TLS 1.3 by a certificate of the process's own, and proofs of the job's secret.

Nobody signs the certificates, so they prove nothing. Who knows the job's secret proves it to the other side by an HMAC
over both nonces and the digest of the server's certificate: somebody in between would have to show another certificate
(a channel binding as tls-server-end-point in RFC 5929, section 4). The secret itself is never sent.

After that, messages are JSON with their size in front; the bytes of a snapshot follow as they are.
"""

import contextlib
import hashlib
import secrets
import socket
import ssl
import struct
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Meta, Struct

from recovery.checkpoints.snapshots.copies.copy_messages import Name, SnapshotDigest
from recovery.messages.exchange import CopyFault
from recovery.messages.peer_key import PeerKey

MESSAGE_BYTES_MAX: Final = 64 << 10
NONCE_BYTES: Final = 32
HELLO_S_MAX: Final = 10.0  # for the handshake of TLS and the proofs; a copier may just be starting
STALL_S_MAX: Final = 30.0  # without a byte; the rate limit pauses for less
CHUNK_BYTES: Final = 256 << 10
_SIZE: Final = struct.Struct("<I")
_DAYS: Final = 3650
Hex = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

_M = TypeVar("_M")

FAILURES: Final = (OSError, ValueError, EOFError, msgspec.MsgspecError)


class Challenge(Struct):
    nonce: Hex


class Hello(Struct):
    node: Name
    to: Name
    nonce: Hex
    macs: Annotated[tuple[Hex, ...], Meta(min_length=1, max_length=4)]  # one for each secret


class Welcome(Struct):
    mac: Hex


class Push(Struct, tag=True):
    """`PeerAnswer`; the content of the snapshot once it is accepted, and `End`; `PeerAnswer`."""

    snapshot: SnapshotDigest
    head: bytes  # of the file


class Get(Struct, tag=True):
    """`PeerAnswer`, then head, content and `End`."""

    snapshot: SnapshotDigest


class PeerAnswer(Struct):
    fault: CopyFault | None = None
    message: Annotated[str, Meta(max_length=500)] = ""
    head: bytes = b""  # of the file that follows
    is_held: bool = False  # nothing need follow: it is there


class End(Struct):
    """Whether the sender's file was the same until its last byte."""

    fault: CopyFault | None = None


Request = Push | Get


class PeerFaultError(Exception):
    """A copy or a fetch failed. ``fault``: why, for decisions."""

    def __init__(self, fault: CopyFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def make_server_context() -> tuple[ssl.SSLContext, str]:
    """Return a context with a new certificate, and that certificate's digest."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rankmend copier")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    der = certificate.public_bytes(serialization.Encoding.DER)
    with tempfile.TemporaryDirectory() as folder:  # the ssl module reads keys from files only
        path = Path(folder, "pem")
        path.touch(0o600)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(path)
    return context, hashlib.sha256(der).hexdigest()


def make_client_context() -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the proofs bind the certificate
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class PeerLine:
    """One authenticated connection. Owns the socket."""

    def __init__(self, connection: ssl.SSLSocket, node: str) -> None:
        self.node = node  # at the other end
        self._connection = connection

    @property
    def address(self) -> str:
        """Return the numeric address of the other end."""
        return str(self._connection.getpeername()[0])

    def __enter__(self) -> "PeerLine":
        return self

    def __exit__(self, *_error: object) -> None:
        close(self._connection)

    def say(self, message: Struct) -> None:
        _send(self._connection, message)

    def hear(self, kind: type[_M]) -> _M:
        return _receive(self._connection, kind)

    def hear_request(self) -> Request:
        request: Request = _receive(self._connection, Request)  # type: ignore[arg-type] # a union
        return request

    def send(self, chunk: memoryview) -> None:
        self._connection.sendall(chunk)

    def receive(self, chunk: memoryview) -> None:
        """Fill a chunk. Raises EOFError where the connection ends before."""
        _fill(self._connection, chunk)


def accept(
    connection: socket.socket,
    context: ssl.SSLContext,
    certificate: str,
    node: str,
    keys: Sequence[PeerKey],
) -> PeerLine:
    """Return the line to a copier that has connected, or raise one of `FAILURES` or PeerFaultError."""
    secured = _secure(connection, context, is_server=True)
    try:
        ours = secrets.token_hex(NONCE_BYTES)
        _send(secured, Challenge(ours))
        hello = _receive(secured, Hello)
        requested = ("copy", node, hello.node, ours, hello.nonce, certificate)
        key = next(
            (key for key in keys if any(key.holds(mac, *requested) for mac in hello.macs)), None
        )
        if key is None or hello.to != node:
            raise PeerFaultError(CopyFault.UNPROVEN, "it has no proof of this job's secret")
        _send(secured, Welcome(key.prove("welcome", ours, hello.nonce, certificate)))
        secured.settimeout(STALL_S_MAX)
        return PeerLine(secured, hello.node)
    except BaseException:
        close(secured)
        raise


def connect(
    address: str,
    port: int,
    context: ssl.SSLContext,
    node: str,
    to: str,
    keys: Sequence[PeerKey],
) -> PeerLine:
    """Return the line to the copier of the node ``to``. Raises PeerFaultError."""
    try:
        connection = socket.create_connection((address, port), HELLO_S_MAX)
    except OSError as error:
        raise PeerFaultError(CopyFault.UNREACHABLE, f"{address}:{port}: {error}") from error
    try:
        secured = _secure(connection, context, is_server=False)
    except FAILURES as error:
        raise PeerFaultError(CopyFault.CUT, f"{address}:{port}: {error}") from error
    try:
        der = secured.getpeercert(binary_form=True) or b""
        certificate = hashlib.sha256(der).hexdigest()
        theirs, ours = _receive(secured, Challenge).nonce, secrets.token_hex(NONCE_BYTES)
        said = ("copy", to, node, theirs, ours, certificate)
        _send(secured, Hello(node, to, ours, tuple(key.prove(*said) for key in keys)))
        try:
            welcome = _receive(secured, Welcome)
        except (EOFError, ConnectionError, ssl.SSLError) as error:
            text = f"{to} does not accept our proof of the job's secret"
            raise PeerFaultError(CopyFault.UNPROVEN, text) from error
        if not any(key.holds(welcome.mac, "welcome", theirs, ours, certificate) for key in keys):
            text = f"{address}:{port} has no proof of the job's secret"
            raise PeerFaultError(CopyFault.UNPROVEN, text)
        secured.settimeout(STALL_S_MAX)
        return PeerLine(secured, to)
    except FAILURES as error:
        close(secured)
        raise PeerFaultError(CopyFault.CUT, f"{address}:{port}: {error}") from error
    except BaseException:
        close(secured)
        raise


def _secure(
    connection: socket.socket, context: ssl.SSLContext, *, is_server: bool
) -> ssl.SSLSocket:
    try:
        connection.settimeout(HELLO_S_MAX)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(connection, server_side=is_server)
    except BaseException:
        connection.close()
        raise


def close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _send(connection: ssl.SSLSocket, message: Struct) -> None:
    body = msgspec.json.encode(message)
    connection.sendall(_SIZE.pack(len(body)) + body)


def _receive(connection: ssl.SSLSocket, kind: type[_M]) -> _M:
    head = bytearray(_SIZE.size)
    _fill(connection, memoryview(head))
    (size,) = _SIZE.unpack(head)
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes, over {MESSAGE_BYTES_MAX}")
    body = bytearray(size)
    _fill(connection, memoryview(body))
    return msgspec.json.decode(body, type=kind)


def _fill(connection: ssl.SSLSocket, chunk: memoryview) -> None:
    at = 0
    while at < len(chunk):
        count = connection.recv_into(chunk[at:])
        if not count:
            raise EOFError("the connection has ended")
        at += count
