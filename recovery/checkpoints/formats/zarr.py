"""Zarr arrays of version 2: which chunks there have to be, and how large each is.

A chunk has no checksum. Known are its size when it is not compressed, and the headers of its zstd
frame. Source: the specification of Zarr 2; TensorStore's documentation of its driver `zarr`, for
its types of numbers. The chunks of version 3, and of other compressions, are only known to be there.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from recovery.checkpoints.files.ocdbt import FileRange, read_place
from recovery.checkpoints.files.reader import DefectError, FileReader
from recovery.checkpoints.files.zstd_frames import check_frames
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.names import shown

_ARRAY: Final = "/.zarray"
_ARRAY_OF_3: Final = "/zarr.json"  # of version 3
_ARRAY_BYTES_MAX: Final = 1 << 20
_NUMPY_TYPE: Final = re.compile(r"[<>|][biufc]([0-9]{1,2})")
_TYPES_BYTES: Final = {"bfloat16": 2}  # of TensorStore's own types; others of 8 bits and less
_INDEX: Final = re.compile(r"[0-9]+(?:[./][0-9]+)*")


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """Where a chunk lies in its file, and how much it holds."""

    offset: int
    length: int
    size_bytes: int  # unpacked; -1: not known
    is_zstd: bool


@dataclass
class Arrays:
    """What the content of an item's files has to be."""

    chunks: dict[str, list[Chunk]] = field(default_factory=lambda: defaultdict(list))  # by file
    read: set[str] = field(default_factory=set)  # files that were read with the structure


def check_chunk(reader: FileReader, chunk: Chunk) -> None:
    """Raise DefectError where the chunk can't be what was written."""
    size_bytes = None if chunk.size_bytes < 0 else chunk.size_bytes
    if chunk.is_zstd:
        check_frames(reader, chunk.offset, chunk.length, size_bytes)
    elif size_bytes is not None and size_bytes != chunk.length:
        raise DefectError(
            f"the chunk at {chunk.offset} has {chunk.length} bytes instead of {size_bytes}"
        )


def gather_arrays(
    tree: Tree,
    item: str,
    entries: Mapping[str, bytes | FileRange],
    found: Arrays,
    *,
    has_all_chunks: bool,
) -> int:
    """Return how many arrays there are, and add their chunks; raise DefectError where one lacks some."""
    chunks: dict[str, list[bytes | FileRange]] = defaultdict(list)
    for key, value in entries.items():
        name, _, index = _split(key)
        if index:
            chunks[name].append(value)
    arrays = sum(key.endswith(_ARRAY_OF_3) for key in entries)
    lost = next((name for name in sorted(chunks) if f"{name}{_ARRAY}" not in entries), None)
    if lost is not None and not arrays:
        raise DefectError(f"{shown(item + lost + _ARRAY)} is missing")
    for key, value in entries.items():
        if not key.endswith(_ARRAY):
            continue
        arrays += 1
        name = key.removesuffix(_ARRAY)
        if isinstance(value, FileRange):
            found.read.add(value.name)
        about = _parse(tree, f"{item}{key}", value)
        there = chunks.get(name, [])
        if has_all_chunks and about.count is not None and len(there) < about.count:
            raise DefectError(
                f"{shown(item + name)}: {len(there)} of its {about.count} chunks are there"
            )
        for chunk in there:
            if isinstance(chunk, FileRange) and (about.is_zstd or about.size_bytes >= 0):
                found.chunks[chunk.name].append(
                    Chunk(chunk.offset, chunk.length, about.size_bytes, about.is_zstd)
                )
    return arrays


def _split(key: str) -> tuple[str, str, str]:
    """Return the array's name and the chunk's index, which is empty where the key is no chunk's."""
    name, slash, index = key.rpartition("/")
    return name, slash, index if _INDEX.fullmatch(index) else ""


@dataclass(frozen=True, slots=True)
class _About:
    count: int | None  # of chunks
    size_bytes: int  # of each, unpacked; -1: not known
    is_zstd: bool


def _parse(tree: Tree, name: str, value: bytes | FileRange) -> _About:
    if isinstance(value, FileRange):
        if value.length > _ARRAY_BYTES_MAX:
            raise DefectError(f"{shown(name)}: {value.length} bytes, more than {_ARRAY_BYTES_MAX}")
        value = read_place(tree, value)
    try:
        about: dict[str, Any] = json.loads(value)
        shape, sizes = about["shape"], about["chunks"]
        compressor, kind = about["compressor"], about["dtype"]
        pairs = list(zip(shape, sizes, strict=True))
        is_flat = about.get("dimension_separator", ".") == "."
        count = math.prod(-(-length // size) for length, size in pairs) if is_flat else None
        items = math.prod(sizes)
        has_filters = bool(about.get("filters"))
    except (ValueError, KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
        raise DefectError(f"{shown(name)}: damaged: no description of an array") from error
    numpy_type = _NUMPY_TYPE.fullmatch(kind) if isinstance(kind, str) else None
    item_bytes = int(numpy_type[1]) if numpy_type else _TYPES_BYTES.get(str(kind))
    is_zstd = isinstance(compressor, dict) and compressor.get("id") == "zstd"
    is_known = item_bytes is not None and not has_filters and (is_zstd or compressor is None)
    size_bytes = items * item_bytes if is_known and item_bytes is not None else -1
    return _About(count, size_bytes, is_zstd)
