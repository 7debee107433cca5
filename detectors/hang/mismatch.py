"""Ranks of one group that launched different operations as the same collective.

Compared is what must agree: the kind, and of each kind the sides on which all ranks have the same
number of elements and the same types. A root's side (what it gathers, what it scatters) is empty on
the other ranks, so it is never compared (pytorch/pytorch#151063); nor are the sizes of an uneven
all_to_all, all_gather or reduce_scatter, which differ in healthy jobs.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final

from detectors.hang.flight_dump import NO_FORM, CollectiveForm
from detectors.hang.positions import GroupLevels, JobPositions
from detectors.parallel_groups import Group


class Side(Enum):
    """What an operation reads, or what it writes."""

    INPUT = "input"
    OUTPUT = "output"


_BOTH: Final = frozenset(Side)
_INPUT: Final = frozenset({Side.INPUT})
_OUTPUT: Final = frozenset({Side.OUTPUT})
# The sides whose number of elements is equal on every rank; of a kind that isn't here, none.
_EQUAL_SIZES: Final[Mapping[str, frozenset[Side]]] = {
    **dict.fromkeys(("all_reduce", "allreduce_coalesced", "all_reduce_barrier"), _BOTH),
    **dict.fromkeys(("broadcast", "_broadcast_oop", "reduce", "_reduce_oop"), _BOTH),
    **dict.fromkeys(("_all_gather_base", "all_gather_single"), _BOTH),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single"), _BOTH),
    "all_gather_into_tensor_coalesced": _BOTH,
    "reduce_scatter_tensor_coalesced": _BOTH,
    **dict.fromkeys(("all_gather", "allgather", "scatter"), _OUTPUT),
    **dict.fromkeys(("reduce_scatter", "gather"), _INPUT),
}
_OF_ROOT: Final = {"gather": Side.OUTPUT, "scatter": Side.INPUT}
_TO_ALL: Final = frozenset({"all_to_all", "alltoall", "alltoall_base"})
_UNDEFINED: Final = "Undefined"  # type of a tensor that a rank doesn't have (c10/core/ScalarType.h)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One collective, and the different operations that ranks launched as this one."""

    group: Group
    sequence: int
    operations: tuple[tuple[CollectiveForm, tuple[int, ...]], ...]  # with their ranks, most first
    is_past: bool = False  # some ranks have finished it, or all have


def find_mismatch(positions: JobPositions) -> Mismatch | None:
    """Return the first outstanding collective whose operations differ, or None."""
    for group in positions.groups:
        for level in group.levels:
            forms = {
                rank: CollectiveForm(first.kind, first.shape)
                for rank in level.waiting
                if (first := positions.first(rank, group.group.name)) is not None
            }
            if (found := _different(forms)) or (found := _lost_elements(group, forms)):
                return Mismatch(group.group, level.sequence, found)
    return None


def find_past_mismatch(positions: JobPositions, groups: Collection[str]) -> Mismatch | None:
    """Return the earliest collective of one of these groups in which the rings differ, or None.

    Only ranks whose rings hold the same number are compared.
    """
    job = positions.job
    by_name = {group.name: group for group in job.groups}
    for name in groups:
        histories = job.histories.get(name, {})
        for sequence, places in _common(histories):
            if len(set(places.values())) < 2:
                continue
            if found := _different({rank: job.forms[place] for rank, place in places.items()}):
                return Mismatch(by_name[name], sequence, found, is_past=True)
    return None


def _common(
    histories: Mapping[int, tuple[int, tuple[int, ...]]],
) -> Iterator[tuple[int, dict[int, int]]]:
    """Yield each collective that two rings or more hold, with the form on each of these ranks."""
    ends = sorted(first + len(forms) for first, forms in histories.values())
    if len(ends) < 2:
        return
    begin = sorted(first for first, _forms in histories.values())[1]
    for sequence in range(begin, ends[-2]):
        places = {
            rank: place
            for rank, (first, forms) in histories.items()
            if 0 <= sequence - first < len(forms) and (place := forms[sequence - first]) != NO_FORM
        }
        yield sequence, places


def _different(
    forms: Mapping[int, CollectiveForm],
) -> tuple[tuple[CollectiveForm, tuple[int, ...]], ...]:
    """Return the ranks apart by the first property in which they must agree and don't; else nothing.

    Ranks that don't have the property, because that side of theirs is empty, stand on no side.
    """
    properties: dict[str, dict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(list))
    known: dict[CollectiveForm, tuple[tuple[str, Hashable], ...]] = {}
    for rank, form in forms.items():
        if form not in known:
            known[form] = tuple(_properties(form))
        for name, value in known[form]:
            properties[name][value].append(rank)
    for by_value in properties.values():  # the kind first: the others depend on it
        if len(by_value) > 1:
            parts = sorted(by_value.values(), key=len, reverse=True)
            return tuple((forms[ranks[0]], tuple(sorted(ranks))) for ranks in parts)
    return ()


def _properties(form: CollectiveForm) -> Iterator[tuple[str, Hashable]]:
    """Yield what must be equal on all ranks of one collective."""
    shape, kind = form.shape, form.kind
    yield "kind", kind
    split = len(shape.input_sizes)
    has_types = len(shape.dtypes) == split + len(shape.output_sizes)
    types = {Side.INPUT: shape.dtypes[:split], Side.OUTPUT: shape.dtypes[split:]}
    sizes = {Side.INPUT: shape.input_sizes, Side.OUTPUT: shape.output_sizes}
    for side in Side:
        if _OF_ROOT.get(kind) is side or not sizes[side]:
            continue
        if has_types and set(types[side]) == {_UNDEFINED}:
            continue
        if has_types:
            yield f"{side.value} types", frozenset(types[side]) - {_UNDEFINED}
        if side in _EQUAL_SIZES.get(kind, ()):
            yield f"{side.value} elements", _elements(sizes[side])
    if not has_types and kind not in _OF_ROOT:
        yield "types", shape.dtypes


def _lost_elements(
    levels: GroupLevels, forms: Mapping[int, CollectiveForm]
) -> tuple[tuple[CollectiveForm, tuple[int, ...]], ...]:
    """Return the ranks of an all_to_all that sends more or fewer elements than it receives.

    Uneven parts are legal, but what all ranks send together is what they receive together. It proves
    something only where each member's operation is known.
    """
    if set(forms) != set(levels.group.ranks) or any(f.kind not in _TO_ALL for f in forms.values()):
        return ()
    shapes = [form.shape for form in forms.values()]
    if not all(shape.input_sizes and shape.output_sizes for shape in shapes):
        return ()
    sent = sum(_elements(shape.input_sizes) for shape in shapes)
    if sent == sum(_elements(shape.output_sizes) for shape in shapes):
        return ()
    by_form: dict[CollectiveForm, list[int]] = defaultdict(list)
    for rank, form in forms.items():
        by_form[form].append(rank)
    parts = sorted(by_form.items(), key=lambda part: len(part[1]), reverse=True)
    return tuple((form, tuple(sorted(ranks))) for form, ranks in parts)


def _elements(sizes: Sequence[Sequence[int]]) -> int:
    return sum(prod(size) for size in sizes)
