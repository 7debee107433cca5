"""A collector child's current driver call. Pure.

Standard library only, and as little of it as possible: the child loads this.
"""

from typing import Final, NamedTuple

NO_GPU: Final = -1  # a call about NVML as a whole


class NvmlCall(NamedTuple):
    """A driver call in progress. A tuple, because dataclasses would cost the child 1.4 MB."""

    number: int
    began_at_s: float  # CLOCK_MONOTONIC
    gpu: int  # index, or NO_GPU
    name: str
