"""The folders of checkpoints and of jobs' state. Pure."""

from dataclasses import dataclass, replace
from typing import Final

from detectors.doctor.agent import FolderFacts, judge_folder
from detectors.doctor.check import (
    HostCheck,
    HostOutcome,
    HostPart,
    HostVerdict,
    broken,
    lacking,
    not_applicable,
    ok,
    quoted,
)

CHECKPOINT_BYTES_MIN: Final = 10 << 30  # a model of 1e9 parameters with Adam's state takes 12 GB


@dataclass(frozen=True, slots=True)
class StorageFacts:
    state: FolderFacts  # of the jobs of `rankmend run`
    user: str
    checkpoints: FolderFacts | None = None  # None: none is named


def _state(facts: StorageFacts) -> HostVerdict:
    folder = facts.state
    if not folder.is_there and folder.error:
        return broken(folder.error, "name another with --state-dir or RANKMEND_STATE_DIR")
    verdict = judge_folder(replace(folder, is_there=True), facts.user, "")
    if verdict.outcome is HostOutcome.OK and not folder.is_there:
        return ok(f"{folder.path}: made by the first job")
    return verdict


def _checkpoints(facts: StorageFacts) -> HostVerdict:
    folder = facts.checkpoints
    if folder is None:
        return not_applicable("none is named (--checkpoint-dir)")
    if not folder.is_there:
        return broken(
            folder.error or f"no {folder.path}", f"mkdir -p {quoted(folder.path)}  # is it mounted?"
        )
    if folder.error:
        return broken(
            folder.error, f"ls -ld {quoted(folder.path)}; df {quoted(folder.path)}; quota -s"
        )
    if folder.file_system in ("tmpfs", "ramfs"):
        return lacking(
            f"{folder.path} lies on {folder.file_system}: a reboot empties it",
            "name a folder on a disk or a shared file system",
        )
    return ok(f"{folder.path} ({folder.file_system or 'file system unknown'})")


def _space(facts: StorageFacts) -> HostVerdict:
    folder = facts.checkpoints
    if folder is None or folder.free_bytes is None:
        return not_applicable("no folder to look at")
    free = f"{folder.free_bytes / 1e9:.1f} GB left in {folder.path}"
    if folder.free_bytes < CHECKPOINT_BYTES_MIN:
        return lacking(
            free, f"rankmend checkpoints {quoted(folder.path)}  # lists them: remove old ones"
        )
    return ok(free)


_P: Final = HostPart.STORAGE
STORAGE_CHECKS: Final[tuple[HostCheck[StorageFacts], ...]] = (
    HostCheck(
        "storage_state", _P, "jobs' state", "the journal: budgets, incidents, resumption", _state
    ),
    HostCheck(
        "storage_checkpoints", _P, "checkpoints", "every step of the job at a failure", _checkpoints
    ),
    HostCheck("storage_space", _P, "room for checkpoints", "the next checkpoint", _space),
)
