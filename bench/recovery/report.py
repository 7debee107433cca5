"""What the recovery benchmark shows: medians, a table, and a plot. All of them come from the saved report alone."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.restart import Outcome, Trial
from bench.restart_table import account_names, summarize

TABLE_COLUMNS_MAX = (
    240  # of a terminal or file: a row of the table is one line, so that it can be pasted
)
MARKS = ("o", "s", "D")  # first, second and last kill
BASELINE = "torchrun"
COLOURS = ("#0b6e4f", "#e08e45", "#7a4988")


class Beside(StrEnum):
    """What else runs on the machine during a run."""

    QUIET = "quiet"
    STRESS_NG = "stress-ng"


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run of one launcher. ``outcome`` is None where the job never trained; then ``failure`` says why."""

    round_number: int
    ranks: int
    peer: str
    kills: int  # that were meant
    took_s: float
    outcome: Outcome | None
    failure: str = ""
    beside: Beside = Beside.QUIET


def make_report(
    about: Mapping[str, Any], missing: Mapping[str, str], runs: Sequence[BenchRun]
) -> dict[str, Any]:
    """Return what is saved. ``about``: the machine, the versions and what was asked for."""
    kinds: dict[tuple[int, Beside, str], list[BenchRun]] = {}
    for run in runs:
        kinds.setdefault((run.ranks, run.beside, run.peer), []).append(run)
    medians = [
        _median_row(ranks, beside, peer, mine)
        for (ranks, beside, peer), mine in sorted(kinds.items(), key=lambda kind: kind[0][:2])
    ]
    saved = [asdict(run) for run in runs]
    return {**about, "missing": dict(missing), "medians": medians, "runs": saved}


def _median_row(ranks: int, beside: Beside, peer: str, runs: Sequence[BenchRun]) -> dict[str, Any]:
    good = [run.outcome for run in runs if run.outcome is not None]
    trials: list[Trial] = [trial for outcome in good for trial in outcome.trials]

    def median(name: str) -> float | None:
        values = [value for one in good if (value := getattr(one, name)) is not None]
        return statistics.median(values) if values else None

    return {
        "ranks": ranks,
        "beside": beside,
        "peer": peer,
        "runs": len(runs),
        "asked": sum(run.kills for run in runs),
        "recovered": sum(trial.is_recovered for trial in trials),
        "settle_s": median("settle_s"),
        "pss_bytes": median("pss_bytes"),
        "processes": median("processes"),
        "kills": summarize([peer], trials),
        "failures": list(dict.fromkeys(run.failure for run in runs if run.failure)),
    }


def beside_of(row: Mapping[str, Any]) -> Beside:
    """Return what ran beside the runs of a row; reports from before there was a choice have only quiet ones."""
    return Beside(row.get("beside", Beside.QUIET))


def shown_kills(report: Mapping[str, Any]) -> list[int]:
    """Return the first, the second and the last kill."""
    last = report["asked"]["kills"]
    return sorted({1, min(2, last), last})


def say_medians(report: Mapping[str, Any]) -> str:
    """Return in words of how many runs the medians are: an interrupted round has not measured all."""
    counts = sorted({row["runs"] for row in report["medians"]})
    runs = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    asked = report["asked"]
    long_rounds = asked.get("long_rounds") or asked["rounds"]
    last = f" ({long_rounds} of kill {asked['kills']})" if long_rounds < counts[0] else ""
    return f"medians of {runs} runs{last}"


def print_report(report: Mapping[str, Any], console: Console) -> None:
    machine = report["machine"]
    console.print(
        f"\n{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python"
        f" {machine['python']}, torch {machine['torch']}, load {machine['load_1_min']:.1f} at the start\n"
        f"{', '.join(f'{name} {version}' for name, version in report['versions'].items())}\n\n"
        f"Seconds from kill -9 of a rank to the next step (to a step of all ranks), {say_medians(report)}."
        f" Memory: PSS of all processes in steady training, after the last kill.\n"
    )
    console.print(_recovery_table(report))
    for row in report["medians"]:
        for failure in row["failures"]:
            console.print(f"\n{row['peer']}, {row['ranks']} ranks: {failure}", markup=False)
    accounts = _account_table(report)
    if accounts is not None:
        console.print("\nSeconds that each phase took by rankmend's own account, medians\n")
        console.print(accounts)


def _recovery_table(report: Mapping[str, Any]) -> Table:
    kills = shown_kills(report)
    table = Table(box=box.MARKDOWN)
    times = [f"kill {kill}" for kill in kills]
    heads = ("ranks", "beside", "launcher", "recovered", *times, f"{BASELINE} takes", "memory")
    for name in heads:
        is_text = name in ("beside", "launcher")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for row in report["medians"]:
        by_kill = {one["kill"]: one for one in row["kills"]}
        table.add_row(
            str(row["ranks"]),
            beside_of(row).value,
            row["peer"],
            f"{row['recovered']}/{row['asked']}",
            *(_seconds(by_kill.get(kill)) for kill in kills),
            _times_as_long(report, row, by_kill),
            _memory(row),
        )
    for peer, reason in report["missing"].items():
        empty = ["-"] * (len(table.columns) - 3)
        table.add_row("-", "-", f"{peer}: not run, {escape(reason)}", *empty)
    return table


def _seconds(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "not reached"
    if row["first_step_s"] is None:
        return "never"
    return f"{row['first_step_s']:.2f} ({row['all_ranks_s']:.2f})"


def _times_as_long(
    report: Mapping[str, Any], own: Mapping[str, Any], by_kill: Mapping[int, Mapping[str, Any]]
) -> str:
    """Return how many times as long the baseline takes beside the same, for each kill shown."""
    theirs = {
        one["kill"]: one["first_step_s"]
        for row in report["medians"]
        if row["ranks"] == own["ranks"]
        and beside_of(row) is beside_of(own)
        and row["peer"] == BASELINE
        for one in row["kills"]
    }
    told = []
    for kill in shown_kills(report):
        their_s, our_s = theirs.get(kill), by_kill.get(kill, {}).get("first_step_s")
        told.append(f"{their_s / our_s:.1f} x" if their_s and our_s else "-")
    return ", ".join(told)


def _memory(row: Mapping[str, Any]) -> str:
    if row["pss_bytes"] is None:
        return "-"
    return f"{row['pss_bytes'] / 2**20:.0f} MiB in {row['processes']:.0f} processes"


def _account_table(report: Mapping[str, Any]) -> Table | None:
    rows = [
        {**one, "ranks": row["ranks"], "beside": beside_of(row).value}
        for row in report["medians"]
        for one in row["kills"]
        if one["account"] and one["kill"] in shown_kills(report)
    ]
    names = account_names(rows)
    if not names:
        return None
    table = Table(box=box.MARKDOWN)
    heads = [name.removesuffix("_s").replace("_", " ") for name in names]
    for name in ("ranks", "beside", "launcher", "kill", *heads):
        is_text = name in ("beside", "launcher")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        times = [row["account"].get(name) for name in names]
        cells = ["-" if time_s is None else f"{time_s:.3f}" for time_s in times]
        table.add_row(str(row["ranks"]), row["beside"], row["peer"], str(row["kill"]), *cells)
    return table


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw a panel for each size of the job and what ran beside it; the same report makes the same file."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "rankmend", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    cells = list(dict.fromkeys((row["ranks"], beside_of(row)) for row in report["medians"]))
    peers = list(dict.fromkeys(row["peer"] for row in report["medians"]))
    figure, panels = plt.subplots(
        *(1, len(cells)),
        figsize=(2.2 + 2.8 * len(cells), 1.3 + 0.32 * len(peers)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, cell in zip(panels[0], cells, strict=True):
        for row in report["medians"]:
            if (row["ranks"], beside_of(row)) == cell:
                _draw_row(panel, row, peers.index(row["peer"]), shown_kills(report))
        ranks, beside = cell
        said = "" if beside is Beside.QUIET else f" beside {beside.value}"
        panel.set_title(f"{ranks} ranks{said}", fontsize=10)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g} s")
        panel.grid(axis="x", which="both", color="#dddddd", linewidth=0.5)
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    panels[0][0].set_yticks(range(len(peers)), peers)
    panels[0][0].set_ylim(len(peers) - 0.4, -0.6)
    marks = [
        plt.Line2D([], [], marker=mark, color=colour, linestyle="none", label=f"kill {kill}")
        for kill, mark, colour in zip(shown_kills(report), MARKS, COLOURS, strict=False)
    ]
    figure.legend(handles=marks, loc="outside upper right", ncols=len(marks), frameon=False)
    figure.supxlabel(
        "from kill -9 of a rank to the next step (mark) and to a step of all ranks (end of the line),"
        f" {say_medians(report)}",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _draw_row(panel: Any, row: Mapping[str, Any], place: int, kills: Sequence[int]) -> None:
    by_kill = {one["kill"]: one for one in row["kills"]}
    for number, (kill, mark, colour) in enumerate(zip(kills, MARKS, COLOURS, strict=False)):
        one = by_kill.get(kill)
        if one is None or one["first_step_s"] is None:
            continue
        height = place + 0.22 * (number - (len(kills) - 1) / 2)
        panel.plot(
            [one["first_step_s"], one["all_ranks_s"]], [height, height], color=colour, linewidth=1.2
        )
        panel.plot(one["first_step_s"], height, marker=mark, color=colour, markersize=4.5)
