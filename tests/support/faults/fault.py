"""A fault that is standing: it ends with its block, its fleet, or the interpreter."""

import atexit
import contextlib
from collections.abc import Callable
from types import TracebackType

_standing: list["Fault"] = []


class Fault:
    """Something that is broken until `end`, which may be called twice."""

    def __init__(self, what: str, undo: Callable[[], None]) -> None:
        self.what = what
        self._undo: Callable[[], None] | None = undo
        _standing.append(self)

    @property
    def is_standing(self) -> bool:
        return self._undo is not None

    def end(self) -> None:
        if (undo := self._undo) is not None:
            self._undo = None
            _standing.remove(self)
            undo()

    def __enter__(self) -> "Fault":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"<{self.what}{'' if self.is_standing else ', ended'}>"


@atexit.register
def end_all() -> None:
    """End every fault that still stands, the newest first; each of them even when another can't be ended."""
    for fault in reversed(_standing.copy()):
        with contextlib.suppress(OSError, RuntimeError):
            fault.end()
