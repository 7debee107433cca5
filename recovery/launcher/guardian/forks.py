"""Ranks that a fork server forks: from the launcher's word of one until its process is known.

The launcher gives one end of a link to the guardian and the other to the fork server. The forked rank, by then
the guardian's child with its attempt's mark, reports its pid there and waits; it runs the user's program only after
the guardian has registered it and says go. A rank of a fenced attempt, or one that comes too late, finds its link
closed and ends.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rankmend.hook.layout import FORKED, GO
from recovery.launcher.guardian.packets import ForkCommand
from recovery.launcher.processes.process_tree import read_state

_WORD_BYTES_MAX: Final = 16 << 10
_PREFIX: Final = FORKED.partition(b"%")[0]


@dataclass(frozen=True, slots=True)
class _Pending:
    command: ForkCommand
    link: int
    until_s: float


class PendingForks:
    def __init__(
        self,
        watch: Callable[[int, Callable[[int], None], int], None],
        unwatch: Callable[[int], None],
        register: Callable[[ForkCommand, int, int], None],
        fail: Callable[[ForkCommand, int, str], None],
    ) -> None:
        """``register`` takes a command, the pid of its rank and the link; ``fail`` an errno and a text."""
        self._watch = watch
        self._unwatch = unwatch
        self._register = register
        self._fail = fail
        self._pending: dict[int, _Pending] = {}

    @property
    def due_s(self) -> list[float]:
        """Return the times (monotonic) at which `check` has to do something."""
        return [item.until_s for item in self._pending.values()]

    def expect(self, command: ForkCommand, link: int, mask: int) -> None:
        """Wait for the rank that will report through this link, which becomes ours."""
        os.set_blocking(link, False)
        self._pending[link] = _Pending(command, link, time.monotonic() + command.within_s)
        self._watch(link, lambda _mask: self._read(link), mask)

    def check(self, now_s: float) -> None:
        """Give up those that take too long."""
        for item in [item for item in self._pending.values() if now_s >= item.until_s]:
            self._give_up(
                item, errno.ETIMEDOUT, f"no rank was forked in {item.command.within_s:g} s"
            )

    def drop_through(self, attempt: int) -> None:
        """Give up all of the attempts up to this one: they are fenced."""
        for item in [item for item in self._pending.values() if item.command.attempt <= attempt]:
            self._give_up(item, errno.ESTALE, f"attempt {item.command.attempt} is fenced")

    def cancel(self, attempt: int, ranks: tuple[int, ...] | None) -> None:
        """Give up these ranks of an attempt, None: all, because their stop was requested before they began."""
        for item in [item for item in self._pending.values() if item.command.attempt == attempt]:
            if ranks is None or item.command.rank in ranks:
                self._give_up(item, errno.ECANCELED, "it was asked to stop before it began")

    def _read(self, link: int) -> None:
        item = self._pending.get(link)
        if item is None:
            return
        try:
            word = os.read(link, _WORD_BYTES_MAX)
        except BlockingIOError:  # meant for an older link of the same number
            return
        except OSError:
            word = b""
        if not word.startswith(_PREFIX):
            number, _space, text = word.decode("utf-8", "replace").partition(" ")
            is_told = number.isdigit()
            text = text if is_told else "the fork server has ended"
            self._give_up(item, int(number) if is_told else errno.ESRCH, text)
            return
        pid = int(word[len(_PREFIX) :])
        state = read_state(pid)
        if state is None or state.is_gone or state.ppid != os.getpid():
            self._give_up(item, errno.ESRCH, f"the forked rank (process {pid}) has ended")
            return
        del self._pending[link]
        self._unwatch(link)
        self._register(item.command, pid, link)
        with contextlib.suppress(OSError):  # it has died: the next event says so
            os.write(link, GO)

    def _give_up(self, pending: _Pending, number: int, text: str) -> None:
        del self._pending[pending.link]
        self._unwatch(pending.link)
        os.close(pending.link)
        self._fail(pending.command, number, text)
