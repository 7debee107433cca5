"""Digests of a checkpoint's files: one for each block, so that a few of them can be checked alone.

They find bytes that changed by accident. Whoever can write the files can write the digests, too.
"""

from typing import Final

import xxhash

BLOCK_BYTES: Final = 4 << 20
DIGEST_BYTES: Final = 8

new_digest: Final = xxhash.xxh3_64


def blocks_of(size_bytes: int) -> int:
    """Return how many blocks a file of this size has."""
    return -(-size_bytes // BLOCK_BYTES)


def digest_of_text(text: str) -> str:
    """Return a short name for any text."""
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogateescape"))
