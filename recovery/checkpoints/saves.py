"""Files of one save: `model_10.pt` and `optimizer_10.pt` are one checkpoint. Pure.

Files belong together when their names differ only in what they hold. The path of a save is its
model's file; which other files a save has is known from the save before.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recovery.checkpoints.model import Candidate

_MODEL: Final = frozenset({"model", "weights", "net", "network", "params", "module"})
_OTHERS: Final = frozenset(
    {"optimizer", "optim", "opt", "scheduler", "sched", "scaler", "rng", "ema", "sampler"}
)
_FILLERS: Final = frozenset({"lr", "state", "states", "random"})
_WORDS: Final = re.compile(r"[A-Za-z]+|[0-9]+")


@dataclass(frozen=True, slots=True)
class FlatSave:
    """The files of one save that lie in one folder."""

    main: Candidate  # the model's file, or the only one that there is
    others: tuple[Candidate, ...]
    roles: frozenset[str]  # of the others, such as "optimizer"
    has_model: bool

    def defect(self, earlier: "FlatSave | None") -> str | None:
        """Return why this is no whole save, compared with the one before it."""
        if not self.has_model:
            return f"no model lies beside {self.main.tag}"
        for other in self.others:
            is_exact = self.main.is_step_exact and other.is_step_exact
            if is_exact and self.main.step != other.step:
                return f"it is of step {self.main.step}, {other.tag} of step {other.step}"
        missing = sorted(earlier.roles - self.roles) if earlier is not None else []
        if earlier is not None and missing:
            return f"no {missing[0]} file lies beside it, as beside {earlier.main.tag}"
        return None


def gather(candidates: Sequence[Candidate]) -> list[FlatSave]:
    """Return the saves that consist of several files, or of an optimizer's alone."""
    groups: dict[tuple[str, ...], list[tuple[str, Candidate]]] = defaultdict(list)
    for candidate in candidates:
        role, key = _role_of(candidate)
        groups[key].append((role, candidate))
    return [save for group in groups.values() if (save := _save_of(group)) is not None]


def _save_of(group: list[tuple[str, Candidate]]) -> FlatSave | None:
    models = [one for role, one in group if not role]
    others = [(role, one) for role, one in group if role]
    if not others or len(models) > 1 or len({role for role, _one in others}) < len(others):
        return None  # of two files with one role nobody knows which belongs here
    roles = frozenset(role for role, _one in others)
    if not models:
        main, *rest = (one for _role, one in others)
        return FlatSave(main, tuple(rest), roles, has_model=False)
    return FlatSave(models[0], tuple(one for _role, one in others), roles, has_model=True)


def _role_of(candidate: Candidate) -> tuple[str, tuple[str, ...]]:
    """Return what the file holds beside the model, or "", and what its name shares with the others'."""
    stem = candidate.tag.rpartition(".")[0] or candidate.tag
    words = [word.lower() for word in _WORDS.findall(stem)]
    role = next((word for word in words if word in _OTHERS), "")
    shared = [word for word in words if word not in _MODEL | _OTHERS | _FILLERS]
    return role, (candidate.directory, *shared)
