"""Why the deciding thread turns a request away."""

from collections.abc import Sequence

from rankmend.errors import RankmendError
from recovery.journal.job_records import JobOutcome
from recovery.messages.exchange import LauncherLine
from recovery.messages.outside import Refusal


class FullError(RankmendError):
    """The queue is full: try again later."""


class PeerSilentError(RankmendError):
    """Another controller of the database gave no answer, or one that can't be read."""


class LateAlertError(RankmendError):
    """An alert fires that has just ended, and started no later: a copy that was under way, or it holds on."""


class CallConflictError(RankmendError):
    """The request conflicts with the current state."""

    def __init__(
        self, message: str, field: str, value: object, refusal: Refusal | None = None
    ) -> None:
        super().__init__(message)
        self.field, self.value = field, str(value)
        self.refusal = "" if refusal is None else refusal.value


class EndedError(RankmendError):
    """The job has ended."""

    def __init__(
        self, message: str, outcome: JobOutcome, lines: Sequence[LauncherLine] = ()
    ) -> None:
        """``lines``: the last that the job's launchers print."""
        super().__init__(message)
        self.outcome = outcome
        self.lines = list(lines)
