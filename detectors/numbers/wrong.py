"""What can be wrong with a job's numbers. Pure."""

from enum import Enum


class ToldNumber(Enum):
    """A number that a script tells of each step."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"

    @property
    def in_words(self) -> str:
        return "loss" if self is ToldNumber.LOSS else "gradient norm"


class Trouble(Enum):
    """How it went wrong."""

    NOT_FINITE = "not_finite"  # NaN or infinite
    SPIKE = "spike"  # far above the job's own past
    APART = "apart"  # equal on all ranks of a group before, and no more
