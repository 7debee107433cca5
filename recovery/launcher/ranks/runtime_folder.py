"""The job's folder in shared memory: progress files, and the folder for the ranks' PYTHONPATH.

    <root>/rankmend-<uid>/<job id>/site/          sitecustomize.py and a link to rankmend
    <root>/rankmend-<uid>/<job id>/attempt-<n>/   rank-<r>.progress, .progress.raised, .error.json, .stacks,
                                                  .imports.json, and dumps of the flight recorder
    <root>/rankmend-<uid>/<job id>/snapshots/     rank-<r>.0.snapshot and .1.snapshot; kept between attempts
    <root>/rankmend-<uid>/<job id>/copies/        of other nodes' snapshots; kept between attempts
    <root>/rankmend-<uid>/<job id>/slurm-job      number of the Slurm job, if the launcher runs in one: `rankmend cleanup` reads it

Everything is 0700 and ours. Shared memory is open to all users: `rankmend.own_folder` says how we
find our own folder there.
"""

import contextlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import rankmend
from rankmend import progress
from rankmend.errors import LaunchError, SourceError
from rankmend.files import replace_file
from rankmend.own_folder import make_private, own_folder
from rankmend.watch.hook_folder import copy_site
from recovery.checkpoints.snapshots import leftovers
from recovery.launcher.processes import process_list
from recovery.launcher.ranks.environment import RankFiles

log = logging.getLogger(__name__)

NAME: Final = "slurm-job"

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folders below it are checked


def write_slurm_job(folder: Path, environment: Mapping[str, str]) -> None:
    """Write the job's number. A run that goes on outside of Slurm is no longer tied to the job before it."""
    job = environment.get("SLURM_JOB_ID", "")
    with contextlib.suppress(LaunchError, OSError):  # full: only the clean-up misses it
        if job.isdecimal():
            replace_file(folder / NAME, f"{job}\n".encode(), LaunchError, durable=False)
        else:
            (folder / NAME).unlink(missing_ok=True)


def default_root(shared_memory: Path = SHARED_MEMORY) -> Path:
    """Return the root of runtime folders: shared memory, or else the temporary folder."""
    if shared_memory.is_dir() and os.access(shared_memory, os.W_OK):
        return shared_memory
    return Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - the folder below is checked


class RuntimeFolder:
    def __init__(self, root: Path, job_id: uuid.UUID, node: str | None = None) -> None:
        """``node``: gets its own folder, if several nodes of the job may be on one machine."""
        self._job_id = job_id
        own = own_folder(root)
        self.path = own / (str(job_id) if node is None else f"{job_id}@{node}")
        self.site = self.path / "site"
        self.snapshots = self.path / leftovers.FOLDER
        self.copies = self.path / leftovers.COPIES
        self._snapshots_lock: int | None = None
        self._has_hook_copy = False
        self._trouble = ""  # why it can't be made again
        self.process_list = self.path / process_list.NAME
        self._make()

    def lock_snapshots(self) -> None:
        """Keep other launchers of this user from removing them as leftovers."""
        if self._snapshots_lock is None:
            with contextlib.suppress(OSError):
                self._snapshots_lock = leftovers.lock(self.snapshots)

    def mend(self) -> None:
        """Make again what somebody has removed of it: the next ranks need the hook, and these go on to keep snapshots."""
        if self.snapshots.exists() and self.site.exists():
            self._trouble = ""
            return
        trouble = ""
        try:
            self._make()
            if self._snapshots_lock is not None:
                os.close(self._snapshots_lock)
                self._snapshots_lock = None
                self.lock_snapshots()
        except (LaunchError, OSError) as error:
            trouble = str(error)
        said = {"folder": str(self.path)} | ({"error": trouble} if trouble else {})
        if not trouble:
            log.warning("this job's folder was removed: made it again", extra=said)
        elif trouble != self._trouble:
            log.warning("this job's folder was removed, and can't be made again", extra=said)
        self._trouble = trouble

    def _make(self) -> None:
        # With the user's own folder: somebody may have removed all of shared memory.
        for folder in (self.path.parent, self.path, self.site, self.snapshots):
            make_private(folder, LaunchError, is_secret=True)
        write_slurm_job(self.path, os.environ)
        self._link_site()

    def copy_hook(self) -> None:
        """Have the hook itself in this folder, not links to it: all that a container has to mount."""
        self._has_hook_copy = True
        self._link_site()

    def _link_site(self) -> None:
        if self._has_hook_copy:
            try:
                copy_site(self.site)
            except OSError as error:
                raise LaunchError(f"cannot copy the hook to {self.site}: {error}") from error
            return
        package = Path(rankmend.__file__).resolve().parent
        links = {
            "rankmend": package,
            "sitecustomize.py": package / "hook" / "site" / "sitecustomize.py",
        }
        for name, target in links.items():
            link = self.site / name
            if link.is_dir() and not link.is_symlink():
                shutil.rmtree(link)
            if link.is_symlink() and link.readlink() == target:
                continue
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def make_rank_files(
        self, attempt: int, rank: int, local_rank: int, world_size: int
    ) -> tuple[RankFiles, progress.ProgressReader]:
        """Make the progress file of one rank and return it, open for reading."""
        folder = self._attempt(attempt)
        make_private(folder, LaunchError, is_secret=True)
        stacks = folder / f"rank-{rank}.stacks"
        files = RankFiles(
            folder / f"rank-{rank}.progress",
            folder / f"rank-{rank}.error.json",
            stacks,
            folder,
            folder / f"rank-{rank}.imports.json",
        )
        files.progress.unlink(missing_ok=True)
        files.error.unlink(missing_ok=True)
        files.raised.unlink(missing_ok=True)
        stacks.unlink(missing_ok=True)
        identity = progress.RankIdentity(self._job_id, attempt, rank, local_rank, world_size)
        try:
            descriptor = progress.create(files.progress, identity)
            stacks.touch(mode=0o600, exist_ok=False)
        except SourceError as error:
            raise LaunchError(str(error)) from error
        except OSError as error:
            raise LaunchError(f"cannot make {stacks}: {error.strerror}") from error
        return files, progress.ProgressReader(descriptor, str(files.progress))

    def write_ranks(self, attempt: int, ranks: Sequence[Mapping[str, object]]) -> None:
        """Record the ranks' processes for `rankmend status`. In memory, so it never blocks."""
        body = json.dumps({"attempt": attempt, "ranks": list(ranks)}).encode()
        with contextlib.suppress(LaunchError):  # full: status then finds the ranks by their files
            replace_file(self.path / "ranks.json", body, LaunchError, durable=False)

    def remove_attempt(self, attempt: int) -> None:
        shutil.rmtree(self._attempt(attempt), ignore_errors=True)

    def remove_snapshots(self) -> None:
        for path in self.snapshots.iterdir():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.copies, ignore_errors=True)

    def remove(self) -> None:
        if self._snapshots_lock is not None:
            os.close(self._snapshots_lock)
            self._snapshots_lock = None
        shutil.rmtree(self.path, ignore_errors=True)

    def _attempt(self, attempt: int) -> Path:
        return self.path / f"attempt-{attempt}"
