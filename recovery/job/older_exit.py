"""Reads the end of a rank as a launcher of the version before told it: in the rank's words alone. Pure.

Launchers of today read the words where they lie and report what they mean; nothing else here reads them.
"""

from dataclasses import replace

from detectors.failed.error_classes import read_end
from detectors.failed.error_text import ErrorText
from recovery.messages.exchange import RankExit


def exit_of_today(end: RankExit) -> RankExit:
    """Return the end with what its words mean."""
    if end.words is not None or end.exit_code == 0:
        return end
    said = end.error
    error = ErrorText(said.type_name, said.message, said.traceback) if said is not None else None
    return replace(end, words=read_end(error, end.last_lines))
