"""The tables and the JSON of `rankmend simulate`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rankmend.cli.sources.controller_options import console

if TYPE_CHECKING:
    from rich.table import Table

    from recovery.lab.simulation.campaign import Spread
    from recovery.lab.simulation.planning import BestInterval, Study

_CAUSES_SHOWN: Final = 15


def plain(study: "Study") -> dict[str, Any]:
    """Return the study as JSON takes it. Times in seconds, ratios from 0 to 1."""
    from recovery.lab.simulation.campaign import losses, phase_means, spread, total_parts
    from recovery.lab.simulation.outcome import PHASES

    outcomes = study.outcomes
    return {
        "setup": asdict(study.setup),
        "faults": study.source,
        "seeds": list(study.seeds),
        "assumptions": asdict(study.assumptions),
        "ettr_ratio": asdict(spread(outcome.ettr_ratio for outcome in outcomes)),
        "incidents": asdict(spread(outcome.incidents for outcome in outcomes)),
        "mttr_s": _mttr(study),
        "mttr_phases_s": _dicts(phase_means(outcomes, [part.value for part in PHASES])),
        "parts_ratio": _dicts(total_parts(outcomes)),
        "lost_gpu_hours": _dicts(losses(outcomes)),
        "lost_gpu_hours_total": asdict(
            spread(outcome.lost_gpu_hours_total for outcome in outcomes)
        ),
        "nodes_left": asdict(spread(outcome.moves for outcome in outcomes)),
        "given_up": asdict(spread(outcome.escalations for outcome in outcomes)),
        "availability_ratio": asdict(spread(outcome.availability_ratio for outcome in outcomes)),
        "spares_wanted_for_ratio": study.availability_ratio,
        "spares_for": _spares_for(study),
        "intervals": [
            asdict(interval) | {"best_s": interval.best_s} for interval in study.intervals
        ],
        "what_if": [asdict(worth) for worth in study.worth],
        "runs": [asdict(outcome) | {"ettr_ratio": outcome.ettr_ratio} for outcome in outcomes],
    }


def _dicts(spreads: "Mapping[str, Spread]") -> dict[str, Any]:
    return {name: asdict(item) for name, item in spreads.items()}


def _mttr(study: "Study") -> dict[str, float] | None:
    from recovery.lab.simulation.campaign import spread

    means = [outcome.mttr_s for outcome in study.outcomes if outcome.mttr_s is not None]
    return asdict(spread(means)) if means else None


def _spares_for(study: "Study") -> dict[str, int]:
    """Return how many spares give some availabilities, as far as the simulated nodes were enough."""
    from recovery.lab.simulation.planning import spares_for

    found = {f"{ratio:.2%}": spares_for(study.outcomes, ratio) for ratio in (0.9, 0.99, 0.999)}
    return {name: count for name, count in found.items() if count <= study.setup.spares}


def show(study: "Study") -> None:
    """Print the tables."""
    from recovery.lab.simulation.campaign import losses, phase_means, spread, total_parts
    from recovery.lab.simulation.outcome import PHASES

    out, outcomes, setup = console(), study.outcomes, study.setup
    count = len(study.seeds)
    out.print(
        f"{setup.gpus:,} GPUs ({setup.nodes:,} nodes and {setup.spares} spares), {setup.days:g} days, "
        f"{count} {'run' if count == 1 else 'runs'} from seed {study.seeds[0]}"
    )
    out.print(f"faults: {study.source}")
    table = _table("", "10 %", "median", "90 %")
    _row(
        table,
        "effective training time (ETTR)",
        spread(outcome.ettr_ratio for outcome in outcomes),
        _percent,
    )
    _row(table, "incidents", spread(outcome.incidents for outcome in outcomes), _whole)
    means = [outcome.mttr_s for outcome in outcomes if outcome.mttr_s is not None]
    if means:
        _row(table, "MTTR, mean of a run, s", spread(means), _one)
    _row(
        table,
        "lost GPU-hours",
        spread(outcome.lost_gpu_hours_total for outcome in outcomes),
        _whole,
    )
    _row(table, "nodes left", spread(outcome.moves for outcome in outcomes), _whole)
    _row(
        table,
        "given up, started again by a person",
        spread(outcome.escalations for outcome in outcomes),
        _whole,
    )
    _row(
        table,
        "enough usable nodes",
        spread(outcome.availability_ratio for outcome in outcomes),
        _percent,
    )
    out.print(table)
    table = _table("share of the time", "10 %", "median", "90 %")
    for name, item in sorted(total_parts(outcomes).items(), key=lambda pair: -pair[1].p50):
        _row(table, name, item, _percent)
    out.print(table)
    table = _table("phase of MTTR, s an incident", "10 %", "median", "90 %")
    for name, item in phase_means(outcomes, [part.value for part in PHASES]).items():
        _row(table, name, item, _one)
    out.print(table)
    table = _table("lost GPU-hours by cause", "10 %", "median", "90 %")
    found = losses(outcomes)
    for name, item in list(found.items())[:_CAUSES_SHOWN]:
        _row(table, name, item, _whole)
    out.print(table)
    if len(found) > _CAUSES_SHOWN:
        out.print(f"and {len(found) - _CAUSES_SHOWN} more causes (--json)")
    _show_plans(study, out)


def _show_plans(study: "Study", out: Any) -> None:
    if study.availability_ratio is not None:
        out.print(
            f"{study.setup.spares} spares keep enough nodes usable for {study.availability_ratio:.2%} of the time"
        )
    for best in study.intervals:
        out.print(_interval_table(best))
        out.print(
            f"{best.tier}: Young {best.young_s:.0f} s, Daly {best.daly_s:.0f} s, at a stall of {best.stall_s:g} s "
            f"and one failure per {best.failure_interval_s / 3600:.2f} h; the tables above are of the best one"
        )
    if study.worth:
        table = _table("what if", "ETTR, median", "GPU-hours won: 10 %", "median", "90 %")
        for worth in study.worth:
            won = worth.gpu_hours
            cells = (_whole(won.p10), _whole(won.p50), _whole(won.p90))
            table.add_row(worth.what, _percent(worth.ettr.p50), *cells)
        out.print(table)


def _interval_table(best: "BestInterval") -> "Table":
    table = _table(f"interval of the {best.tier} tier, s", "ETTR, 10 %", "median", "90 %", "")
    for interval in best.measured:
        mark = "best" if interval.interval_s == best.best_s else ""
        table.add_row(
            _one(interval.interval_s), _percent(interval.ettr.p10), _percent(interval.ettr.p50),
            _percent(interval.ettr.p90), mark,
        )  # fmt: skip
    return table


def _table(*names: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _row(table: "Table", name: str, item: "Spread", form: Callable[[float], str]) -> None:
    table.add_row(name, form(item.p10), form(item.p50), form(item.p90))


def _percent(ratio: float) -> str:
    return f"{ratio:.2%}"


def _one(value: float) -> str:
    return f"{value:.1f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"
