"""A checkpoint that is a folder: whole when its format says so and every file in it is.

Where the script has a marker of its own, it is what the script writes last. Three things show that
it is not this save's: a temporary file, a file written after it (a save over an older one), a
shard that it names and that is missing.
"""

import contextlib
import os
import stat
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.content import check_file, identify
from recovery.checkpoints.files.reader import (
    DefectError,
    FileReader,
    Signature,
    explain,
    signature_of,
)
from recovery.checkpoints.formats.dcp import MARKER
from recovery.checkpoints.formats.format import ContentFormat
from recovery.checkpoints.formats.nvrx_local import DIRTY_PART
from recovery.checkpoints.formats.registry import format_of
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.names import (
    has_checkpoint_suffix,
    is_commit_mark,
    is_temporary,
    is_unfinished_mark,
    shown,
)
from recovery.messages.candidates import CheckpointFormat, CheckpointSettings

OWN_FOLDER: Final = ".rankmend"  # docs/use/checkpoints.md
_TOP_NAMES_MAX: Final = 4096  # enough to recognise a format; a checkpoint may have 100,000 files
# Formats in which nothing but the save before tells which files belong to a save.
_COMPARED: Final = frozenset(
    {
        CheckpointFormat.ACCELERATE,
        CheckpointFormat.DLROVER,
        CheckpointFormat.SAFETENSORS,
        CheckpointFormat.TORCH,
    }
)
_COMPARED_MAX: Final = 200_000  # files
_RANK_FOLDERS_MAX: Final = 64  # folders with a number for a name that are listed to recognise
_RANK_NAMES_MAX: Final = 16
_COUNTER_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Survey:
    """The files of a checkpoint folder as their status tells them; nothing was read."""

    signatures: tuple[Signature, ...]
    folders: frozenset[str]
    size_bytes: int
    modified_unix_s: float  # of the newest file
    marker: Signature | None
    defect: str | None

    @property
    def oldest_unix_s(self) -> float:
        """Return when the file was changed that was not changed for longest; 0 where there is none."""
        return min((signature[3] for signature in self.signatures), default=0) / 1e9

    def tree(self, path: str, beside: frozenset[str], deadline: Deadline) -> Tree:
        """Return the folder as its format sees it."""
        start = len(path.rstrip("/")) + 1
        files = {signature[0][start:]: signature for signature in self.signatures}
        return Tree(path, files, self.folders, beside, deadline)


def glance(path: str, beside: frozenset[str], deadline: Deadline) -> Tree:
    """Return the top level of a folder, which is enough to recognise its format."""
    files: dict[str, Signature | None] = {}
    folders: set[str] = set()
    with os.scandir(path) as scan:
        for entry in islice(scan, _TOP_NAMES_MAX):
            deadline.check()
            if entry.is_dir(follow_symlinks=False):
                folders.add(entry.name)
            elif entry.is_file(follow_symlinks=False):
                files[entry.name] = None
    ranks = sorted(name for name in folders if name.isdecimal())[:_RANK_FOLDERS_MAX]
    for rank in ranks:  # NVRx keeps each rank's part in a folder of its own
        with os.scandir(f"{path}/{rank}") as scan:
            files |= {f"{rank}/{entry.name}": None for entry in islice(scan, _RANK_NAMES_MAX)}
    return Tree(path, files, frozenset(folders), beside, deadline)


def survey_folder(folder: str, settings: CheckpointSettings, deadline: Deadline) -> Survey:
    """Return what lies in the folder, and the first thing that speaks against it."""
    signatures: list[Signature] = []
    folders: set[str] = set()
    marker: Signature | None = None
    defects: list[str] = []
    pending = [(folder, 0)]
    start = len(folder.rstrip("/")) + 1  # os.path.relpath takes a fifth of a look at 1,000 files
    entries = 0
    while pending:
        current, depth = pending.pop()
        with os.scandir(current) as scan:
            for entry in scan:
                deadline.check()
                entries += 1
                if entries > settings.entries_max:
                    defect = f"more than {settings.entries_max} entries"
                    return Survey((), frozenset(), 0, 0.0, None, defect)
                name = entry.path[start:]
                if entry.name == OWN_FOLDER or DIRTY_PART.fullmatch(entry.name):
                    continue
                is_mark = depth == 0 and is_unfinished_mark(entry.name)
                if is_mark or is_temporary(entry.name):
                    defects.append(f"a save was under way: {shown(name)} is left in it")
                if entry.is_symlink():
                    defects.append(f"{shown(name)} in it is a link")
                elif entry.is_dir(follow_symlinks=False):
                    if depth == settings.depth_max:
                        defects.append(f"{shown(name)} lies too deep in it")
                    else:
                        folders.add(name)
                        pending.append((entry.path, depth + 1))
                else:
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        defects.append(f"{shown(name)} in it is not a regular file")
                    signatures.append(signature_of(entry.path, status))
                    if depth == 0 and entry.name == settings.marker:
                        marker = signatures[-1]
    signatures.sort()
    found = _marker_defect(folder, marker, signatures, settings) or min(defects, default=None)
    newest_ns = max((signature[3] for signature in signatures), default=0)
    size_bytes = sum(signature[2] for signature in signatures)
    return Survey(tuple(signatures), frozenset(folders), size_bytes, newest_ns / 1e9, marker, found)


def earlier_files(
    tree: Tree, kind: CheckpointFormat, survey: Survey, deadline: Deadline
) -> frozenset[str]:
    """Return the files of the save before; those in its folders, too, where it alone tells which belong to a save.

    Neither a folder that this save lacks altogether counts, nor what came after this save had begun: evaluations and exports
    are written into older saves. What a rotation takes away meanwhile is not missed.
    """
    if not tree.earlier_path or kind not in _COMPARED:
        return tree.earlier
    found: set[str] = set(tree.earlier)
    tops = {name for name in survey.folders if "/" not in name}
    pending = [f"{tree.earlier_path}/{name}" for name in tops]
    start = len(tree.earlier_path) + 1
    while pending and len(found) < _COMPARED_MAX:
        with contextlib.suppress(FileNotFoundError), os.scandir(pending.pop()) as scan:
            for entry in scan:
                deadline.check()
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif (
                    has_checkpoint_suffix(entry.name)
                    and entry.stat(follow_symlinks=False).st_mtime < survey.oldest_unix_s
                ):
                    found.add(entry.path[start:])
    return frozenset(found)


def _marker_defect(
    folder: str,
    marker: Signature | None,
    signatures: list[Signature],
    settings: CheckpointSettings,
) -> str | None:
    if settings.marker is None:
        return None
    if marker is None:
        return f"marker file {settings.marker} is missing"
    if marker[2] == 0:
        return f"marker file {settings.marker} is empty"
    latest_ns = marker[3] + int(settings.marker_skew_s * 1e9)
    for path, _inode, _size, modified_ns in signatures:
        if modified_ns > latest_ns:
            name = os.path.relpath(path, folder)
            return f"{shown(name)} was written after the marker {settings.marker}"
    return None


def check_structure(
    tree: Tree, survey: Survey, kind: CheckpointFormat, settings: CheckpointSettings
) -> str:
    """Return what proves that every file is there; raise DefectError otherwise."""
    if survey.defect is not None and not survey.signatures:
        raise DefectError(survey.defect)
    proofs = []
    if settings.marker is not None and survey.marker is not None:
        proofs.append(f"marker {settings.marker}")
    if (layout := format_of(kind)) is not None:
        proofs.append(layout.check(tree))
    elif settings.marker is None:
        raise DefectError("no known layout: name the file that marks it with --checkpoint-marker")
    if survey.defect is not None:
        raise DefectError(survey.defect)
    if settings.marker is None:
        _check_commit_mark(tree, survey)
    return ", ".join(proofs)


def _check_commit_mark(tree: Tree, survey: Survey) -> None:
    """Raise where the save before has a mark that it was committed and this one has none.

    Each save function has a name of its own for it: open-instruct `COMPLETED`, ezpz `.complete`, NxD `done`. One that came after
    this save had begun may be of somebody else.
    """
    for name in filter(is_commit_mark, tree.missing_since_earlier()):
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(f"{tree.earlier_path}/{name}").st_mtime < survey.oldest_unix_s:
                raise DefectError(
                    f"not committed: {shown(name)} is missing, which the save before has"
                )


def check_part(
    reader: FileReader, survey: Survey, tree: Tree, kind: CheckpointFormat
) -> bool | None:
    """Return whether this file is of a kind that can be checked, and raise when it is damaged.

    None: a marker, which was read with the structure.
    """
    if reader.signature == survey.marker or Path(reader.path).name == MARKER:
        return None
    layout = format_of(kind)
    if isinstance(layout, ContentFormat):
        name = reader.path.removeprefix(f"{tree.path.rstrip('/')}/")
        if layout.check_content(tree, name, reader):
            return True
    content = identify(reader).format
    if content in {CheckpointFormat.UNKNOWN, CheckpointFormat.PICKLE} and not has_checkpoint_suffix(
        reader.path
    ):
        return False
    if content is CheckpointFormat.UNKNOWN and _is_counter(reader):
        return False
    check_file(reader, content)
    return True


def _is_counter(reader: FileReader) -> bool:
    """Return whether this is a short text of numbers or names, as SpeechBrain's `counter.ckpt` and `brain.ckpt`.

    A pointer of Git LFS or a page of a server in the place of a file is none.
    """
    if not reader.path.endswith(".ckpt") or not 0 < reader.size_bytes <= _COUNTER_BYTES_MAX:
        return False
    try:
        text = reader.read(0, reader.size_bytes).decode()
    except UnicodeDecodeError:
        return False
    is_plain = all(line.isprintable() for line in text.splitlines())
    return is_plain and "git-lfs" not in text and "<" not in text


def explain_in(folder: str, error: OSError) -> str:
    """Return why a file of the folder could not be read, with its name."""
    name = os.path.relpath(error.filename, folder) if isinstance(error.filename, str) else ""
    return explain(error) if name in {"", "."} else f"{shown(name)}: {explain(error)}"
