"""What the launchers of one job make of the secret that they share: a token, and the host's TLS key.

Key and certificate follow from the secret alone (Ed25519, whose signatures are deterministic), so
whoever knows it knows the certificate's fingerprint, before and after another node has
taken over as host, and nothing but the secret has to be handed around.
"""

import hashlib
import hmac
import os
import secrets
import ssl
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from rankmend.errors import ConfigError
from rankmend.token_file import read_token
from recovery.service.roles import JOBS_OWN, TOKEN_ROLES
from recovery.service.tokens import TokenEntry, hash_of

SECRET_CHARACTERS_MIN: Final = 32  # 128 bits as hexadecimal digits: not to be found by trying
# Fixed, so that every launcher makes the same certificate; what it is worth, the fingerprint says.
_FROM: Final = datetime(2020, 1, 1, tzinfo=timezone.utc)
_UNTIL: Final = datetime(2120, 1, 1, tzinfo=timezone.utc)


def new_secret() -> str:
    return secrets.token_hex(32)


def read_secret(path: Path) -> str:
    """Return the secret in a token file; refuse one that others can read or guess."""
    text = read_token(path)
    if len(text) < SECRET_CHARACTERS_MIN:
        raise ConfigError(
            f"token file {path} has {len(text)} characters; at least {SECRET_CHARACTERS_MIN} are needed: "
            f"openssl rand -hex 32 makes a good one"
        )
    return text


class Identity:
    """Token, key and certificate of one job's launchers."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        derived = self._derive("token").hex()
        self.token = f"rm_{self._derive('token id').hex()[:8]}_{derived}"
        self._key = Ed25519PrivateKey.from_private_bytes(self._derive("tls key"))
        self._certificate = self._make_certificate()
        der = self._certificate.public_bytes(serialization.Encoding.DER)
        self.fingerprint = hashlib.sha256(der).hexdigest()

    def _derive(self, purpose: str) -> bytes:
        text = f"rankmend meeting {purpose}".encode()
        return hmac.digest(self.secret.encode(), text, hashlib.sha256)

    def _make_certificate(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rankmend meeting")])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(1)
            .not_valid_before(_FROM)
            .not_valid_after(_UNTIL)
            .sign(self._key, None)
        )

    def entry(self) -> TokenEntry:
        """Return what the host's service knows the token by."""
        return TokenEntry(
            id=self.token.split("_")[1],
            sha256=hash_of(self.token),
            subject=JOBS_OWN,
            roles=list(TOKEN_ROLES),
        )

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the host."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["http/1.1"])
        key = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        body = self._certificate.public_bytes(serialization.Encoding.PEM) + key
        # OpenSSL takes a file name; a file of memory without a name of its own has one in /proc.
        with os.fdopen(os.memfd_create("rankmend-tls", os.MFD_CLOEXEC), "wb") as file:
            file.write(body)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context
