"""A launcher's hold on its checkpoint folder, from before its ranks start until they are gone."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from rankmend.errors import JobHeldError, RankmendError
from recovery.checkpoints.marks import BESIDE
from recovery.journal.folder.job_key import JobKey
from recovery.journal.job_records import ClaimTaken
from recovery.launcher.early_stop import finish_first
from recovery.launcher.ownership.claim import FolderClaim, OwnerKind
from recovery.launcher.ownership.claim_folder import ClaimFolder
from recovery.launcher.ownership.claim_keeper import Keeper
from recovery.launcher.ownership.claim_lock import ClaimLock, hold_lock
from recovery.launcher.ownership.taking import (
    TakenFolder,
    Waiting,
    make_claim,
    refuse_other_job,
    take,
)


class Ownership:
    """Without a checkpoint folder there is nothing to own, and every call does nothing."""

    def __init__(
        self,
        folder: ClaimFolder | None = None,
        taken: TakenFolder | None = None,
        waiting: Waiting | None = None,
        lock: ClaimLock | None = None,
    ) -> None:
        self._lock = lock
        self._folder = folder
        self._taken = taken
        self._waiting = waiting or Waiting()
        self._lost: Callable[[], None] | None = None
        self._is_empty = True
        self._keeper: Keeper | None = None
        if folder is not None and taken is not None:
            # Other launchers of this owner may run, or ranks of the one that it was taken from.
            self._is_empty = taken.is_maker and taken.taken_from is None
            self._keeper = Keeper(folder, taken, self._note_lost)

    def start(self) -> None:
        """Count up from now on; one who shares the claim of others begins once it knows the job."""
        if self._keeper is not None and self._taken is not None and self._taken.is_maker:
            self._keeper.start()

    @property
    def held_open(self) -> tuple[int, ...]:
        """Return what all processes that may write to the folder are to inherit: its lock."""
        return () if self._lock is None else (self._lock.descriptor,)

    @property
    def lost_to(self) -> str | None:
        """Return who has taken the folder from this launcher, or None."""
        return self._keeper.lost_to if self._keeper is not None else None

    @property
    def record(self) -> ClaimTaken | None:
        """Return what to journal: the owner that had not released the folder."""
        return self._taken.record if self._taken is not None else None

    @property
    def is_copy(self) -> bool:
        """Return whether what lies beside the checkpoints was copied with them."""
        return self._taken is not None and self._taken.is_copy

    @property
    def job_id(self) -> str | None:
        """Return as which job the first launcher of this owner has joined, or None."""
        if self._taken is None or self._taken.is_maker:
            return None
        return self._taken.claim.job_id or None

    @property
    def former_job_id(self) -> str:
        """Return the mark of the ranks that a former owner may have left, or ""."""
        former = self._taken.taken_from if self._taken is not None else None
        return former.job_id if former is not None else ""

    def name_job(self, job_id: str) -> None:
        """Tell beside the checkpoints which job this is.

        Raise JobHeldError where launchers of another job live under the same name: two controllers
        that don't know of each other have given it two ids.
        """
        if self._keeper is None or self._folder is None or self._taken is None:
            return
        if not self._taken.is_maker:
            refuse_other_job(self._folder, self._taken.claim, job_id, self._waiting)
        self._keeper.name_job(job_id)
        if not self._keeper.is_running:
            self._keeper.start()

    def keep_fence(self, restore: Callable[[], bool]) -> None:
        """Restore the fence if it is removed while ranks run."""
        if self._keeper is not None:
            self._keeper.keep_fence(restore)

    @contextlib.contextmanager
    def clearing(self) -> Iterator[None]:
        """Within the block, processes of an earlier launcher may be left; its end proves that none is.

        If it raises, the folder is not given back. A stop signal waits for the proof.
        """
        with finish_first():
            self._is_empty = False
            yield
            self._is_empty = self._taken is None or self._taken.is_maker

    def begin(self, lost: Callable[[], None]) -> None:
        """Note that ranks may run from now on.

        ``lost`` is called once another owner has taken the folder; at once where it has.
        """
        self._is_empty = False
        self._lost = lost
        if self.lost_to is not None:
            lost()

    def note_empty(self) -> None:
        """Note that nothing of this owner is left that could write to the folder."""
        self._is_empty = True

    def check(self) -> None:
        """Raise JobHeldError where another owner has taken the folder."""
        if self._keeper is not None and self.lost_to is not None:
            raise JobHeldError(
                f"the checkpoint folder {self._keeper.claim.folder} was taken over by {self.lost_to}. This "
                f"launcher stopped its ranks, because two launchers must not write to one folder"
            )

    def end(self) -> None:
        """Give the folder back, unless something that could write to it may be left."""
        if self._keeper is None:
            return
        if self._is_empty:
            self._keeper.release()
        else:
            self._keeper.close()
        if self._lock is not None:
            end_lock = self._lock.remove if self._is_empty else self._lock.close
            end_lock()
            self._lock = None

    def _note_lost(self, _owner: str) -> None:
        if self._lost is not None:
            self._lost()


def own(
    checkpoint_folder: Path | None,
    kind: OwnerKind,
    key: JobKey,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    take_over: bool,
    locks: bool = True,
) -> Ownership:
    """Take the checkpoint folder for this launcher; raise JobHeldError where it has an owner.

    ``locks``: whether all that may write to the folder inherits open files from this process.
    """
    if checkpoint_folder is None:
        return Ownership()
    folder = ClaimFolder(checkpoint_folder.absolute() / BESIDE)
    claim = make_claim(checkpoint_folder, kind, key.text, key.name, environment)
    waiting = Waiting(say=say)
    made = lock = None
    try:
        if kind is OwnerKind.LAUNCHER and locks:
            lock = hold_lock(folder, claim.token)
        if lock is not None:
            claim = msgspec.structs.replace(claim, lock_inode=lock.inode)
        taken = take(folder, claim, take_over=take_over, waiting=waiting)
        made = Ownership(folder, taken, waiting, lock)
        made.start()
    except BaseException:  # a stop signal, perhaps just after the claim was made
        if made is not None:
            made.end()
        else:
            _give_back(folder, claim)
            if lock is not None:
                lock.remove()
        raise
    return made


def _give_back(folder: ClaimFolder, claim: FolderClaim) -> None:
    """Release a claim of ours, unless a former owner's ranks may be left, whose mark it bears."""
    with contextlib.suppress(OSError, RankmendError):
        found = folder.newest()
        made = found.claim if found is not None else None
        if made is not None and made.token == claim.token and not made.job_id:
            folder.release(made)
