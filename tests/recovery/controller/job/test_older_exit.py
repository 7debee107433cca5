from detectors.failed.said_error import FailureCause, SaidAtEnd, SaidError
from recovery.controller.job.observation import exit_of_today
from recovery.messages.exchange import RankError, RankExit

TRACEBACK = ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: x")


def ended(
    error: RankError | None = None, last_lines: tuple[str, ...] = (), exit_code: int = 1
) -> RankExit:
    """Return an end as a launcher reports it that doesn't read the rank's words."""
    return RankExit(0.1, exit_code, None, False, False, error, last_lines)


def test_the_error_of_an_older_launcher_is_read() -> None:
    error = RankError("RuntimeError", "CUDA error: uncorrectable ECC error encountered", "")

    words = exit_of_today(ended(error)).words

    assert words is not None
    assert words.error is not None
    assert words.error.cause is FailureCause.DEVICE


def test_the_last_lines_of_an_older_launcher_are_read_where_it_found_no_error() -> None:
    words = exit_of_today(ended(last_lines=TRACEBACK)).words

    assert words == SaidAtEnd(SaidError(FailureCause.EXCEPTION, "ValueError:x", "ValueError: x"))


def test_what_the_launcher_has_read_is_not_read_again() -> None:
    error = RankError("RuntimeError", "CUDA error: uncorrectable ECC error encountered", "")
    said = SaidAtEnd(SaidError(FailureCause.COMMUNICATION, "RuntimeError:gone", "gone"))
    told = RankExit(0.1, 1, None, False, False, error, (), said)

    assert exit_of_today(told).words == said


def test_the_output_of_a_rank_that_ended_well_says_nothing() -> None:
    assert exit_of_today(ended(last_lines=TRACEBACK, exit_code=0)).words is None
