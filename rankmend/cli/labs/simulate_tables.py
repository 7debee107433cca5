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
        "ettr_ratio": asdict(spread(one.ettr_ratio for one in outcomes)),
        "incidents": asdict(spread(one.incidents for one in outcomes)),
        "mttr_s": _mttr(study),
        "mttr_phases_s": _dicts(phase_means(outcomes, [part.value for part in PHASES])),
        "parts_ratio": _dicts(total_parts(outcomes)),
        "lost_gpu_hours": _dicts(losses(outcomes)),
        "lost_gpu_hours_total": asdict(spread(one.lost_gpu_hours_total for one in outcomes)),
        "nodes_left": asdict(spread(one.moves for one in outcomes)),
        "given_up": asdict(spread(one.escalations for one in outcomes)),
        "availability_ratio": asdict(spread(one.availability_ratio for one in outcomes)),
        "spares_wanted_for_ratio": study.availability_ratio,
        "spares_for": _spares_for(study),
        "intervals": [asdict(one) | {"best_s": one.best_s} for one in study.intervals],
        "what_if": [asdict(one) for one in study.worth],
        "runs": [asdict(one) | {"ettr_ratio": one.ettr_ratio} for one in outcomes],
    }


def _dicts(spreads: "Mapping[str, Spread]") -> dict[str, Any]:
    return {name: asdict(one) for name, one in spreads.items()}


def _mttr(study: "Study") -> dict[str, float] | None:
    from recovery.lab.simulation.campaign import spread

    means = [one.mttr_s for one in study.outcomes if one.mttr_s is not None]
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
        spread(one.ettr_ratio for one in outcomes),
        _percent,
    )
    _row(table, "incidents", spread(one.incidents for one in outcomes), _whole)
    means = [one.mttr_s for one in outcomes if one.mttr_s is not None]
    if means:
        _row(table, "MTTR, mean of a run, s", spread(means), _one)
    _row(table, "lost GPU-hours", spread(one.lost_gpu_hours_total for one in outcomes), _whole)
    _row(table, "nodes left", spread(one.moves for one in outcomes), _whole)
    _row(
        table,
        "given up, started again by a person",
        spread(one.escalations for one in outcomes),
        _whole,
    )
    _row(table, "enough usable nodes", spread(one.availability_ratio for one in outcomes), _percent)
    out.print(table)
    table = _table("share of the time", "10 %", "median", "90 %")
    for name, one in sorted(total_parts(outcomes).items(), key=lambda pair: -pair[1].p50):
        _row(table, name, one, _percent)
    out.print(table)
    table = _table("phase of MTTR, s an incident", "10 %", "median", "90 %")
    for name, one in phase_means(outcomes, [part.value for part in PHASES]).items():
        _row(table, name, one, _one)
    out.print(table)
    table = _table("lost GPU-hours by cause", "10 %", "median", "90 %")
    found = losses(outcomes)
    for name, one in list(found.items())[:_CAUSES_SHOWN]:
        _row(table, name, one, _whole)
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
        for one in study.worth:
            won = one.gpu_hours
            cells = (_whole(won.p10), _whole(won.p50), _whole(won.p90))
            table.add_row(one.what, _percent(one.ettr.p50), *cells)
        out.print(table)


def _interval_table(best: "BestInterval") -> "Table":
    table = _table(f"interval of the {best.tier} tier, s", "ETTR, 10 %", "median", "90 %", "")
    for one in best.measured:
        mark = "best" if one.interval_s == best.best_s else ""
        table.add_row(
            _one(one.interval_s), _percent(one.ettr.p10), _percent(one.ettr.p50),
            _percent(one.ettr.p90), mark,
        )  # fmt: skip
    return table


def _table(*names: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _row(table: "Table", name: str, one: "Spread", form: Callable[[float], str]) -> None:
    table.add_row(name, form(one.p10), form(one.p50), form(one.p90))


def _percent(ratio: float) -> str:
    return f"{ratio:.2%}"


def _one(value: float) -> str:
    return f"{value:.1f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"
