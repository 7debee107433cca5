"""Options and habits that several sub-commands share."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

state_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="RANKMEND_STATE_DIR",
    help="Folder with the journals. [default: ~/.local/state/rankmend]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a script.")


def find_state(named: Path | None) -> Path:
    """Return the state folder that `rankmend run` uses here."""
    import os

    from recovery.journal import refuse_network_file_system
    from recovery.launcher.state import default_state_folder

    return named or default_state_folder(os.environ, refuse_network_file_system)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=to_plain))


def to_plain(value: Any) -> Any:
    """Return what JSON can hold of a value that it does not know."""
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    return getattr(value, "value", str(value))


def fail(message: str, code: int = 1) -> NoReturn:
    click.echo(f"rankmend: {message}", err=True)
    sys.exit(code)


def seconds(value: float | None) -> str:
    """Return a duration for a table: three significant figures, a dash where there is none."""
    if value is None:
        return "-"
    if value >= 600:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"
