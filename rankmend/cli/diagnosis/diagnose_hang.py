"""`rankmend diagnose hang`: read a folder of flight-recorder dumps and name the rank that the others wait for."""

import re
import stat
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli import output
from rankmend.cli.diagnosis.diagnose_layout import Place, layout_options, read_hosts, read_sizes
from rankmend.cli.options import examples, fail, json_option, print_json
from rankmend.errors import ConfigError, RankmendError, SourceError
from rankmend.files import read_capped

if TYPE_CHECKING:
    from detectors.diagnosis import Diagnosis
    from detectors.finding import Evidence
    from detectors.hang.flight_dump import FlightDump
    from detectors.hang.standings import JobStandings
    from detectors.parallel_groups import Sizes

UNREADABLE: Final = 2
FILES_MAX: Final = 200_000  # in the folder and the folders in it
_SUFFIX: Final = re.compile(r"\.(pkl|pickle|json|bin|dump|trace)$", re.IGNORECASE)
_LAST_NUMBER: Final = re.compile(r"(\d{1,7})\D*$")
_NAMED_RANK: Final = re.compile(r"rank[-_ ]?(\d{1,7})(?!.*rank[-_ ]?\d)", re.IGNORECASE)
_NO_HOST: Final = re.compile(r"(pid|attempt|try|run|job)?[-.]?\d[\dT:.+-]*Z?", re.IGNORECASE)
_CELLS_A_ROW: Final = 32
_ROWS_MAX: Final = 64
_PLOT_CELLS_A_ROW: Final = 128
_STYLES: Final = {"culprits": "bold red", "nobody": "green", "unknown": "yellow"}


@dataclass(frozen=True)
class Dumps:
    """The dumps of one attempt. ``unread`` maps each rank whose file can't be used to the reason."""

    dumps: "dict[int, FlightDump]"
    unread: dict[int, str]
    notes: tuple[str, ...]  # dumps that were left out, and why
    hosts: dict[int, str] = field(default_factory=dict)  # if folders or file names tell


@click.command(epilog=examples("rankmend diagnose hang /tmp/nccl-dumps"))
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a picture (needs matplotlib).",
)
@click.option(
    "--ras",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Output of ncclras about the job (text or JSON), as further evidence.",
)
@layout_options
def hang(
    folder: Path,
    as_json: bool,
    plot: Path | None,
    ras: Path | None,
    hosts: Path | None,
    **sizes: int | None,
) -> None:
    """Find the rank that a hung job waits for.

    FOLDER contains one flight-recorder dump per rank (pickle or JSON, NCCL or gloo), also in one
    subfolder per host. The number after "rank" in a file's name, or else the last number, is the
    rank. Dumps give the parallel groups; sizes fill in stage and replica. Nothing is unpickled.

    Exit codes: 0 a verdict was reached (culprits, nobody or unknown), 2 unreadable input.
    """
    from detectors.diagnosis import diagnosis_page
    from detectors.hang.from_dumps import diagnose_hang
    from detectors.hang.standings import view_job

    try:
        pyplot = _load_pyplot() if plot else None
        places = read_hosts(hosts) if hosts else {}
        read = read_dumps(folder)
        layout = read_sizes(1 + max([*read.dumps, *read.unread]), sizes)
        named = {rank: (host, None) for rank, host in read.hosts.items()} | places
        job = view_job(read.dumps, frozenset(read.unread))
        job = replace(job, warnings=(*read.notes, *job.warnings))
        diagnosis = _place(diagnose_hang(job), named, layout)
        if ras is not None:
            diagnosis = replace(diagnosis, evidence=(*diagnosis.evidence, *_read_ras(ras)))
        if plot is not None:
            _write_plot(plot, pyplot, job, diagnosis)
    except RankmendError as error:
        fail(str(error), UNREADABLE)
    if as_json:
        print_json(diagnosis_page(diagnosis))
    else:
        _print_person(folder, job, read, diagnosis)


def _read_ras(path: Path) -> "tuple[Evidence, ...]":
    """Return what an answer of NCCL's RAS says."""
    from detectors.formats.nccl_ras import BYTES_MAX, ras_evidence, read_ras

    data = read_capped(path, BYTES_MAX, SourceError, name=f"the answer of NCCL's RAS {path}")
    return ras_evidence(read_ras(data))


def _place(
    diagnosis: "Diagnosis", places: Mapping[int, Place], layout: "Sizes | None"
) -> "Diagnosis":
    """Return the verdict with each culprit's place; what the dumps say comes first."""
    from detectors.parallel_groups import layout_groups, places_of

    ranks = [culprit.rank for culprit in diagnosis.culprits if culprit.rank is not None]
    stands = places_of(layout_groups(layout), ranks) if layout else {}
    culprits = []
    for culprit in diagnosis.culprits:
        moved = culprit
        if culprit.rank is not None and culprit.rank in places:
            host, device = places[culprit.rank]
            moved = replace(moved, host=host, device=device)
        if (
            culprit.rank is not None
            and culprit.rank in stands
            and culprit.stage is None
            and culprit.dp_rank is None
        ):
            stand = stands[culprit.rank]
            moved = replace(moved, stage=stand.stage, dp_rank=stand.dp_rank)
        culprits.append(moved)
    return replace(diagnosis, culprits=tuple(culprits))


def rank_of_name(name: str) -> tuple[int, str] | None:
    """Return the rank in a file's name and the name without it, or None if it has no number."""
    stem = _SUFFIX.sub("", name)
    match = _NAMED_RANK.search(stem) or _LAST_NUMBER.search(stem)
    if match is None:
        return None
    return int(match[1]), f"{stem[: match.start(1)]}*{stem[match.end(1) :]}"


def read_dumps(folder: Path) -> Dumps:
    """Return the dumps of the newest attempt in a folder, or raise SourceError.

    Files whose names differ only in the rank form a series. Series that share no rank and end together
    come from several hosts; other series are separate attempts, and the one with the newest operation wins.
    """
    series = _find_series(folder)
    found = [(name, _read_series(files)) for name, files in sorted(series.items())]
    usable = [(name, read) for name, read in found if read.dumps]
    if not usable:
        reasons = [reason for _name, read in found for reason in read.unread.values()]
        reported = f": {reasons[0]}" if reasons else ""
        raise SourceError(f"no readable flight-recorder dump in {folder}{reported}")
    times_s = [
        max((d.newest_s or 0.0 for d in read.dumps.values()), default=0) for _n, read in usable
    ]
    newest = max(
        range(len(usable)), key=lambda number: (times_s[number], len(usable[number][1].dumps))
    )
    name, _taken = usable[newest]
    usable = [usable[newest], *usable[:newest], *usable[newest + 1 :]]
    taken, names = _join_hosts(usable)
    others = [other for other, _read in usable if other not in names]
    notes = [f"rank {rank}: {reason}" for rank, reason in sorted(taken.unread.items())][:16]
    if others:
        notes.insert(0, f"read {name}; left out, from other attempts: {', '.join(others[:8])}")
    return Dumps(taken.dumps, taken.unread, tuple(notes), taken.hosts)


def _join_hosts(series: list[tuple[str, Dumps]]) -> tuple[Dumps, list[str]]:
    """Return the dumps of one attempt from all its hosts, the newest series first.

    Each host may have its own folder, or its own name in the file names. If files are numbered by
    local rank, the groups in the dumps must tell the global rank.
    """
    from detectors.hang.standings import ATTEMPT_GAP_S

    newest_s = _newest_s(series[0][1])
    near = [
        (name, read)
        for name, read in series
        if newest_s is None
        or (time_s := _newest_s(read)) is None
        or abs(newest_s - time_s) <= ATTEMPT_GAP_S
    ]
    joined = [near[0]]
    ranks = {*near[0][1].dumps, *near[0][1].unread}
    for name, read in near[1:]:
        if ranks.isdisjoint({*read.dumps, *read.unread}):
            joined.append((name, read))
            ranks |= {*read.dumps, *read.unread}
    if len(joined) < len(near) and (renamed := _by_groups(near)) is not None:
        joined = renamed
    hosts = _host_names([name for name, _read in joined])
    return (
        Dumps(
            {rank: dump for _name, read in joined for rank, dump in read.dumps.items()},
            {rank: why for _name, read in joined for rank, why in read.unread.items()},
            (),
            {
                rank: hosts[name]
                for name, read in joined
                if name in hosts
                for rank in (*read.dumps, *read.unread)
            },
        ),
        [name for name, _read in joined],
    )


def _newest_s(read: Dumps) -> float | None:
    return max((dump.newest_s for dump in read.dumps.values() if dump.newest_s), default=None)


def _by_groups(series: list[tuple[str, Dumps]]) -> list[tuple[str, Dumps]] | None:
    """Return the series with the global ranks from the dumps' groups; None if the series are attempts.

    Raises SourceError if the numbers can only be local ranks and no group tells the global ones.
    """
    sizes = [
        len({*(rank for group in dump.groups for rank in group.ranks)})
        for _name, read in series
        for dump in read.dumps.values()
    ]
    renamed = []
    seen: set[int] = set()
    for name, read in series:
        moved = {}
        for dump in read.dumps.values():
            members = [set(group.ranks) for group in dump.groups if group.ranks]
            own = set.intersection(*members) if members else set()
            if len(own) == 1 and own.isdisjoint(seen):
                seen |= own
                moved[own.pop()] = dump
        if len(moved) == len(read.dumps):
            renamed.append((name, replace(read, dumps=moved, unread={})))
    if len(renamed) == len(series):
        return renamed
    count = sum(len(read.dumps) + len(read.unread) for _name, read in series)
    if count == max(sizes, default=0):
        names = ", ".join(name for name, _read in series[:8])
        raise SourceError(
            f"{names} repeat the same ranks, and together have one file per rank of the job: they seem "
            "to be numbered by local rank; name the files by global rank"
        )
    return None


def _host_names(names: list[str]) -> dict[str, str]:
    """Return the host of each series: the only part of the names that differs between all of them."""
    parts = {name: re.split(r"[/_]", name) for name in names}
    if len(names) < 2 or len({len(words) for words in parts.values()}) != 1:
        return {}
    differing = [
        place
        for place, words in enumerate(zip(*parts.values(), strict=True))
        if len(set(words)) > 1
    ]
    if len(differing) != 1:
        return {}
    (place,) = differing
    if len({words[place] for words in parts.values()}) != len(names):
        return {}
    named = {name: words[place] for name, words in parts.items()}
    return {} if any(_NO_HOST.fullmatch(word) for word in named.values()) else named


def _find_series(folder: Path) -> dict[str, dict[int, Path]]:
    try:
        if not folder.is_dir():
            raise SourceError(f"{folder} is not a folder")
        files = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern))
    except OSError as error:
        raise SourceError(f"cannot read {folder}: {error.strerror}") from error
    if len(files) > FILES_MAX:
        raise SourceError(f"{folder} has {len(files)} files; at most {FILES_MAX} are read")
    series: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in files:
        named = rank_of_name(path.name)
        if named is None or not _may_be_dump(path):
            continue
        rank, rest = named
        series[str(path.parent.relative_to(folder) / rest)].setdefault(rank, path)
    return series


def _may_be_dump(path: Path) -> bool:
    """Return whether a file is empty or begins like a pickle or JSON; never waits for a pipe."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return file.read(1) in {b"", b"\x80", b"{"}
    except OSError:
        return True  # the real read reports why it can't be read


def _read_series(files: dict[int, Path]) -> Dumps:
    from detectors.formats.plain_pickle import BYTES_MAX
    from detectors.formats.traces.flight_recorder import parse_dump
    from detectors.hang.standings import RING_MAX, trim_dump

    dumps, unread = {}, {}
    for rank, path in sorted(files.items()):
        try:
            with path.open("rb") as file:
                data = file.read(BYTES_MAX + 1)
            dumps[rank] = trim_dump(parse_dump(data), RING_MAX)
        except OSError as error:
            unread[rank] = f"{path.name}: {error.strerror}"
        except SourceError as error:
            unread[rank] = f"{path.name}: {error}"
    return Dumps(dumps, unread, ())


def _print_person(folder: Path, job: "JobStandings", read: Dumps, diagnosis: "Diagnosis") -> None:
    from rich.text import Text

    from detectors.wording import counted

    console = output.console()
    verdict = diagnosis.verdict.value
    title = f"{verdict}: {diagnosis.cause}" if diagnosis.cause else verdict
    console.print(Text(title, style=_STYLES[verdict]), soft_wrap=True)
    console.print(Text(diagnosis.reason), soft_wrap=True)
    for culprit in diagnosis.culprits:
        place = "".join(
            f", {name} {value}"
            for name, value in (
                ("host", culprit.host),
                ("device", culprit.device),
                ("stage", culprit.stage),
                ("data-parallel rank", culprit.dp_rank),
            )
            if value is not None
        )
        console.print(Text(f"  rank {culprit.rank}: {culprit.cause}{place}"), soft_wrap=True)
    for line in diagnosis.evidence:
        console.print(Text(f"  {line.source}: {line.text}", style="dim"), soft_wrap=True)
    for line_text in _heat_map(job, diagnosis):
        console.print(Text(line_text), soft_wrap=True)
    what = f"{folder}: {counted(len(read.dumps), 'dump')}, {counted(len(job.groups), 'group')}"
    console.print(Text(f"{what}, confidence {diagnosis.confidence:.2f}"), soft_wrap=True)


def lag_of_ranks(job: "JobStandings") -> dict[int, int]:
    """Return how many collectives each rank is behind the furthest member of one of its groups."""
    furthest: dict[str, int] = defaultdict(int)
    for view in job.views:
        for standing in view.standings:
            furthest[standing.group] = max(furthest[standing.group], standing.completed)
    return {
        view.rank: max((furthest[s.group] - s.completed for s in view.standings), default=0)
        for view in job.views
    }


def _heat_map(job: "JobStandings", diagnosis: "Diagnosis") -> list[str]:
    lags = lag_of_ranks(job)
    culprits = {culprit.rank for culprit in diagnosis.culprits}
    waiting = {view.rank for view in job.views if any(s.is_waiting for s in view.standings)}
    ranks = sorted({*lags, *job.unread, *(rank for group in job.groups for rank in group.ranks)})
    rows = ["", "ranks: X culprit, ! behind its peers, w waiting, . nothing outstanding, ? no dump"]
    for start in range(0, len(ranks), _CELLS_A_ROW):
        if len(rows) - 2 == _ROWS_MAX:
            rows.append(f"  ... and {len(ranks) - start} more ranks")
            break
        cells = "".join(
            _cell(rank, lags, culprits, waiting) for rank in ranks[start : start + _CELLS_A_ROW]
        )
        rows.append(f"  {ranks[start]:>6} {cells}")
    return [*rows, ""]


def _cell(rank: int, lags: dict[int, int], culprits: set[int | None], waiting: set[int]) -> str:
    if rank in culprits:
        return "X"
    if rank not in lags:
        return "?"
    if lags[rank]:
        return "!"
    return "w" if rank in waiting else "."


def _load_pyplot() -> Any:
    from rankmend.packages import Extra, require

    require(Extra.PLOT, "--plot")
    import_module("matplotlib").use("Agg")
    return import_module("matplotlib.pyplot")


def _write_plot(path: Path, pyplot: Any, job: "JobStandings", diagnosis: "Diagnosis") -> None:
    lags = lag_of_ranks(job)
    size = max(lags, default=0) + 1
    width = min(size, _PLOT_CELLS_A_ROW)
    grid = [[0.0] * width for _row in range(-(-size // width))]
    for rank, lag in lags.items():
        grid[rank // width][rank % width] = lag
    figure, axes = pyplot.subplots(figsize=(10, 2 + len(grid) * 0.2), layout="constrained")
    image = axes.imshow(grid, cmap="YlOrRd", aspect="auto", interpolation="nearest")
    figure.colorbar(image, label="collectives behind the furthest peer")
    for culprit in diagnosis.culprits:
        if culprit.rank is not None:
            axes.text(culprit.rank % width, culprit.rank // width, "X", ha="center", va="center")
    axes.set_xlabel(f"rank modulo {width}")
    axes.set_ylabel(f"rank // {width}")
    axes.set_title(f"{diagnosis.verdict.value} {diagnosis.cause}")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
