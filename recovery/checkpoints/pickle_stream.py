"""Reads plain values out of a pickle without unpickling it.

`pickletools.genops` lists the instructions; this module follows those that build dicts, lists,
tuples, texts and numbers. Anything else (a class, a call) becomes an `Opaque` that holds its name
and arguments. Nothing is imported, nothing is called, and work and memory are linear in the bytes.
"""

import pickletools
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.reader import DefectError

PICKLE_BYTES_MAX: Final = 64 << 20  # a DCP .metadata of 16,384 ranks has about 30 MB
_OPCODES_PER_CHECK: Final = 4096


@dataclass(eq=False, slots=True)
class Opaque:
    """Something that unpickling would import or call. It is never either."""

    name: str  # "module class" where the stream names one
    args: Any = None
    state: Any = None  # what BUILD would have given it
    items: dict[Any, Any] = field(default_factory=dict)  # of an OrderedDict and its like

    def __str__(self) -> str:
        return self.name


_MARK: Final = Opaque("a mark")


def is_pickle(head: bytes) -> bool:
    """Return whether the bytes begin as a pickle of protocol 2 or newer does."""
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


def read_plain(data: bytes, deadline: Deadline) -> Any:
    """Return the value that the pickle describes, with every object in it opaque.

    Raises DefectError for a damaged pickle.
    """
    if len(data) > PICKLE_BYTES_MAX:
        raise DefectError(f"its pickle has {len(data)} bytes, more than {PICKLE_BYTES_MAX}")
    machine = _Machine()
    try:
        for number, (opcode, argument, _at) in enumerate(pickletools.genops(data)):
            if number % _OPCODES_PER_CHECK == 0:
                deadline.check()
            machine.follow(opcode.name, argument)
        return machine.stack[-1]
    except (
        *(ValueError, IndexError, KeyError, TypeError, AttributeError),
        *(OverflowError, MemoryError, RecursionError, struct.error),
    ) as error:
        raise DefectError("damaged: no complete pickle") from error


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:  # noqa: PLR0912, PLR0915
        stack = self.stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _LITERALS:
            stack.append(argument)
        elif name in {"BINPUT", "LONG_BINPUT", "PUT"}:
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in {"BINGET", "LONG_BINGET", "GET"}:
            stack.append(self._memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in {"TUPLE1", "TUPLE2", "TUPLE3"}:
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name in {"TUPLE", "LIST", "FROZENSET"}:
            values = self._since_mark()
            stack.append(values if name == "LIST" else tuple(values))
        elif name == "DICT":
            values = self._since_mark()
            stack.append(dict(zip(values[::2], values[1::2], strict=True)))
        elif name == "APPEND":
            value = stack.pop()
            _extend(stack[-1], [value])
        elif name in {"APPENDS", "ADDITEMS"}:
            values = self._since_mark()
            _extend(stack[-1], values)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _set_items(stack[-1], [key, value])
        elif name == "SETITEMS":
            values = self._since_mark()
            _set_items(stack[-1], values)
        elif name == "GLOBAL":
            stack.append(Opaque(str(argument)))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(Opaque(f"{module} {attribute}"))
        elif name in {"REDUCE", "NEWOBJ"}:
            args, what = stack.pop(), stack.pop()
            stack.append(Opaque(str(what), args))
        elif name == "NEWOBJ_EX":
            keywords, args, what = stack.pop(), stack.pop(), stack.pop()
            stack.append(Opaque(str(what), args, keywords))
        elif name == "BUILD":
            state = stack.pop()
            stack[-1].state = state
        elif name == "OBJ":
            values = self._since_mark()
            stack.append(Opaque(str(values[0]), tuple(values[1:])))
        elif name == "INST":
            stack.append(Opaque(str(argument), tuple(self._since_mark())))
        elif name == "BINPERSID":
            stack.append(Opaque("persistent", stack.pop()))
        elif name == "PERSID":
            stack.append(Opaque("persistent", argument))
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._since_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name not in {"PROTO", "FRAME", "STOP"}:
            raise ValueError(f"no known instruction: {name}")

    def _since_mark(self) -> list[Any]:
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        values = stack[at + 1 :]
        del stack[at:]
        return values


_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: Final = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_LITERALS: Final = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "BINUNICODE8"),
        *("SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)


def _extend(target: Any, values: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(values)
    elif not isinstance(target, Opaque):
        raise TypeError("items for something that is no list")


def _set_items(target: Any, values: list[Any]) -> None:
    items = target.items if isinstance(target, Opaque) else target
    if not isinstance(items, dict):
        raise TypeError("items for something that is no dict")
    for at in range(0, len(values), 2):
        items[values[at]] = values[at + 1]
