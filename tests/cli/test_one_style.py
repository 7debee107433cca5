"""One word means one thing on the command line: options are written alike in all commands, and each command shows an example."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import click
import pytest

from rankmend.cli import COMMANDS as ENTRIES
from rankmend.cli import GROUPS, cli
from rankmend.cli.run import OPTION_GROUPS
from rankmend.cli.torchrun_options import long_name

# What an option may be beside the kind that it is elsewhere, and why.
EXCEPTIONS: Final = {
    "--for": "a purpose (slurm, systemd) of what is printed; else how long",
    "--slurm": "of run: yes or no; of fabric topology: Slurm's file",
    "--snapshots": "of run: yes or no; of simulate: how often",
    "--role": "of run: torchrun's free text; of a token: one of ours",
    "--nnodes": "of run: torchrun's N or MIN:MAX; else a number",
    "--spares": "of run: a number; of simulate: a number or a share",
    "--python": "of watch env: a file; else also a program's name",
}


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


COMMANDS: Final = dict(commands())


def kind_of(option: click.Option) -> str:
    if option.is_flag or option.count:
        return "flag"
    if isinstance(option.type, click.Path | click.File):
        return "path"
    if isinstance(option.type, click.Choice):
        return "choice"
    if option.type.name == "duration":
        return "duration"
    is_number = option.type.name in ("integer", "float", "integer range", "float range")
    return "number" if is_number else "text"


def test_an_option_is_of_one_kind_in_all_commands() -> None:
    kinds: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path, command in COMMANDS.items():
        for option in command.params:
            if isinstance(option, click.Option):
                for name in option.opts:
                    kinds[name][kind_of(option)] = path

    mixed = {name: where for name, where in kinds.items() if len(where) > 1}

    assert {name: where for name, where in mixed.items() if name not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= set(kinds)


def test_no_duration_is_asked_for_in_bare_seconds() -> None:
    asked = [
        f"{path} {option.opts[0]}"
        for path, command in COMMANDS.items()
        for option in command.params
        if isinstance(option, click.Option) and "SECONDS" in (option.metavar or "")
    ]

    assert asked == ["inject --at"], "a moment, as `date +%s` gives it"


def test_default_of_an_option_stands_behind_the_sentence() -> None:
    other = [
        f"{path} {option.opts[0]}: {option.help}"
        for path, command in COMMANDS.items()
        for option in command.params
        if isinstance(option, click.Option) and _WITHIN.search(option.help or "")
    ]

    assert other == []


_WITHIN: Final = re.compile(r"(?:^|[^.\]\s])\s*\[default:|\[default:[^\]]*\]\.")


@pytest.mark.parametrize("path", COMMANDS)
def test_help_has_an_example_that_the_command_takes(path: str) -> None:
    shown = COMMANDS[path].epilog or ""

    typed = [
        found.strip() for line in shown.splitlines() if (found := _typed(line, path)) is not None
    ]
    assert "Example" in shown
    assert typed
    for line in typed:  # what click does not know is a UsageError
        COMMANDS[path].make_context(path, shlex.split(line), resilient_parsing=True)


def _typed(line: str, path: str) -> str | None:
    """Return what an example types behind the command; None: the line shows another one."""
    _before, name, behind = line.partition(f"rankmend {path}")
    return _END.split(behind, maxsplit=1)[0] if name else None


# Behind it stand what it means, another command, or the end of the shell's own brackets.
_END: Final = re.compile(r" {3,}|[|;&>)]| {2}\(")


def test_help_shows_each_command_and_each_option_of_run_once() -> None:
    in_groups = [name for names in GROUPS.values() for name in names]
    of_run = COMMANDS["run"]
    options = [name for names in OPTION_GROUPS.values() for name in names]
    shown = {
        long_name(option)
        for option in of_run.params
        if isinstance(option, click.Option) and not option.hidden
    }

    assert sorted(in_groups) == sorted(ENTRIES)
    assert sorted(options) == sorted(shown)
    assert of_run.get_help(click.Context(of_run)).count("\nOther:\n") == 1


def test_no_help_names_a_file_that_only_the_sources_have() -> None:
    """Whoever installed a package has no `docs/` folder."""
    helps = {
        path: " ".join(
            [command.help or "", command.epilog or ""]
            + [option.help or "" for option in command.params if isinstance(option, click.Option)]
        )
        for path, command in COMMANDS.items()
    }

    assert [path for path, text in helps.items() if "docs/" in text] == []
    assert len(helps) > 60
