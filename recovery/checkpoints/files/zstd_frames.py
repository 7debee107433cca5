"""Zstandard frames (RFC 8878): what the headers tell, and small ones unpacked within a bound.

A frame's blocks say how long they are, so a cut, shifted or zeroed one shows without unpacking it.
A flipped bit in a block's data does not: writers of checkpoints leave the frame's checksum out.
"""

import sys
from typing import Final

from recovery.checkpoints.files.reader import DefectError, FileReader

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_HEAD_BYTES_MAX: Final = 18  # magic, descriptor, window, dictionary, content size
_RLE, _RESERVED = 1, 3  # types of a block


def unpack(data: bytes, size_bytes_max: int) -> bytes | None:
    """Return what one frame holds; None where it is no frame, or holds more than this."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415
    else:
        from backports import zstd  # noqa: PLC0415 - a start does not need it
    unpacker = zstd.ZstdDecompressor()
    try:
        content = unpacker.decompress(data, size_bytes_max + 1)
    except (zstd.ZstdError, EOFError):
        return None
    is_whole = unpacker.eof and not unpacker.unused_data and len(content) <= size_bytes_max
    return content if is_whole else None


def check_frames(reader: FileReader, begin: int, length: int, size_bytes: int | None) -> None:
    """Raise DefectError unless frames fill these bytes of the file.

    ``size_bytes``: what they unpack to, where that is known. The blocks are walked only if the
    whole file is read anyway; else the first header has to do.
    """
    at, end = begin, begin + length
    unpacked: int | None = 0
    while at < end:
        blocks_at, content_bytes, has_checksum = _read_header(reader, at, end)
        unpacked = None if content_bytes is None or unpacked is None else unpacked + content_bytes
        if not reader.expects_all:
            if content_bytes is not None and size_bytes is not None and content_bytes > size_bytes:
                raise _other_size(begin, content_bytes, size_bytes)
            return
        reader.begin_content()  # what is where in the file, others have said
        at = _walk_blocks(reader, blocks_at, end) + (4 if has_checksum else 0)
    if at != end:
        raise DefectError(f"the zstd frame at {begin} is cut off")
    if unpacked is not None and size_bytes is not None and unpacked != size_bytes:
        raise _other_size(begin, unpacked, size_bytes)


def _other_size(begin: int, found_bytes: int, size_bytes: int) -> DefectError:
    return DefectError(
        f"the zstd frame at {begin} holds {found_bytes} bytes instead of {size_bytes}"
    )


def _read_header(reader: FileReader, at: int, end: int) -> tuple[int, int | None, bool]:
    """Return where the blocks begin, how much they hold if it says so, and if a checksum follows."""
    head = reader.read(at, min(_HEAD_BYTES_MAX, end - at))
    if head[:4] != _MAGIC or len(head) < 6:
        raise DefectError(f"no zstd frame begins at {at}")
    descriptor = head[4]
    is_single = bool(descriptor & 0x20)
    size_at = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (int(is_single), 2, 4, 8)[descriptor >> 6]
    if descriptor & 0x08 or len(head) < size_at + size_bytes:
        raise DefectError(f"the header of the zstd frame at {at} is damaged")
    field = int.from_bytes(head[size_at : size_at + size_bytes], "little")
    content_bytes = field + (256 if size_bytes == 2 else 0) if size_bytes else None
    return at + size_at + size_bytes, content_bytes, bool(descriptor & 0x04)


def _walk_blocks(reader: FileReader, at: int, end: int) -> int:
    """Return where the last block ends."""
    is_last = False
    while not is_last:
        if at + 3 > end:
            raise DefectError("a zstd frame in it is cut off")
        header = int.from_bytes(reader.read(at, 3), "little")
        is_last, kind = bool(header & 1), header >> 1 & 3
        if kind == _RESERVED:
            raise DefectError(f"the zstd block at {at} is damaged")
        at += 3 + (1 if kind == _RLE else header >> 3)
    if at > end:
        raise DefectError("a zstd frame in it is cut off")
    return at
