"""Counts up beside the checkpoints while this launcher runs, and notices another owner.

In a thread of its own: storage can hang, and training must not wait for it. An owner that can't
count says so and trains on.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from rankmend.errors import RankmendError
from recovery.launcher.ownership.claim import BEAT_S, FolderClaim, OwnerKind, describe_owner
from recovery.launcher.ownership.claim_folder import ClaimFolder
from recovery.launcher.ownership.taking import TakenFolder

log = logging.getLogger(__name__)

# Of several launchers that are one owner one counts; the others look this often whether it does.
FOLLOW_S: Final = 15.0
CLOSE_S_MAX: Final = 10.0


class Keeper:
    """Keeps one claim, alone or with the other launchers of a job."""

    def __init__(
        self,
        folder: ClaimFolder,
        taken: TakenFolder,
        on_lost: Callable[[str], None],
        beat_s: float = BEAT_S,
        follow_s: float = FOLLOW_S,
        close_s: float = CLOSE_S_MAX,
    ) -> None:
        """``on_lost`` is called from the thread, once, when another owner has taken the folder."""
        self._folder = folder
        self._claim = taken.claim
        self._on_lost = on_lost
        self._beat_s = beat_s
        self._follow_s = follow_s
        self._close_s = close_s
        self._is_counting = taken.is_maker
        self._beat: int | None = None
        self._job_id = ""
        self._lock = threading.Lock()  # guards the claim and writes of it
        self._ending = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="owner", daemon=True)
        self._restore_fence: Callable[[], bool] = lambda: False
        self.lost_to: str | None = None

    def keep_fence(self, restore: Callable[[], bool]) -> None:
        """Restore the fence, too, if it is removed."""
        self._restore_fence = restore

    @property
    def claim(self) -> FolderClaim:
        return self._claim

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def name_job(self, job_id: str) -> None:
        """Record in the claim the mark that identifies the owner's ranks."""
        with self._lock:
            self._job_id = job_id
            found = self._folder.newest()
            newest = found.claim if found is not None else None
            if newest is not None and self._is_ours(newest):
                self._claim = newest
            if self._claim.job_id != job_id:
                self._claim = msgspec.structs.replace(self._claim, job_id=job_id)
                self._folder.replace(self._claim)

    def release(self) -> None:
        """Give the folder back: nothing of the owner is left that could write to it.

        Storage that does not answer is left to itself after `CLOSE_S_MAX`.
        """
        self.close()
        giving_back = threading.Thread(target=self._give_back, name="owner-release", daemon=True)
        giving_back.start()
        giving_back.join(self._close_s)
        if giving_back.is_alive():
            self._warn_unreleased("the storage does not respond")

    def _give_back(self) -> None:
        with self._lock:
            try:
                found = self._folder.newest()
                if found is None or found.claim is None or not self._is_ours(found.claim):
                    return
                if not found.claim.is_released:
                    self._folder.release(found.claim)
            except (OSError, RankmendError) as error:
                self._warn_unreleased(error)

    @staticmethod
    def _warn_unreleased(why: object) -> None:
        log.warning(
            "the checkpoint folder could not be released: %s. The next start on another host will "
            "need --take-over",
            why,
        )

    def close(self) -> None:
        """Count no more; a thread that storage holds is left behind."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(self._close_s)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._look()
            except (OSError, RankmendError) as error:
                self._fail(error)
            try:
                if self.lost_to is None and self._restore_fence():
                    log.warning(
                        "the fence beside the checkpoints was removed; it has been restored"
                    )
            except (OSError, RankmendError) as error:
                self._fail(error)
            if self.lost_to is not None:
                self._on_lost(self.lost_to)
                return
            self._ending.wait(self._beat_s if self._is_counting else self._follow_s)

    def _look(self) -> None:
        with self._lock:
            found = self._folder.newest()
            if found is None:
                self._restore(self._claim)
            elif found.claim is not None and self._is_ours(found.claim):
                self._take_up(found.claim)
            elif found.generation > self._claim.generation:
                other = found.claim
                path = str(self._folder.path(found.generation))
                self.lost_to = describe_owner(other, self._claim) if other is not None else path
                return
            else:
                generation = found.generation + 1
                self._restore(msgspec.structs.replace(self._claim, generation=generation))
            if self.lost_to is not None:
                return
            self._count()
        if self._has_failed:
            self._has_failed = False
            log.warning("this launcher updates its claim beside the checkpoints again")

    def _take_up(self, newest: FolderClaim) -> None:
        """Go on under the newest claim of this owner, perhaps made by another launcher of it."""
        if self._job_id and newest.job_id not in ("", self._job_id):
            self.lost_to = f"{describe_owner(newest, self._claim)}, under job id {newest.job_id}"
        elif newest.is_released and not self._ending.is_set():
            # Another launcher of the job left before it began, or knows of the end before us.
            self._restore(
                msgspec.structs.replace(newest, generation=newest.generation + 1, is_released=False)
            )
        else:
            self._claim = newest

    def _restore(self, claim: FolderClaim) -> None:
        """Make the claim again where somebody has removed it (rm -rf): its owner lives.

        A launcher that found the folder without a claim meanwhile sees a newer one, and stops.
        """
        with contextlib.suppress(OSError):  # rm -rf of the checkpoint folder itself
            self._folder.beside.parent.mkdir(exist_ok=True)
        if self._folder.make(claim):
            self._claim = claim

    def _count(self) -> None:
        """Count up, unless another launcher of the same owner does."""
        beat = self._folder.read_beat(self._claim.generation)
        if self._claim.kind is not OwnerKind.LAUNCHER:
            has_stood_still = beat == self._beat
            if not self._is_counting and not has_stood_still:
                self._beat = beat
                return
            self._is_counting = has_stood_still or self._beat is None
            if not self._is_counting:
                self._beat = beat
                return
        self._beat = (beat or 0) + 1
        self._folder.beat(self._claim.generation, self._beat)

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.warning(
                "this launcher cannot update its claim beside the checkpoints: %s. Training continues, but another "
                "launcher cannot tell that this one is alive",
                error,
            )

    def _is_ours(self, claim: FolderClaim) -> bool:
        return claim.owner == self._claim.owner
