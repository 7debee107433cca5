"""Maps each error of a request to its HTTP answer: one row for each error."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from rankmend.errors import ConfigError, JournalError, MessageError, RankmendError
from recovery.api import wire
from recovery.controller.cluster.incoming_alerts import AlertsError
from recovery.journal.postgres.database import CommitUnknownError, LeaseLostError
from recovery.journal.postgres.leases import HeldByOtherError
from recovery.service.http.call import BadError, EncodedError, LargeError
from recovery.service.http.request_errors import (
    CallConflictError,
    EndedError,
    FullError,
    LateAlertError,
    PeerSilentError,
)
from recovery.service.jobs.served_job import NotTakenUpError
from recovery.service.roles import DeniedError, TooManyError, UnknownError, UnknownNodeError

log = logging.getLogger(__name__)

TEXT_MAX: Final = 2000
VALUE_MAX: Final = 200

_E = TypeVar("_E", bound=Exception)


class NotNow(Enum):
    """Why a request gets 503, for programs."""

    STARTING = "starting"  # the controller is resuming its jobs
    STOPPING = "stopping"
    BUSY = "busy"  # the queue is full, or the deciding thread does not answer
    JOURNAL = wire.JOURNAL_UNREADABLE  # a journal cannot be read or written
    JOB = "job"  # this one job has no working controller


_NOT_NOW: Final = {
    NotNow.STARTING: "the controller has just started and is still resuming its jobs; try again",
    NotNow.STOPPING: "the controller is stopping",
    NotNow.BUSY: "the controller's deciding thread does not answer; try again",
    NotNow.JOURNAL: "the controller cannot read or write a journal; its log says why",
    NotNow.JOB: "the controller cannot manage this job now; its log says why",
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    status: int
    problem: wire.Problem
    retry_after_s: int | None = None


class AnsweredError(RankmendError):
    """A request that did not come over HTTP was refused, with this answer."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.problem.error)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class _Row(Generic[_E]):
    """The answer to errors of ``kind`` and of what derives from it, unless that has a row of its own."""

    kind: type[_E]
    status: int | Callable[[_E], int]
    problem: Callable[[_E], wire.Problem] = lambda error: wire.Problem(str(error))
    not_now: NotNow | None = None  # for a 503
    retry_after_s: Callable[[_E], int | None] = lambda _error: None


def _one_second(_error: Exception) -> int:
    return 1


_ROWS: Final = (
    _Row(BadError, 400, lambda error: wire.Problem(str(error), error.field, error.value)),
    _Row(MessageError, 400),
    _Row(AlertsError, 400),
    _Row(ConfigError, 400),
    _Row(DeniedError, lambda error: error.status),  # 401 or 403
    _Row(UnknownError, 404),
    _Row(UnknownNodeError, 404,
         lambda error: wire.Problem(str(error), error.field, error.value, refusal=error.refusal)),
    _Row(CallConflictError, 409,
         lambda error: wire.Problem(str(error), error.field, error.value, refusal=error.refusal)),
    _Row(EndedError, 410,
         lambda error: wire.Problem(str(error), outcome=error.outcome, lines=error.lines)),
    _Row(LargeError, 413),
    _Row(EncodedError, 415),
    _Row(TooManyError, 429, retry_after_s=lambda error: max(1, round(error.retry_after_s))),
    _Row(FullError, 503, not_now=NotNow.BUSY, retry_after_s=_one_second),
    _Row(asyncio.TimeoutError, 503, not_now=NotNow.BUSY, retry_after_s=_one_second),
    _Row(CommitUnknownError, 503, not_now=NotNow.JOURNAL, retry_after_s=_one_second),
    _Row(LeaseLostError, 503, not_now=NotNow.JOB, retry_after_s=_one_second),
    _Row(JournalError, 503, not_now=NotNow.JOURNAL, retry_after_s=_one_second),
    _Row(HeldByOtherError, 503, not_now=NotNow.JOB, retry_after_s=_one_second),
    _Row(LateAlertError, 503, not_now=NotNow.JOB, retry_after_s=_one_second),
    _Row(PeerSilentError, 503, not_now=NotNow.JOB, retry_after_s=_one_second),
    _Row(NotTakenUpError, 503, not_now=NotNow.JOB, retry_after_s=_one_second),
)  # fmt: skip
_BY_KIND: Final[dict[type, _Row[Any]]] = {row.kind: row for row in _ROWS}


def answer_error(
    error: Exception, route: str, *, is_stopping: bool, is_taken_up: bool
) -> ErrorAnswer:
    """Return the answer to ``error``. An error without a row is a defect: it gets 500, and the log its traceback."""
    row = next((_BY_KIND[kind] for kind in type(error).__mro__ if kind in _BY_KIND), None)
    if row is None:
        log.error("request failed", extra={"route": route}, exc_info=error)
        text = "the controller failed on this request; its log has the traceback"
        return ErrorAnswer(500, wire.Problem(text))
    problem: wire.Problem = row.problem(error)
    if row.not_now is not None:
        reason = row.not_now
        if is_stopping:
            reason = NotNow.STOPPING
        elif not is_taken_up:
            reason = NotNow.STARTING
        problem.refusal = reason.value
        problem.error = problem.error or _NOT_NOW[reason]
    problem.error, problem.value = problem.error[:TEXT_MAX], problem.value[:VALUE_MAX]
    status = row.status(error) if callable(row.status) else row.status
    return ErrorAnswer(status, problem, row.retry_after_s(error))
