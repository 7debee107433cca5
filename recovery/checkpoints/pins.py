"""Holds the chosen checkpoint from the decision until the ranks train, whatever deletes it meanwhile.

`save_total_limit`, a clean-up job or a second script may delete a checkpoint while ranks read it,
which takes minutes. One daemon thread links its files (`pinned_files`) beside the start of the ranks, and puts
back what vanishes. It holds nothing up: storage that hangs holds the thread alone, and a checkpoint
that can't be pinned is restored all the same. Once the ranks train, the links go, and nothing is put back any more.
"""

import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.names import shown
from recovery.checkpoints.pinned_files import Pin, remove_before
from recovery.messages.candidates import PutBack

log = logging.getLogger(__name__)

_NO_LINKS: Final = frozenset(
    (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
)


@dataclass(frozen=True, slots=True)
class PinSettings:
    """How much work a pin may be, and how patient it is."""

    entries_max: int = 100_000  # as of a checkpoint that is validated
    depth_max: int = 6
    link_s_max: float = 120.0  # 100,000 links at 1 ms each, as a network file system takes
    poll_s: float = 0.5
    # Looks that must show the same missing: a deletion that is under way ends first, since `rmdir`
    # fails on what is put back.
    still_looks: int = 4  # where a part is missing
    gone_looks: int = 1  # where all of it is
    looks_max: int = 20  # then it is put back, whatever else changes in the folder
    put_backs_max: int = 3  # who deletes it more often means it
    held_s_max: float = 3600.0  # for ranks that tell of no steps


class CheckpointPins:
    """One pin at a time, for the newest attempt."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        say: Callable[[str], None],
        settings: PinSettings | None = None,
    ) -> None:
        """``say`` tells a person; it is called from the thread."""
        self._folder = folder
        self._clock = clock
        self._say = say
        self._settings = settings or PinSettings()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wanted: tuple[int, str | None] | None = None  # attempt, and what it restores
        self._proved_through = self._proved_taken = 0  # attempts whose ranks have trained
        self._mends_asked = self._mends_done = 0
        self._is_ending = False
        self._pin: Pin | None = None
        self._put_back: PutBack | None = None
        # Of the pin, for the thread alone.
        self._began_s = 0.0
        self._put_backs = 0
        self._seen: object = None  # what was missing at the last look
        self._looks = 0  # in a row that showed it
        self._looks_missing = 0  # in a row that showed anything missing
        self._has_told_why = False  # of a file system that can't

    @property
    def pinned(self) -> str | None:
        """Return the path of the checkpoint that is held now."""
        pin = self._pin
        return None if pin is None else pin.path

    @property
    def put_back(self) -> PutBack | None:
        """Return what was put back last, None where nothing was."""
        return self._put_back

    def hold(self, attempt: int, path: str | None) -> None:
        """Pin what this attempt restores, in the thread; the pin of the attempt before goes."""
        with self._changed:
            self._wanted = (attempt, path)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pins", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def release(self, attempt: int) -> None:
        """Hold nothing for this attempt any more: its ranks have read the checkpoint, they train."""
        with self._changed:
            self._proved_through = max(self._proved_through, attempt)
            self._changed.notify_all()

    def mend(self, timeout_s: float = 2.0) -> None:
        """Put back at once what is missing; wait no longer than this.

        For a look that is to find it. No rank of ours lives then that could be deleting it.
        """
        with self._changed:
            if self._pin is None or self._is_ending:
                return
            self._mends_asked += 1
            ticket = self._mends_asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._mends_done >= ticket, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Remove the pin and end the thread; one that storage holds is left behind."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        is_ending = False
        while not is_ending:
            with self._changed:
                pause_s = None if self._pin is None else self._settings.poll_s
                self._changed.wait_for(self._has_work, pause_s)
                is_ending = self._is_ending
                wanted, self._wanted = self._wanted, None
                mends_asked = self._mends_asked
                is_mending = mends_asked > self._mends_done
                self._proved_taken = self._proved_through
            try:
                self._take_turn(wanted, is_mending=is_mending, is_ending=is_ending)
            except (OSError, RankmendError) as error:
                self._give_up(error)
            except Exception:
                log.exception("the checkpoint that is restored is not pinned any more")
                self._drop()
            with self._changed:
                self._mends_done = mends_asked
                self._changed.notify_all()

    def _has_work(self) -> bool:
        return (
            self._is_ending
            or self._wanted is not None
            or self._mends_asked > self._mends_done
            or self._proved_through > self._proved_taken
        )

    def _take_turn(
        self,
        wanted: tuple[int, str | None] | None,
        *,
        is_mending: bool,
        is_ending: bool,
    ) -> None:
        if is_ending:
            self._drop()
            return
        if wanted is not None:
            self._begin(*wanted)
        pin = self._pin
        if pin is None:
            return
        held_s = self._clock.now_s() - self._began_s
        if held_s > self._settings.held_s_max:
            self._drop()
        elif not pin.is_there():
            self._pin = None
        else:
            self._look_after(pin, is_mending=is_mending)
            # what is missing by now was deleted before the ranks trained
            if not self._looks_missing and pin.attempt <= self._proved_taken:
                self._drop()

    def _begin(self, attempt: int, path: str | None) -> None:
        before, settings = self._pin, self._settings
        if before is not None and before.path == path and before.is_there():
            before.put_back(self._deadline())
        self._pin = None
        self._seen, self._looks, self._looks_missing, self._put_backs = None, 0, 0, 0
        is_ours = False
        try:
            if path is not None:
                pin = Pin(self._folder, attempt, path, settings.entries_max, settings.depth_max)
                self._began_s = self._clock.now_s()
                is_ours = pin.make(self._deadline())
                self._pin = pin if is_ours else None
        finally:
            if before is not None and before.attempt != attempt:
                before.remove()
            if is_ours or path is None:
                remove_before(self._folder, attempt)

    def _look_after(self, pin: Pin, *, is_mending: bool) -> None:
        """Put back what is missing, once nobody is deleting it any more."""
        missing = pin.missing()
        if not missing:
            self._seen, self._looks, self._looks_missing = None, 0, 0
            return
        changed_ns = pin.beside_changed_ns()
        if changed_ns is None:  # the folder that it lay in is gone, too
            self._drop()
            return
        seen = (missing, changed_ns)
        self._looks = self._looks + 1 if seen == self._seen else 0
        self._looks_missing += 1
        self._seen = seen
        settings = self._settings
        is_still = self._looks >= (settings.gone_looks if pin.is_gone else settings.still_looks)
        if not (is_mending or is_still or self._looks_missing >= settings.looks_max):
            return
        if pin.is_superseded():
            self._drop()
            return
        name = shown(pin.name)
        if self._put_backs >= self._settings.put_backs_max:
            self._say(
                f"{name} was deleted {self._put_backs + 1} times while it was being restored, and is "
                f"left so"
            )
            self._put_back = PutBack(pin.attempt, pin.path, self._put_backs, is_given_up=True)
            self._drop()
            return
        self._seen, self._looks, self._looks_missing = None, 0, 0
        if not pin.put_back(self._deadline()):
            return
        self._put_backs += 1
        self._put_back = PutBack(pin.attempt, pin.path, self._put_backs)
        if self._put_backs == 1:
            self._say(
                f"{name} was deleted while it was being restored: put back. Does save_total_limit or a "
                f"clean-up job keep too few checkpoints?"
            )

    def _deadline(self) -> Deadline:
        return Deadline(self._clock, self._settings.link_s_max)

    def _give_up(self, error: Exception) -> None:
        """Hold nothing; say why once where that will not change."""
        self._drop()
        why = str(error)
        if isinstance(error, OSError):
            why = error.strerror or why
            if error.errno in _NO_LINKS:
                why = f"the file system makes no hard link ({why})"
        if not self._has_told_why:
            self._has_told_why = True
            self._say(
                f"the checkpoint that is being restored can't be protected from being deleted: {why}. "
                f"It is still restored"
            )

    def _drop(self) -> None:
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.remove()
