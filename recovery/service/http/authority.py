"""Makes what TLS needs: an authority of the site's own, the controller's certificate, the nodes'.

ECDSA P-256, which every TLS library speaks and which signs in 0.1 ms. Files are made and never
written over. A site with an authority of its own uses that instead: docs/operate/security.md.
"""

import ipaddress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rankmend.errors import ConfigError
from rankmend.files import create_file

AUTHORITY_DAYS: Final = 3650  # its key signs again before that; a cluster lives some 5 to 7 years
LEAF_DAYS: Final = 825  # the longest that clients of all kinds accept (Apple, Chrome)
_SKEW: Final = timedelta(hours=1)  # clocks of machines that were just installed


def make_authority(cert_path: Path, key_path: Path, name: str) -> None:
    """Make an authority that signs the controller's and the nodes' certificates, and nothing below."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write_key(key_path, key)
    write_new(cert_path, _pem(builder.sign(key, hashes.SHA256())), 0o644)


def make_server(
    authority: tuple[Path, Path], cert_path: Path, key_path: Path, hosts: list[str]
) -> None:
    """Make the certificate of a controller that is reached under ``hosts``."""
    if not hosts:
        raise ConfigError(
            "no host name given: name at least one by which clients reach the controller"
        )
    names = [_general_name(host) for host in hosts]
    _issue(authority, cert_path, key_path, hosts[0], names, ExtendedKeyUsageOID.SERVER_AUTH)


def make_node(authority: tuple[Path, Path], cert_path: Path, key_path: Path, node: str) -> None:
    """Make the certificate by which an agent proves which node it is on."""
    names = [_general_name(node)]
    _issue(authority, cert_path, key_path, node, names, ExtendedKeyUsageOID.CLIENT_AUTH)


def _issue(
    authority: tuple[Path, Path],
    cert_path: Path,
    key_path: Path,
    name: str,
    names: list[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
) -> None:
    issuer, issuer_key = _load(*authority)
    key = ec.generate_private_key(ec.SECP256R1())
    if len(name) > 64:  # X.520: the names that count are the alternative ones
        name = name[:64]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(subject, issuer.subject, key.public_key(), LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    _write_key(key_path, key)
    write_new(cert_path, _pem(builder.sign(issuer_key, hashes.SHA256())), 0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"{host!r} is not a host name") from error


def _load(cert_path: Path, key_path: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot use the CA {cert_path} with {key_path}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{key_path} is not an EC key as `rankmend controller init` makes it")
    return certificate, key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    body = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_new(path, body, 0o600)


def expires_unix_s(cert_path: Path) -> float:
    """Return until when the first certificate of the file holds, in unix seconds."""
    try:
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the certificate {cert_path}: {error}") from error
    return certificate.not_valid_after_utc.timestamp()


def refuse_out_of_date(cert_file: str, ca_file: str | None, now_unix_s: float) -> None:
    """Raise ConfigError where a certificate does not hold now: each client would refuse the controller.

    Of an authority's file one certificate that holds is enough.
    """
    _refuse_unless_valid(_certificates(Path(cert_file))[:1], cert_file, now_unix_s)
    if ca_file is not None:
        _refuse_unless_valid(_certificates(Path(ca_file)), ca_file, now_unix_s)


def _refuse_unless_valid(found: list[x509.Certificate], name: str, now_unix_s: float) -> None:
    spans = [
        (certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp())
        for certificate in found
    ]
    if any(begins_s <= now_unix_s < ends_s for begins_s, ends_s in spans):
        return
    first = found[0]
    what = "expired at" if spans[0][1] <= now_unix_s else "is not valid before"
    at = first.not_valid_after_utc if spans[0][1] <= now_unix_s else first.not_valid_before_utc
    raise ConfigError(
        f"the certificate {name} {what} {at.isoformat()}: "
        f"make one with rankmend controller server-cert, or set this machine's clock"
    )


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the certificate {path}: {error}") from error


def write_new(path: Path, body: bytes, mode: int) -> None:
    """Make a file with this mode, or raise where there is one already."""
    try:
        create_file(path, body, ConfigError, mode=mode)
    except FileExistsError as error:
        raise ConfigError(
            f"{path} already exists and is not overwritten: remove or rename it"
        ) from error
