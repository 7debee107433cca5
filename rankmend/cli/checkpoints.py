"""`rankmend checkpoints`: what a checkpoint folder contains, and what a restart would use."""

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli import output
from rankmend.cli.options import checkpoint_name_option, fail, json_option, print_json, size
from rankmend.cli.output import echo
from rankmend.cli.units import DURATION
from rankmend.errors import RankmendError
from rankmend.printable import duration, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recovery.local.report.checkpoint_folder import CheckpointFolder
    from recovery.local.report.held_snapshots import SnapshotRow
    from recovery.messages.candidates import CheckpointVerdict

NOTHING_TO_RESTORE: Final = 1
_REPLICAS_MAX: Final = 1_000_000
_SHOWN_MAX: Final = 40  # per table; --json has all of them


@click.command(
    epilog="""\b
Examples:
  rankmend checkpoints out/
  rankmend checkpoints out/ --explain --checkpoint-name '!best*'
  rankmend checkpoints /shared/ckpt --replicas 64
"""
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint-marker",
    metavar="NAME",
    help="File that the script writes last into a checkpoint folder. [default: by format]",
)
@checkpoint_name_option
@click.option(
    "--explain",
    is_flag=True,
    help="Show what speaks for and against each one in place of the reason.",
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
    directory: Path,
    checkpoint_marker: str | None,
    checkpoint_names: tuple[str, ...],
    explain: bool,
    replicas: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show the checkpoints in DIR, the one that a restart would use first.

    Also shows the snapshots that ranks of the same job keep in this machine's memory. Reads every
    checkpoint in full and changes nothing. Exit codes: 0 at least one checkpoint can be
    restored, 1 none can, 2 wrong usage.
    """
    import logging

    from rankmend.clock import SystemClock
    from recovery.launcher.ranks.runtime_folder import default_root
    from recovery.local.report.checkpoint_folder import look_into
    from recovery.local.report.held_snapshots import find_snapshots

    logging.getLogger("recovery").addHandler(logging.NullHandler())  # errors are raised, too
    clock = SystemClock()
    try:
        folder = look_into(directory, checkpoint_marker, checkpoint_names, timeout_s, clock)
    except RankmendError as error:
        fail(str(error), NOTHING_TO_RESTORE)
    held = find_snapshots(directory, default_root(), clock.now_s())
    if as_json:
        print_json(_document(folder, held, replicas))
    else:
        _print(folder, held, replicas, explain)
        for line in _saving(directory):
            echo(line)
    sys.exit(0 if folder.chosen is not None else NOTHING_TO_RESTORE)


def _restored(folder: "CheckpointFolder", held: "Sequence[SnapshotRow]") -> "SnapshotRow | None":
    """Return the snapshot that a restart of the job would prefer to the checkpoint."""
    from recovery.local.report.held_snapshots import newest_whole

    newest, chosen = newest_whole(held), folder.chosen
    step = None if chosen is None else chosen.candidate.step
    if newest is not None and step is not None and step > newest.step:
        return None
    return newest


def _document(
    folder: "CheckpointFolder", held: "Sequence[SnapshotRow]", replicas: int
) -> dict[str, Any]:
    chosen, snapshot = folder.chosen, _restored(folder, held)
    return {
        "directory": folder.path,
        "restores": chosen.candidate.path if chosen else None,
        "looks_like_checkpoint": folder.looks_like_checkpoint_count,
        "unknown_files": list(folder.unknown),
        "deeper": folder.deeper,
        "passed_over": [verdict.candidate.path for verdict in folder.passed_over],
        "read_bytes_per_s": folder.read_bytes_per_s,
        "replicas": replicas,
        "checkpoints": [_entry(folder, verdict, replicas) for verdict in folder.verdicts],
        "restores_snapshot": None if snapshot is None else _snapshot(snapshot),
        "snapshots": [_snapshot(row) for row in held],
    }


def _entry(
    folder: "CheckpointFolder", verdict: "CheckpointVerdict", replicas: int
) -> dict[str, Any]:
    item = verdict.candidate
    return {
        "path": item.path,
        "directory": item.directory,
        "tag": item.tag,
        "parts": list(item.parts),
        "format": item.format.value,
        "format_name": item.format.label,
        "step": item.step,
        "is_step_exact": item.is_step_exact,
        "modified_unix_s": item.modified_unix_s,
        "age_s": _age_s(folder, verdict),
        "size_bytes": item.size_bytes,
        "is_valid": verdict.is_valid,
        "hindrance": verdict.hindrance.value if verdict.hindrance else None,
        "reason": verdict.reason,
        "evidence": _evidence(folder, verdict),
        "restore_bytes": item.size_bytes * replicas if verdict.is_valid else None,
        "restore_s": folder.restore_s(item.size_bytes, replicas) if verdict.is_valid else None,
    }


def _evidence(folder: "CheckpointFolder", verdict: "CheckpointVerdict") -> dict[str, Any] | None:
    item = folder.evidence.get(verdict.candidate.path)
    if item is None:
        return None
    shape = verdict.candidate.shape
    return {
        "step": item.step.value,
        "holds": item.holds.value or "unknown",
        "tensors": shape.tensors,
        "elements": shape.elements,
        "epoch": shape.epoch,
        "alike": item.alike,
        "is_copy": item.is_copy,
        "is_proven": item.is_proven,
        "reason": item.reason.value,
    }


def _snapshot(row: "SnapshotRow") -> dict[str, Any]:
    return {
        "attempt": row.attempt,
        "step": row.step,
        "world_size": row.world_size,
        "ranks": list(row.ranks),
        "size_bytes": row.size_bytes,
        "age_s": row.age_s,
        "verdict": row.verdict.value,
    }


def _age_s(folder: "CheckpointFolder", verdict: "CheckpointVerdict") -> float | None:
    modified_unix_s = verdict.candidate.modified_unix_s
    return max(0.0, folder.looked_at_unix_s - modified_unix_s) if modified_unix_s else None


def _nothing(folder: "CheckpointFolder") -> str:
    from recovery.checkpoints.deeper import describe_deeper
    from recovery.checkpoints.listing import describe_unknown

    if folder.unknown:
        return describe_unknown(folder.path, folder.unknown)
    if folder.deeper is not None:
        return describe_deeper(folder.path, folder.deeper)
    return f"{folder.path}: nothing in it looks like a checkpoint"


def _print(
    folder: "CheckpointFolder", held: "Sequence[SnapshotRow]", replicas: int, explain: bool
) -> None:
    from recovery.checkpoints.order import BY_EVIDENCE, say_reason
    from recovery.messages.candidates import Hindrance

    if folder.verdicts or held:
        output.console(is_wide=True).print(_table(folder, held, explain))
    snapshot = _restored(folder, held)
    if snapshot is not None:
        echo(
            f"a restart of job '{printable(snapshot.job)}' continues from memory at step {snapshot.step} if its ranks stay on their "
            "nodes; a new run never does"
        )
    if not folder.verdicts:
        echo(_nothing(folder))
        return
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
    how_long = f", {duration(restore_s)} at {size(rate)}/s" if restore_s and rate else ""
    uses = "a restart uses" if snapshot is None else "without these snapshots it uses"
    echo(f"{uses} {chosen.candidate.path}: it reads {what}{how_long}")
    for verdict in folder.passed_over[:_SHOWN_MAX]:
        path = verdict.candidate.path
        item = folder.evidence.get(path)
        is_judged = item is not None and verdict.is_valid
        reason = say_reason(item.reason) if item is not None and is_judged else verdict.reason
        echo(f"newer, but passed over: {path}: {reason}")
        if (
            item is not None
            and item.reason in BY_EVIDENCE
            and verdict.hindrance in (None, Hindrance.UNREAD)
        ):
            echo(f"  to restore it all the same: --checkpoint-name {quote(verdict.candidate.tag)}")


def _saving(directory: Path) -> "list[str]":
    """Return what saving costs the job that saves here now, where its journal is on this machine."""
    import time

    from rankmend.cli.options import find_state
    from rankmend.cli.screens.checkpoint_lines import say_saving
    from recovery.journal.folder.job_folder import find_jobs
    from recovery.local.report.held_snapshots import owner_of
    from recovery.local.report.overview import view_job

    claim = owner_of(directory)
    if claim is None or not claim.job_id:
        return []
    try:
        folders = find_jobs(find_state(None), claim.job_id)
    except RankmendError:
        return []
    views = [view_job(folder, time.monotonic, time.time()) for folder in folders]
    return [
        f"job '{printable(view.name)}': {line}"
        for view in views
        for line in say_saving(view.checkpoint, view.snapshots)
    ]


def _explained(folder: "CheckpointFolder", verdict: "CheckpointVerdict") -> str:
    """Return what speaks for and against a candidate."""
    from recovery.checkpoints.order import PlaceReason, say_evidence, say_reason
    from recovery.messages.candidates import Hindrance

    item = folder.evidence.get(verdict.candidate.path)
    if item is None or verdict.hindrance in {Hindrance.ALIAS, Hindrance.MISSING}:
        return verdict.reason
    said = say_evidence(item)
    against = "" if item.reason is PlaceReason.FIRST else f"; against it: {say_reason(item.reason)}"
    defect = "" if verdict.is_valid else f"; {verdict.reason}"
    return f"{said}{against}{defect}"


def _table(folder: "CheckpointFolder", held: "Sequence[SnapshotRow]", explain: bool) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("CHECKPOINT", "FORMAT", "STEP", "AGE", "SIZE", "VERDICT", "REASON"):
        is_number = name in {"STEP", "AGE", "SIZE"}
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in held[:_SHOWN_MAX]:
        is_whole = row.verdict.value == "whole"
        table.add_row(
            f"attempt {row.attempt}",
            "memory",
            str(row.step),
            duration(row.age_s),
            size(row.size_bytes),
            Text(row.verdict.value, style="green" if is_whole else "red"),
            f"{len(row.ranks)} of {row.world_size} ranks on this machine",
        )
    for verdict in folder.verdicts[:_SHOWN_MAX]:
        item = verdict.candidate
        text = "valid" if verdict.hindrance is None else verdict.hindrance.value
        table.add_row(
            _relative(item.path, folder.path),
            item.format.label,
            "-" if item.step is None else str(item.step),
            duration(_age_s(folder, verdict)),
            size(item.size_bytes) if item.size_bytes else "-",
            Text(text, style="green" if verdict.is_valid else "red"),
            _explained(folder, verdict) if explain else verdict.reason,
        )
    return table


def _relative(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/")
