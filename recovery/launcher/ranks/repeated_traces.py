"""Shows a traceback that several ranks of a node print only once: of eight ranks with one typo, seven say nothing new.

For the console alone: log files, and what is kept of each rank's last lines, have all of it. A traceback is held back until its
last line has come, and shown as it is if that takes too long, or if no other rank has printed the same.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final

LINES_MAX: Final = 400  # held back; a traceback of 100 frames takes 300
BYTES_MAX: Final = 65_536
KNOWN_MAX: Final = 64  # tracebacks of an attempt that are compared

_PREFIX: Final = re.compile(rb"^\[rank\d{1,9}\]: ?")  # torch.distributed's own
_HEAD: Final = b"Traceback (most recent call last):"


@dataclass(slots=True)
class _Held:
    shown: bytearray = field(default_factory=bytearray)
    lines: list[bytes] = field(default_factory=list)


class RepeatedTraces:
    """The tracebacks of one attempt's ranks on one node."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}  # by rank
        self._known: deque[tuple[tuple[bytes, ...], int]] = deque(maxlen=KNOWN_MAX)
        self._errors: deque[bytes] = deque(maxlen=KNOWN_MAX)

    def forget(self) -> None:
        """Begin another attempt."""
        self._known.clear()
        self._errors.clear()

    def has_shown(self, line: str) -> bool:
        """Return whether a traceback that ends with this line is on the console; Python may add a hint to it."""
        return any(
            shown.startswith(line.split("\n", maxsplit=1)[0].encode()) for shown in self._errors
        )

    def take(self, rank: int, head: bytes, line: bytes) -> bytes:
        """Return what to show now that a rank has printed a whole line; ``head``: what stands before it on the console."""
        text = _PREFIX.sub(b"", line).rstrip()
        held = self._held.get(rank)
        if held is None:
            if text != _HEAD:
                return head + line
            held = self._held[rank] = _Held()
        held.shown += head + line
        held.lines.append(text)
        is_long = len(held.lines) > LINES_MAX or len(held.shown) > BYTES_MAX
        if is_long:
            return self.flush(rank)
        if text == _HEAD or not text or text.startswith(b" "):
            return b""
        del self._held[rank]
        return self._whole(rank, head, held)

    def _whole(self, rank: int, head: bytes, held: _Held) -> bytes:
        key = tuple(held.lines)
        other = next((known for lines, known in self._known if lines == key), None)
        if other is not None and other != rank:
            who = head or f"rank {rank}: ".encode()
            return who + f"the same traceback as rank {other}'s\n".encode()
        self._known.append((key, rank))
        self._errors.append(held.lines[-1])
        return bytes(held.shown)

    def flush(self, rank: int) -> bytes:
        """Return what is held back of a rank's lines, and hold it no longer."""
        held = self._held.pop(rank, None)
        return b"" if held is None else bytes(held.shown)

    def held(self) -> tuple[int, ...]:
        """Return the ranks of which lines are held back."""
        return tuple(self._held)
