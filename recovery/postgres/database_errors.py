"""What can come of a statement to PostgreSQL: done, refused, not tried, or unknown."""

from rankmend.errors import JournalError, RankmendError


class DatabaseAwayError(JournalError):
    """The database can't be reached: nothing was tried, so nothing was written."""


class CommitUnknownError(RankmendError):
    """The answer to a write was lost, or it came with a warning: it may have been written or not.

    Not a JournalError, which says that nothing was written: whoever gets this must read back before any effect.
    """


class StatementRefusedError(JournalError):
    """The database refused a statement: nothing was written."""

    def __init__(self, text: str, sqlstate: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class LeaseLostError(RankmendError):
    """The database refused a write because the lease under which it was made is over.

    Not a JournalError: trying again does not help, and somebody else may decide for the job already.
    """
