"""The output of `rankmend diagnose slow` for people: words, a heat map, a picture."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmend.cli import output
from rankmend.cli.options import fail
from rankmend.errors import StorageError
from rankmend.files import write_output

if TYPE_CHECKING:
    from detectors.slow.explanation import SlowExplanation
    from detectors.slow.work_table import SlowDiagnosis, WorkTable

MAP_ROWS_MAX = 32
MAP_COLUMNS_MAX = 72
_SHADES = " .:-=+*#%@"
_HOT_RATIO = 1.5  # the end of the colour scale


def _heat(table: "WorkTable", rows_max: int, columns_max: int, first: Sequence[int]) -> Any:
    """Return rows and the ratios to show: suspects first, steps in blocks of equal size."""
    import numpy as np

    from detectors.slow.peers import group_rows, log_ratios
    from detectors.slow.work_table import total_work

    groups = group_rows([worker.peers for worker in table.workers])
    ratios = np.exp(log_ratios(total_work(table), groups))
    if not table.does_same_work:  # against the own usual place among unequal workers
        with np.errstate(invalid="ignore"):
            ratios = ratios / np.nanmedian(ratios, axis=1, keepdims=True)
    rest = [row for row in range(len(ratios)) if row not in set(first)]
    rows = [*first, *rest][:rows_max]
    if len(rows) == len(ratios):
        rows.sort()
    width = -(-ratios.shape[1] // columns_max)
    blocks = [ratios[rows, at : at + width] for at in range(0, ratios.shape[1], width)]
    filled = [np.nan_to_num(block, nan=1.0) for block in blocks]
    return rows, np.stack([np.median(block, axis=1) for block in filled], axis=1), width


def print_slow(
    table: "WorkTable", found: "SlowDiagnosis", explanations: "Sequence[SlowExplanation]"
) -> None:
    from rich.text import Text

    console = output.console()
    style = "bold red" if found.culprits else "bold"
    console.print(Text(found.explanation, style=style), soft_wrap=True)
    for line in found.evidence:
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    console.print(Text(f"  confidence {found.confidence:.2f}", style="dim"))
    for explanation in explanations:
        console.print(Text(explanation.reason, style="bold"), soft_wrap=True)
        for cause in explanation.causes:
            reported = f"  {cause.cause} ({cause.confidence:.2f}), action {cause.action.value}"
            console.print(Text(reported), soft_wrap=True)
            for shown in cause.evidence:
                console.print(
                    Text(f"    {shown.source}: {shown.text}", style="dim"), soft_wrap=True
                )
        if explanation.missing:
            reported = f"  not measured: {', '.join(explanation.missing)}"
            console.print(Text(reported, style="dim"), soft_wrap=True)
    suspects = [suspect.row for suspect in found.suspects]
    rows, ratios, width = _heat(table, MAP_ROWS_MAX, MAP_COLUMNS_MAX, suspects)
    console.print()
    labels = [table.workers[row].name() for row in rows]
    margin = max(len(label) for label in labels)
    for row, label, values in zip(rows, labels, ratios, strict=True):
        drawn = Text(f"{label:>{margin}} ", style="bold" if row in suspects else "")
        for value in values:
            drawn.append(_shade(value), style=_style(value))
        console.print(drawn, soft_wrap=True)
    block = f", a column is the median of {width} steps" if width > 1 else ""
    hidden = len(table.workers) - len(rows)
    more = f"; {hidden} more workers are not shown" if hidden else ""
    scale = f"time against the peers: '{_SHADES[0]}' 1.0 or less to '{_SHADES[-1]}' {_HOT_RATIO}"
    console.print(
        Text(f"steps {table.steps[0]} to {table.steps[-1]}{block}; {scale}{more}", style="dim"),
        soft_wrap=True,
    )


def _level(ratio: float) -> float:
    """Return a ratio's place on the scale: 0 is as fast as the peers, 1 the end."""
    return min(1.0, max(0.0, (ratio - 1.0) / (_HOT_RATIO - 1.0)))


def _shade(ratio: float) -> str:
    return _SHADES[round(_level(ratio) * (len(_SHADES) - 1))]


def _style(ratio: float) -> str:
    red, green, blue = _colour(ratio)
    return f"black on rgb({red},{green},{blue})"


def _colour(ratio: float) -> tuple[int, int, int]:
    """Return a colour from pale yellow to dark red."""
    level = _level(ratio)
    return 255 - round(75 * level), round(245 * (1 - level)), round(200 * (1 - level))


def write_plot(file: Path, table: "WorkTable", found: "SlowDiagnosis") -> None:
    rows, ratios, _width = _heat(table, 512, 1024, [suspect.row for suspect in found.suspects])
    labels = [table.workers[row].name() for row in rows]
    if file.suffix == ".png":
        picture = _png(ratios)
    else:
        steps = (table.steps[0], table.steps[-1])
        picture = _svg(ratios, labels, found.explanation, steps).encode()
    try:
        write_output(file, picture, StorageError)
    except StorageError as error:
        fail(str(error))


def _svg(ratios: Any, labels: list[str], title: str, steps: tuple[int, int]) -> str:
    from html import escape

    margin, top, height = 260, 40, 16
    width = max(2.0, min(16.0, 900 / ratios.shape[1]))
    right, bottom = margin + width * ratios.shape[1], top + height * len(labels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 20:.0f}" height="{bottom + 40}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20">{escape(title)}</text>',
    ]
    for row, (label, values) in enumerate(zip(labels, ratios, strict=True)):
        y = top + row * height
        lines.append(
            f'<text x="{margin - 6}" y="{y + 12}" text-anchor="end">{escape(label)}</text>'
        )
        for column, value in enumerate(values):
            red, green, blue = _colour(value)
            lines.append(
                f'<rect x="{margin + column * width:.1f}" y="{y}" width="{width:.1f}"'
                f' height="{height}" fill="rgb({red},{green},{blue})"><title>{value:.2f}</title></rect>'
            )
    lines.append(
        f'<text x="{margin}" y="{bottom + 20}">step {steps[0]} to {steps[1]}; colour: time against'
        f" the peers, 1.0 to {_HOT_RATIO}</text></svg>"
    )
    return "\n".join(lines)


def _png(ratios: Any, cell: int = 12) -> bytes:
    """Return the heat map as a picture without text, a square a cell."""
    lines = []
    for values in ratios:
        line = b"".join(bytes(_colour(value)) * cell for value in values)
        lines.append((b"\0" + line) * cell)
    size = struct.pack(">IIBBBBB", ratios.shape[1] * cell, ratios.shape[0] * cell, 8, 2, 0, 0, 0)

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    body = zlib.compress(b"".join(lines))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
