"""What the records of numbers that went wrong change in the ledger. Pure."""

from typing import Final

from recovery.journal.fold.changed_copy import replace
from recovery.journal.ledger import Ledger
from recovery.journal.number_records import GoesBack, NumbersWrong

_WRONG_MAX: Final = 16  # newest


def fold_numbers_wrong(record: NumbersWrong, ledger: Ledger) -> Ledger:
    return replace(ledger, wrong_numbers=(*ledger.wrong_numbers, record)[-_WRONG_MAX:])


def fold_goes_back(record: GoesBack, ledger: Ledger) -> Ledger:
    return replace(ledger, rollbacks=(*ledger.rollbacks, record), goes_back=record)
