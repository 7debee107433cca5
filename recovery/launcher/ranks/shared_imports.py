"""What all ranks of a node have imported, and with which environment: the fork server's list.

Each rank tells its own (`rankmend.hook.imports`); `share` merges them into what
`rankmend.hook.replay` takes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Variables = Mapping[str, str | None]  # None: removed
Merged = tuple[Variables, list[str]]  # the same in all ranks, and names that differ
Change = tuple[int, Variables, list[str]]  # from which module on, and the same two
_UNCHANGED: Final[Variables] = {}


@dataclass(frozen=True, slots=True)
class RankImports:
    """What one rank tells."""

    modules: list[tuple[str, str]]  # name, where it was found
    environments: dict[str, Variables]  # module: what had changed when it was searched for
    by_imports: dict[str, Variables]  # module: what its import has changed itself
    touched: dict[str, list[str | None] | None]  # variable: what it was set to; None: any
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
                {str(name): _values(values) for name, values in told["touched"].items()},
                _UNCHANGED if changes is not None else _variables(told["environment"]),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no list of imports: {error!r}") from error


def share(told: list[Any]) -> dict[str, object]:
    """Return the imports that all ranks share, in the first one's order, and the changes around them."""
    ranks = [RankImports.parse(one) for one in told]
    shared = set.intersection(*(set(one.modules) for one in ranks))
    modules = [one for one in ranks[0].modules if one in shared]
    changes: list[Change] = []
    last: Merged = (_UNCHANGED, [])
    for index, (name, _origin) in enumerate(modules):
        merged = _merge(one.environments.get(name, _UNCHANGED) for one in ranks)
        if merged != last:
            changes.append((index, *merged))
            last = merged
    names = sorted({name for one in ranks for name in one.by_imports})
    by_imports = {
        name: _merge(one.by_imports.get(name, _UNCHANGED) for one in ranks) for name in names
    }
    return {
        "modules": modules,
        "changes": changes,
        "by_imports": by_imports,
        "expected": _expected(ranks, changes, by_imports),
        "environment": {name: value for one in ranks for name, value in one.unordered.items()},
    }


def _expected(
    ranks: list[RankImports], changes: list[Change], by_imports: Mapping[str, Merged]
) -> dict[str, list[str | None] | None]:
    """Return for each variable that was touched what a forked rank may set it to; None: anything.

    Bound is what all ranks had set to the same value at some import, and no import has set: a library may have read it.
    """
    differing = {name for _index, _same, names in changes for name in names}
    bound = {name for _index, same, _names in changes for name in same} - differing
    bound -= {name for same, names in by_imports.values() for name in (*same, *names)}
    expected: dict[str, list[str | None] | None] = {}
    for one in ranks:
        for name, values in one.touched.items():
            so_far = expected.setdefault(name, [] if name in bound else None)
            if so_far is None or values is None:
                expected[name] = None
            else:
                so_far += [value for value in values if value not in so_far]
    return expected


def _merge(of_ranks: Iterable[Variables]) -> Merged:
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
            raise TypeError(f"{name!r}: {value!r} is not a variable")
    return dict(told)


def _values(told: Any) -> list[str | None] | None:
    if told is None:
        return None
    if type(told) is not list or not all(one is None or type(one) is str for one in told):
        raise TypeError(f"{told!r} are not values of a variable")
    return list(told)
