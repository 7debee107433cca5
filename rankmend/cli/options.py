"""Options and output that several sub-commands share."""

import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from rankmend.cli.output import echo, echo_exact
from rankmend.printable import is_printable, size_in_words

size: Final = size_in_words
NAME_CHARACTERS_MAX: Final = 256  # a controller shows the first 128


def examples(*lines: str, after: str = "") -> str:
    """Return a command's epilog with lines to type; ``after``: what else its help ends with."""
    head = "Example:" if len(lines) == 1 else "Examples:"
    shown = "\n".join(("\b", head, *(f"  {line}" for line in lines)))
    return f"{shown}\n\n{after}" if after else shown


state_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, readable=False, path_type=Path),
    envvar="RANKMEND_STATE_DIR",
    help="Folder with the journals. [default: ~/.local/state/rankmend]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


class _Name(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3
    """A name that appears in tables and log lines."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not 1 <= len(value) <= NAME_CHARACTERS_MAX or value != value.strip():
            self.fail(
                f"{value!r:.80} is not a name: 1 to {NAME_CHARACTERS_MAX} characters, no blank at either end",
                param,
                ctx,
            )
        bad = next((char for char in value if not is_printable(char)), None)
        if bad is not None:
            self.fail(f"{value!r:.80} is not a name: it has the character {bad!r}", param, ctx)
        return value


class _Glob(_Name):
    """A shell pattern of names in a folder; `!` in front leaves out."""

    name = "glob"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        pattern = super().convert(value, param, ctx)
        if "/" in pattern or pattern == "!":
            self.fail(
                f"{value!r:.80} is no pattern of a name in the checkpoint folder, such as 'step_*.pt'",
                param,
                ctx,
            )
        return pattern


NAME: Final = _Name()


class _NameOrEmpty(_Name):
    """The same, or nothing: `--rdzv-id=$JOB` where the variable is not set."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(value, param, ctx) if value else value


NAME_OR_EMPTY: Final = _NameOrEmpty()
checkpoint_name_option = click.option(
    "--checkpoint-name",
    "checkpoint_names",
    metavar="GLOB",
    multiple=True,
    type=_Glob(),
    help="Restore only checkpoints with such a name, as in 'step_*.pt'; !GLOB leaves names out. Repeatable.",
)


def find_state(named: Path | None) -> Path:
    """Return the state folder that `rankmend run` uses here; raise ConfigError where this user may not read it."""
    import os

    from recovery.local.report.closed_folder import refuse_closed

    if named is None:
        from recovery.journal.folder.network_storage import refuse_network_file_system
        from recovery.journal.folder.state_folder import default_state_folder

        named = default_state_folder(os.environ, refuse_network_file_system)
    refuse_closed(named)
    return named


def print_json(value: Any) -> None:
    import json

    echo_exact(json.dumps(value, indent=2, default=to_plain))


def to_plain(value: Any) -> Any:
    """Return a JSON-compatible form of a value that json does not know."""
    if hasattr(value, "__dataclass_fields__"):
        from dataclasses import asdict

        return asdict(value)
    return getattr(value, "value", str(value))


def fail(message: str, code: int = 1) -> NoReturn:
    echo(f"rankmend: {message}", err=True)
    sys.exit(code)


def local_time(unix_s: float, form: str) -> str:
    """Return a time in the local form; a time outside the calendar is shown as a plain number."""
    try:
        return datetime.fromtimestamp(unix_s, tz=timezone.utc).astimezone().strftime(form)
    except (OverflowError, OSError, ValueError):
        return f"{unix_s:g} s since 1970"
