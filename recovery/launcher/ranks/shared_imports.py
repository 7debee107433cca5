"""What all ranks of a node have imported, and with which environment: the fork server's list.

Each rank tells its own (`rankmend.hook.imports`); `share` merges them into what
`rankmend.hook.replay` takes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Variables = Mapping[str, str | None]  # None: removed
_UNCHANGED: Final[Variables] = {}


@dataclass(frozen=True, slots=True)
class RankImports:
    """What one rank tells."""

    modules: list[tuple[str, str]]  # name, where it was found
    environments: dict[str, Variables]  # module: what had changed when it was searched for
    by_imports: dict[str, Variables]  # module: what its import has changed itself
    unordered: Variables  # what has changed at an unknown time

    @classmethod
    def parse(cls, told: Any) -> "RankImports":
        """Raise ValueError for what no rank tells."""
        try:
            modules = [(str(name), str(origin)) for name, origin in told["modules"]]
            changes = told["changes"]
            ends = [*(index for index, _variables in changes or ()), len(modules)]
            return cls(
                modules,
                {
                    name: _variables(variables)
                    for (index, variables), end in zip(changes or (), ends[1:], strict=True)
                    for name, _origin in modules[index:end]
                },
                {str(name): _variables(made) for name, made in told["by_imports"].items()},
                _UNCHANGED if changes is not None else _variables(told["environment"]),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no list of imports: {error!r}") from error


def share(told: list[Any]) -> dict[str, object]:
    """Return the imports that all ranks share, in the first one's order, and the changes around them."""
    ranks = [RankImports.parse(one) for one in told]
    shared = set.intersection(*(set(one.modules) for one in ranks))
    modules = [one for one in ranks[0].modules if one in shared]
    changes: list[tuple[int, Variables, list[str]]] = []
    last: tuple[Variables, list[str]] = (_UNCHANGED, [])
    for index, (name, _origin) in enumerate(modules):
        merged = _merge(one.environments.get(name, _UNCHANGED) for one in ranks)
        if merged != last:
            changes.append((index, *merged))
            last = merged
    names = sorted({name for one in ranks for name in one.by_imports})
    return {
        "modules": modules,
        "changes": changes,
        "by_imports": {
            name: _merge(one.by_imports.get(name, _UNCHANGED) for one in ranks) for name in names
        },
        "environment": {name: value for one in ranks for name, value in one.unordered.items()},
    }


def _merge(of_ranks: Iterable[Variables]) -> tuple[Variables, list[str]]:
    """Return the variables that all ranks have changed to the same value, and the other ones' names."""
    first, *others = of_ranks
    if all(one == first for one in others):
        return first, []
    names = {name for one in (first, *others) for name in one}
    same = {
        name
        for name in names
        if all(_changed(one, name) == _changed(first, name) for one in others)
    }
    return {name: first[name] for name in sorted(same)}, sorted(names - same)


def _changed(variables: Variables, name: str) -> tuple[bool, str | None]:
    return name in variables, variables.get(name)


def _variables(told: Any) -> Variables:
    for name, value in told.items():
        if type(name) is not str or not (value is None or type(value) is str):
            raise TypeError(f"{name!r}: {value!r} is no variable")
    return dict(told)
