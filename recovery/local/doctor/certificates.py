"""Reads when certificates end, and who may read the keys beside them."""

import stat
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from detectors.doctor.controller import CertificateFacts, CertificateFiles, KeyFacts

if TYPE_CHECKING:
    from recovery.service.controller_config import Config

_DAY_S: Final = 86_400
_BYTES_MAX: Final = 1 << 20


def files_of(config: "Config") -> tuple[list[str], list[str]]:
    """Return certificates and keys that a controller's configuration names."""
    certificates, keys = [], []
    for section in (config.tls, config.alertmanagers):
        if section is None:
            continue
        certificates += [section.cert_file, getattr(section, "ca_file", None)]
        keys.append(section.key_file)
    if config.tls is not None:
        certificates.append(config.tls.client_ca_file)
    return [certificate for certificate in certificates if certificate], [
        key for key in keys if key
    ]


def read_certificates(
    certificates: Iterable[str], keys: Iterable[str], now: datetime | None = None
) -> CertificateFiles:
    now = now or datetime.now(timezone.utc)
    return CertificateFiles(
        tuple(_read(Path(path), now) for path in dict.fromkeys(certificates)),
        tuple(_look(Path(path)) for path in dict.fromkeys(keys)),
    )


def _read(path: Path, now: datetime) -> CertificateFacts:
    """Return the dates of a file's certificate; of several those of the one that ends first."""
    from cryptography import x509  # noqa: PLC0415 - 50 ms, for hosts that have certificates

    try:
        with path.open("rb") as file:
            found = x509.load_pem_x509_certificates(file.read(_BYTES_MAX))
    except PermissionError:
        return CertificateFacts(str(path), is_hidden=True)
    except OSError as error:
        return CertificateFacts(str(path), error=f"cannot read {path}: {error.strerror}")
    except ValueError:
        return CertificateFacts(str(path), error=f"{path} holds no PEM certificate")
    ends = min(certificate.not_valid_after_utc for certificate in found)
    begins = max(certificate.not_valid_before_utc for certificate in found)
    return CertificateFacts(
        str(path),
        days_left=(ends - now).total_seconds() / _DAY_S,
        days_until_valid=max(0.0, (begins - now).total_seconds() / _DAY_S),
    )


def _look(path: Path) -> KeyFacts:
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return KeyFacts(str(path))  # in a folder that is closed to us: to others, too
    except OSError:
        return KeyFacts(str(path), is_there=False)
    return KeyFacts(str(path), is_open=bool(mode & (stat.S_IROTH | stat.S_IWOTH)))
