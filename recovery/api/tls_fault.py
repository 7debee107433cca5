"""Why a TLS connection to a controller fails: from OpenSSL's codes, not its texts."""

import ssl
from enum import Enum
from typing import Final

_DEPTH_MAX: Final = 8  # errors around OpenSSL's own: urllib3 wraps it twice
# X509_V_ERR_* of openssl/x509_vfy.h
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_HOST_MISMATCH: Final = 62
_ADDRESS_MISMATCH: Final = 64


class TlsFault(Enum):
    WRONG_NAME = "wrong_name"  # the certificate names others
    WRONG_TIME = "wrong_time"  # the certificate is not valid by this machine's clock
    UNKNOWN_AUTHORITY = "unknown_authority"
    NO_TLS = "no_tls"  # the server does not speak TLS
    NO_CERTIFICATE = "no_certificate"  # the authority's file holds no certificate


_BY_CODE: Final = {
    _NOT_YET_VALID: TlsFault.WRONG_TIME,
    _EXPIRED: TlsFault.WRONG_TIME,
    _HOST_MISMATCH: TlsFault.WRONG_NAME,
    _ADDRESS_MISMATCH: TlsFault.WRONG_NAME,
}


def tls_fault_of(error: BaseException) -> TlsFault | None:
    """Return the fault that OpenSSL has found, in the error or in those that it wraps; None: none."""
    inner = _find(error, _DEPTH_MAX)
    if inner is None:
        return None
    if isinstance(inner, ssl.SSLCertVerificationError):
        return _BY_CODE.get(inner.verify_code, TlsFault.UNKNOWN_AUTHORITY)
    if inner.library == "X509":
        return TlsFault.NO_CERTIFICATE
    return TlsFault.NO_TLS if inner.reason == "WRONG_VERSION_NUMBER" else None


def _find(error: object, depth: int) -> ssl.SSLError | None:
    if isinstance(error, ssl.SSLError):
        return error
    if depth == 0 or not isinstance(error, BaseException):
        return None
    wrapped = (getattr(error, "reason", None), error.__cause__, error.__context__, *error.args)
    return next((found for one in wrapped if (found := _find(one, depth - 1)) is not None), None)
