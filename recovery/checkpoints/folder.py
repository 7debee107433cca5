"""A checkpoint that is a folder: whole when its marker is there and every file in it is.

The marker is what the framework writes last. Three things show that it is not this save's:
a temporary file, a file written after it (a save over an older one), a shard that it names and
that is missing.
"""

import os
import pickletools
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recovery.checkpoints.content import check_file, identify
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.model import CheckpointFormat, CheckpointSettings
from recovery.checkpoints.names import has_checkpoint_suffix, is_temporary, shown
from recovery.checkpoints.reader import DefectError, FileReader, Signature, explain, signature_of

OWN_FOLDER: Final = ".rankmend"  # docs/use/checkpoints.md
_MARKER_BYTES_MAX: Final = 64 << 20  # of a DCP .metadata that is searched for shard names
_OPCODES_PER_CHECK: Final = 4096


@dataclass(frozen=True, slots=True)
class Survey:
    """The files of a checkpoint folder as their status tells them; nothing was read."""

    signatures: tuple[Signature, ...]
    size_bytes: int
    modified_unix_s: float  # of the newest file
    marker: Signature | None
    defect: str | None


def survey_folder(folder: str, settings: CheckpointSettings, deadline: Deadline) -> Survey:
    """Return what lies in the folder, and the first thing that speaks against it."""
    signatures: list[Signature] = []
    marker: Signature | None = None
    defects: list[str] = []
    pending = [(folder, 0)]
    entries = 0
    while pending:
        current, depth = pending.pop()
        with os.scandir(current) as scan:
            for entry in scan:
                deadline.check()
                entries += 1
                if entries > settings.entries_max:
                    return Survey((), 0, 0.0, None, f"more than {settings.entries_max} entries")
                name = os.path.relpath(entry.path, folder)
                if entry.name == OWN_FOLDER:
                    continue
                if is_temporary(entry.name):
                    defects.append(f"a save was under way: {shown(name)} is left in it")
                if entry.is_symlink():
                    defects.append(f"{shown(name)} in it is a link")
                elif entry.is_dir(follow_symlinks=False):
                    if depth == settings.depth_max:
                        defects.append(f"{shown(name)} lies too deep in it")
                    else:
                        pending.append((entry.path, depth + 1))
                else:
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        defects.append(f"{shown(name)} in it is not a regular file")
                    signatures.append(signature_of(entry.path, status))
                    if depth == 0 and entry.name == settings.marker:
                        marker = signatures[-1]
    signatures.sort()
    defect = _marker_defect(folder, marker, signatures, settings) or min(defects, default=None)
    newest_ns = max((signature[3] for signature in signatures), default=0)
    size_bytes = sum(signature[2] for signature in signatures)
    return Survey(tuple(signatures), size_bytes, newest_ns / 1e9, marker, defect)


def _marker_defect(
    folder: str,
    marker: Signature | None,
    signatures: list[Signature],
    settings: CheckpointSettings,
) -> str | None:
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


def check_folder(
    folder: str, survey: Survey, settings: CheckpointSettings, deadline: Deadline
) -> str:
    """Return what was found whole, for a verdict; raise DefectError when it is not."""
    if survey.defect is not None:
        raise DefectError(survey.defect)
    names = {Path(signature[0]).name for signature in survey.signatures}
    checked = unchecked = 0
    for signature in survey.signatures:
        name = shown(os.path.relpath(signature[0], folder))
        try:
            with FileReader(signature[0], deadline) as reader:
                if signature == survey.marker:
                    _check_named_shards(reader, names, deadline)
                elif _check_part(reader):
                    checked += 1
                else:
                    unchecked += 1
                reader.check_unchanged(signature)
        except DefectError as error:
            raise DefectError(f"{name}: {error}") from error
        except OSError as error:
            raise DefectError(f"{name}: {explain(error)}") from error
    others = f", {unchecked} others present" if unchecked else ""
    return f"marker {settings.marker}, {checked} files checked{others}"


def _check_part(reader: FileReader) -> bool:
    """Return whether this file is of a kind that can be checked, and raise when it is damaged."""
    kind = identify(reader).format
    if kind in {CheckpointFormat.UNKNOWN, CheckpointFormat.PICKLE} and not has_checkpoint_suffix(
        reader.path
    ):
        return False
    check_file(reader, kind)
    return True


def _check_named_shards(reader: FileReader, names: set[str], deadline: Deadline) -> None:
    """Raise when a PyTorch DCP marker names a shard that is not there.

    The marker is a pickle, and its instructions are listed here, never carried out.
    """
    if reader.size_bytes > _MARKER_BYTES_MAX or reader.read(0, 1) != b"\x80":
        return
    data = reader.read(0, reader.size_bytes)
    try:
        for number, (_opcode, text, _at) in enumerate(pickletools.genops(data)):
            if number % _OPCODES_PER_CHECK == 0:
                deadline.check()
            if isinstance(text, str) and text.endswith(".distcp") and text not in names:
                raise DefectError(f"shard {shown(text)}, which it names, is missing")
    except (ValueError, IndexError, OverflowError, MemoryError, struct.error) as error:
        raise DefectError("damaged: no complete pickle") from error
