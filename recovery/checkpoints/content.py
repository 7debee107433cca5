"""One checkpoint file: which kind it is by its content, and whether it is whole.

Nothing is ever unpickled, and no byte of the file is evaluated.
"""

import re
from dataclasses import dataclass
from typing import Final

from recovery.checkpoints.archive import (
    END_MAGIC,
    LOCAL_MAGIC,
    check_members,
    first_member_name,
    read_archives,
    read_small,
)
from recovery.checkpoints.model import CheckpointFormat
from recovery.checkpoints.names import shown
from recovery.checkpoints.reader import DefectError, FileReader
from recovery.checkpoints.safetensors import check_safetensors, looks_like_safetensors

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


def identify(reader: FileReader) -> ContentIdentity:
    """Return what the file is; UNKNOWN when its beginning fits no checkpoint format."""
    head = reader.read(0, min(_HEAD_BYTES, reader.size_bytes))
    if head[:4] == LOCAL_MAGIC:
        return _identify_archive(reader)
    if looks_like_safetensors(head, reader.size_bytes):
        return ContentIdentity(CheckpointFormat.SAFETENSORS, None)
    is_pickle = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    if is_pickle or head[257:262] == b"ustar":
        return ContentIdentity(CheckpointFormat.PICKLE, None)
    return ContentIdentity(CheckpointFormat.UNKNOWN, None)


def _identify_archive(reader: FileReader) -> ContentIdentity:
    try:
        if not first_member_name(reader).endswith(".npy"):
            return ContentIdentity(CheckpointFormat.TORCH, None)
        archives = read_archives(reader)
        data = read_small(reader, archives[-1], "step.npy", _NPY_BYTES_MAX)
        return ContentIdentity(CheckpointFormat.NPZ, parse_npy_integer(data) if data else None)
    except DefectError:  # `check_file` finds it again, and says so
        is_npz = reader.read(0, min(_HEAD_BYTES, reader.size_bytes)).find(b".npy") >= 0
        return ContentIdentity(CheckpointFormat.NPZ if is_npz else CheckpointFormat.TORCH, None)


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
    if kind in {CheckpointFormat.TORCH, CheckpointFormat.NPZ}:
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
    archives = read_archives(reader)
    members = [member for archive in archives for member in archive.members]
    if kind is CheckpointFormat.NPZ:
        if len(archives) > 1:
            raise DefectError(f"{len(archives)} zip archives in one npz file")
        for member in members:
            if not member.name.endswith(".npy"):
                raise DefectError(f"{shown(member.name)} in it is no .npy file")
    else:
        for archive in archives:
            if not any(_is_data_pickle(member.name) for member in archive.members):
                raise DefectError("a zip file without data.pkl: nothing that torch.save wrote")
    # torch.serialization.set_crc32_options(False) leaves every CRC zero
    has_checksums = kind is CheckpointFormat.NPZ or any(member.crc for member in members)
    for archive in archives:
        check_members(reader, archive, has_checksums)
    if not has_checksums:
        return f"zip directory of {len(members)} members (saved without checksums)"
    return f"zip directory and CRC of {len(members)} members"


def _is_data_pickle(name: str) -> bool:
    folder, _, file = name.partition("/")
    return bool(folder) and file == "data.pkl"
