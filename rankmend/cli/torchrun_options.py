"""Options of `rankmend run` that torchrun has, too: both spellings, abbreviations, and the variables that torchrun reads."""

import os
from typing import Final

import click
from click.core import ParameterSource

from rankmend.cli.abbreviations import expand
from rankmend.cli.output import echo

_OF_TORCHRUN: Final[set[str]] = set()
# torchrun reads no variable for these options.
_WITHOUT_VARIABLE: Final = frozenset({"--logs-specs", "--numa-binding"})
VARIABLE_PREFIX: Final = "PET_"


def both(name: str) -> tuple[str, ...]:
    """Return a torchrun option with dashes and with underscores: torchrun accepts both.

    Options declared with this function also read torchrun's variable, PET_ and the option's name.
    """
    _OF_TORCHRUN.add(name)
    return tuple(dict.fromkeys((name, _underscored(name))))


def _underscored(name: str) -> str:
    return "--" + name[2:].replace("-", "_")


class RunCommand(click.Command):
    """Accepts abbreviated options; if a bad value came from a variable, its error names the variable."""

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
