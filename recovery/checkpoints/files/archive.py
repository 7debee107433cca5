"""Zip archives as torch.save and np.savez write them: directory, members, CRC-32.

Source: PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3. Python's zipfile is not used here: it
reads a directory of any size into memory, and a PyTorch DCP shard is many archives in one file.
They are read from the end: each archive tells where it begins, and the one before ends there.
A CRC-32 goes on from the value that it had (`crc32` takes it), so a read that was cut short costs no byte twice.
No archive comments (nobody writes them here), no encryption, methods stored and deflated only.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from isal.isal_zlib import crc32  # 3 to 12 times as fast as zlib's

from recovery.checkpoints.files.bulk_reads import CHUNK_BYTES
from recovery.checkpoints.files.reader import DefectError, FileReader, MemberProgress, SumError
from recovery.checkpoints.names import shown

LOCAL_MAGIC: Final = b"PK\x03\x04"
END_MAGIC: Final = b"PK\x05\x06"
_ENTRY_MAGIC: Final = b"PK\x01\x02"
_LOCATOR_MAGIC: Final = b"PK\x06\x07"
_END64_MAGIC: Final = b"PK\x06\x06"

# disk, disk of the directory, entries here, entries, directory size, its offset, comment length
_END: Final = struct.Struct("<4s4H2IH")
# size of the rest, versions, disks, entries here, entries, directory size, its offset
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_LOCATOR: Final = struct.Struct("<4sIQI")  # disk, offset of the record above, disks
# versions, flags, method, time, date, crc, packed size, size, length of name, extra, comment,
# disk, attributes, offset of the local header
_ENTRY: Final = struct.Struct("<4s6H3I5H2I")
# version, flags, method, time, date, crc, packed size, size, length of name, extra
_LOCAL: Final = struct.Struct("<4s5H3I2H")

_STORED: Final = 0
_DEFLATED: Final = 8
_FLAGS: Final = (
    0x080E  # deflate levels, sizes behind the data, UTF-8 names; no encryption, no patch
)
_VERSION_MAX: Final = 63  # of the format that is needed to unpack
_SATURATED: Final = 0xFFFFFFFF  # the number is in the zip64 extra field
_ZIP64_EXTRA: Final = 1

MEMBERS_MAX: Final = 500_000  # in all archives of a file; a tensor is one member
DIRECTORY_BYTES_MAX: Final = 64 << 20  # torch.save writes about 100 bytes a member
INFLATED_BYTES_MAX: Final = 1 << 40  # of a compressed member; np.savez_compressed only
# zlib's technical notes: 1032 to 1 is the most that deflate can reach
_DEFLATE_RATIO_MAX: Final = 1040
_DEFLATE_SLACK_BYTES: Final = 4096  # short streams are mostly their own header


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    name: str
    raw_name: bytes
    method: int
    crc: int
    packed_bytes: int
    size_bytes: int
    header_at: int  # in the file

    @property
    def is_packed(self) -> bool:
        return self.method != _STORED


@dataclass(frozen=True, slots=True)
class Archive:
    begins_at: int
    directory_at: int
    members: tuple[ArchiveMember, ...]


def first_member_name(reader: FileReader) -> str:
    """Return the name in the local header at the start of the file: it is there while cut off."""
    header = reader.read(0, _LOCAL.size)
    name_length = _LOCAL.unpack(header)[9]
    count = min(name_length, reader.size_bytes - _LOCAL.size)
    return reader.read(_LOCAL.size, count).decode("utf-8", "replace")


def read_archives(reader: FileReader, members_max: int = MEMBERS_MAX) -> tuple[Archive, ...]:
    """Return the archives that the file consists of, first one first."""
    archives: list[Archive] = []
    members = 0
    end = reader.size_bytes
    while end > 0:
        archive = _read_archive(reader, end)
        members += len(archive.members) + 1  # an empty one counts, too: it takes memory
        if members > members_max:
            raise DefectError(f"more than {members_max} zip members")
        archives.append(archive)
        end = archive.begins_at
    return tuple(reversed(archives))


def _read_archive(reader: FileReader, end: int) -> Archive:
    end_at = end - _END.size
    if end_at < 0 or reader.read(end_at, 4) != END_MAGIC:
        if end == reader.size_bytes:
            raise DefectError("truncated: no zip directory at its end")
        raise DefectError(f"the bytes before {end} belong to no zip archive")
    fields = _END.unpack(reader.read(end_at, _END.size))
    _magic, disk, directory_disk, _here, entries, directory_bytes, offset, comment = fields
    directory_end = end_at
    end64_at = end_at - _LOCATOR.size - _END64.size
    if end64_at >= 0 and reader.read(end_at - _LOCATOR.size, 4) == _LOCATOR_MAGIC:
        record = _END64.unpack(reader.read(end64_at, _END64.size))
        if record[0] != _END64_MAGIC:
            raise DefectError("its zip64 end record is damaged")
        entries, directory_bytes, offset = record[7:]
        directory_end = end64_at
    begins_at = directory_end - directory_bytes - offset
    if comment or disk or directory_disk or begins_at < 0:
        raise DefectError("its zip end record is damaged")
    if entries > MEMBERS_MAX:
        raise DefectError(f"its zip directory claims {entries} members, too many")
    if directory_bytes > DIRECTORY_BYTES_MAX:
        raise DefectError(f"its zip directory has {directory_bytes} bytes, too many")
    directory_at = directory_end - directory_bytes
    directory = reader.read(directory_at, directory_bytes)
    members = _parse_directory(directory, entries, begins_at)
    # without overlaps the members fit into what lies before the directory
    used_bytes = sum(member.packed_bytes + len(member.raw_name) + _LOCAL.size for member in members)
    if used_bytes > offset:
        raise DefectError("its zip members overlap")
    return Archive(begins_at, directory_at, members)


def _parse_directory(directory: bytes, entries: int, begins_at: int) -> tuple[ArchiveMember, ...]:
    members = []
    at = 0
    for _ in range(entries):
        if at + _ENTRY.size > len(directory) or directory[at : at + 4] != _ENTRY_MAGIC:
            raise DefectError("its zip directory is damaged")
        fields = _ENTRY.unpack_from(directory, at)
        version, flags, method, crc, packed, size = *fields[2:5], *fields[7:10]
        name_length, extra_length, comment_length = fields[10:13]
        at += _ENTRY.size
        raw_name = directory[at : at + name_length]
        extra = directory[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length + comment_length
        size, packed, offset = _widen(extra, size, packed, fields[16])
        name = raw_name.decode("utf-8", "replace")
        is_plain = flags & ~_FLAGS == 0 and version <= _VERSION_MAX
        if not is_plain or method not in {_STORED, _DEFLATED}:
            raise DefectError(f"{shown(name)} is packed in an unknown way")
        if method == _STORED and packed != size:
            raise DefectError(f"the sizes of {shown(name)} contradict each other")
        if method == _DEFLATED:
            _check_ratio(name, packed, size)
        members.append(ArchiveMember(name, raw_name, method, crc, packed, size, begins_at + offset))
    if at != len(directory):
        raise DefectError("its zip directory is damaged")
    return tuple(members)


def _widen(extra: bytes, *numbers: int) -> list[int]:
    """Return size, packed size and offset with the saturated ones replaced from the zip64 extra."""
    wide: list[int] = []
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _ZIP64_EXTRA:
            body = extra[at + 4 : at + 4 + length]
            wide = [int.from_bytes(body[i : i + 8], "little") for i in range(0, len(body) - 7, 8)]
            break
        at += 4 + length
    return [wide.pop(0) if number == _SATURATED and wide else number for number in numbers]


def _check_ratio(name: str, packed: int, size: int) -> None:
    if size > INFLATED_BYTES_MAX or size > packed * _DEFLATE_RATIO_MAX + _DEFLATE_SLACK_BYTES:
        raise DefectError(f"{shown(name)} claims to grow from {packed} to {size} bytes")


def check_members(
    reader: FileReader, archives: Sequence[Archive], has_checksums: bool = True
) -> None:
    """Read every member and raise at the first whose header, size or CRC-32 does not fit.

    Goes on where an earlier reader of the same file was cut short.
    """
    if has_checksums:  # else a restart waits for none of it
        reader.read_on_beside()
    progress = reader.progress
    members = ((archive, member) for archive in archives for member in archive.members)
    for archive, member in islice(members, progress.members, None):
        reader.check_deadline()
        begin = _data_at(reader, archive, member)
        if has_checksums:
            crc = _stored_crc if member.method == _STORED else _inflated_crc
            if crc(reader, member, begin) != member.crc:
                raise SumError(f"CRC of {shown(member.name)} does not fit")
        progress.members += 1
        progress.member = None


def read_small(reader: FileReader, archive: Archive, name: str, bytes_max: int) -> bytes | None:
    """Return the content of a small member, or None where there is none of that name and size."""
    for member in archive.members:
        if member.name == name and member.size_bytes <= bytes_max >= member.packed_bytes:
            begin = _data_at(reader, archive, member)
            data = reader.read(begin, member.packed_bytes)
            if member.method == _DEFLATED:
                try:
                    data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, bytes_max)
                except zlib.error:
                    return None
            return data if crc32(data) == member.crc else None
    return None


def _data_at(reader: FileReader, archive: Archive, member: ArchiveMember) -> int:
    """Return where the member's bytes begin, after comparing its two headers."""
    if not archive.begins_at <= member.header_at <= archive.directory_at - _LOCAL.size:
        raise DefectError(f"{shown(member.name)} lies outside the archive")
    fields = _LOCAL.unpack(reader.read(member.header_at, _LOCAL.size))
    name_length, extra_length = fields[9:11]
    name_at = member.header_at + _LOCAL.size
    begin: int = name_at + name_length + extra_length
    if fields[0] != LOCAL_MAGIC or begin + member.packed_bytes > archive.directory_at:
        raise SumError(f"the header of {shown(member.name)} is damaged")
    if fields[3] != member.method or reader.read(name_at, name_length) != member.raw_name:
        raise SumError(f"the two headers of {shown(member.name)} differ")
    return begin


def _stored_crc(reader: FileReader, member: ArchiveMember, begin: int) -> int:
    """Return the CRC-32 of a member that is not packed."""
    part = reader.progress.member or MemberProgress()
    crc, at = part.crc, part.packed_bytes
    for chunk in reader.chunks(begin + at, member.packed_bytes - at):
        crc = crc32(chunk, crc)
        at += len(chunk)
        reader.progress.member = MemberProgress(at, at, crc)
    return crc


def _inflated_crc(reader: FileReader, member: ArchiveMember, begin: int) -> int:
    """Return the CRC-32 of a deflated member, unpacked piece by piece and never beyond its size."""
    part = reader.progress.member or MemberProgress()
    crc, size, at = part.crc, part.size_bytes, part.packed_bytes
    inflater = part.inflater.copy() if part.inflater else zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for chunk in reader.chunks(begin + at, member.packed_bytes - at):
            # unpacking this piece may be cut short, too
            reader.progress.member = MemberProgress(at, size, crc, inflater.copy())
            at += len(chunk)
            rest: bytes | memoryview = chunk
            while rest and not inflater.eof:
                reader.check_deadline()
                data = inflater.decompress(rest, CHUNK_BYTES)
                rest = inflater.unconsumed_tail
                size += len(data)
                crc = crc32(data, crc)
                if size > member.size_bytes:
                    raise SumError(f"{shown(member.name)} unpacks to more than it claims")
        while not inflater.eof and (data := inflater.decompress(b"", CHUNK_BYTES)):
            size += len(data)
            crc = crc32(data, crc)
    except zlib.error as error:
        raise SumError(f"{shown(member.name)} can't be unpacked") from error
    if size != member.size_bytes or not inflater.eof:
        raise SumError(f"{shown(member.name)} unpacks to {size} of {member.size_bytes} bytes")
    return crc
