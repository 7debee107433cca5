"""Names the nearest commands where somebody has mistyped one."""

import click

_NEAREST_MAX = 3
_LIKENESS_MIN = 0.7  # one letter left out or two swapped, in a name of four


class SuggestingGroup(click.Group):
    """A group of commands, which may be imported only when they are called: click suggests none of these."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            name = args[0]
            near = get_close_matches(name, self.list_commands(ctx), _NEAREST_MAX, _LIKENESS_MIN)
            if name.startswith("-") or not near:
                raise
            text = f"No such command {name!r}. Did you mean {' or '.join(near)}?"
            raise click.UsageError(text, ctx) from error
