"""Parallel groups: which ranks work together, and as what.

Groups come from a dump's group table or from the sizes of a layout. Sizes follow Megatron-LM's order
(tp-cp-ep-dp-pp of `initialize_model_parallel`): tensor parallel ranks are neighbours, and pipeline
stages are farthest apart.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import prod
from typing import Final

from rankmend.errors import ConfigError

RANKS_MAX: Final = 1_000_000  # ten times the largest job published


class Parallelism(Enum):
    WORLD = "world"
    TENSOR = "tensor"
    CONTEXT = "context"
    EXPERT = "expert"
    DATA = "data"
    PIPELINE = "pipeline"
    OTHER = "other"  # a mixture of several, or unknown


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate with each other, in the order of their numbers in the group."""

    name: str
    ranks: tuple[int, ...]
    parallelism: Parallelism = Parallelism.OTHER
    description: str = ""
    is_inferred: bool = False  # the members are the ranks seen; there may be more

    @property
    def title(self) -> str:
        """Return the group for a person."""
        described = self.description or self.parallelism.value
        return f"group {self.name} ({described})"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many ranks a job has in each direction."""

    tensor: int = 1
    context: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1  # divides data

    def __post_init__(self) -> None:
        for name in ("tensor", "context", "data", "pipeline", "expert"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"parallel size {name} is {value}, not 1 or more")
        if self.data % self.expert:
            raise ConfigError(f"expert size {self.expert} doesn't divide data size {self.data}")
        if self.ranks > RANKS_MAX:
            raise ConfigError(f"{self.ranks} ranks; at most {RANKS_MAX} are supported")

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.tensor * self.context * self.data * self.pipeline


# Descriptions in Megatron-LM, DeepSpeed and PyTorch. The whole text must match: a group that spans
# several directions ("TENSOR_AND_CONTEXT_PARALLEL_GROUP") is none of them.
_DESCRIPTIONS: Final = (
    (re.compile(r"default_pg"), Parallelism.WORLD),
    (re.compile(r"(tensor_model_parallel(_group)?|tp|mesh_tp)"), Parallelism.TENSOR),
    (re.compile(r"(context_parallel(_group)?|cp|mesh_cp)"), Parallelism.CONTEXT),
    (re.compile(r"(expert_model_parallel(_group)?|ep|mesh_ep)"), Parallelism.EXPERT),
    (re.compile(r"(data_parallel(_group)?(_with_cp)?|dp|mesh_dp|mesh_dp_.*)"), Parallelism.DATA),
    (re.compile(r"(pipeline_model_parallel(_group)?|pp|mesh_pp)"), Parallelism.PIPELINE),
)


def parallelism_of(description: str) -> Parallelism:
    """Return what a group is for, from the framework's description."""
    text = description.strip().lower()
    for pattern, parallelism in _DESCRIPTIONS:
        if pattern.fullmatch(text):
            return parallelism
    return Parallelism.OTHER


def layout_groups(sizes: Sizes) -> tuple[Group, ...]:
    """Return all groups with more than one rank of a job with these sizes."""
    extents = _extents(sizes)
    groups = [Group("world", tuple(range(sizes.ranks)), Parallelism.WORLD)]
    for parallelism in extents:
        free = {parallelism}
        if parallelism is Parallelism.DATA:
            free.add(Parallelism.EXPERT)  # experts are spread over data parallel ranks
        size = prod(extents[item] for item in free)
        if size == 1:
            continue
        for number, ranks in enumerate(_slices(extents, free)):
            groups.append(Group(f"{parallelism.value}-{number}", ranks, parallelism))
    return tuple(groups)


def ranks_that_differ_in(sizes: Sizes, free: set[Parallelism]) -> list[tuple[int, ...]]:
    """Return the ranks that differ only in these directions; DATA without EXPERT: that hold the same experts."""
    return _slices(_extents(sizes), free)


def _extents(sizes: Sizes) -> dict[Parallelism, int]:
    return {
        Parallelism.TENSOR: sizes.tensor,
        Parallelism.CONTEXT: sizes.context,
        Parallelism.EXPERT: sizes.expert,
        Parallelism.DATA: sizes.data // sizes.expert,
        Parallelism.PIPELINE: sizes.pipeline,
    }


def _slices(extents: dict[Parallelism, int], free: set[Parallelism]) -> list[tuple[int, ...]]:
    """Return the ranks that differ only in the free directions, for each choice of the others."""
    strides: dict[Parallelism, int] = {}
    stride = 1
    for item, extent in extents.items():
        strides[item] = stride
        stride *= extent

    def offsets(directions: Iterable[Parallelism]) -> list[int]:
        chosen = list(directions)
        steps = product(*(range(extents[direction]) for direction in chosen))
        return sorted(
            sum(index * strides[direction] for index, direction in zip(step, chosen, strict=True))
            for step in steps
        )

    inner = offsets(free)
    fixed = offsets(item for item in extents if item not in free)
    return [tuple(start + offset for offset in inner) for start in fixed]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is in the layout; None if no group tells."""

    stage: int | None = None
    dp_rank: int | None = None


def places_of(groups: Iterable[Group], ranks: Iterable[int]) -> dict[int, Place]:
    """Return the pipeline stage and data parallel number of each of these ranks."""
    stages: dict[int, int] = {}
    replicas: dict[int, int] = {}
    for group in groups:
        if group.parallelism is Parallelism.PIPELINE:
            stages |= {rank: number for number, rank in enumerate(group.ranks)}
        elif group.parallelism is Parallelism.DATA:
            replicas |= {rank: number for number, rank in enumerate(group.ranks)}
    return {rank: Place(stages.get(rank), replicas.get(rank)) for rank in ranks}
