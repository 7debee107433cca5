"""What the records of slow ranks change in the ledger. Pure."""

from recovery.journal.fold.changed_copy import replace
from recovery.journal.ledger import Ledger, SlowNow, Wish
from recovery.journal.slow_rank_records import SlowEnded, SlowExplained, SlowFound


def fold_slow_found(record: SlowFound, ledger: Ledger) -> Ledger:
    if record.attempt != ledger.attempt:
        return ledger
    slow = {**ledger.slow, record.rank: SlowNow(record, ledger.number)}
    return replace(ledger, slow=slow, revision=_told(ledger))


def fold_slow_explained(record: SlowExplained, ledger: Ledger) -> Ledger:
    known = ledger.slow.get(record.rank)
    if record.attempt != ledger.attempt or known is None:
        return ledger
    slow = {**ledger.slow, record.rank: replace(known, why=record)}
    return replace(ledger, slow=slow, revision=_told(ledger))


def fold_slow_ended(record: SlowEnded, ledger: Ledger) -> Ledger:
    if record.attempt != ledger.attempt or record.rank not in ledger.slow:
        return ledger
    slow = {rank: one for rank, one in ledger.slow.items() if rank != record.rank}
    return replace(ledger, slow=slow, revision=_told(ledger))


def _told(ledger: Ledger) -> int:
    """Return the revision by which the launchers hear of slow ranks; what runs stays as it is."""
    return ledger.number if ledger.wish is Wish.RANKS else ledger.revision
