"""Draws a moving picture of a killed rank from a run of bench/restart.py, at the speed of the clock.

    python bench/restart.py --ranks 4 --rounds 3 --peers rankmend,torchrun --output results/kill.json
    python bench/kill_picture.py results/kill.json docs/operate/kill.svg

Each launcher has a row of ranks. They train, one is killed, all of them stand still until the next step. The
duration of the standstill is the median of the run's first kills. Without animation the picture shows the figures.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TRAINS_S: Final = 1.5  # before the kill
STAYS_S: Final = 3.0  # after the slowest launcher's next step
WIDTH: Final = 760
ROW: Final = 64
BAR_AT: Final = 330  # x of the standstill's bar
BAR_WIDTH: Final = 330
GREEN, RED, GREY = "#2e9e5b", "#d03a3a", "#c4c9d0"


@dataclass(frozen=True, slots=True)
class Row:
    peer: str
    stands_s: float  # from the kill to the next step
    killed_rank: int


def rows_of(report: dict[str, Any]) -> list[Row]:
    """Return a row for each launcher that recovered. Raises ValueError if none did."""
    rows = [
        Row(str(median["peer"]), float(median["first_step_s"]), int(trial["killed_rank"]))
        for median in report["medians"]
        for trial in report["trials"][:1]
        if median["kill"] == 1 and median["first_step_s"] is not None
    ]
    if not rows:
        raise ValueError("no launcher of this run recovered from its first kill")
    return rows


def picture(rows: list[Row], ranks: int, machine: str) -> str:
    """Return an SVG whose loop is as long as the slowest standstill, and the time around it."""
    slowest_s = max(row.stands_s for row in rows)
    loop_s = TRAINS_S + slowest_s + STAYS_S
    height = 40 + ROW * len(rows) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="15">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<text x="20" y="26" fill="#333">kill -9 of one of {ranks} ranks, until the job trains again</text>',
    ]
    for number, row in enumerate(rows):
        parts += _row(row, ranks, 40 + ROW * number, loop_s, slowest_s)
    parts.append(
        f'<text x="20" y="{height - 10}" font-size="12" fill="#777">{machine}; medians; '
        "bench/kill_picture.py</text></svg>"
    )
    return "\n".join(parts) + "\n"


def _row(row: Row, ranks: int, top: int, loop_s: float, slowest_s: float) -> list[str]:
    killed = TRAINS_S / loop_s
    back = (TRAINS_S + row.stands_s) / loop_s
    width = BAR_WIDTH * row.stands_s / slowest_s
    parts = [f'<text x="20" y="{top + 34}" fill="#111" font-weight="600">{row.peer}</text>']
    for rank in range(ranks):
        colour = RED if rank == row.killed_rank else GREY
        parts.append(
            f'<rect x="{130 + rank * 22}" y="{top + 20}" width="18" height="18" rx="3" fill="{GREEN}">'
            f"{_animate('fill', (GREEN, colour, GREEN), (0, killed, back), loop_s, 'discrete')}</rect>"
        )
    bar = _animate("width", (0, 0, width, width), (0, killed, back, 1), loop_s, "linear")
    shown = _animate("opacity", (0, 1), (0, back), loop_s, "discrete")
    return [
        *parts,
        f'<rect x="{BAR_AT}" y="{top + 24}" height="10" rx="2" width="{width:.1f}" fill="{RED}">{bar}</rect>',
        f'<text x="{BAR_AT + width + 10:.1f}" y="{top + 34}" fill="#111">{row.stands_s:.2f} s{shown}</text>',
    ]


def _animate(
    name: str, values: tuple[object, ...], times: tuple[float, ...], loop_s: float, mode: str
) -> str:
    texts = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in values)
    return (
        f'<animate attributeName="{name}" values="{";".join(texts)}" '
        f'keyTimes="{";".join(f"{time:.4f}" for time in times)}" dur="{loop_s:.2f}s" '
        f'calcMode="{mode}" repeatCount="indefinite"/>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("report", type=Path, help="what bench/restart.py --output wrote")
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    report = json.loads(options.report.read_text(encoding="utf-8"))
    try:
        rows = rows_of(report)
    except ValueError as error:
        sys.exit(f"{options.report}: {error}")
    machine = report["machine"]
    caption = f"{machine['cores']} cores, gloo, torch {machine['torch']}"
    ranks = int(report.get("ranks", 4))
    options.picture.write_text(picture(rows, ranks, caption), encoding="utf-8")


if __name__ == "__main__":
    main()
