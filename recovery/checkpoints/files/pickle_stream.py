"""Reads plain values out of a pickle without unpickling it, and the step that a framework saves beside its tensors.

`pickletools.genops` lists the instructions; this module follows those that build dicts, lists,
tuples, texts and numbers. Anything else (a class, a call) becomes an `Opaque` that holds its name
and arguments. Nothing is imported, nothing is called, and work and memory are linear in the bytes.
"""

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.archive import read_archives, read_small
from recovery.checkpoints.files.reader import DefectError, FileReader

PICKLE_BYTES_MAX: Final = 64 << 20  # a DCP .metadata of 16,384 ranks has about 30 MB
_OPCODES_PER_CHECK: Final = 4096

_LITERALS: Final = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "BINUNICODE8"),
        *("SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)

STEPS_END: Final = 2**63  # what the journal can hold


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

    def follow(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self.stack.append(argument)
            return
        action = _ACTIONS.get(name)
        if action is None:
            raise ValueError(f"no known instruction: {name}")
        action(self, argument)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def put(self, at: int) -> None:
        self._memo[at] = self.stack[-1]

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def get(self, at: int) -> None:
        self.stack.append(self._memo[at])

    def make_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("too few values")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def make_dict(self) -> None:
        values = self.since_mark()
        self.stack.append(dict(zip(values[::2], values[1::2], strict=True)))

    def append(self) -> None:
        value = self.stack.pop()
        _extend(self.stack[-1], [value])

    def extend(self) -> None:
        values = self.since_mark()
        _extend(self.stack[-1], values)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set_items(self.stack[-1], [key, value])

    def set_items(self) -> None:
        values = self.since_mark()
        _set_items(self.stack[-1], values)

    def name_class(self) -> None:
        attribute, module = self.stack.pop(), self.stack.pop()
        self.stack.append(Opaque(f"{module} {attribute}"))

    def call(self) -> None:
        args, what = self.stack.pop(), self.stack.pop()
        self.stack.append(Opaque(str(what), args))

    def call_with_keywords(self) -> None:
        keywords, args, what = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.stack.append(Opaque(str(what), args, keywords))

    def set_state(self) -> None:
        state = self.stack.pop()
        self.stack[-1].state = state

    def call_since_mark(self) -> None:
        values = self.since_mark()
        self.stack.append(Opaque(str(values[0]), tuple(values[1:])))

    def since_mark(self) -> list[Any]:
        """Take the values above the newest mark off the stack, and the mark."""
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        values = stack[at + 1 :]
        del stack[at:]
        return values


_ACTIONS: Final[dict[str, Callable[[_Machine, Any], object]]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _machine, _argument: None),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "PUT"), _Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), _Machine.get),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda machine, _: machine.extend()),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda machine, _: machine.call()),
    **dict.fromkeys(
        ("TUPLE", "FROZENSET"), lambda machine, _: machine.push(tuple(machine.since_mark()))
    ),
    "MEMOIZE": lambda machine, _: machine.memoize(),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": lambda machine, _: machine.push(_MARK),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_SET": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.make_tuple(1),
    "TUPLE2": lambda machine, _: machine.make_tuple(2),
    "TUPLE3": lambda machine, _: machine.make_tuple(3),
    "LIST": lambda machine, _: machine.push(machine.since_mark()),
    "DICT": lambda machine, _: machine.make_dict(),
    "APPEND": lambda machine, _: machine.append(),
    "SETITEM": lambda machine, _: machine.set_item(),
    "SETITEMS": lambda machine, _: machine.set_items(),
    "GLOBAL": lambda machine, name: machine.push(Opaque(str(name))),
    "STACK_GLOBAL": lambda machine, _: machine.name_class(),
    "NEWOBJ_EX": lambda machine, _: machine.call_with_keywords(),
    "BUILD": lambda machine, _: machine.set_state(),
    "OBJ": lambda machine, _: machine.call_since_mark(),
    "INST": lambda machine, name: machine.push(Opaque(str(name), tuple(machine.since_mark()))),
    "BINPERSID": lambda machine, _: machine.push(Opaque("persistent", machine.stack.pop())),
    "PERSID": lambda machine, name: machine.push(Opaque("persistent", name)),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.since_mark(),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
}


def _extend(target: Any, values: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(values)
    elif not isinstance(target, Opaque):
        raise TypeError("items for something that is not a list")


def _set_items(target: Any, values: list[Any]) -> None:
    items = target.items if isinstance(target, Opaque) else target
    if not isinstance(items, dict):
        raise TypeError("items for something that is not a dict")
    for at in range(0, len(values), 2):
        items[values[at]] = values[at + 1]


def torch_content(reader: FileReader, deadline: Deadline, bytes_max: int = PICKLE_BYTES_MAX) -> Any:
    """Return the plain values in the first archive of a torch.save file, or None without any."""
    archives = read_archives(reader)
    if not archives:
        raise DefectError("empty file")
    archive = archives[0]
    for member in archive.members:
        folder, _, file = member.name.partition("/")
        if folder and file == "data.pkl":
            data = read_small(reader, archive, member.name, bytes_max)
            return None if data is None else read_plain(data, deadline)
    return None


def step_in(content: Any, *keys: str) -> int | None:
    """Return the first of these keys that holds a step number, in a dict or an OrderedDict."""
    items = content.items if isinstance(content, Opaque) else content
    if not isinstance(items, dict):
        return None
    for key in keys:
        value = items.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < STEPS_END:
            return value
    return None
