"""`rankmend maintenance`: windows during which somebody works on nodes."""

import time
from datetime import tzinfo

import click

from rankmend.cli.options import examples, fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.cli.sources.controller_options import (
    USAGE,
    Access,
    asking,
    console,
    controller_options,
    expected_option,
    reason_option,
    tell,
)
from rankmend.cli.times import TimeOfDay, TimeParameter, ZoneParameter, say_time
from rankmend.cli.units import DURATION

_TIME = TimeParameter()


@click.group()
def maintenance() -> None:
    """Manage maintenance windows: their nodes get no ranks, and alerts about them are ignored."""


@maintenance.command(
    epilog="""\b
Examples:
  rankmend maintenance add gpu-17 --for 2h --reason "DIMM replaced"
  rankmend maintenance add 'rack7-*' --from 2026-12-01T08:00Z --until 2026-12-01T12:00Z --reason "PDU"
"""
)
@click.argument("nodes", nargs=-1, required=True)
@click.option(
    "--from",
    "begin",
    type=_TIME,
    metavar="TIME",
    help="Start: 2026-12-01T08:00+01:00, 2026-12-01T08:00Z, or without a zone; 08:00 is today. [default: now]",
)
@click.option("--until", "end", type=_TIME, metavar="TIME", help="End, in the same form.")
@click.option(
    "--zone",
    type=ZoneParameter(),
    metavar="ZONE",
    help="Zone of times without one: UTC, Europe/Berlin, +01:00. [default: this machine's]",
)
@click.option("--for", "lasts_s", type=DURATION, help="Length, in place of --until: 30m, 2h, 1d.")
@reason_option(required=True)
@expected_option
@controller_options
@json_option
def add(
    nodes: tuple[str, ...],
    begin: TimeOfDay | None,
    end: TimeOfDay | None,
    zone: tzinfo | None,
    lasts_s: float | None,
    reason: str,
    expected: bool,
    access: Access,
    as_json: bool,
) -> None:
    """Add a window for NODES, given as names or shell patterns.

    Ranks on these nodes keep running; to move them first, use `rankmend drain NODE --now --reason TEXT`.
    """
    import msgspec

    from recovery.api import wire

    now_unix_s = time.time()
    if (end is None) == (lasts_s is None):
        raise click.UsageError("give --until or --for, not both")
    from_unix_s = now_unix_s if begin is None else begin.unix_s(zone, now_unix_s)
    if lasts_s is not None:
        until_unix_s = from_unix_s + lasts_s
    else:
        assert end is not None, "either --until or --for is given"
        until_unix_s = end.unix_s(zone, now_unix_s)
    if until_unix_s <= max(from_unix_s, now_unix_s):
        fail(
            f"the window would end at {say_time(until_unix_s, zone)}, before it begins or before now",
            USAGE,
        )
    window = wire.Window(
        nodes=list(nodes),
        from_unix_s=from_unix_s,
        until_unix_s=until_unix_s,
        reason=reason,
        is_expected=expected,
    )
    with asking(access) as client:
        made = client.add_window(window)
    text = f"maintenance window {made.window_id}: {say_time(from_unix_s, zone)} to {say_time(until_unix_s, zone)}"
    tell(text, as_json=as_json, window=msgspec.to_builtins(made))


@maintenance.command("list", epilog=examples("rankmend maintenance list"))
@controller_options
@json_option
def list_windows(access: Access, as_json: bool) -> None:
    """List current and future windows."""
    import msgspec

    now_unix_s = time.time()
    with asking(access) as client:
        windows = [
            window for window in client.cluster().windows if window.until_unix_s > now_unix_s
        ]
    if as_json:
        print_json({"windows": msgspec.to_builtins(windows)})
        return
    if not windows:
        echo("no maintenance window")
        return
    from rich import box
    from rich.table import Table

    table = Table("id", "nodes", "from", "until", "by", "reason", box=box.SIMPLE)
    for item in sorted(windows, key=lambda window: window.from_unix_s):
        span = (say_time(item.from_unix_s), say_time(item.until_unix_s))
        table.add_row(item.window_id, ", ".join(item.nodes), *span, item.who, item.reason)
    console().print(table)


@maintenance.command(epilog=examples("rankmend maintenance remove w-12"))
@click.argument("window_id", metavar="ID")
@reason_option(required=False)
@controller_options
@json_option
def remove(window_id: str, reason: str, access: Access, as_json: bool) -> None:
    """End the window with this ID (see `rankmend maintenance list`)."""
    with asking(access) as client:
        done = client.end_window(window_id, reason)
    tell(done.text, as_json=as_json)
