"""The copy of the budgets beside the checkpoints, for a job whose state folder is lost."""

from dataclasses import dataclass
from typing import Final

import msgspec

from rankmend.errors import JournalError
from recovery.journal.ledger import Ledger

BUDGETS_BYTES_MAX: Final = 1024 * 1024  # with the names of 10,000 nodes, 64 bytes each
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SavedBudgets:
    """The copy of the budgets beside the checkpoints, for a job whose state folder is lost."""

    version: int
    job_id: str
    record_number: int
    attempt: int
    restarts: int
    restarts_without_progress: int
    highest_step: int | None
    nodes: tuple[str, ...] = ()  # the attempt's nodes by group rank, while it may still run
    has_lease: bool = False  # its launchers keep one


def encode_budgets(ledger: Ledger) -> bytes:
    """Return the budgets of ``ledger`` in the form of the copy."""
    assert ledger.job_id is not None, "a job without an identity has no budgets"
    return msgspec.json.encode(
        SavedBudgets(
            _VERSION,
            ledger.job_id,
            ledger.number,
            ledger.attempt,
            ledger.restarts,
            ledger.restarts_without_progress,
            ledger.highest_step,
            tuple(place.node for place in ledger.placement) if ledger.is_attempt_open else (),
            ledger.has_lease,
        )
    )


def decode_budgets(body: bytes) -> SavedBudgets:
    """Return the budgets of a copy, or raise JournalError with what is wrong."""
    if len(body) > BUDGETS_BYTES_MAX:
        raise JournalError(
            f"the copy of the budgets has {len(body)} bytes, over {BUDGETS_BYTES_MAX}"
        )
    try:
        copy = msgspec.json.decode(body, type=SavedBudgets, strict=True)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JournalError(f"the copy of the budgets can't be read: {error}") from error
    numbers = (copy.record_number, copy.attempt, copy.restarts, copy.restarts_without_progress)
    if copy.version != _VERSION or min(numbers) < 0:
        raise JournalError(f"the copy of the budgets is impossible: {copy}")
    return copy
