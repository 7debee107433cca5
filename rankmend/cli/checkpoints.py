"""`rankmend checkpoints`: what a checkpoint folder contains, and what a restart would use."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli import output
from rankmend.cli.options import fail, json_option, print_json, seconds, size
from rankmend.cli.output import echo
from rankmend.cli.units import DURATION
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from recovery.checkpoints.model import CheckpointVerdict
    from recovery.report.checkpoint_folder import CheckpointFolder

NOTHING_TO_RESTORE: Final = 1
_REPLICAS_MAX: Final = 1_000_000
_SHOWN_MAX: Final = 40  # per table; --json has all of them


@click.command(
    epilog="""\b
Examples:
  rankmend checkpoints out/
  rankmend checkpoints /shared/ckpt --replicas 64
"""
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint-marker",
    metavar="NAME",
    help="File that the script writes last into a checkpoint folder. [default: by format]",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, _REPLICAS_MAX),
    default=1,
    show_default=True,
    help="Assume this many data-parallel replicas, each reading the checkpoint.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default=600.0,
    help="Give up after this long. [default: 10m]",
)
@json_option
def checkpoints(
    directory: Path, checkpoint_marker: str | None, replicas: int, timeout_s: float, as_json: bool
) -> None:
    """Show the checkpoints in DIR, newest first, and which one a restart would use.

    Reads every checkpoint in full and changes nothing. Exit codes: 0 at least one can be restored,
    1 none can, 2 wrong usage.
    """
    import logging

    from rankmend.clock import SystemClock
    from recovery.report.checkpoint_folder import look_into

    logging.getLogger("recovery").addHandler(logging.NullHandler())  # errors are raised, too
    try:
        folder = look_into(directory, checkpoint_marker, timeout_s, SystemClock())
    except RankmendError as error:
        fail(str(error), NOTHING_TO_RESTORE)
    if as_json:
        print_json(_document(folder, replicas))
    else:
        _print(folder, replicas)
    sys.exit(0 if folder.chosen is not None else NOTHING_TO_RESTORE)


def _document(folder: "CheckpointFolder", replicas: int) -> dict[str, Any]:
    chosen = folder.chosen
    return {
        "directory": folder.path,
        "restores": chosen.candidate.path if chosen else None,
        "looks_like_checkpoint": folder.looks_like_checkpoint_count,
        "passed_over": [verdict.candidate.path for verdict in folder.passed_over],
        "read_bytes_per_s": folder.read_bytes_per_s,
        "replicas": replicas,
        "checkpoints": [_entry(folder, verdict, replicas) for verdict in folder.verdicts],
    }


def _entry(
    folder: "CheckpointFolder", verdict: "CheckpointVerdict", replicas: int
) -> dict[str, Any]:
    one = verdict.candidate
    return {
        "path": one.path,
        "directory": one.directory,
        "tag": one.tag,
        "parts": list(one.parts),
        "format": one.format.value,
        "format_name": one.format.label,
        "step": one.step,
        "is_step_exact": one.is_step_exact,
        "modified_unix_s": one.modified_unix_s,
        "age_s": _age_s(folder, verdict),
        "size_bytes": one.size_bytes,
        "is_valid": verdict.is_valid,
        "hindrance": verdict.hindrance.value if verdict.hindrance else None,
        "reason": verdict.reason,
        "restore_bytes": one.size_bytes * replicas if verdict.is_valid else None,
        "restore_s": folder.restore_s(one.size_bytes, replicas) if verdict.is_valid else None,
    }


def _age_s(folder: "CheckpointFolder", verdict: "CheckpointVerdict") -> float | None:
    modified_unix_s = verdict.candidate.modified_unix_s
    return max(0.0, folder.looked_at_unix_s - modified_unix_s) if modified_unix_s else None


def _print(folder: "CheckpointFolder", replicas: int) -> None:
    if not folder.verdicts:
        echo(f"{folder.path}: nothing in it looks like a checkpoint")
        return
    output.console(is_wide=True).print(_table(folder))
    if len(folder.verdicts) > _SHOWN_MAX:
        echo(f"... and {len(folder.verdicts) - _SHOWN_MAX} more: --json lists them all")
    chosen = folder.chosen
    if chosen is None:
        count = folder.looks_like_checkpoint_count
        echo(f"none of {count} that look like a checkpoint can be restored")
        return
    size_bytes = chosen.candidate.size_bytes
    what = f"{replicas} x {size(size_bytes)}" if replicas > 1 else size(size_bytes)
    restore_s, rate = folder.restore_s(size_bytes, replicas), folder.read_bytes_per_s
    how_long = f", {seconds(restore_s)} at {size(rate)}/s" if restore_s and rate else ""
    echo(f"a restart uses {chosen.candidate.path}: it reads {what}{how_long}")
    for verdict in folder.passed_over[:_SHOWN_MAX]:
        echo(f"newer, but passed over: {verdict.candidate.path}: {verdict.reason}")


def _table(folder: "CheckpointFolder") -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("CHECKPOINT", "FORMAT", "STEP", "AGE", "SIZE", "VERDICT", "REASON"):
        is_number = name in {"STEP", "AGE", "SIZE"}
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for verdict in folder.verdicts[:_SHOWN_MAX]:
        one = verdict.candidate
        text = "valid" if verdict.hindrance is None else verdict.hindrance.value
        table.add_row(
            _relative(one.path, folder.path),
            one.format.label,
            "-" if one.step is None else str(one.step),
            seconds(_age_s(folder, verdict)),
            size(one.size_bytes) if one.size_bytes else "-",
            Text(text, style="green" if verdict.is_valid else "red"),
            verdict.reason,
        )
    return table


def _relative(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/")
