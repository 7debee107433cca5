import pytest

from rankmend.errors import JournalError
from recovery.journal.faults import UNSEEN
from recovery.journal.folder.saved_budgets import BUDGETS_BYTES_MAX, decode_budgets, encode_budgets
from recovery.journal.ledger import Ledger

pytestmark = pytest.mark.safety


def test_the_copy_of_the_budgets_comes_back() -> None:
    ledger = Ledger(
        number=5, job_id="job-1", attempt=2, restarts=1, barren=(UNSEEN,), highest_step=9
    )

    copy = decode_budgets(encode_budgets(ledger))

    assert (copy.job_id, copy.record_number, copy.attempt) == ("job-1", 5, 2)
    assert (copy.restarts, copy.restarts_without_progress, copy.highest_step) == (1, 1, 9)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"version":9,"job_id":"j","record_number":1,"attempt":1,"restarts":0,'
        b'"restarts_without_progress":0,"highest_step":null}',
        b'{"version":1,"job_id":"j","record_number":-1,"attempt":1,"restarts":0,'
        b'"restarts_without_progress":0,"highest_step":null}',
        b" " * (BUDGETS_BYTES_MAX + 1),
    ],
)
def test_a_copy_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(JournalError, match="copy of the budgets"):
        decode_budgets(body)
