"""Errors of requests to a controller."""

import ssl
from collections.abc import Sequence
from enum import Enum
from typing import Final

from rankmend.errors import RankmendError
from recovery.api import wire
from recovery.journal.job_records import JobOutcome

_DEPTH_MAX: Final = 8  # errors around OpenSSL's own: urllib3 wraps it twice
# X509_V_ERR_* of openssl/x509_vfy.h
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_HOST_MISMATCH: Final = 62
_ADDRESS_MISMATCH: Final = 64


class TlsFault(Enum):
    """Why a TLS connection to a controller fails: from OpenSSL's codes, not its texts."""

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
    return next((found for item in wrapped if (found := _find(item, depth - 1)) is not None), None)


class ControllerError(RankmendError):
    """The controller did not carry out a request."""


class LauncherError(ControllerError):
    """The launcher of a job on this machine can't be queried, or does not answer."""


class UnreachableError(ControllerError):
    """No controller answered, or none can answer now: try again after a pause."""

    def __init__(
        self,
        message: str,
        retry_after_s: float | None = None,
        problems: Sequence[str] = (),
        tls_fault: TlsFault | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.tls_fault = tls_fault  # the TLS fault of any controller that was asked
        self.problems = tuple(problems) or (message,)  # one for each controller that was asked


class BusyError(UnreachableError):
    """A controller answered that it cannot serve the request now."""

    def __init__(
        self,
        message: str,
        retry_after_s: float | None = None,
        problems: Sequence[str] = (),
        *,
        status: int,
        reason: str = "",
    ) -> None:
        super().__init__(message, retry_after_s, problems)
        self.status = status
        self.reason = reason  # for a 503: recovery.api.wire.Problem.refusal


class RefusedError(ControllerError):
    """The controller answered no: the same request will fail again."""

    def __init__(self, message: str, status: int, problem: wire.Problem, base: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
        self.base = base  # URL of the controller


class UnknownJobError(RefusedError):
    """The controller does not know the job: join again."""


class ConflictError(RefusedError):
    """The request conflicts with the current state: a newer launcher of this node, other settings of the job."""


class JobEndedError(RefusedError):
    """The job has ended."""

    def __init__(
        self,
        message: str,
        status: int,
        problem: wire.Problem,
        outcome: JobOutcome,
        base: str = "",
    ) -> None:
        super().__init__(message, status, problem, base)
        self.outcome = outcome
