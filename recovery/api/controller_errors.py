"""Errors of requests to a controller."""

from collections.abc import Sequence

from rankmend.errors import RankmendError
from recovery.api import wire
from recovery.api.tls_fault import TlsFault
from recovery.journal.job_records import JobOutcome


class ControllerError(RankmendError):
    """The controller did not carry out a request."""


class LauncherError(ControllerError):
    """The launcher of a job on this machine can't be asked, or does not answer."""


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
