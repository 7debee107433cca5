"""Baselines as JSON files, which sites ship and merge.

``{"rankmend_baseline": 1, "figures": [{"figure": ..., "model": ..., "samples": [[NODE, UNIX_S, VALUE], ...]}]}``
"""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec

from detectors.preflight.baseline import EMPTY, Baseline, BaselineSample, Key, merge
from detectors.preflight.figures import KINDS
from rankmend.errors import ConfigError, StorageError
from rankmend.files import read_capped, replace_file

VERSION: Final = 1
BYTES_MAX: Final = 64_000_000
FILES_MAX: Final = 2_000  # of a folder; merge them into one before there are more


class _FigureRows(msgspec.Struct, frozen=True):
    figure: str
    model: str
    samples: list[tuple[str, float, float]]


class _BaselineFile(msgspec.Struct, frozen=True):
    rankmend_baseline: int
    figures: list[_FigureRows]


def decode(data: bytes, name: str) -> Baseline:
    """Return a baseline from a file's content; figures that this version does not know are left out."""
    try:
        file = msgspec.json.decode(data, type=_BaselineFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not a baseline: {error}") from error
    if file.rankmend_baseline != VERSION:
        raise ConfigError(
            f"{name} is a baseline of version {file.rankmend_baseline}; this rankmend reads {VERSION}"
        )
    samples: dict[Key, tuple[BaselineSample, ...]] = {}
    for rows in file.figures:
        for node, unix_s, value in rows.samples:
            if not (isfinite(unix_s) and isfinite(value) and value >= 0 and node):
                text = f"{rows.figure} of {node!r:.80} is {value} at {unix_s}"
                raise ConfigError(f"{name} is not a baseline: {text}")
        if rows.figure in KINDS:
            key = (rows.figure, rows.model)
            samples[key] = (*samples.get(key, ()), *(BaselineSample(*row) for row in rows.samples))
    return merge(Baseline(samples))


def encode(baseline: Baseline) -> bytes:
    rows = [
        _FigureRows(
            figure, model, [(sample.node, sample.unix_s, sample.value) for sample in samples]
        )
        for (figure, model), samples in baseline.samples.items()
    ]
    return msgspec.json.encode(_BaselineFile(VERSION, rows))


def load(paths: Sequence[Path]) -> Baseline:
    """Return the baselines of these files, and of all ``*.baseline.json`` in folders, as one."""
    found = EMPTY
    for path in paths:
        files = sorted(path.glob("*.baseline.json")) if path.is_dir() else [path]
        if len(files) > FILES_MAX:
            raise ConfigError(
                f"{path} has {len(files)} baselines, more than {FILES_MAX}: "
                "put them into one with `rankmend preflight merge`"
            )
        parts = [decode(read_capped(file, BYTES_MAX, ConfigError), str(file)) for file in files]
        found = merge(found, *parts)
    return found


def save(path: Path, baseline: Baseline) -> None:
    replace_file(path, encode(baseline), StorageError, mode=0o644)
