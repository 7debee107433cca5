"""Where the floating-point tensors of each part of a state lie in a snapshot. Pure.

A part is what lies below one key of the state: `model`, `optimizer`. Ranks that are replicas of each other hold equal
values of it, which `detectors.replicas` compares by their digests. Random states, counters and positions in the data are
no floating-point tensors, and may differ.
The document comes from a rank and is only looked at: form: `rankmend.hook.snapshots.structure`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rankmend.errors import SourceError

PARTS_MAX: Final = 16
NAME_CHARACTERS_MAX: Final = 64
_NODES_MAX: Final = 5_000_000
# Names of torch ("bfloat16", "float8_e4m3fn") and of numpy ("<f4").
_FLOATING: Final = re.compile(r"(b?float[0-9]+.*|complex[0-9]+|[<>=|]?[fc][0-9]+)")
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    pieces: tuple[tuple[int, int], ...]  # place in the file and size, in the order of the places


def parts_of(document: bytes) -> tuple[Part, ...]:
    """Return the parts of a state that have floating-point tensors. Raises SourceError for another form."""
    try:
        found = _DECODER.decode(document)
        rows, state = found["tensors"], found["state"]
        if not isinstance(state, dict) or not isinstance(state.get("m"), dict):
            return ()  # no dict with text keys: nothing that has a name
        pieces = [_piece(row) for row in rows]
        parts = []
        for name, node in list(state["m"].items())[:PARTS_MAX]:
            own = sorted({piece for number in _numbers(node) if (piece := pieces[number])})
            if own:
                parts.append(Part(name[:NAME_CHARACTERS_MAX], tuple(own)))
    except (
        msgspec.DecodeError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise SourceError(f"a malformed structure: {error!r:.200}") from error
    return tuple(parts)


def _piece(row: Any) -> tuple[int, int] | None:
    """Return place and size of a floating-point tensor, None of any other."""
    _kind, at, size, dtype = row[:4]
    if type(at) is not int or type(size) is not int or at < 0 or size < 0:
        raise ValueError(f"a tensor at {at!r:.40} with {size!r:.40} bytes")
    return (at, size) if size and _FLOATING.fullmatch(dtype) else None


def _numbers(node: Any) -> Iterator[int]:
    """Yield the numbers of the tensors below a node."""
    waiting = [node]
    for _count in range(_NODES_MAX):
        if not waiting:
            return
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            number = item.get("T") if len(item) == 1 else None
            if type(number) is int and number >= 0:
                yield number
            else:
                waiting += item.values()
    raise ValueError(f"more than {_NODES_MAX} nodes")
