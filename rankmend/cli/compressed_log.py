"""Reads a log as lines, compressed or not.

The first bytes of a file tell its format, not its name. Data is read in pieces and the unpacked size is
bounded: a few kilobytes can expand to terabytes.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, cast

PLAIN_BYTES_MAX: Final = 4_000_000_000  # 30 million lines
UNPACKED_BYTES_MAX: Final = 1_000_000_000  # logrotate compresses files of 1 to 100 MB
LINE_BYTES_MAX: Final = 65_536
XZ_MEMORY_BYTES_MAX: Final = 128 << 20  # xz -9 needs 65 MiB to unpack
_PIECE_BYTES: Final = 65_536


class _XzReader(io.RawIOBase):
    """Unpacks xz within a memory limit, which `lzma.open` does not offer."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._unpacker = lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES_MAX)
        self._is_begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            rest = b""
            if self._unpacker.eof:  # several streams in one file
                rest = self._unpacker.unused_data
                self._unpacker = lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES_MAX)
                self._is_begun = False
            piece = rest
            if not rest and self._unpacker.needs_input:
                piece = self._packed.read(_PIECE_BYTES)
                if not piece:
                    if self._is_begun:
                        raise EOFError
                    return 0
            self._is_begun = True
            unpacked = self._unpacker.decompress(piece, len(buffer))
            if unpacked:
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)


class _Raw(io.RawIOBase):
    """Makes any byte stream a raw stream that `io.BufferedReader` accepts."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _open_xz(packed: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_XzReader(packed))


def _open_gzip(packed: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=packed))


def _open_bzip2(packed: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, bz2.BZ2File(packed))


_PACKERS: Final = (
    (b"\x1f\x8b", _open_gzip),
    (b"\xfd7zXZ\x00", _open_xz),
    (b"BZh", _open_bzip2),
)
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


def lines_of(stream: BinaryIO, unpacked_bytes_max: int = UNPACKED_BYTES_MAX) -> Iterator[str]:
    """Return the lines of a log, each cut to its bound; one line is in memory at a time.

    Raises ValueError, with what to do, if the log is too large, damaged or compressed with zstd.
    """
    source = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(_Raw(stream))
    head = source.peek(8)[:8]
    if head.startswith(_ZSTD):
        raise ValueError("it is compressed with zstd; try: zstd -dc FILE | rankmend check log -")
    for magic, unpack in _PACKERS:
        if head.startswith(magic):
            yield from _unpacked(unpack(source), unpacked_bytes_max)
            return
    yield from _plain(source, PLAIN_BYTES_MAX)


def _unpacked(stream: BinaryIO, bytes_max: int) -> Iterator[str]:
    try:
        yield from _plain(stream, bytes_max)
    except EOFError as error:
        raise ValueError(
            "its compressed data is truncated; is the file still being written?"
        ) from error
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"its compressed data is damaged: {error}") from error
    except OSError as error:
        if error.errno is None:  # bz2: "Invalid data stream"
            raise ValueError(f"its compressed data is damaged: {error}") from error
        raise


def _plain(stream: BinaryIO, bytes_max: int) -> Iterator[str]:
    read_bytes = 0
    is_rest = False
    while chunk := stream.readline(LINE_BYTES_MAX):
        read_bytes += len(chunk)
        if read_bytes > bytes_max:
            raise ValueError(
                f"more than {bytes_max} bytes; split it, for example with split -C 500M"
            )
        if not is_rest:
            yield chunk.decode("utf-8", "replace").replace("\0", "")
        is_rest = not chunk.endswith(b"\n")
