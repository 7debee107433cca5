"""Where a rank stands in the parallel layout of its model, in its progress file and in reports."""

from typing import NamedTuple


class ToldPlace(NamedTuple):
    """A rank's index along each dimension of parallelism; None: not known, or the model isn't split along it.

    Ranks that differ only in ``dp`` do the same work: they are each other's peers.
    """

    dp: int | None = None  # replica
    tp: int | None = None  # part of each tensor
    pp: int | None = None  # pipeline stage
    cp: int | None = None  # part of the sequence
    ep: int | None = None  # experts
