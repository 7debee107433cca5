"""Ranks of one group that stand at the same collective with different operations."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from detectors.hang.flight_dump import Operation
from detectors.hang.positions import JobPositions
from detectors.parallel_groups import Group

# Operations whose sizes are equal on every rank.
_SYMMETRIC: Final = frozenset(
    {
        *("all_reduce", "allreduce_coalesced", "all_reduce_barrier", "broadcast", "_broadcast_oop"),
        *("_all_gather_base", "all_gather_into_tensor_coalesced", "all_gather_single"),
        *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single"),
    }
)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One collective, and the different operations that ranks launched as this one."""

    group: Group
    sequence: int
    operations: tuple[tuple[Operation, tuple[int, ...]], ...]  # with their ranks, the most first


def find_mismatch(positions: JobPositions) -> Mismatch | None:
    """Return the first collective whose operations differ, or None."""
    for one in positions.groups:
        for level in one.levels:
            forms: dict[tuple[object, ...], list[tuple[int, Operation]]] = defaultdict(list)
            for rank in level.waiting:
                if (first := positions.first(rank, one.group.name)) is not None:
                    forms[_form(first)].append((rank, first))
            if len(forms) > 1:
                found = sorted(forms.values(), key=len, reverse=True)
                operations = tuple(
                    (told[0][1], tuple(sorted(rank for rank, _first in told))) for told in found
                )
                return Mismatch(one.group, level.sequence, operations)
    return None


def _form(operation: Operation) -> tuple[object, ...]:
    """Return what must be equal on all ranks of one collective."""
    shape = operation.shape
    if operation.kind not in _SYMMETRIC:
        return operation.kind, shape.dtypes
    return operation.kind, shape.dtypes, _elements(shape.input_sizes), _elements(shape.output_sizes)


def _elements(sizes: Sequence[Sequence[int]]) -> int:
    return sum(prod(size) for size in sizes)
