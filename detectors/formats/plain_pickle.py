"""Pickles of plain values, read by an interpreter of our own.

Nothing is unpickled: the few opcodes that build None, bool, int, float, str, bytes, list, tuple
and dict are carried out here, and every other one is refused by its name. There is no opcode
among them that imports, calls or builds an object, so a hostile pickle can at most be wrong.
Bounded are the bytes, the opcodes, the open marks and the length of a number; the memo is a dict,
so a large index costs nothing. What the caller gets may contain itself: walk it by its
expected form, or to its end after `refuse_endless`.

Opcodes: Python's Lib/pickletools.py, protocols 2 to 5. PyTorch writes protocol 2.
"""

import pickletools
import struct
from collections.abc import Callable
from typing import Any, Final

from rankmend.errors import SourceError

BYTES_MAX: Final = 64 << 20  # 2,000 entries with stacks, PyTorch's default, take 1 to 4 MiB
OPCODES_MAX: Final = 8_000_000
MARKS_MAX: Final = 64  # a dump nests 7 deep
INT_BYTES_MAX: Final = 16
VALUES_MAX: Final = 4_000_000  # a dump of 64 MiB has about two million
DEPTH_MAX: Final = 100
TEXT_MAX: Final = (
    256 << 20
)  # characters and bytes: 2,000 entries that share 40 frames of 100 characters have 8 million

_MARK: Final = object()
_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


def load_plain(data: bytes) -> Any:
    """Return the value of a pickle of plain values, or raise SourceError."""
    if len(data) > BYTES_MAX:
        raise SourceError(f"pickle of {len(data)} bytes, and at most {BYTES_MAX} are read")
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise SourceError(f"pickle is broken at byte {machine.at}: {error!r}") from error


def refuse_endless(value: Any) -> None:
    """Raise SourceError where a value contains itself, or so much that nobody may walk it to its end.

    What is shared counts each time that a walk meets it: a hundred bytes of lists of lists are millions of values.
    """
    values = text = 0
    pending = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        values += 1
        if isinstance(part, str | bytes):
            text += len(part)
        if values > VALUES_MAX or depth > DEPTH_MAX or text > TEXT_MAX:
            raise SourceError(
                f"it contains itself, or more than {VALUES_MAX} values, {TEXT_MAX} characters or {DEPTH_MAX} levels"
            )
        if isinstance(part, dict):
            pending.extend((inner, depth + 1) for item in part.items() for inner in item)
        elif isinstance(part, list | tuple):
            pending.extend((inner, depth + 1) for inner in part)


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.at = 0  # where reading goes on
        self._data = data
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._marks = 0

    def run(self) -> Any:
        data = self._data
        for _number in range(OPCODES_MAX):
            if self.at >= len(data):
                raise SourceError(f"pickle ends at byte {self.at} without its last opcode")
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                if self._marks:
                    raise SourceError(
                        f"pickle ends at byte {self.at} with {self._marks} open marks"
                    )
                return self._stack.pop()
            action = _ACTIONS.get(code)
            if action is None:
                name = _NAMES.get(code, f"0x{code:02x}")
                raise SourceError(
                    f"pickle has opcode {name} at byte {self.at - 1}, which no dump of plain values needs"
                )
            action(self)
        raise SourceError(f"pickle has more than {OPCODES_MAX} opcodes")

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._data):
            raise SourceError(f"pickle ends at byte {len(self._data)}, {count} more were announced")
        piece = self._data[self.at : end]
        self.at = end
        return piece

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self) -> None:
        self._marks += 1
        if self._marks > MARKS_MAX:
            raise SourceError(f"pickle nests deeper than {MARKS_MAX}")
        self._stack.append(_MARK)

    def since_mark(self) -> list[Any]:
        stack = self._stack
        start = len(stack) - 1
        while stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise SourceError(f"pickle closes what it never opened at byte {self.at}")
        values = stack[start + 1 :]
        del stack[start:]
        self._marks -= 1
        return values

    def top(self, kind: type) -> Any:
        top = self._stack[-1]
        if type(top) is not kind:
            raise SourceError(f"pickle adds to {type(top).__name__} at byte {self.at}")
        return top

    def last(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise SourceError(f"pickle takes what it never put at byte {self.at}")
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        return values

    def put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def text(self, size: int) -> None:
        self._stack.append(self.take(size).decode("utf-8", "surrogatepass"))

    def integer(self, size: int) -> None:
        if size > INT_BYTES_MAX:
            raise SourceError(f"pickle has a number of {size} bytes at byte {self.at}")
        self._stack.append(self.number(size, signed=True))

    def append(self) -> None:
        (value,) = self.last(1)
        self.top(list).append(value)

    def appends(self) -> None:
        values = self.since_mark()
        self.top(list).extend(values)

    def set_item(self) -> None:
        key, value = self.last(2)
        self.top(dict)[key] = value

    def set_items(self) -> None:
        values = self.since_mark()
        if len(values) % 2:
            raise SourceError(f"pickle has a key without a value at byte {self.at}")
        self.top(dict).update(zip(values[::2], values[1::2], strict=True))

    def frame(self) -> None:
        self.take(8)  # its length changes nothing: all bytes are here

    def pop(self) -> None:
        self.last(1)

    def protocol(self) -> None:
        version = self.number(1)
        if version > 5:
            raise SourceError(f"pickle of protocol {version}, and 5 is the newest known")


_ACTIONS: Final[dict[int, Callable[[_Machine], None]]] = {
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    0x28: _Machine.mark,
    0x4E: lambda m: m.push(None),  # NONE
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    0x4A: lambda m: m.push(m.number(4, signed=True)),  # BININT
    0x4B: lambda m: m.push(m.number(1)),  # BININT1
    0x4D: lambda m: m.push(m.number(2)),  # BININT2
    0x8A: lambda m: m.integer(m.number(1)),  # LONG1
    0x8B: lambda m: m.integer(m.number(4)),  # LONG4
    0x47: lambda m: m.push(struct.unpack(">d", m.take(8))[0]),  # BINFLOAT
    0x58: lambda m: m.text(m.number(4)),  # BINUNICODE
    0x8C: lambda m: m.text(m.number(1)),  # SHORT_BINUNICODE
    0x8D: lambda m: m.text(m.number(8)),  # BINUNICODE8
    0x42: lambda m: m.push(m.take(m.number(4))),  # BINBYTES
    0x43: lambda m: m.push(m.take(m.number(1))),  # SHORT_BINBYTES
    0x5D: lambda m: m.push([]),  # EMPTY_LIST
    0x7D: lambda m: m.push({}),  # EMPTY_DICT
    0x29: lambda m: m.push(()),  # EMPTY_TUPLE
    0x74: lambda m: m.push(tuple(m.since_mark())),  # TUPLE
    0x85: lambda m: m.push(m.last(1)),  # TUPLE1
    0x86: lambda m: m.push(m.last(2)),  # TUPLE2
    0x87: lambda m: m.push(m.last(3)),  # TUPLE3
    0x61: _Machine.append,
    0x65: _Machine.appends,
    0x73: _Machine.set_item,
    0x75: _Machine.set_items,
    0x71: lambda m: m.put(m.number(1)),  # BINPUT
    0x72: lambda m: m.put(m.number(4)),  # LONG_BINPUT
    0x68: lambda m: m.get(m.number(1)),  # BINGET
    0x6A: lambda m: m.get(m.number(4)),  # LONG_BINGET
    0x94: _Machine.memoize,
    0x30: _Machine.pop,
}
