"""One line of the story that `rankmend why` tells, from a state folder or from a controller."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShownLine:
    """One entry of a journal in a person's words."""

    number: int
    monotonic_s: float
    boot_id: str
    text: str | None
    details: Sequence[str]
