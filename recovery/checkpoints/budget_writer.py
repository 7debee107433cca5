"""Writes the copy of the budgets beside the checkpoints in a thread of its own.

Storage that hangs must not stop the controller from seeing that a rank died. Only the newest copy
counts, so of those that wait all others are dropped.
"""

import logging
import threading

from rankmend.errors import RankmendError, StorageError
from recovery.checkpoints.marks import BudgetCopy

log = logging.getLogger(__name__)

CLOSE_S_MAX = 5.0


class BudgetWriter:
    """A `BudgetCopy` that keeps nobody waiting."""

    def __init__(self, copy: BudgetCopy) -> None:
        self._copy = copy
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: bytes | None = None
        self._is_writing = self._is_ending = False
        self._error: RankmendError | None = None  # of the newest write that has ended

    def save(self, content: bytes) -> None:
        """Have the copy replaced soon; raise where the write before this one failed."""
        with self._changed:
            self._waiting = content
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="budgets", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if self._error is not None:
                raise self._error

    def load(self) -> bytes | None:
        """Return the copy, or None when there is none. It may wait for the storage."""
        return self._copy.load()

    def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Return once the newest copy is written; storage that hangs is left to itself."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
            is_written = self._changed.wait_for(
                lambda: self._waiting is None and not self._is_writing, timeout_s
            )
        if not is_written:
            log.warning("%s could not be written: the storage does not answer", self._copy.path)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._is_ending)
                content, self._waiting = self._waiting, None
                if content is None:
                    return
                self._is_writing = True
            error = self._write(content)
            with self._changed:
                self._error, self._is_writing = error, False
                self._changed.notify_all()

    def _write(self, content: bytes) -> RankmendError | None:
        try:
            self._copy.save(content)
        except RankmendError as error:
            return error
        except Exception as error:
            log.warning("%s was not written", self._copy.path, exc_info=True)
            return StorageError(f"cannot write {self._copy.path}: {type(error).__name__}: {error}")
        return None
