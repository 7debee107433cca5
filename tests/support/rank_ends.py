"""Ends of ranks as a launcher reports them: it reads what their words mean."""

from detectors.failed.error_classes import read_end
from detectors.failed.error_text import ErrorText
from recovery.messages.exchange import RankError, RankExit


def rank_end(
    exit_code: int | None,
    signal: int | None,
    error: RankError | None = None,
    *,
    age_s: float = 0.0,
    by_launcher: bool = False,
    last_lines: tuple[str, ...] = (),
) -> RankExit:
    text = ErrorText(error.type_name, error.message, error.traceback) if error else None
    words = read_end(text, last_lines) if exit_code != 0 else None
    return RankExit(age_s, exit_code, signal, by_launcher, False, error, last_lines, words)
