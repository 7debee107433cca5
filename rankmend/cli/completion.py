"""`rankmend completion SHELL`: prints the completion script for a shell."""

import click
from click.shell_completion import get_completion_class

from rankmend.cli.options import examples
from rankmend.cli.output import echo_exact


@click.command(epilog=examples('eval "$(rankmend completion bash)"'))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  rankmend completion bash > ~/.local/share/bash-completion/completions/rankmend
    zsh:   rankmend completion zsh > "${fpath[1]}/_rankmend"
    fish:  rankmend completion fish > ~/.config/fish/completions/rankmend.fish
    """
    from rankmend.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click supports every shell in the choice"
    echo_exact(kind(cli, {}, "rankmend", "_RANKMEND_COMPLETE").source())
