"""Writes small OCDBT databases as the format's description has it, without TensorStore.

Numbers of LEB128, one column after the other; nothing is compressed.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from google_crc32c import value as crc32c

if sys.version_info >= (3, 14):
    from compression.zstd import compress as zstd_frame
else:
    from backports.zstd import compress as zstd_frame

__all__ = ["zstd_frame"]

MANIFEST_MAGIC, NODE_MAGIC = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
NODES, VALUES = "d/0a", "d/0b"


def numbers(*values: int) -> bytes:
    encoded = bytearray()
    for value in values:
        left = value
        while left >= 0x80:
            encoded.append(left & 0x7F | 0x80)
            left >>= 7
        encoded.append(left)
    return bytes(encoded)


def wrap(magic: bytes, body: bytes, version: int = 0) -> bytes:
    """Return header, body and CRC-32C of a manifest or node."""
    content = numbers(version, 0) + body
    head = magic + (len(content) + 16).to_bytes(8, "little")
    return head + content + crc32c(head + content).to_bytes(4, "little")


def file_table(*names: str) -> bytes:
    prefixes = numbers(*(0 for _name in names[1:]))
    lengths = numbers(*(len(name) for name in names))
    bases = numbers(*(0 for _name in names))
    return numbers(len(names)) + prefixes + lengths + bases + "".join(names).encode()


def leaf(inline: Mapping[str, bytes], places: Mapping[str, tuple[int, int]]) -> bytes:
    """Return a node of these values, and of those that are at (offset, length) of `VALUES`."""
    keys = sorted((*inline, *places))
    lengths = [len(inline[key]) if key in inline else places[key][1] for key in keys]
    away = [key for key in keys if key in places]
    body = [
        b"\0" + file_table(VALUES) + numbers(len(keys)),
        numbers(*(0 for _key in keys[1:]), *(len(key) for key in keys)),
        "".join(keys).encode(),
        numbers(*lengths, *(int(key in places) for key in keys)),
        numbers(*(0 for _key in away), *(places[key][0] for key in away)),
        b"".join(inline[key] for key in keys if key in inline),
    ]
    return wrap(NODE_MAGIC, b"".join(body))


def manifest(node_bytes: int, keys: int, height: int = 0) -> bytes:
    """Return a manifest whose only version has its root at the beginning of `NODES`."""
    config = bytes(16) + numbers(0, 1024, 100_000_000) + b"\4" + numbers(0)
    version = numbers(1, 1) + bytes([height]) + numbers(0, 0, node_bytes, keys, node_bytes, 0)
    return wrap(MANIFEST_MAGIC, config + file_table(NODES) + version + bytes(8) + numbers(0))


def write_ocdbt(folder: Path, inline: Mapping[str, bytes], away: Mapping[str, bytes]) -> None:
    """Write a database; the values of ``away`` lie in a data file, one after the other."""
    (folder / "d").mkdir(parents=True)
    places, offset = {}, 0
    for key, value in away.items():
        places[key] = (offset, len(value))
        offset += len(value)
    node = leaf(inline, places)
    (folder / VALUES).write_bytes(b"".join(away.values()))
    (folder / NODES).write_bytes(node)
    (folder / "manifest.ocdbt").write_bytes(manifest(len(node), len(places) + len(inline)))


def zarray(shape: Sequence[int], chunks: Sequence[int], *, compressor: str = "zstd") -> bytes:
    """Return the description of an array of 4-byte numbers."""
    about = (
        f'{{"chunks":{list(chunks)},"compressor":{{"id":"{compressor}","level":1}},"dtype":"<f4",'
    )
    return (about + f'"fill_value":null,"filters":null,"shape":{list(shape)}}}').encode()
