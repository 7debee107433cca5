"""Which ranks are replicas, by the parallel sizes that a job declares. Pure.

Ranks with the same tensor, expert and pipeline coordinates hold the same parameters: data parallel ranks differ in their
data, context parallel ranks in their piece of a sequence. The order of the ranks is Megatron-LM's
(`detectors.parallel_groups`): tp varies fastest, then cp, ep, dp and pp.
"""

from dataclasses import dataclass
from typing import Final

from detectors.parallel_groups import RANKS_MAX, Parallelism, Sizes, ranks_that_differ_in
from rankmend.errors import ConfigError

NAMES: Final = ("tp", "cp", "ep", "dp", "pp")
SHARDED_MAX: Final = (
    16  # a snapshot has at most as many parts (recovery.checkpoints.snapshots.parts)
)
PART_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """The parallel sizes of a job, as its owner declares them."""

    tp: int = 1
    cp: int = 1
    ep: int = 1  # divides dp
    dp: int | None = None  # None: the number of ranks divided by the other sizes
    pp: int = 1
    sharded_parts: tuple[str, ...] = ()  # keys of the state that replicas divide among them

    def __post_init__(self) -> None:
        for name in NAMES:
            size = getattr(self, name)
            if size is not None and not 1 <= size <= RANKS_MAX:
                raise ConfigError(f"parallel size {name}={size} is not 1 to {RANKS_MAX}")

    def sizes(self, ranks: int) -> Sizes:
        """Return the sizes in a job of so many ranks, or raise ConfigError where they don't fit."""
        others = self.tp * self.cp * self.pp
        if self.dp is None and ranks % others:
            raise ConfigError(
                f"parallel sizes {self} don't fit: {ranks} ranks are not a multiple of {others}"
            )
        data = ranks // others if self.dp is None else self.dp
        if others * data != ranks:
            raise ConfigError(
                f"parallel sizes {self} don't fit: they make {others * data} ranks, and there are {ranks}"
            )
        if data % self.ep:
            raise ConfigError(f"parallel sizes {self} don't fit: ep doesn't divide dp={data}")
        return Sizes(tensor=self.tp, context=self.cp, data=data, pipeline=self.pp, expert=self.ep)

    def fits(self, ranks: int) -> bool:
        """Return whether a job of so many ranks can have these sizes."""
        others = self.tp * self.cp * self.pp
        data = ranks // others if self.dp is None else self.dp
        return others * data == ranks and data % self.ep == 0

    def replicas(self, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Return which ranks, two or more, hold the same parameters; none where the sizes don't fit."""
        try:
            sizes = self.sizes(ranks)
        except ConfigError:
            return ()
        return replica_groups(sizes)

    def __str__(self) -> str:
        reported = [(name, getattr(self, name)) for name in NAMES]
        retained = [
            (name, size)
            for name, size in reported
            if size is not None and (name == "dp" or size > 1)
        ]
        return ",".join(f"{name}={size}" for name, size in retained or [("tp", 1)])


def replica_groups(sizes: Sizes) -> tuple[tuple[int, ...], ...]:
    """Return which ranks, two or more, differ only in their data and in their piece of a sequence."""
    groups = ranks_that_differ_in(sizes, {Parallelism.DATA, Parallelism.CONTEXT})
    return tuple(sorted(ranks for ranks in groups if len(ranks) > 1))


def parse_parallel(text: str, sharded_parts: str = "") -> ParallelLayout:
    """Return the layout of "tp=2,dp=4" and of part names with commas between, or raise ConfigError."""
    sizes: dict[str, int] = {}
    for word in text.split(","):
        name, separator, size = (item.strip() for item in word.partition("="))
        is_number = size.isascii() and size.isdigit() and len(size) <= 7
        if not separator or name not in NAMES or not is_number:
            raise ConfigError(
                f"{word.strip()!r:.40} is not a parallel size such as dp=2; names: {', '.join(NAMES)}"
            )
        if name in sizes:
            raise ConfigError(f"parallel size {name} is given twice")
        sizes[name] = int(size)
    return ParallelLayout(**sizes, sharded_parts=_parse_parts(sharded_parts))


def _parse_parts(text: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part for word in text.split(",") if (part := word.strip())))
    if len(parts) > SHARDED_MAX or any(len(part) > PART_CHARACTERS_MAX for part in parts):
        raise ConfigError(
            f"sharded parts: {len(parts)} names; at most {SHARDED_MAX}, of {PART_CHARACTERS_MAX} characters each"
        )
    return parts
