"""How much of the alert book each sender may fill, so that one can neither use up the memory nor push out the others.

An entry counts while its alert is active, and for the flap window after its end: that bounds how fast
one sender can come up with new alerts, too. Where the whole book is full, the sender with the most entries makes room for
one with fewer. Pure; sizes are estimates of what Python holds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

BOOK_ALERTS_MAX: Final = 100_000  # in all, as in one Alertmanager
BOOK_BYTES_MAX: Final = 256 * 1024 * 1024
# A node's agent: 128 checks, and a few hundred alerts on the worst node with 16 GPUs and 32 ports; each takes 2 to 5 kB.
NODE_ALERTS_MAX: Final = 1_000
NODE_BYTES_MAX: Final = 8 * 1024 * 1024
_ENTRY_BYTES: Final = 2_000  # objects of an alert beside its texts
_ENDED_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends alerts, and how much of the book may be his."""

    name: str = "nobody"
    alerts_max: int = BOOK_ALERTS_MAX // 2  # an Alertmanager or Prometheus: beside another one
    bytes_max: int = BOOK_BYTES_MAX // 2
    nodes: tuple[str, ...] = ()  # patterns of the nodes that he may accuse; (): all of them
    # His token is limited to jobs: what he reports concerns these, and no node, which other jobs share.
    is_of_jobs: bool = False

    @property
    def is_limited(self) -> bool:
        return bool(self.nodes) or self.is_of_jobs

    def may_accuse(self, node: str) -> bool:
        return not self.nodes or any(fnmatchcase(node, pattern) for pattern in self.nodes)


NOBODY: Final = Sender()
READ_BACK: Final = Sender("Alertmanager")  # what an Alertmanager returns at the start


def node_sender(name: str, nodes: tuple[str, ...] = ()) -> Sender:
    """Return the bounds of an agent, known by its node's certificate."""
    return Sender(name, NODE_ALERTS_MAX, NODE_BYTES_MAX, nodes)


def size_of(texts: Iterable[str], numbers: int) -> int:
    """Return about how many bytes an alert takes with these texts and so many ranks."""
    return _ENTRY_BYTES + sum(map(_text_bytes, texts)) + 100 * numbers


def _text_bytes(text: str) -> int:
    """Return at least what CPython takes for a text: 1 byte a character in ASCII, else up to 4."""
    return 60 + len(text) if text.isascii() else 80 + 4 * len(text)


@dataclass(slots=True)
class _Entry:
    sender: str
    size_bytes: int
    seen_unix_s: float


@dataclass(slots=True)
class _Held:
    keys: dict[str, None]  # oldest first
    size_bytes: int = 0


class Shares:
    """For one thread."""

    def __init__(self, alerts_max: int = BOOK_ALERTS_MAX, bytes_max: int = BOOK_BYTES_MAX) -> None:
        self._alerts_max, self._bytes_max = alerts_max, bytes_max
        self._entries: dict[str, _Entry] = {}
        self._held: dict[str, _Held] = {}
        self._size_bytes = 0

    def admit(self, key: str, sender: Sender, size_bytes: int, now_unix_s: float) -> str | None:
        """Count an alert; return why there is no room for it, or None.

        An alert that another sender reported first stays that sender's.
        """
        known = self._entries.get(key)
        held = self._held.get(known.sender if known else sender.name) or _Held({})
        grows_bytes = size_bytes - (known.size_bytes if known else 0)
        if known is None and len(held.keys) >= sender.alerts_max:
            return (
                f"{sender.name} has {len(held.keys)} alerts here; the limit is {sender.alerts_max}"
            )
        if grows_bytes > 0 and held.size_bytes + grows_bytes > sender.bytes_max:
            return f"the alerts of {sender.name} take {held.size_bytes} bytes; the limit is {sender.bytes_max}"
        self._drop(key)
        self._put(key, known.sender if known else sender.name, size_bytes, now_unix_s)
        return None

    def crowded_out(self) -> str | None:
        """Return the alert that must go since all of them are too many: the oldest of the sender with the most."""
        if len(self._entries) <= self._alerts_max and self._size_bytes <= self._bytes_max:
            return None
        by_count = len(self._entries) > self._alerts_max
        most = max(
            self._held.values(), key=lambda item: len(item.keys) if by_count else item.size_bytes
        )
        return next(iter(most.keys))

    def end(self, key: str, now_unix_s: float) -> None:
        """Note that an alert has ended: it counts on, and takes next to nothing."""
        known = self._entries.get(key)
        if known is not None:
            self._drop(key)
            self._put(key, known.sender, _ENDED_BYTES, now_unix_s)

    def remove(self, key: str) -> None:
        self._drop(key)

    def old(self, due_unix_s: float) -> list[str]:
        """Return what was last seen before ``due_unix_s``."""
        return [key for key, entry in self._entries.items() if entry.seen_unix_s < due_unix_s]

    def _put(self, key: str, sender: str, size_bytes: int, now_unix_s: float) -> None:
        held = self._held.setdefault(sender, _Held({}))
        held.keys[key] = None
        held.size_bytes += size_bytes
        self._size_bytes += size_bytes
        self._entries[key] = _Entry(sender, size_bytes, now_unix_s)

    def _drop(self, key: str) -> None:
        known = self._entries.pop(key, None)
        if known is None:
            return
        held = self._held[known.sender]
        del held.keys[key]
        held.size_bytes -= known.size_bytes
        self._size_bytes -= known.size_bytes
        if not held.keys:
            del self._held[known.sender]
