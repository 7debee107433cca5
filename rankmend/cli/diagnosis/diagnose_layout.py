"""The layout of ranks for `rankmend diagnose`: hosts from a file, parallel groups from sizes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rankmend.errors import ConfigError, SourceError
from rankmend.files import read_capped

if TYPE_CHECKING:
    from detectors.parallel_groups import Sizes

FILE_BYTES_MAX: Final = 16_000_000
RANKS_MAX: Final = 1_000_000
_SLOTS: Final = re.compile(r"(?:slots=|:)(\d{1,6})$")
_F = TypeVar("_F", bound=Callable[..., Any])
Place = tuple[str, str | None]  # host and device


def layout_options(command: _F) -> _F:
    """Add the options that place the ranks."""
    help_of = {
        "tp": "tensor parallel size.",
        "cp": "context parallel size.",
        "ep": "expert parallel size.",
        "dp": "data parallel size. [default: ranks divided by the other sizes]",
        "pp": "pipeline parallel size.",
    }
    for name, text in reversed(help_of.items()):
        option = click.option(f"--{name}", type=click.IntRange(1), help=f"Megatron's {text}")
        command = option(command)
    return click.option(
        "--hosts",
        type=click.Path(path_type=Path),
        help='Host of each rank: lines of "rank host [device]", or "host slots=8" in rank order.',
    )(command)


def read_hosts(path: Path) -> dict[int, Place]:
    """Return the host and device of each rank in the file, or raise SourceError."""
    from detectors.formats.site.host_list import expand_hosts

    try:
        lines = read_capped(path, FILE_BYTES_MAX, SourceError).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    places: dict[int, Place] = {}
    is_numbered: bool | None = None
    for number, line in enumerate(lines):
        words = (
            line.partition("#")[0].replace(",", " ").split() if "[" not in line else line.split()
        )
        if not words:
            continue
        has_number = words[0].isascii() and words[0].isdecimal() and len(words) in (2, 3)
        match = _SLOTS.search(line.strip())
        if is_numbered not in (None, has_number) or not (has_number or match):
            reported = 'neither "rank host [device]" nor "host slots=8"'
            raise SourceError(f"{path}, line {number + 1}: {reported}: {line[:80]!r}")
        is_numbered = has_number
        if has_number:
            rank = int(words[0])
            if rank in places or rank >= RANKS_MAX:
                raise SourceError(
                    f"{path}, line {number + 1}: rank {rank} occurs twice or is too high"
                )
            places[rank] = (words[1], words[2] if len(words) == 3 else None)
            continue
        assert match is not None
        for host in expand_hosts(words[0].removesuffix(match[0])):
            if len(places) + int(match[1]) > RANKS_MAX:
                raise SourceError(f"{path}: more than {RANKS_MAX} ranks")
            for _slot in range(int(match[1])):
                places[len(places)] = (host, None)
    if not places:
        raise SourceError(f"{path} names no host")
    return places


def read_sizes(ranks: int, sizes: dict[str, int | None]) -> "Sizes | None":
    """Return the layout that the options give, or None if they give none."""
    from detectors.parallel_groups import Sizes

    if all(value is None for value in sizes.values()):
        return None
    tensor, context, pipeline = (sizes[name] or 1 for name in ("tp", "cp", "pp"))
    data = sizes["dp"] or max(1, ranks // (tensor * context * pipeline))
    layout = Sizes(tensor, context, data, pipeline, sizes["ep"] or 1)
    if ranks > layout.ranks or (sizes["dp"] is None and ranks != layout.ranks):
        raise ConfigError(
            f"sizes tp {tensor} x cp {context} x dp {data} x pp {pipeline} are {layout.ranks} ranks, the job has {ranks}"
        )
    return layout
