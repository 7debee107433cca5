"""`replace` of dataclasses for the fold: of a ledger, which has 81 fields, it takes a tenth of the time. Pure."""

import dataclasses
from typing import TYPE_CHECKING, Any

from recovery.journal.ledger import Ledger

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace  # so the types of the changes are checked
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy with other values in some fields."""
        if type(value) is not Ledger:
            return dataclasses.replace(value, **changes)
        copy = object.__new__(Ledger)
        fields = copy.__dict__
        fields.update(value.__dict__)
        count = len(fields)
        fields.update(changes)
        if len(fields) > count:
            raise TypeError(f"a ledger has no {', '.join(changes.keys() - value.__dict__.keys())}")
        return copy
