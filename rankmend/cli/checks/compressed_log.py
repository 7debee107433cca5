"""Reads a log as lines, compressed or not, and only those that a rule could mean.

A log of a busy node has gigabytes of lines that differ in their numbers only. `Sieve` takes the digits out of a
whole piece at once and looks at each form once: 1 GB of an ordinary log costs some seconds in place of 110. What it leaves out is
counted. It never leaves out a line that holds what a rule looks for, nor a message of several lines. The first bytes of a file tell its format, not its name. Data is read in pieces and the unpacked size is
bounded: a few kilobytes can expand to terabytes.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final, cast

PLAIN_BYTES_MAX: Final = 4_000_000_000  # 30 million lines
UNPACKED_BYTES_MAX: Final = 1_000_000_000  # logrotate compresses files of 1 to 100 MB
LINE_BYTES_MAX: Final = 65_536
XZ_MEMORY_BYTES_MAX: Final = 128 << 20  # xz -9 needs 65 MiB to unpack
_PIECE_BYTES: Final = 65_536
SIEVE_PIECE_BYTES: Final = 262_144  # stays in a core's second cache
PARAGRAPH_BYTES_MAX: Final = 4_194_304  # indented lines in a row
FORMS_MAX: Final = 20_000  # lines without their digits; some 4 MB
FORM_BYTES_MAX: Final = 512
_HEX_DIGITS: Final = b"0123456789abcdef"
_SPACE: Final = ord(" ")
# Lines that are changed before rules see them: NULs and colours are taken out, escapes and JSON are resolved.
_CHANGED: Final = frozenset({b"\0", b"\x1b", b"\\x", b"{"})

_ZSTD: Final = b"\x28\xb5\x2f\xfd"


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


def lines_of(stream: BinaryIO, unpacked_bytes_max: int = UNPACKED_BYTES_MAX) -> Iterator[str]:
    """Return the lines of a log, each cut to its bound; one line is in memory at a time.

    Raises ValueError, with what to do, if the log is too large, damaged or compressed with zstd.
    """
    yield from _open(stream, unpacked_bytes_max, _plain)


class Sieve:
    """Gives the lines that may hold one of some texts, and counts the records that it leaves out."""

    def __init__(
        self,
        texts: Iterable[str],
        *,
        keeps_all: Callable[[], bool],
        skip: Callable[[int], None],
        piece_bytes: int = SIEVE_PIECE_BYTES,
    ) -> None:
        """``keeps_all``: whether nothing may be left out yet; ``skip`` receives the count of each piece's records left out."""
        wanted = {text.encode() for text in texts} | _CHANGED
        self._needles = tuple(  # where one holds another, the shorter is enough
            (needle.translate(None, _HEX_DIGITS), needle)
            for needle in sorted(wanted)
            if not any(other != needle and other in needle for other in wanted)
        )
        assert all(form for form, _text in self._needles), "a text has other letters than a to f"
        self._keeps_all, self._skip, self._piece_bytes = keeps_all, skip, piece_bytes
        self._plain_forms: set[bytes] = set()
        self._telling_forms: dict[bytes, tuple[bytes, ...]] = {}  # what its lines may hold

    def lines_of(
        self, stream: BinaryIO, unpacked_bytes_max: int = UNPACKED_BYTES_MAX
    ) -> Iterator[str]:
        """Return the lines as `lines_of` does, but without those that are only counted."""
        yield from _open(stream, unpacked_bytes_max, self._sifted)

    def _sifted(self, stream: BinaryIO, bytes_max: int) -> Iterator[str]:
        for piece in _paragraphs(stream, bytes_max, self._piece_bytes):
            for line in self._telling(piece):
                yield line.decode("utf-8", "replace").replace("\0", "")

    def _telling(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines to parse; the piece has whole lines and ends where no message goes on."""
        if self._keeps_all():
            yield from _split(piece)
            return
        forms = piece.translate(None, _HEX_DIGITS).split(b"\n")
        if piece.endswith(b"\n"):
            forms.pop()
        telling = self._telling_among(set(forms))
        may_go_on = b"\n " in piece or piece.startswith(b" ")
        if not telling and not may_go_on:
            self._skip(len(forms))
            return
        if not may_go_on:
            numbers = [number for number, form in enumerate(forms) if form in telling]
            lines = piece.split(b"\n")
            retained = [
                lines[number]
                for number in numbers
                if any(text in lines[number] for text in telling[forms[number]])
            ]
            self._skip(len(forms) - len(retained))
            yield from retained
            return
        lines, left_out = _split(piece), 0
        for line, form, after in zip(lines, forms, [*lines[1:], b""], strict=True):
            goes_on = may_go_on and (line.startswith(b" ") or after.startswith(b" "))
            if goes_on or any(text in line for text in telling.get(form, ())):
                yield line
            else:
                left_out += 1
        self._skip(left_out)

    def _telling_among(self, forms: set[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        """Return the forms whose lines may hold what a rule looks for, and what; each is looked at once."""
        new = forms - self._plain_forms
        telling = {form: known for form in new if (known := self._telling_forms.get(form))}
        if unknown := new - telling.keys():
            together = b"\n".join(unknown)
            needles = [needle for needle in self._needles if needle[0] in together]
            found = {
                form: texts
                for form in unknown
                if (texts := tuple([text for needle, text in needles if needle in form]))
            }
            self._remember(found, unknown - found.keys())
            telling |= found
        return telling

    def _remember(self, telling: dict[bytes, tuple[bytes, ...]], plain: set[bytes]) -> None:
        if len(self._telling_forms) + len(self._plain_forms) > FORMS_MAX:
            self._telling_forms.clear()
            self._plain_forms.clear()
        self._plain_forms.update([form for form in plain if len(form) <= FORM_BYTES_MAX])
        self._telling_forms.update(
            {form: texts for form, texts in telling.items() if len(form) <= FORM_BYTES_MAX}
        )


def _split(piece: bytes) -> list[bytes]:
    """Return lines with their ends; only a line feed ends one, as in a file that is read by lines."""
    lines = [line + b"\n" for line in piece.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _paragraphs(stream: BinaryIO, bytes_max: int, piece_bytes: int) -> Iterator[bytes]:
    """Yield pieces that end before a line without indent, so that a message stays in one; lines are cut to their bound."""
    rest, read_bytes, is_in_long_line = b"", 0, False
    while chunk := stream.read(piece_bytes):
        read_bytes += len(chunk)
        if read_bytes > bytes_max:
            raise ValueError(_too_large(bytes_max))
        if is_in_long_line:
            end = chunk.find(b"\n")
            if end < 0:
                continue
            chunk, is_in_long_line = chunk[end + 1 :], False
        data, is_in_long_line = _cut(rest + chunk)
        end = _end_of_paragraph(data)
        if end == 0 and len(data) > PARAGRAPH_BYTES_MAX:
            end = data.rfind(b"\n") + 1
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


def _end_of_paragraph(data: bytes) -> int:
    """Return where the last line begins that has no indent and is not the first."""
    end = len(data)
    while (end := data.rfind(b"\n", 0, end)) >= 0:
        if end + 1 < len(data) and data[end + 1] != _SPACE:
            return end + 1
    return 0


def _cut(data: bytes) -> tuple[bytes, bool]:
    """Return the data with lines cut to their bound, and whether its last line goes on beyond that."""
    start = 0
    while len(data) - start >= LINE_BYTES_MAX:
        end = data.rfind(b"\n", start, start + LINE_BYTES_MAX)
        if end >= 0:
            start = end + 1
            continue
        cut = start + LINE_BYTES_MAX
        end = data.find(b"\n", cut)
        if end < 0:
            return data[:cut] + b"\n", True
        data, start = data[:cut] + data[end:], cut + 1
    return data, False


def _open(
    stream: BinaryIO,
    unpacked_bytes_max: int,
    read: Callable[[BinaryIO, int], Iterator[str]],
) -> Iterator[str]:
    source = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(_Raw(stream))
    head = source.peek(8)[:8]
    if head.startswith(_ZSTD):
        raise ValueError("it is compressed with zstd; try: zstd -dc FILE | rankmend check log -")
    for magic, unpack in _PACKERS:
        if head.startswith(magic):
            yield from _unpacked(unpack(source), unpacked_bytes_max, read)
            return
    yield from read(source, PLAIN_BYTES_MAX)


def _unpacked(
    stream: BinaryIO, bytes_max: int, read: Callable[[BinaryIO, int], Iterator[str]]
) -> Iterator[str]:
    try:
        yield from read(stream, bytes_max)
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


def _too_large(bytes_max: int) -> str:
    return f"more than {bytes_max} bytes; split it, for example with split -C 500M"


def _plain(stream: BinaryIO, bytes_max: int) -> Iterator[str]:
    read_bytes = 0
    is_rest = False
    while chunk := stream.readline(LINE_BYTES_MAX):
        read_bytes += len(chunk)
        if read_bytes > bytes_max:
            raise ValueError(_too_large(bytes_max))
        if not is_rest:
            yield chunk.decode("utf-8", "replace").replace("\0", "")
        is_rest = not chunk.endswith(b"\n")
