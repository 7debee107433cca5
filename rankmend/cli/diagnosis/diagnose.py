"""`rankmend diagnose`: the rank or node that hangs, slows or fails a recorded job.

Exit codes: 0 a verdict was reached, also "nobody" and "unknown"; 2 the input can't be read. `diagnose log` has
codes of its own, one for each decision.
"""

from importlib import import_module

import click

from rankmend.cli.suggestions import SuggestingGroup

# Sub-command: its module, attribute and help; imported when called.
_PARTS: dict[str, tuple[str, str, str]] = {
    "hang": (
        "rankmend.cli.diagnosis.diagnose_hang",
        "hang",
        "Find the rank that a hung job waits for.",
    ),
    "hosts": (
        "rankmend.cli.diagnosis.diagnose_hosts",
        "hosts",
        "Find the node that started to differ from the others, from host metrics alone.",
    ),
    "log": (
        "rankmend.cli.diagnosis.diagnose_log",
        "log",
        "Find the rank that failed, why, and whether to start again, from a job's log.",
    ),
    "slow": (
        "rankmend.cli.diagnosis.diagnose_slow",
        "slow",
        "Find the rank that makes a job slow.",
    ),
}


class _DiagnoseGroup(SuggestingGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PARTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _PARTS:
            return None
        module, attribute, _help = _PARTS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, part[2]) for name, part in _PARTS.items()])


@click.group(cls=_DiagnoseGroup)
def diagnose() -> None:
    """Find the rank that hangs, slows or fails a recorded job.

    Exit codes: 0 a verdict was reached (culprits, nobody or unknown), 2 unreadable input; those of
    `diagnose log` are its decision.
    """
