"""Abbreviated options such as ``--nproc 8``, which argparse, and so torchrun, accepts."""

from collections.abc import Collection, Sequence

import click

_SHORT = 5  # so few letters, dashes included, are the beginning of too many options


def expand(
    arguments: Sequence[str], options: Sequence[click.Option], preferred: Collection[str]
) -> list[str]:
    """Return the arguments with abbreviated options written out, up to the first that is not an option.

    An abbreviation of exactly one option in ``preferred`` (torchrun's) means that option, so a torchrun
    command line keeps its meaning. Raises `click.NoSuchOption` if several options fit.
    """
    by_name = {
        name: option for option in options for name in (*option.opts, *option.secondary_opts)
    }
    expanded: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, separator, value = word.partition("=")
        if name.startswith("--"):
            name = _complete(name, by_name, preferred)
        elif separator and name in by_name:  # argparse takes -r=3, click would read "=3"
            expanded.append(name + value)
            continue
        expanded.append(name + separator + value)
        option = by_name.get(name)
        takes_next = option is not None and not option.is_flag and not separator
        if takes_next and rest:
            expanded.append(rest.pop(0))
    return expanded + rest


def _complete(name: str, by_name: dict[str, click.Option], preferred: Collection[str]) -> str:
    if name in by_name or name == "--help":
        return name
    fitting = [known for known in by_name if known.startswith(name)]
    for among in ([known for known in fitting if known in preferred], fitting):
        if len({id(by_name[known]) for known in among}) == 1:
            return among[0]
    if fitting:
        raise click.NoSuchOption(
            name,
            message=f"{name} could be any of these options: {', '.join(sorted(fitting))}",
        )
    near = {by_name[known].opts[0] for known in by_name if known.startswith(name[:-1])}
    if near and len(name) > _SHORT:  # a wrong last letter: --nprocs
        text = f"No such option {name!r}. Did you mean {' or '.join(sorted(near))}?"
        raise click.NoSuchOption(name, message=text)
    return name  # click says that there is none
