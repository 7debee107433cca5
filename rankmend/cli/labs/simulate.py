"""`rankmend simulate`: what a cluster of thousands of GPUs would lose, by the real rules under a simulated clock."""

import logging
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli.options import fail, json_option, print_json
from rankmend.cli.output import echo_exact
from rankmend.cli.units import DURATION
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recovery.lab.simulation.campaign import Campaign, Faults
    from recovery.lab.simulation.planning import BestInterval, Study, Worth

_USAGE: Final = 2
_QUIET_S: Final = 1.0  # a simulation that takes longer shows how far it is
_CLEAR_LINE: Final = "\r\x1b[K"
_SPARES_RATIO: Final = 0.02  # the least that vendors advise (docs/use/simulate.md)
_DAYS: Final = 54.0
_WATCHED: Final = 400  # nodes of the StepFun trace, of which 231 had faults

Progress = Callable[[str], Callable[[int, int], None]]


class _Spares(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3
    """A number of nodes, or the availability that they are for."""

    name = "number or percentage"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> "int | float":
        text = str(value).strip()
        try:
            if text.endswith("%"):
                ratio = float(text[:-1]) / 100.0
                if 0 < ratio < 1:
                    return ratio
            elif int(text) >= 0:
                return int(text)
        except ValueError:
            pass
        return self.fail(f"{text!r} is neither a number of nodes nor an availability such as 99.9%")


class _Interval(click.ParamType):  # type: ignore[type-arg]
    """A duration, or ``auto``."""

    name = "duration or auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> "float | str":
        return "auto" if value == "auto" else DURATION.convert(value, param, ctx)


@click.command(
    epilog="""\b
Examples:
  rankmend simulate --gpus 16384 --days 54
  rankmend simulate --gpus 100000 --days 7 --rates rsc --seeds 3
  rankmend simulate --gpus 16384 --spares 99.9%
  rankmend simulate --gpus 16384 --interval auto --snapshots auto
  rankmend simulate --gpus 16384 --what-if mttr=60s --what-if detect=5s
  rankmend simulate --gpus 3072 --trace fault_trace.json --policy policy.toml
"""
)
@click.option("--gpus", type=int, default=16384, show_default=True, help="GPUs of the job.")
@click.option(
    "--days", type=float, help="Days to simulate. [default: 54; with --trace, the trace's]"
)
@click.option("--gpus-per-node", type=int, default=8, show_default=True, help="GPUs of a node.")
@click.option(
    "--rates",
    metavar="NAME|FILE",
    default="llama3",
    show_default=True,
    help="Failure rates: llama3, rsc, byterobust, or a TOML file.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Replay a recorded trace of node faults instead: JSON of StepFun's InfiniteHBD trace.",
)
@click.option(
    "--trace-nodes",
    type=int,
    default=_WATCHED,
    show_default=True,
    help="Nodes that the trace covers, including those without a fault.",
)
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Use this controller policy. [default: the built-in limits]",
)
@click.option(
    "--spares",
    type=_Spares(),
    metavar="N|PERCENT",
    help="Number of spare nodes, or an availability to find that number for: 99.9%. "
    "[default: 2 % of the nodes]",
)
@click.option(
    "--nodes-min",
    type=int,
    help="Let the job continue on as few as this many nodes. [default: all]",
)
@click.option(
    "--interval",
    type=_Interval(),
    metavar="DURATION|auto",
    help="Time between checkpoints; auto finds the best. [default: 10m]",
)
@click.option(
    "--snapshots",
    type=_Interval(),
    metavar="DURATION|auto",
    help="Time between snapshots in memory; auto finds the best. [default: none]",
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="NAME=VALUE",
    help="Show what a change is worth: mttr=60s, detect=5s, interval=5m, snapshots=30s, or an assumption. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an assumption, such as save_stall_s=20. Repeatable.",
)
@click.option(
    "--seeds",
    type=int,
    default=5,
    show_default=True,
    help="Number of runs, each with different faults.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the first run.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a picture (needs matplotlib).",
)
@json_option
def simulate(as_json: bool, plot: Path | None, **options: Any) -> None:
    """Simulate a large job for months, and show what it would lose.

    Faults are drawn from published rates or replayed from a trace. rankmend's own policy, planner
    and budgets decide what to do about each fault. How long that takes is measured or published.
    Shows effective training time (ETTR), MTTR by phase and lost GPU-hours by cause, each with its 10th, 50th and 90th percentile over the seeds.
    It starts nothing and uses no network.
    """
    try:
        pyplot = _load_pyplot() if plot else None
        with _progress() as progress:
            study = _study(options, progress)
    except RankmendError as error:
        fail(str(error), _USAGE)
    from rankmend.cli.labs.simulate_tables import plain, show

    if plot is not None:
        from rankmend.cli.labs.simulate_plot import write_plot

        try:
            write_plot(plot, pyplot, study)
        except (OSError, ValueError) as error:
            fail(f"can't write {plot}: {error}", _USAGE)
    if as_json:
        print_json(plain(study))
    else:
        show(study)


@contextmanager
def _progress() -> "Iterator[Progress]":
    """Show on a terminal how far a long simulation is; keep the cluster's own log quiet."""
    log = logging.getLogger("recovery.controller.cluster.cluster")
    before, began_s, is_shown = log.level, time.monotonic(), False
    log.setLevel(logging.ERROR)  # it would name each node that is held back

    def begin(what: str) -> Callable[[int, int], None]:
        def tell(done: int, total: int) -> None:
            nonlocal is_shown
            if sys.stderr.isatty() and time.monotonic() - began_s > _QUIET_S:
                echo_exact(f"{_CLEAR_LINE}{what}: {done} of {total}", err=True, nl=False)
                is_shown = True

        return tell

    try:
        yield begin
    finally:
        log.setLevel(before)
        if is_shown:
            echo_exact(_CLEAR_LINE, err=True, nl=False)


def _study(options: dict[str, Any], progress: Progress) -> "Study":
    """Return all that was requested."""
    from recovery.controller.cluster.cluster_limits_file import read_policy_file
    from recovery.lab.simulation import planning
    from recovery.lab.simulation.assumptions import Assumptions, Setup
    from recovery.lab.simulation.campaign import Campaign
    from recovery.lab.simulation.job import NAME, Rules
    from recovery.lab.simulation.planning import Study

    assumptions = Assumptions()
    for text in options["settings"]:
        assumptions = planning.change(assumptions, text, ())
    for text in options["what_if"]:  # before a minute of simulation
        planning.check_change(assumptions, text)
    for option, name in (("interval", "interval_s"), ("snapshots", "snapshot_interval_s")):
        if isinstance(options[option], float):
            assumptions = replace(assumptions, **{name: options[option]})
    seeds = range(options["seed"], options["seed"] + max(0, min(options["seeds"], 1001)))
    file = read_policy_file(options["policy_path"])
    rules = Rules(file.policy_for(NAME), file.cluster)
    setup, make_faults, source = _source(options)

    def rebuild(changed: Assumptions, of: "Setup | None" = None) -> "Campaign":
        wanted = of or setup
        return Campaign(wanted, changed, rules, make_faults(wanted, changed))

    availability = options["spares"] if isinstance(options["spares"], float) else None
    if availability is not None:
        ample = replace(setup, spares=-(-setup.nodes * 15 // 100))
        outcomes = rebuild(assumptions, ample).run(seeds, progress("spares"))
        wanted = max(planning.spares_for([outcome], availability) for outcome in outcomes)
        setup = replace(setup, spares=wanted)
    best: list[BestInterval] = []
    outcomes = rebuild(assumptions).run(seeds, progress("runs"))
    for option, tier, name in (
        ("snapshots", "memory", "snapshot_interval_s"),
        ("interval", "storage", "interval_s"),
    ):
        if options[option] == "auto":
            tried = progress(f"intervals of {tier}")
            found = planning.find_interval(tier, assumptions, outcomes, rebuild, seeds, tried)
            best.append(found)
            assumptions = replace(assumptions, **{name: found.best_s})
    if best:
        outcomes = rebuild(assumptions).run(seeds, progress("runs"))
    worth: list[Worth] = []
    for text in options["what_if"]:
        changed = planning.change(assumptions, text, outcomes)
        better = rebuild(changed).run(seeds, progress(text))
        worth.append(planning.worth_of(text, outcomes, better))
    return Study(
        setup, assumptions, source, tuple(seeds), tuple(outcomes), tuple(best), tuple(worth),
        availability,
    )  # fmt: skip


def _source(options: dict[str, Any]) -> "tuple[Any, Callable[..., Faults], str]":
    """Return the job, what makes its faults, and where these are from in words."""
    from random import Random

    from recovery.lab.simulation.assumptions import Setup
    from recovery.lab.simulation.campaign import drawn
    from recovery.lab.simulation.rate_table import read_rates
    from recovery.lab.simulation.trace import read_trace, replay

    trace = None if options["trace"] is None else read_trace(options["trace"])
    days = options["days"]
    if days is None:
        days = _DAYS if trace is None else trace.days
    per_node = max(1, options["gpus_per_node"])
    spares = options["spares"]
    if not isinstance(spares, int):
        spares = max(1, round(_SPARES_RATIO * options["gpus"] / per_node))
    setup = Setup(options["gpus"], days, options["gpus_per_node"], spares, options["nodes_min"])
    if trace is not None:
        watched = options["trace_nodes"]
        text = f"{options['trace'].name}: {len(trace.faults)} faults of {watched} nodes in {trace.days:.0f} days"
        return (
            setup,
            lambda of, _assumed: lambda seed: replay(trace, watched, of, Random(seed)),  # noqa: S311
            text,
        )
    rates = read_rates(options["rates"])
    return setup, lambda of, assumed: drawn(rates, of, assumed), f"{rates.title} ({rates.source})"


def _load_pyplot() -> Any:
    from importlib import import_module

    from rankmend.packages import Extra, require

    require(Extra.PLOT, "--plot")
    import_module("matplotlib").use("Agg")
    return import_module("matplotlib.pyplot")
