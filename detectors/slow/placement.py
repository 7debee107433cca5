"""Which shared part explains the slow workers: host, rail, switch, NIC or link."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.parts.fleet_parts import FleetParts, SharedKind
from detectors.parts.shared_blame import SHARE_MIN, PlacedWorker, explain_shared
from detectors.slow.work_table import Matrix, TracedWorker
from rankmend.errors import SourceError

_KINDS: Final = frozenset(SharedKind) - {
    SharedKind.NIC
}  # a rank's only NIC and its host can't be told apart
_WORDS: Final = {SharedKind.NODE: "host", SharedKind.LEAF: "switch"}  # as records call them
RATIO: Final = 1.5  # a delay this far above the rest is hot: transfer times vary by tens of percent


@dataclass(frozen=True, slots=True)
class SharedPart:
    """What the slow workers share and the others don't."""

    kind: str  # host, switch, a SharedKind's value, rank, sender, receiver, link
    name: str
    share: float  # the share of its workers that are slow


def locate(
    workers: Sequence[TracedWorker], slow: Sequence[int], parts: FleetParts
) -> tuple[SharedPart, ...]:
    """Return the parts that explain the slow rows, and the ranks that no part explains.

    Of parts that explain the same rows equally none is named: these rows are ranks, too.
    """
    named = explain_shared(
        [
            PlacedWorker(str(row), worker.host or "", worker.nic)
            for row, worker in enumerate(workers)
        ],
        {str(row) for row in slow},
        parts,
        _KINDS,
    ).named
    rows = {row for item in named for row in map(int, item.bad)}
    found = [
        SharedPart(
            _WORDS.get(item.part.kind, item.part.kind.value),
            item.part.name,
            len(item.bad) / (len(item.bad) + item.sound),
        )
        for item in named
    ]
    found.extend(SharedPart("rank", workers[row].name(), 1.0) for row in slow if row not in rows)
    return tuple(found)


def locate_delay(
    names: Sequence[str], delays: Matrix, usual: float | None = None
) -> tuple[SharedPart, ...]:
    """Return the hot rows (sender), columns (receiver) and cells (link) of a delay matrix.

    ``usual``: the delay of what is sound. Without it that is the median, and a matrix that is mostly hot says nothing.
    """
    matrix = np.asarray(delays, dtype=np.float64)
    middle = float(np.nanmedian(matrix)) if np.isfinite(matrix).any() else np.nan
    middle = middle if usual is None else usual
    if len(names) < 3 or not middle > 0:
        raise SourceError(f"delays between {len(names)} ends: three or more are needed")
    known = np.isfinite(matrix)
    with np.errstate(invalid="ignore"):
        hot = known & (matrix >= RATIO * middle)
    if usual is None and hot.sum() > 0.5 * known.sum():
        return ()
    parts: list[SharedPart] = []
    for kind, axis in (("sender", 1), ("receiver", 0)):
        share = (hot & known).sum(axis=axis) / np.maximum(known.sum(axis=axis), 1)
        for place in np.flatnonzero((share >= SHARE_MIN) & (known.sum(axis=axis) >= 2)).tolist():
            parts.append(SharedPart(kind, names[place], float(share[place])))
            if axis == 1:
                hot[place, :] = False
            else:
                hot[:, place] = False
    for source, target in np.argwhere(hot).tolist():
        parts.append(SharedPart("link", f"{names[source]} -> {names[target]}", 1.0))
    return tuple(parts)
