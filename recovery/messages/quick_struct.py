"""Types of messages that are msgspec's Structs and used like dataclasses.

A controller decodes the reports of 16,000 ranks a second and their steps. A frozen dataclass has each of its fields set by name, and decoding
one takes twice as long as a Struct, whose fields are filled in.
"""

from dataclasses import Field, field, make_dataclass
from typing import Any, ClassVar, TypeVar

import msgspec


class QuickStruct(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A value without cycles. On the wire it leaves out what has its default: a report is half as long for it."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


_S = TypeVar("_S", bound=QuickStruct)


def like_dataclass(kind: type[_S]) -> type[_S]:
    """Let `dataclasses.replace` and `dataclasses.fields` take a QuickStruct."""
    given = [(item.name, item.type, _field_of(item)) for item in msgspec.structs.fields(kind)]
    twin: Any = make_dataclass(kind.__name__, given)
    kind.__dataclass_fields__ = twin.__dataclass_fields__
    return kind


def _field_of(info: msgspec.structs.FieldInfo) -> Any:
    return field() if info.default is msgspec.NODEFAULT else field(default=info.default)
