"""Prints for people. All commands print through this module, so that no outside text reaches a terminal unfiltered.

A string, a `Text` and a table's cell are one line each; for several lines use several of them, or a `Group`.
Square brackets are plain text, not markup.
"""

import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.printable import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_PIPED: Final = 160  # columns of a table printed to a pipe
_WIDTH_MIN: Final = (
    40  # a narrower terminal folds lines by itself; COLUMNS may be 0, which would print nothing
)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print our own text, which may have several lines."""
    click.echo(printable_lines(text), err=err, nl=nl)


def echo_exact(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print without filtering: JSON, metrics and scripts for programs, and our own control characters."""
    click.echo(text, err=err, nl=nl)


def say_looking(what: str) -> None:
    """Tell at once that a command which goes on until Ctrl-C has begun: on a busy machine the first picture takes seconds."""
    echo(f"rankmend: looking for {what}; Ctrl-C ends it", err=True)


class _Failure(click.ClickException):
    """Ends a command with a message that begins as all of ours do."""

    def show(self, file: Any = None) -> None:
        echo(f"rankmend: {self.message}", err=True)


def failure(error: Exception | str) -> click.ClickException:
    """Return an exception that ends a command with this message."""
    return _Failure(printable_lines(str(error)))


class _Misuse(click.UsageError):
    """The same of a command line that click refuses; its usage stands before it."""

    def show(self, file: Any = None) -> None:
        del file
        if self.ctx is not None:
            requested = max(self.ctx.help_option_names, key=len)
            hint = f"Try '{self.ctx.command_path} {requested}' for help."
            echo(f"{self.ctx.get_usage()}\n{hint}\n", err=True)
        echo(f"rankmend: {self.message}", err=True)


def misuse(error: click.UsageError) -> click.UsageError:
    """Return an exception that shows what is wrong with a command line as all our messages begin."""
    if type(error).show is not click.UsageError.show:  # ours, or one that shows the whole help
        return error
    return _Misuse(error.format_message(), error.ctx)


def console(*, is_wide: bool = False, soft_wrap: bool = False) -> "Console":
    """Return the console, as wide as the terminal; without a terminal, ``is_wide`` leaves room for names."""
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _WIDTH_PIPED if is_wide and is_piped else None
    made: Console = _console_type()(
        file=sys.stdout, width=width, soft_wrap=soft_wrap, markup=False, emoji=False
    )
    if made.width >= _WIDTH_MIN:  # follows the terminal, which may change
        return made
    made.width = _WIDTH_MIN
    return made


def clean(renderable: Any) -> Any:
    """Return a text, table or group with only printable characters; changes mutable ones in place."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if isinstance(renderable, str):
        return printable(renderable)
    if isinstance(renderable, Text):
        renderable.plain = printable(
            renderable.plain
        )  # the length is unchanged, so styles stay in place
    elif isinstance(renderable, Group):
        return Group(*(clean(item) for item in renderable.renderables), fit=renderable.fit)
    elif isinstance(renderable, Table):
        for column in renderable.columns:
            column._cells = [clean(cell) for cell in column._cells]
    return renderable


@cache
def _console_type() -> Any:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Clean(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*(clean(item) for item in objects), **options)

        def render(
            self, renderable: Any, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            """Return the segments; makes printable whatever `clean` could not look into."""
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable_lines(text), style, control)

    return Clean
