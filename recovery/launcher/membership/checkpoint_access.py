"""A launcher's work in the checkpoint folder: the fence, and finding checkpoints.

In a thread of its own, because storage can hang and the launcher's loop must not. The loop
asks and goes on; `wake` is called when there is an answer to read.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from rankmend.errors import RankmendError
from recovery.checkpoints.unwritable import UnwritableError
from recovery.messages.candidates import CheckpointVerdict, Share
from recovery.messages.exchange import Found, FoundCheckpoint

log = logging.getLogger(__name__)

CANDIDATES_MAX: Final = 20  # per report (docs/reference/messages.md)
_KNOWN_MAX: Final = 4  # in each report (docs/reference/messages.md)
ENOUGH: Final = 4  # valid ones; what was validated beside training costs a stat


class Fence(Protocol):
    def read(self) -> int | None:
        """Return the attempt that may publish checkpoints; None before the first."""
        ...

    def advance(self, attempt: int) -> None:
        """Return once only this attempt may publish, durably."""
        ...

    def check_room(self) -> None:
        """Raise UnwritableError if there is no room to let another attempt publish."""
        ...

    def free_bytes(self) -> int | None:
        """Return how much can be written beside the checkpoints; None: not known."""
        ...


class Watch(Protocol):
    def start(self) -> None:
        """Look at the checkpoints now and then from now on."""
        ...

    def stop(self) -> bool:
        """Look no more."""
        ...

    def take_share(self, share: Share) -> None:
        """Read only this share of each checkpoint's files in every look that begins from now on."""
        ...

    def candidates(
        self, *, is_training: bool = False, enough: int = 1, timeout_s: float | None = None
    ) -> tuple[CheckpointVerdict, ...]:
        """Return all checkpoints found, newest first, each with its verdict."""
        ...

    def known(self) -> tuple[CheckpointVerdict, ...]:
        """Return what was found beside training, at once and without looking."""
        ...

    def check_on(self, path: str) -> None:
        """Note that ranks restore this one; if it is unchecked, read the rest of it before all others."""
        ...


class Pins(Protocol):
    def mend(self, timeout_s: float = ...) -> None:
        """Put back what was deleted from the checkpoint that is held."""
        ...


@dataclass(frozen=True, slots=True)
class Advance:
    """How the wish to let only one attempt publish has ended."""

    attempt: int
    error: str | None


class Storage:
    """The three wishes are kept apart, and of each only the newest counts."""

    def __init__(
        self, fence: Fence, watch: Watch | None, pins: Pins | None = None, folder_id: str = ""
    ) -> None:
        """``folder_id``: of the checkpoint folder; empty where there is none or it is not known."""
        self.folder_id = folder_id
        self._fence = fence
        self._watch = watch
        self._pins = pins
        self._wake: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._wanted_attempt: tuple[int, str | None] | None = None  # and what it restores
        self._wanted_look: tuple[int, int, Share] | None = None  # empty through, order's revision
        self._is_read_wanted = True
        self._is_ending = False
        self._found_here: frozenset[str] = frozenset()  # what the last look found valid
        self._restored_path: str | None = None  # by the newest attempt
        self._thread: threading.Thread | None = None
        self.advance: Advance | None = None
        self.found: Found | None = None
        self.fence_attempt: int | None = None  # as it was read last

    def start(self, wake: Callable[[], None]) -> None:
        """Begin; ``wake`` is called from the thread whenever something was done."""
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self._thread.start()

    def watch(self, share: Share) -> None:
        """Look at checkpoints beside training, so that finding them later is quick."""
        if self._watch is not None:
            self._watch.take_share(share)
            self._watch.start()

    def known(self) -> tuple[FoundCheckpoint, ...]:
        """Return the newest checkpoints that were found beside training, at once."""
        if self._watch is None:
            return ()
        return tuple(map(_found_checkpoint, newest_known(self._watch.known(), self._restored_path)))

    def ask_fence(self, attempt: int, restore_path: str | None = None) -> None:
        """Have only this attempt publish: `advance` returns the end.

        Where the checkpoint that it restores was found here and is gone by now, that is an error: ranks
        would start only to fail. Where it never was here, only that is reported: a script may have
        one rank read it and tell the others.
        """
        with self._changed:
            self._wanted_attempt = (attempt, restore_path)
            self._changed.notify_all()

    def ask_found(self, empty_through: int, revision: int, share: Share) -> None:
        """Have the folder looked at for this order, by a look that begins after this call."""
        with self._changed:
            self.found = None
            self._wanted_look = (empty_through, revision, share)
            self._is_read_wanted = True
            self._changed.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; one that storage holds is left behind."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        if self._watch is not None:
            self._watch.stop()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._is_ending:
                    return
                is_read_wanted, self._is_read_wanted = self._is_read_wanted, False
                attempt, self._wanted_attempt = self._wanted_attempt, None
                look = None
                if attempt is None:  # ranks wait for the fence: it goes first
                    look, self._wanted_look = self._wanted_look, None
            if attempt is not None:
                self._do_advance(*attempt)
            if is_read_wanted:
                self._read_fence()
            if look is not None:
                self._look(*look)
            self._wake()
            if attempt is not None and attempt[1] is not None:
                _warn_of_missing(attempt[1])

    def _has_work(self) -> bool:
        wanted = (self._wanted_attempt, self._wanted_look)
        return self._is_ending or self._is_read_wanted or any(item is not None for item in wanted)

    def _do_advance(self, attempt: int, path: str | None) -> None:
        error = None
        try:
            self._fence.advance(attempt)
            self.fence_attempt = attempt
        except (OSError, RankmendError) as caught:
            error = f"attempt {attempt} can't be fenced in: {caught}"
        if error is None and path in self._found_here and not self._is_there(path):
            error = f"{path} was deleted after it was chosen"
        self._restored_path = path
        if path is not None and self._watch is not None:
            self._watch.check_on(path)
        self.advance = Advance(attempt, error)

    def _is_there(self, path: str) -> bool:
        if not os.path.lexists(path) and self._pins is not None:
            self._pins.mend()
        return os.path.lexists(path)

    def _read_fence(self) -> None:
        try:
            self.fence_attempt = self._fence.read()
        except (OSError, RankmendError) as error:
            log.warning("the fence beside the checkpoints can't be read: %s", error)

    def _look(self, empty_through: int, revision: int, share: Share) -> None:
        verdicts: tuple[CheckpointVerdict, ...] = ()
        error = None
        try:
            if self._pins is not None:
                self._pins.mend()
            if self._watch is not None:
                self._watch.take_share(share)
                verdicts = self._watch.candidates(enough=ENOUGH)
        except (OSError, RankmendError) as caught:
            error = str(caught)
        self._found_here = frozenset(
            verdict.candidate.path for verdict in verdicts if verdict.is_valid
        )
        reported = tuple(map(_found_checkpoint, verdicts[:CANDIDATES_MAX]))
        free = self._fence.free_bytes()
        found = Found(
            empty_through, reported, error, revision, free_bytes=-1 if free is None else free
        )
        try:
            self._fence.check_room()
        except UnwritableError as full:
            found = replace(found, unwritable=full.why.value, unwritable_text=str(full))
        with self._changed:
            if self._wanted_look is None:  # else the answer is old already
                self.found = found


def _warn_of_missing(path: str) -> None:
    try:
        is_there = Path(path).exists()
    except OSError:  # no leave to look: the rank will say so itself
        return
    if not is_there:
        log.warning(
            "%s, from which the ranks are to resume, is not on this node: is --checkpoint-dir the same "
            "shared folder on every node?",
            path,
        )


def newest_known(
    known: Sequence[CheckpointVerdict], restored_path: str | None
) -> list[CheckpointVerdict]:
    """Return the newest ones, as many as a report has, among them the newest that can be restored and what the ranks have restored.

    Where saves come fast, the newest four are all too young to be trusted: without an older one that is
    whole, a failure would seem to restore what the attempt began from.
    """
    valid = next((place for place, item in enumerate(known) if item.is_valid), None)
    restored = next(
        (place for place, item in enumerate(known) if item.candidate.path == restored_path), None
    )
    places = {place for place in (valid, restored) if place is not None}
    newest = (place for place in range(len(known)) if place not in places)
    places.update(islice(newest, _KNOWN_MAX - len(places)))
    return [known[place] for place in sorted(places)]


def _found_checkpoint(verdict: CheckpointVerdict) -> FoundCheckpoint:
    item = verdict.candidate
    return FoundCheckpoint(
        item.path,
        item.step,
        item.format.value,
        item.size_bytes,
        item.modified_unix_s,
        verdict.is_valid,
        verdict.reason,
        verdict.hindrance.value if verdict.hindrance else "",
        item.is_step_exact,
        verdict.share,
        item.oldest_unix_s,
        verdict.parts,
        verdict.unchecked_bytes,
        verdict.has_wrong_sum,
        item.shape.holds.value,
        item.shape.tensors,
        item.shape.elements,
        item.shape.epoch,
    )
