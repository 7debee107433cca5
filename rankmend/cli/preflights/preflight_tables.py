"""Tables of `rankmend preflight`: the load of a dry run, and a result."""

from typing import TYPE_CHECKING, Final

from rankmend.cli import output
from rankmend.cli.options import print_json, size
from rankmend.printable import duration

if TYPE_CHECKING:
    from agent.preflight.result_file import FlightResult
    from detectors.preflight.levels import FlightRound

_STYLES: Final = {
    "failed": "bold red",
    "hung": "bold red",
    "silent": "yellow",
    "skipped": "yellow",
    "abstained": "dim",
    "passed": "green",
}


def print_plan(level: str, plan: "FlightRound", *, as_json: bool) -> None:
    """Print what a round would load, and the longest that it may take."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if as_json:
        print_json({"level": level, "bound_s": plan.bound_s, "stages": plan.stages})
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("step", "load", "for", "killed after", "begins after"):
        table.add_column(name, overflow="fold")
    written_bytes = 0
    for stage in plan.stages:
        for step in stage:
            written_bytes += sum(
                int(load.get("bytes", 0)) for load in step.loads if load["load"] == "disk"
            )
            loads = ", ".join(dict.fromkeys(_load_text(load) for load in step.loads))
            spent_s = sum(load["seconds"] for load in step.loads)
            table.add_row(
                Text(step.name),
                Text(
                    "pairs of nodes send to each other"
                    if step.needs_others
                    else loads or " ".join(step.program)
                ),
                duration(spent_s),
                duration(step.deadline_s),
                duration(step.waits_s),
            )
    console = output.console()
    console.print(table)
    text = f"{level}: a round ends within {duration(plan.bound_s)}; it writes {size(written_bytes)}"
    console.print(Text(text), soft_wrap=True)


def _load_text(load: dict[str, object]) -> str:
    if load["load"] == "disk":
        rate = load.get("rate")
        bound = f", at most {size(float(str(rate)))}/s" if rate else ""
        return f"writes and reads {size(float(str(load['bytes'])))} in {load['folder']}{bound}"
    if load["load"] == "memory":
        return f"memory ({float(str(load['share'])):.0%} of what is free)"
    return str(load["load"])


def print_result(result: "FlightResult") -> None:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from detectors.wording import counted

    console = output.console()
    if result.checks:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("verdict", no_wrap=True)
        table.add_column("check", overflow="fold")
        table.add_column("part", overflow="fold")
        table.add_column("what", ratio=1, overflow="fold")
        for check in result.checks:
            what = [Text(check.reason)]
            if check.advice:
                what.append(Text(check.advice, style="dim"))
            table.add_row(
                Text(check.standing.value, style=_STYLES[check.standing.value]),
                Text(check.name),
                Text(check.part),
                Group(*what),
            )
        console.print(table)
    text = (
        f"{result.node}: {result.outcome.value.replace('_', ' ')} at level {result.level}, "
        f"{counted(len(result.checks), 'check')} in {duration(result.took_s)}"
    )
    console.print(Text(f"{text}{': ' + result.note if result.note else ''}"), soft_wrap=True)
    for name in result.left_behind:
        text = f"{name} hangs in the kernel and was left behind"
        console.print(Text(text, style="yellow"), soft_wrap=True)
