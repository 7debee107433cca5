"""Options of `rankmend run` that torchrun has, too: both spellings, abbreviations, and the variables that torchrun reads."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import click
from click.core import ParameterSource

from rankmend.cli.output import echo

_OF_TORCHRUN: Final[set[str]] = set()
# torchrun reads no variable for these options.
_WITHOUT_VARIABLE: Final = frozenset({"--logs-specs", "--numa-binding"})
VARIABLE_PREFIX: Final = "PET_"


# Abbreviated options such as ``--nproc 8``, which argparse, and so torchrun, accepts.


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


def both(name: str) -> tuple[str, ...]:
    """Return a torchrun option with dashes and with underscores: torchrun accepts both.

    Options declared with this function also read torchrun's variable, PET_ and the option's name.
    """
    _OF_TORCHRUN.add(name)
    return tuple(dict.fromkeys((name, _underscored(name))))


def _underscored(name: str) -> str:
    return "--" + name[2:].replace("-", "_")


def long_name(option: click.Parameter) -> str:
    """Return the name of an option as it is typed in full, without the dashes."""
    return next((name[2:] for name in option.opts if name.startswith("--")), option.opts[0])


class RunCommand(click.Command):
    """Accepts abbreviated options; if a bad value came from a variable, its error names the variable."""

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **named: Any) -> None:
        """``groups``: headings of `--help`, and the names of the options below each."""
        super().__init__(*arguments, **named)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {
            long_name(option): row
            for option in self.get_params(ctx)
            if (row := option.get_help_record(ctx)) is not None
        }
        for heading, names in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl([rows.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(rows.values()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [option for option in self.params if isinstance(option, click.Option)]
        of_torchrun = {spelt for name in _OF_TORCHRUN for spelt in (name, _underscored(name))}
        args = expand(args, options, of_torchrun)
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            option = error.param
            if option is None or option.name is None or option.envvar is None:
                raise
            if ctx.get_parameter_source(option.name) is not ParameterSource.ENVIRONMENT:
                raise
            text = f"{error.message} (from the variable {option.envvar})"
            raise click.BadParameter(text, ctx, option) from error


def read_variables_of_torchrun(command: click.Command) -> None:
    """Give each torchrun option the default from the variable that torchrun reads.

    Source: torch/distributed/argparse_util.py (2.13), `env` and `check_env`.
    """
    for option in command.params:
        for name in _OF_TORCHRUN.intersection(option.opts) - _WITHOUT_VARIABLE:
            option.envvar = VARIABLE_PREFIX + name[2:].replace("-", "_").upper()


def warn_unknown_variables(context: click.Context) -> None:
    """Warn about torchrun variables that are set but have no option here."""
    known = {option.envvar for option in context.command.params}
    for name in sorted(os.environ):
        if name.startswith(VARIABLE_PREFIX) and name not in known and os.environ[name]:
            echo(f"rankmend: {name} is set, but rankmend has no such option: ignored", err=True)
