"""`rankmend diagnose slow`: name the slow rank in step records or a trace, or say why nobody is.

Exit codes: 0 a verdict was reached (also nobody and unknown), 2 unreadable input.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rankmend.cli.diagnose_layout import Place, layout_options, read_hosts, read_sizes
from rankmend.cli.diagnose_readings import (
    Prometheus,
    parse_time,
    prometheus_options,
    read_files,
)
from rankmend.cli.options import fail, json_option, print_json
from rankmend.errors import ConfigError, RankmendError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from detectors.causes import Explanation, Window
    from detectors.slow_model import SlowDiagnosis, WorkTable

UNREADABLE = 2
FILE_BYTES_MAX = 2_000_000_000
ALL_BYTES_MAX = 8_000_000_000
FILES_MAX = 20_000
ACCUSED_MAX = 32  # that hardware is looked at for
SIZES = ("tp", "cp", "ep", "dp", "pp")
MAP_ROWS_MAX = 32
MAP_COLUMNS_MAX = 72
SUFFIXES = frozenset({".parquet", ".csv", ".json", ".jsonl", ".log", ".gz"})
_SHADES = " .:-=+*#%@"
_HOT_RATIO = 1.5  # where the colour scale ends


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.option("--plot", type=click.Path(path_type=Path), help="Write the heat map: .svg or .png.")
@click.option(
    "--topology",
    type=click.Path(path_type=Path),
    help='Leaf switch of each host: Slurm\'s topology.conf, or lines of "host switch".',
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="[NODE=]FILE",
    help="Say why it is slow by these metrics: a page of the agent, or a saved range query.",
)
@click.option(
    "--onset",
    "onset_s",
    type=parse_time,
    metavar="TIME",
    help="When it began, if the trace has no times.",
)
@prometheus_options
@layout_options
def slow(
    file: Path,
    as_json: bool,
    plot: Path | None,
    topology: Path | None,
    hosts: Path | None,
    **more: Any,
) -> None:
    """Name the slow rank in step records or an operation trace, and say why it is slow.

    FILE is a trace with the columns of StragglerAnalysis (parquet or CSV), a PAI mini-batch
    table, a PyTorch profiler trace or NCCL Inspector log (or a folder of them, one a rank), or
    the neutral form of docs/diagnose-slow.md.

    Exit codes: 0 a verdict was reached, 2 unreadable input.
    """
    try:
        import numpy as np  # noqa: F401 - says at once what is missing
    except ImportError:
        fail("numpy is needed: pip install 'rankmend[traces]'", UNREADABLE)
    from detectors.causes import explanation_page
    from detectors.model import diagnosis_page
    from detectors.placement import parse_topology
    from detectors.slow import diagnose_slow

    if plot is not None and plot.suffix not in (".svg", ".png"):
        fail(f"--plot {plot}: the picture is written as .svg or .png")
    try:
        switch_of = parse_topology(_text(topology)) if topology else {}
        places = read_hosts(hosts) if hosts else {}
        columns = load(file)
        if isinstance(columns, Delays):
            _tell_delays(columns, as_json)
            return
        columns = _place(columns, places, {name: more[name] for name in SIZES})
        found = diagnose_slow(columns, switch_of=switch_of)
        found, explanations = _explain(columns, found, more)
    except RankmendError as error:
        named = "" if str(file) in str(error) else f"{file}: "
        fail(f"{named}{error}", UNREADABLE)
    if plot is not None:
        _write_plot(plot, columns, found)
    if as_json:
        end = {} if found.end is None else {"end": {"step": found.end}}
        why = {}
        if explanations is not None:
            why = {"hardware": [explanation_page(one) for one in explanations]}
        page = diagnosis_page(found.diagnosis())
        print_json({**page, "parts": list(found.parts), **end, **why})
        return
    _print(columns, found, explanations or ())


def _place(
    table: "WorkTable", places: dict[int, Place], sizes: dict[str, int | None]
) -> "WorkTable":
    """Return the table with what the options say of each rank: its host, its stage, its peers.

    What the records themselves say comes first.
    """
    from detectors.groups import Parallelism, layout_groups, places_of

    ranks = [worker.rank for worker in table.workers]
    known = [rank for rank in ranks if rank is not None]
    layout = read_sizes(max(known, default=-1) + 1, sizes)
    if layout is None and not places:
        return table
    if not known:
        raise ConfigError("--hosts and parallel sizes go by rank, and these records name none")
    stands: dict[int, Any] = {}
    replicas: dict[int, str] = {}
    if layout is not None:
        groups = layout_groups(layout)
        stands = places_of(groups, known)
        for group in groups:
            if group.parallelism is Parallelism.DATA:
                replicas |= dict.fromkeys(group.ranks, group.name)
    workers = []
    for worker in table.workers:
        if worker.rank is None:
            workers.append(worker)
            continue
        host, device = places.get(worker.rank, (None, None))
        moved = replace(worker, host=worker.host or host, device=worker.device or device)
        if layout is not None and worker.stage is None and worker.peers[:1] != ("communicator",):
            stand = stands[worker.rank]
            # Without a data parallel group a rank has no peer: each does work of its own.
            peers = ("replicas", replicas.get(worker.rank, str(worker.rank)))
            moved = replace(moved, stage=stand.stage, dp_rank=stand.dp_rank, peers=peers)
        workers.append(moved)
    return replace(table, workers=tuple(workers))


def _explain(
    table: "WorkTable", found: "SlowDiagnosis", options: dict[str, Any]
) -> "tuple[SlowDiagnosis, tuple[Explanation, ...] | None]":
    """Return the verdict with what readings add to it, and why each culprit is slow."""
    from detectors.cause_table import METRICS, Scope, Section
    from detectors.causes import Accused, explain_slow

    if not options["metrics"] and options["url"] is None:
        return found, None
    sections = {
        "slow_compute": Section.COMPUTE,
        "slow_io": Section.IO,
        "slow_communication": Section.COMMUNICATION,
    }
    section = sections.get(found.class_name or "", Section.UNKNOWN)
    accused = [
        Accused(section, one.rank, one.host, one.device or one.nic, options["job_id"])
        for one in found.culprits[:ACCUSED_MAX]
    ]
    window = _window(table, found, options)
    url, token_file = options["url"], options["token_file"]
    asked = Prometheus(url, token_file) if url is not None else None
    readings = read_files(options["metrics"], METRICS)
    if asked is not None:
        if isinf(window.start_s) or isinf(window.end_s):
            raise ConfigError("the records have no unix times: say when with --start and --end")
        nodes = [one.node for one in accused if one.node]
        readings += asked.readings(METRICS, window.start_s, window.end_s, nodes, options["job_id"])
    if not readings:
        raise SourceError("no metric of rankmend's agent is in what was given (docs/metrics.md)")
    explanations = explain_slow(accused, readings, window)
    culprits = list(found.culprits)
    for place, one in enumerate(explanations):
        if one.causes:
            worker, best = culprits[place], one.causes[0]
            device = worker.device
            if best.scope in (Scope.GPU, Scope.NIC):
                device = device or best.device or None
            culprits[place] = replace(worker, host=worker.host or best.node, device=device)
    return replace(found, culprits=tuple(culprits)), explanations


def _window(table: "WorkTable", found: "SlowDiagnosis", options: dict[str, Any]) -> "Window":
    """Return when it was slow: as the options say, else by the times of the records."""
    import numpy as np

    from detectors.causes import Window
    from detectors.slow_model import Reason

    known = np.array([]) if table.starts_s is None else table.starts_s
    known = known[np.isfinite(known)]
    start_s, end_s = (float(known.min()), float(known.max())) if len(known) else (-inf, inf)
    onset_s = options["onset_s"]
    always = any(one.reason is Reason.ALWAYS_SLOWER for one in found.suspects)
    if onset_s is None and found.onset is not None and table.starts_s is not None and not always:
        begun = float(table.starts_s[table.steps.index(found.onset)])
        onset_s = begun if isfinite(begun) else None
        if found.end is not None and options["end"] is None:
            last = float(table.starts_s[table.steps.index(found.end)])
            end_s = last if isfinite(last) else end_s
    given = (options["start"], options["end"])
    start_s, end_s = (b if a is None else a for a, b in zip(given, (start_s, end_s), strict=True))
    # Prometheus counts in milliseconds: its newest sample is not to fall behind the end.
    return Window(round(start_s, 3), round(end_s, 3), onset_s)


class Delays:
    """Median delays between pairs: from each row to each column."""

    def __init__(self, names: Sequence[str], matrix: "NDArray[Any]") -> None:
        self.names = tuple(names)
        self.matrix = matrix


def load(file: Path) -> "WorkTable | Delays":
    """Return what a file or a folder holds, whichever known form it has."""
    from detectors.formats import kineto, nccl_inspector

    files = _files(file)
    traces: list[Any] = []
    records: list[Any] = []
    for one in files:
        data = _bytes(one)
        if data[:4] == b"PAR1":
            return _from_columns(_parquet(data), files, one)
        text = _decode(data, one)
        if not text.lstrip("\ufeff \r\n\t").startswith(("{", "[")):
            from detectors.formats.neutral import read_csv

            return _from_columns(read_csv(text.lstrip("\ufeff")), files, one)
        document = _json(text)
        if kineto.is_trace(document):
            traces.append(document)
            continue
        rows = document if isinstance(document, list) else _rows(text, one)
        if not all(isinstance(row, dict) for row in rows):
            raise SourceError(f"{one}: neither a trace nor records")
        if rows and nccl_inspector.is_record(rows[0]):
            records.extend(rows)
            continue
        from detectors.formats.neutral import read_lines

        return _from_columns(read_lines(text), files, one)
    if traces and records:
        raise SourceError(f"{len(traces)} profiler traces and {len(records)} records of NCCL mixed")
    return kineto.read(traces) if traces else nccl_inspector.read(records)


def _files(file: Path) -> list[Path]:
    try:
        if not file.is_dir():
            return [file]
        files = sorted(one for one in file.iterdir() if one.suffix in SUFFIXES and one.is_file())
    except OSError as error:
        raise SourceError(f"cannot read: {error.strerror or error}") from error
    tables = [one for one in files if one.suffix in (".parquet", ".csv")]
    if len(tables) == 1:
        return tables
    if len(tables) > 1:
        raise SourceError(f"several tables, name one: {', '.join(one.name for one in tables[:8])}")
    if not files or len(files) > FILES_MAX:
        raise SourceError(f"{len(files)} files of a known suffix: 1 to {FILES_MAX} are read")
    if sum(one.stat().st_size for one in files) > ALL_BYTES_MAX:
        raise SourceError(f"more than {ALL_BYTES_MAX} bytes")
    return files


def _bytes(file: Path) -> bytes:
    """Return a file's bytes, decompressed, within the bound."""
    try:
        if not file.is_file():
            raise SourceError(f"no such file: {file}")
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(file) as packed:
                data = packed.read(FILE_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"cannot read {file}: {error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise SourceError(f"{file}: more than {FILE_BYTES_MAX} bytes")
    if not data:
        raise SourceError(f"{file}: the file is empty")
    return data


def _text(file: Path) -> str:
    return _decode(_bytes(file), file)


def _decode(data: bytes, file: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{file}: neither parquet nor text: {error}") from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _rows(text: str, file: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(text.splitlines()):
        if line.strip():
            row = _json(line)
            if row is None:
                raise SourceError(f"{file}, line {number + 1}: not JSON: {line[:80]!r}")
            rows.append(row)
    return rows


def _parquet(data: bytes) -> dict[str, Any]:
    from detectors.formats.straggler_analysis import read_parquet

    return read_parquet(data)


def _from_columns(columns: dict[str, Any], files: list[Path], file: Path) -> "WorkTable | Delays":
    """Return the table that columns hold, by their names."""
    from detectors.formats import neutral, pai, straggler_analysis

    if len(files) > 1:
        raise SourceError(f"{len(files)} files, and {file.name} holds all ranks: name one")
    if "batch_time_norm" in columns:
        return pai.read(columns)
    if "optype" in columns or "duration" in columns:
        return straggler_analysis.read(columns)
    if "src" in columns and "dst" in columns:
        return Delays(*neutral.read_delays(columns))
    return neutral.read(columns)


def _tell_delays(delays: Delays, as_json: bool) -> None:
    from detectors.finding import Evidence
    from detectors.model import Culprit, Diagnosis, Verdict, diagnosis_page
    from detectors.placement import locate_delay

    parts = locate_delay(delays.names, delays.matrix)
    lines = tuple(
        Evidence("delay matrix", f"{part.kind} {part.name}: {part.share:.0%} of its cells are hot")
        for part in parts
    )
    names = ", ".join(f"{part.kind} {part.name}" for part in parts)
    ends = [part for part in parts if part.kind in ("sender", "receiver")]
    culprits = tuple(
        Culprit(
            rank=int(part.name) if part.name.isdecimal() else None,
            host=None if part.name.isdecimal() or part.kind == "link" else part.name,
            device=f"link {part.name}" if part.kind == "link" else f"NIC ({part.kind})",
        )
        for part in parts
    )
    diagnosis = Diagnosis(
        verdict=Verdict.CULPRITS if parts else Verdict.NOBODY,
        culprits=culprits,
        cause="slow_communication" if parts else "balanced",
        reason=f"Slow: {names}."
        if parts
        else "No sender, receiver or link is slower than the rest.",
        onset=None,
        confidence=0.0 if not parts and not delays.names else (0.8 if ends or not parts else 0.7),
        evidence=lines,
    )
    if as_json:
        print_json({**diagnosis_page(diagnosis), "parts": [f"{p.kind} {p.name}" for p in parts]})
        return
    click.echo(diagnosis.reason)
    for line in lines:
        click.echo(f"  {line.text}")


def _heat(table: "WorkTable", rows_max: int, columns_max: int, first: Sequence[int]) -> Any:
    """Return rows and the ratios to show: suspects first, steps in blocks of equal size."""
    import numpy as np

    from detectors.peers import group_rows, log_ratios
    from detectors.slow import total_work

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


def _print(
    table: "WorkTable", found: "SlowDiagnosis", explanations: "Sequence[Explanation]"
) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    style = "bold red" if found.culprits else "bold"
    console.print(Text(found.explanation, style=style), soft_wrap=True)
    for line in found.evidence:
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    console.print(Text(f"  confidence {found.confidence:.2f}", style="dim"))
    for explanation in explanations:
        console.print(Text(explanation.reason, style="bold"), soft_wrap=True)
        for cause in explanation.causes:
            told = f"  {cause.cause} ({cause.confidence:.2f}), action {cause.action.value}"
            console.print(Text(told), soft_wrap=True)
            for shown in cause.evidence:
                console.print(
                    Text(f"    {shown.source}: {shown.text}", style="dim"), soft_wrap=True
                )
        if explanation.missing:
            told = f"  not measured: {', '.join(explanation.missing)}"
            console.print(Text(told, style="dim"), soft_wrap=True)
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


def _write_plot(file: Path, table: "WorkTable", found: "SlowDiagnosis") -> None:
    rows, ratios, _width = _heat(table, 512, 1024, [suspect.row for suspect in found.suspects])
    labels = [table.workers[row].name() for row in rows]
    try:
        if file.suffix == ".png":
            file.write_bytes(_png(ratios))
        else:
            steps = (table.steps[0], table.steps[-1])
            file.write_text(_svg(ratios, labels, found.explanation, steps), encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror or error}")


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
