"""TensorStore's OCDBT: a manifest, and a B+tree of keys in data files.

The manifest and each node of the tree end with a CRC-32C. Values are stored beside their keys, or
as a place in a data file, which no checksum covers. Only the newest version is read. Source:
the format's description in TensorStore's documentation, kvstore/ocdbt; the field `manifest_kind` of
the configuration is missing there, and was found by comparing with what TensorStore 0.1.86 writes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rankmend.errors import RankmendError
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.files.zstd_frames import unpack
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.names import shown

MANIFEST: Final = "manifest.ocdbt"
ENTRIES_MAX: Final = 500_000  # as members of an archive
_NODE_BYTES_MAX: Final = 128 << 20  # unpacked; Orbax sets 100 MB
_NODES_BYTES_MAX: Final = 1 << 30  # of all nodes together, packed
_MANIFEST_MAGIC: Final = bytes.fromhex("0cdb3a2a")
_NODE_MAGIC: Final = bytes.fromhex("0cdb20de")
_LEAST_BYTES: Final = 18  # magic, length, version, compression, CRC
_HEIGHT_MAX: Final = 64


class UnknownOcdbtError(RankmendError):
    """A database of a kind that is not read here, and no sign of damage."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file, by its name in the tree."""

    name: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Node:
    place: FileRange
    height: int
    prefix: bytes  # of all keys below it
    base: str  # folder that the names of files in it are relative to


def read_entries(tree: Tree, folder: str) -> tuple[dict[str, bytes | FileRange], set[str]]:
    """Return all keys with their values or where these are, and the files that hold the keys.

    ``folder`` ends with a slash, or is empty. Raises DefectError where the database is damaged, and UnknownOcdbtError.
    """
    entries: dict[str, bytes | FileRange] = {}
    files = {f"{folder}{MANIFEST}"}
    root = _read_manifest(tree, folder)
    pending = [] if root is None else [root]
    left_bytes = _NODES_BYTES_MAX
    while pending:
        node = pending.pop()
        files.add(node.place.name)
        left_bytes -= node.place.length
        if left_bytes < 0:
            raise UnknownOcdbtError(f"its nodes have more than {_NODES_BYTES_MAX} bytes")
        for found in _read_node(tree, node):
            if isinstance(found, _Node):
                pending.append(found)
            else:
                entries[found[0].decode("utf-8", "backslashreplace")] = found[1]
        if len(entries) + len(pending) > ENTRIES_MAX:
            raise UnknownOcdbtError(f"it has more than {ENTRIES_MAX} keys")
    return entries, files


def require_places(tree: Tree, places: Iterable[FileRange]) -> None:
    """Raise DefectError unless every file is there, and as long as is needed."""
    ends: dict[str, int] = {}
    for place in places:
        ends[place.name] = max(ends.get(place.name, 0), place.offset + place.length)
    for name, end in sorted(ends.items()):
        _require(tree, FileRange(name, 0, end))


def read_place(tree: Tree, place: FileRange) -> bytes:
    _require(tree, place)
    with tree.open(place.name) as reader:
        return reader.read(place.offset, place.length)


def _require(tree: Tree, place: FileRange) -> None:
    if place.name not in tree.files:
        raise DefectError(f"{shown(place.name)}, which {MANIFEST} names, is missing")
    signature, end = tree.files[place.name], place.offset + place.length
    if signature is not None and signature[2] < end:
        raise DefectError(
            f"{shown(place.name)}: truncated: {signature[2]} bytes, but {MANIFEST} says {end}"
        )


def _read_manifest(tree: Tree, folder: str) -> _Node | None:
    """Return the root of the newest version, None where that is empty."""
    name = f"{folder}{MANIFEST}"
    with tree.open(name) as reader:
        body = _unwrap(reader.read(0, min(reader.size_bytes, _NODE_BYTES_MAX)), _MANIFEST_MAGIC)
    body.take(16)  # uuid
    if body.number():
        raise UnknownOcdbtError("its manifest is in several files")
    body.numbers(2)  # sizes: of values in nodes, of nodes
    body.take(1)  # arity of the tree of versions
    if body.number():
        body.take(4)  # level of compression
    files = _read_files(body, folder)
    count = body.number()
    body.numbers(count)  # generations
    heights = body.take(count)
    places = _read_places(body, files, count)
    keys = body.numbers(count)
    if not count:
        raise UnknownOcdbtError("its manifest holds no version")
    if not keys[-1]:
        return None
    file, offset, length = places[-1]
    return _Node(FileRange(file[0], offset, length), heights[-1], b"", file[1])


def _read_node(tree: Tree, node: _Node) -> Iterator[tuple[bytes, bytes | FileRange] | _Node]:
    place = node.place
    if not _LEAST_BYTES <= place.length <= _NODE_BYTES_MAX or node.height > _HEIGHT_MAX:
        raise UnknownOcdbtError(f"a node of {place.length} bytes at height {node.height}")
    _require(tree, place)
    with tree.open(place.name) as reader:
        body = _unwrap(reader.read(place.offset, place.length), _NODE_MAGIC, place.offset)
    tree.deadline.check()
    if body.take(1)[0] != node.height:
        raise UnknownOcdbtError("a node of another height than its parent says")
    files = _read_files(body, node.base)
    count = body.number()
    if node.height:
        yield from _read_children(body, node, files, count)
        return
    for key, value in zip(
        _read_keys(body, count)[0], _read_values(body, files, count), strict=True
    ):
        yield node.prefix + key, value


def _read_children(
    body: "_Body", node: _Node, files: list[tuple[str, str]], count: int
) -> Iterator[_Node]:
    keys, shared = _read_keys(body, count, has_shared=True)
    for key, length, (file, offset, size) in zip(
        keys, shared, _read_places(body, files, count), strict=True
    ):
        place = FileRange(file[0], offset, size)
        yield _Node(place, node.height - 1, node.prefix + key[:length], file[1])


def _read_keys(
    body: "_Body", count: int, *, has_shared: bool = False
) -> tuple[list[bytes], list[int]]:
    """Return the keys, and of inner nodes how much of each all keys below share."""
    prefixes = [0, *body.numbers(max(count - 1, 0))]
    suffixes = body.numbers(count)
    shared = body.numbers(count) if has_shared else []
    keys: list[bytes] = []
    key = b""
    for prefix, suffix in zip(prefixes, suffixes, strict=False):
        key = key[:prefix] + body.take(suffix)
        keys.append(key)
    return keys, shared


def _read_values(
    body: "_Body", files: list[tuple[str, str]], count: int
) -> Iterator[bytes | FileRange]:
    lengths = body.numbers(count)
    kinds = body.numbers(count)
    away = sum(1 for kind in kinds if kind)
    places = iter(list(zip(body.numbers(away), body.numbers(away), strict=True)))
    for length, kind in zip(lengths, kinds, strict=True):
        if kind > 1:
            raise UnknownOcdbtError(f"a value of kind {kind}")
        if kind:
            file, offset = next(places)
            yield FileRange(_file(files, file)[0], offset, length)
        else:
            yield body.take(length)


def _read_places(
    body: "_Body", files: list[tuple[str, str]], count: int
) -> list[tuple[tuple[str, str], int, int]]:
    columns = (body.numbers(count), body.numbers(count), body.numbers(count))
    return [
        (_file(files, file), offset, length) for file, offset, length in zip(*columns, strict=True)
    ]


def _file(files: list[tuple[str, str]], number: int) -> tuple[str, str]:
    if number >= len(files):
        raise UnknownOcdbtError(f"file {number} of {len(files)}")
    return files[number]


def _read_files(body: "_Body", folder: str) -> list[tuple[str, str]]:
    """Return the names of the data files, each with the folder that applies to names in it."""
    count = body.number()
    prefixes = [0, *body.numbers(max(count - 1, 0))]
    suffixes, bases = body.numbers(count), body.numbers(count)
    files = []
    path = b""
    for prefix, suffix, base in zip(prefixes, suffixes, bases, strict=False):
        path = path[:prefix] + body.take(suffix)
        name = path.decode("utf-8", "backslashreplace")
        if name.startswith("/") or ".." in name.split("/"):
            raise UnknownOcdbtError(f"its file {shown(name)} lies elsewhere")
        files.append((folder + name, folder + path[:base].decode("utf-8", "backslashreplace")))
    return files


def _unwrap(data: bytes, magic: bytes, offset: int = 0) -> "_Body":
    """Return the content of a manifest or node; raise DefectError where its CRC does not fit."""
    from google_crc32c import value as crc32c  # noqa: PLC0415 - a start does not need it

    if len(data) < _LEAST_BYTES:
        raise DefectError(f"truncated: {len(data)} bytes")
    if data[:4] != magic or int.from_bytes(data[4:12], "little") != len(data):
        raise DefectError(f"what lies at {offset} is not a part of OCDBT, or has another length")
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise DefectError(f"CRC-32C of its {len(data)} bytes at {offset} does not fit")
    body = _Body(data[12:-4])
    version, compression = body.number(), body.number()
    if version or compression > 1:
        raise UnknownOcdbtError(f"version {version}, compression {compression}")
    if not compression:
        return body
    unpacked = unpack(body.take(len(data) - 16 - body.at), _NODE_BYTES_MAX)
    if unpacked is None:
        raise UnknownOcdbtError(f"a node of more than {_NODE_BYTES_MAX} bytes")
    return _Body(unpacked)


class _Body:
    """Reads the fields one after the other. Its CRC fits: what does not parse is of another format."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        begin, self.at = self.at, self.at + count
        if self.at > len(self._data):
            raise UnknownOcdbtError("a field runs over the end")
        return self._data[begin : self.at]

    def number(self) -> int:
        """Return the next LEB128 number."""
        return self.numbers(1)[0]

    def numbers(self, count: int) -> list[int]:
        data, at, found = self._data, self.at, []
        if count > len(data) - at:
            raise UnknownOcdbtError(f"{count} numbers in {len(data) - at} bytes")
        try:
            for _each in range(count):
                value = shift = 0
                while True:
                    byte = data[at]
                    at += 1
                    value |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
                found.append(value)
        except IndexError:
            raise UnknownOcdbtError("a number runs over the end") from None
        self.at = at
        return found
