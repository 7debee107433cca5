import pytest

from detectors.failed.error_text import ErrorText, parse_error
from detectors.failed.loading_error import LoadingVerdict, judge_loading
from tests.support.loading_errors import CASES, LOADING_CASES, OUTSIDE_CASES, UNKNOWN_CASES, Case

# What ranks of a job print around their own error.
BEFORE = (
    "Some weights were not used: ['head.weight']",
    "UserWarning: torch.load with weights_only=False",
    "",
)
AFTER = (
    "",
    "[W1128 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
)


@pytest.mark.parametrize("case", CASES, ids=[case.source for case in CASES])
def test_each_reported_end_is_judged_as_its_report_says(case: Case) -> None:
    error = parse_error(case.text.splitlines())

    assert error is not None
    assert judge_loading(error) is case.verdict


@pytest.mark.parametrize("case", CASES, ids=[case.source for case in CASES])
def test_what_a_rank_prints_around_its_error_changes_nothing(case: Case) -> None:
    is_traceback = case.text.startswith("Traceback")
    lines = [*BEFORE, *case.text.splitlines(), *(AFTER if is_traceback else ())]
    error = parse_error([f"[rank3]: {line}" if is_traceback else line for line in lines])

    assert error is not None
    assert judge_loading(error) is case.verdict


def test_the_table_holds_each_kind_of_end() -> None:
    assert (len(LOADING_CASES), len(OUTSIDE_CASES), len(UNKNOWN_CASES)) >= (40, 25, 25)


@pytest.mark.parametrize(
    "error",
    [
        ErrorText("", "", ""),
        ErrorText("KeyError", "'x'", '  File "'),
        ErrorText("KeyError", "'x'", 'Traceback (most recent call last):\n  File "a.py", line 1'),
        ErrorText("\udcff", "\x00", "\n" * 5_000),
    ],
)
def test_text_that_tells_nothing_is_not_known(error: ErrorText) -> None:
    assert judge_loading(error) is LoadingVerdict.UNKNOWN
