"""`rankmend inject`: breaks a job or a node on purpose, for a bounded time."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli.options import fail, find_state, json_option, print_json, state_option
from rankmend.cli.output import clean, console, echo
from rankmend.cli.units import DURATION, RATE, DurationBetween
from rankmend.errors import ConfigError, RankmendError
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.lab.inject.injector import Injected
    from recovery.lab.inject.mending import Mended
    from recovery.lab.inject.plan import FaultPlace, FaultPlan
    from recovery.lab.inject.request import FaultRequest
    from recovery.lab.inject.session import InjectPlaces

_REFUSED: Final = 2
_FAILED: Final = 1
_FOR_S: Final = 30.0


@click.command(
    epilog="""\b
Examples:
  rankmend inject --list
  rankmend inject kill --on rank:llama/3
  rankmend inject stop --on rank:llama/3 --for 60s
  rankmend inject loss --on interface:eth1 --share 0.1 --for 2m
  rankmend inject io-hang --on path:/scratch/ckpt --for 1m --dry-run
  rankmend inject --undo
"""
)
@click.argument("fault", required=False)
@click.option(
    "--on",
    "target",
    metavar="TARGET",
    help="What to break: rank:JOB/RANK, pid:PID, node, path:/FOLDER, interface:NAME, service:NAME, gpu:UUID.",
)
@click.option(
    "--for",
    "for_s",
    type=DURATION,
    default=_FOR_S,
    show_default="30s",
    help="How long the fault lasts, at most 1d. Then it is undone.",
)
@click.option(
    "--at",
    "at_unix_s",
    type=float,
    metavar="SECONDS",
    help="Start the fault at this moment (as `date +%s` gives it), so that several start together.",
)
@click.option(
    "--list",
    "is_list",
    is_flag=True,
    help="List the faults, what they need and what they leave behind.",
)
@click.option("--undo", "is_undo", is_flag=True, help="Undo what killed injectors left behind.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@click.option(
    "--yes", "-y", "yes", count=True, help="Don't ask; give it twice if there are two questions."
)
@click.option("--code", type=int, help="Exit code, XID or SXID.")
@click.option("--share", type=float, help="Share of a core, or of packets: 0 to 1.")
@click.option("--rate", "rate_bytes_per_s", type=RATE, help="Bytes per second, such as 10M.")
@click.option(
    "--most",
    "bytes_max",
    type=RATE,
    default=64e9,
    show_default="64G",
    help="Most bytes that a leak takes.",
)
@click.option(
    "--delay",
    "delay_s",
    type=DurationBetween(0, 10),
    help="How long to hold a packet.",
)
@click.option("--workers", type=int, default=1, show_default=True, help="Busy processes.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="ADDRESS",
    help="Address that a partition loses. Repeatable.",
)
@click.option("--mhz", type=int, help="Clock of a GPU.")
@click.option("--watts", type=int, help="Power limit of a GPU.")
@click.option(
    "--answer", metavar="KEY=VALUES", help="Answer of the stand-in for NVML, such as 0/lost=1."
)
@click.option("--device", metavar="PCI", help="PCI address of an XID's GPU, such as 0000:3b:00.0.")
@click.option(
    "--kmsg",
    "to_kernel",
    is_flag=True,
    help="Write an XID to the kernel's log, so that other programs see it too.",
)
@click.option(
    "--marks",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What root allows on this node. [default: /etc/rankmend/drills.toml]",
)
@click.option(
    "--undo-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with the faults to undo. "
    "[default: /var/lib/rankmend/inject for root, else in the state folder]",
)
@state_option
@json_option
def inject(
    fault: str | None,
    target: str | None,
    for_s: float,
    at_unix_s: float | None,
    is_list: bool,
    is_undo: bool,
    dry_run: bool,
    yes: int,
    marks: Path | None,
    undo_dir: Path | None,
    state_dir: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Cause FAULT on a target for a while, to see what rankmend does about it.

    Off by default: a job allows faults of its own processes with `rankmend run --drills`, and root allows all
    others on a node in /etc/rankmend/drills.toml. A fault ends after --for, with this command, or with its target
    process. If this command is killed, another process undoes the fault at once.

    Exit codes: 0 injected and undone, 1 not injected (the target does not exist) or not undone, 2 refused or wrong usage.
    """
    from recovery.lab.inject.marks_file import MARKS
    from recovery.lab.inject.session import InjectPlaces, undo_folder

    if is_list:
        _list(as_json=as_json)
        return
    try:
        state = find_state(state_dir)
        places = InjectPlaces(state, undo_folder(state, undo_dir), marks or MARKS)
        if is_undo:
            _undo(places, as_json=as_json)
            return
        if fault is None or target is None:
            raise ConfigError(
                "name the fault and its target: rankmend inject FAULT --on TARGET (--list)"
            )
        request = _request(fault, target, for_s, at_unix_s, options)
    except RankmendError as error:
        fail(str(error), _REFUSED)
    _inject(request, places, dry_run=dry_run, yes=yes, as_json=as_json)


def _request(
    fault: str, target: str, for_s: float, at_unix_s: float | None, options: dict[str, Any]
) -> "FaultRequest":
    from recovery.lab.inject.fault import FaultKind
    from recovery.lab.inject.request import FaultOptions, FaultRequest, check_request, parse_target

    known = {kind.value: kind for kind in FaultKind}
    if fault not in known:
        raise ConfigError(f"{fault!r:.80} is not a fault; the faults are {', '.join(known)}")
    request = FaultRequest(
        known[fault], parse_target(target), for_s, FaultOptions(**options), at_unix_s
    )
    check_request(request)
    return request


def _inject(
    request: "FaultRequest", places: "InjectPlaces", *, dry_run: bool, yes: int, as_json: bool
) -> None:
    from recovery.lab.inject.session import NotAllowedError, carry_out, prepare

    try:
        place, plan = prepare(request, places)
    except (NotAllowedError, ConfigError) as error:
        fail(str(error), _REFUSED)
    except RankmendError as error:
        fail(str(error), _FAILED)
    if dry_run:
        _show_plan(place, plan, as_json=as_json)
        return
    _confirm(place, plan, yes)
    try:
        made = carry_out(place, plan, places, lambda name: _print_in_force(request, name))
    except RankmendError as error:
        fail(str(error), _FAILED)
    _show(made, as_json=as_json)


def _print_in_force(request: "FaultRequest", injection_id: str) -> None:
    echo(
        f"rankmend: in force: {request.fault.value} on {request.target}, for {request.for_s:g} s ({injection_id})",
        err=True,
    )


def _confirm(place: "FaultPlace", plan: "FaultPlan", yes: int) -> None:
    """Ask once, or twice where a fault may not be undone or was never tried."""
    from recovery.lab.inject.acts.kernel_log import find_readers
    from recovery.lab.inject.fault import FACTS

    facts, request = FACTS[place.request.fault], place.request
    questions = [f"Make {request.fault.value} on {request.target} for {request.for_s:g} s?"]
    if request.options.to_kernel:
        readers = ", ".join(find_readers()) or "nobody that is seen from here"
        questions.append(
            f"The line stays in the kernel's log. Who reads that here: {readers}. They may drain or reboot this node. Write it?"
        )
    elif facts.asks_twice:
        questions.append("This was never tried on a real GPU. Do it anyway?")
    if yes == 0 and len(questions) == 1 and place.found.job is not None:
        return  # the job has said so
    for step in plan.steps if yes < len(questions) else ():
        echo(printable(f"  {step}"), err=True)
    for question in questions[yes:]:
        try:
            is_wanted = click.confirm(printable(question), err=True)
        except click.Abort:  # nobody can answer: there is no terminal
            is_wanted = False
        if not is_wanted:
            fail("nothing was done", _REFUSED)


def _show_plan(place: "FaultPlace", plan: "FaultPlan", *, as_json: bool) -> None:
    undo = [item.in_words() for item in reversed(plan.undo)]
    if plan.prepare is not None:
        undo.append("put back what was kept or saved")
    if plan.helper:
        undo.append("end the process that makes the fault")
    request = place.request
    if as_json:
        print_json(
            {
                "fault": request.fault.value, "target": str(request.target), "for_s": request.for_s,
                "is_dry_run": True, "steps": list(plan.steps), "undo": undo,
            }
        )  # fmt: skip
        return
    echo(f"would cause {request.fault.value} on {request.target} for {request.for_s:g} s:")
    for step in plan.steps:
        echo(printable(f"  {step}"))
    echo("and then:" if undo else "there is nothing to undo")
    for line in undo:
        echo(printable(f"  {line}"))


def _show(made: "Injected", *, as_json: bool) -> None:
    if as_json:
        print_json(made)
    elif made.ended_by == "at once":
        echo(f"{made.fault} on {made.target}: done")
    elif made.is_undone:
        echo(f"{made.fault} on {made.target}: undone (ended by: {made.ended_by})")
    for problem in made.problems:
        echo(printable(f"rankmend: {problem}"), err=True)
    if made.problems:
        echo("rankmend: try `rankmend inject --undo` again", err=True)
        raise SystemExit(_FAILED)


def _undo(places: "InjectPlaces", *, as_json: bool) -> None:
    from recovery.lab.inject.mending import mend_orphans

    mended: list[Mended] = mend_orphans(places.undo)
    standing = places.undo.standing()
    if as_json:
        print_json({"undone": mended, "standing": standing})
    else:
        for item in mended:
            if not item.problems:
                echo(f"undone: {item.fault} on {item.target} ({item.injection_id})")
        if not mended:
            echo("nothing was left to undo")
        living = [item for item in standing if item not in {done.injection_id for done in mended}]
        for name in living:
            echo(f"{name} is still active; its own supervisor will undo it")
    problems = [(item, problem) for item in mended for problem in item.problems]
    for item, problem in problems:
        echo(printable(f"rankmend: {item.injection_id}: {problem}"), err=True)
    if problems:
        raise SystemExit(_FAILED)


def _list(*, as_json: bool) -> None:
    from recovery.lab.inject.fault import FACTS

    if as_json:
        print_json(
            [
                {
                    "fault": fault.value, "group": facts.group.value, "summary": facts.summary,
                    "targets": [kind.value for kind in facts.targets], "needs": facts.needs,
                    "left": facts.left,
                }
                for fault, facts in FACTS.items()
            ]
        )  # fmt: skip
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("FAULT", "ON", "WHAT IT DOES", "NEEDS", "LEAVES"):
        table.add_column(name)
    for fault, facts in FACTS.items():
        on = ", ".join(kind.value for kind in facts.targets)
        table.add_row(fault.value, on, facts.summary, facts.needs, facts.left)
    console(is_wide=True).print(clean(table))
