"""The copy of the budgets beside the checkpoints, for a job whose state folder is lost."""

from dataclasses import dataclass
from typing import Final

import msgspec

from rankmend.errors import JournalError
from recovery.journal.ledger import Ledger, Wish

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
    nodes: tuple[str, ...] = ()  # see `nodes_to_empty`
    has_lease: bool = False  # its launchers keep one


def nodes_to_empty(ledger: Ledger) -> tuple[str, ...]:
    """Return the newest attempt's nodes by group rank, until it is over and the job with it.

    Between two attempts the copy keeps the nodes of the first: the order for the second may be sent
    before storage has the next copy.
    """
    leaves = ledger.closing is not None or ledger.ended is not None
    is_over = not ledger.is_attempt_open and (leaves or ledger.wish is Wish.NOTHING_YET)
    return () if is_over else tuple(place.node for place in ledger.placement)


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
            nodes_to_empty(ledger),
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
