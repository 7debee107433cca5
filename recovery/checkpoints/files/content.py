"""One checkpoint file: which kind it is by its content, and whether it is whole.

Nothing is ever unpickled, and no byte of the file is evaluated.
"""

import re
from dataclasses import dataclass
from typing import Final

from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.archive import (
    END_MAGIC,
    LOCAL_MAGIC,
    Archive,
    check_members,
    first_member_name,
    read_archives,
    read_small,
)
from recovery.checkpoints.files.pickle_stream import is_pickle, step_in, torch_content
from recovery.checkpoints.files.reader import DefectError, FileReader
from recovery.checkpoints.files.safetensors import (
    check_safetensors,
    looks_like_safetensors,
    read_header,
    step_in_metadata,
)
from recovery.checkpoints.files.shape import (
    counters_in,
    shape_of_arrays,
    shape_of_content,
    shape_of_tensors,
)
from recovery.checkpoints.names import has_checkpoint_suffix, has_optimizer, shown
from recovery.messages.candidates import NO_SHAPE, CheckpointFormat, Holds, Shape

LIGHTNING_KEY: Final = "pytorch-lightning_version"  # in every file of Lightning's Trainer
_PICKLE_BYTES_MAX: Final = 4 << 20  # searched for a step: 10,000 tensors have 1.5 MB, 1 s
_HEAD_BYTES: Final = 512  # a tar file has its mark at 257
_NPY_BYTES_MAX: Final = 4096
# numpy.lib.format: magic, version, header length, then a dict of this form, padded with blanks
_NPY_HEADER: Final = re.compile(
    rb"\{'descr': '([<>|])([iu])([1248])', 'fortran_order': (?:False|True), "
    rb"'shape': \((?:1,)?\), \}\s*"
)


@dataclass(frozen=True, slots=True)
class ContentIdentity:
    format: CheckpointFormat
    step: int | None  # out of the content itself
    shape: Shape = NO_SHAPE


def identify(reader: FileReader, deadline: Deadline | None = None) -> ContentIdentity:
    """Return what the file is; UNKNOWN when its beginning fits no checkpoint format.

    With a deadline, its step and its shape are read, too.
    """
    head = reader.read(0, min(_HEAD_BYTES, reader.size_bytes))
    if head[:4] == LOCAL_MAGIC:
        identity = _identify_archive(reader)
        if deadline is None or identity.format is not CheckpointFormat.TORCH:
            return identity
        return _read_torch(reader, deadline)
    if looks_like_safetensors(head, reader.size_bytes):
        return _identify_safetensors(reader, deadline)
    if is_pickle(head) or head[257:262] == b"ustar":
        return ContentIdentity(CheckpointFormat.PICKLE, None)
    return ContentIdentity(CheckpointFormat.UNKNOWN, None)


def _identify_archive(reader: FileReader) -> ContentIdentity:
    try:
        if not first_member_name(reader).endswith(".npy"):
            return ContentIdentity(CheckpointFormat.TORCH, None)
        archives = read_archives(reader)
        data = read_small(reader, archives[-1], "step.npy", _NPY_BYTES_MAX)
        step = parse_npy_integer(data) if data else None
        sizes = {
            member.name.removesuffix(".npy"): member.size_bytes for member in archives[-1].members
        }
        shape = shape_of_arrays(sizes, has_step=step is not None)
        return ContentIdentity(CheckpointFormat.NPZ, step, shape)
    except DefectError:  # `check_file` finds it again, and says so
        is_npz = reader.read(0, min(_HEAD_BYTES, reader.size_bytes)).find(b".npy") >= 0
        return ContentIdentity(CheckpointFormat.NPZ if is_npz else CheckpointFormat.TORCH, None)


def _identify_safetensors(reader: FileReader, deadline: Deadline | None) -> ContentIdentity:
    if deadline is None:
        return ContentIdentity(CheckpointFormat.SAFETENSORS, None)
    try:
        tensors, metadata = read_header(reader)
    except DefectError:  # `check_file` finds it again, and says so
        return ContentIdentity(CheckpointFormat.SAFETENSORS, None)
    return ContentIdentity(
        CheckpointFormat.SAFETENSORS, step_in_metadata(metadata), shape_of_tensors(tensors)
    )


def _read_torch(reader: FileReader, deadline: Deadline) -> ContentIdentity:
    try:
        content = torch_content(reader, deadline, _PICKLE_BYTES_MAX)
    except DefectError:  # `check_file` finds it again, and says so
        return ContentIdentity(CheckpointFormat.TORCH, None)
    if content is None:  # too long to be read, or none
        is_in_parts = any(map(_is_saved_in_parts, read_archives(reader)))
        shape = Shape(Holds.STATE) if is_in_parts else NO_SHAPE
        return ContentIdentity(CheckpointFormat.TORCH, None, shape)
    step, epoch = counters_in(content)
    shape = shape_of_content(content, epoch)
    if isinstance(content, dict) and LIGHTNING_KEY in content:
        return ContentIdentity(CheckpointFormat.LIGHTNING, step_in(content, "global_step"), shape)
    return ContentIdentity(CheckpointFormat.TORCH, step, shape)


def parse_npy_integer(data: bytes) -> int | None:
    """Return the one integer in an .npy file (shape () or (1,)), or None when it holds else."""
    if data[:6] != b"\x93NUMPY" or data[6:7] not in {b"\x01", b"\x02", b"\x03"}:
        return None
    begin = 10 if data[6] == 1 else 12
    end = begin + int.from_bytes(data[8:begin], "little")
    header = _NPY_HEADER.fullmatch(data[begin:end])
    if header is None or len(data) - end != int(header[3]):
        return None
    order: Final = "big" if header[1] == b">" else "little"
    number = int.from_bytes(data[end:], order, signed=header[2] == b"i")
    return number if 0 <= number < 2**63 else None


def check_file(reader: FileReader, kind: CheckpointFormat) -> str:
    """Return what was found whole, for a verdict; raise DefectError when it is not."""
    if reader.size_bytes == 0:
        raise DefectError("empty file")
    if kind in {CheckpointFormat.TORCH, CheckpointFormat.LIGHTNING, CheckpointFormat.NPZ}:
        return _check_archives(reader, kind)
    if kind is CheckpointFormat.SAFETENSORS:
        tensors = check_safetensors(reader)
        return f"header and size of {tensors} tensors (the format has no checksum)"
    if kind is CheckpointFormat.PICKLE:
        raise DefectError("not a zip: can't be validated without unpickling")
    head = reader.read(0, min(8, reader.size_bytes))
    if head[:4] == END_MAGIC:
        raise DefectError("an empty zip")
    raise DefectError(f"no checkpoint format is known that begins with {head.hex(' ')}")


def _check_archives(reader: FileReader, kind: CheckpointFormat) -> str:
    reader.expect_all()
    archives = read_archives(reader)
    members = [member for archive in archives for member in archive.members]
    if kind is CheckpointFormat.NPZ:
        if len(archives) > 1:
            raise DefectError(f"{len(archives)} zip archives in one npz file")
        for member in members:
            if not member.name.endswith(".npy"):
                raise DefectError(f"{shown(member.name)} in it is not an .npy file")
    else:
        for archive in archives:
            is_saved = any(_is_data_pickle(member.name) for member in archive.members)
            if not is_saved and not _is_saved_in_parts(archive):
                raise DefectError("a zip file without data.pkl: not written by torch.save")
    # torch.serialization.set_crc32_options(False) leaves every CRC zero. torch.save never packs, so a packed member must have one.
    has_checksums = kind is CheckpointFormat.NPZ or any(
        member.crc or member.is_packed for member in members
    )
    reader.begin_content()
    check_members(reader, archives, has_checksums)
    if not has_checksums:
        return f"zip directory of {len(members)} members (saved without checksums)"
    return f"zip directory and CRC of {len(members)} members"


def _is_saved_in_parts(archive: Archive) -> bool:
    """Return whether files of torch.save lie in it, an optimizer's too: `policy.pth` and `policy.optimizer.pth`.

    Source: Stable-Baselines3, common/save_util.py.
    """
    names = [member.name for member in archive.members if "/" not in member.name]
    saved = [name for name in names if has_checkpoint_suffix(name)]
    return has_optimizer(saved) and not all("optim" in name.lower() for name in saved)


def _is_data_pickle(name: str) -> bool:
    folder, _, file = name.partition("/")
    return bool(folder) and file == "data.pkl"
